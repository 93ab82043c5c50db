"""Loads the state of an optimizer by the names of its parameters, whatever the saved parameter groups were."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from timesched.types import ParamGroup, StateDict

from .average import WeightAverage
from .base.hyperparameters import all_parameters
from .groups.parameters import remove_wrappers
from .initial_state import preinitialize, require_known_class
from .state.optimizer import Optimizer
from .state.tensor_kinds import describe_tensor


class LoadedByName(NamedTuple):
    """The names of which a load by name found only one side."""

    missing: list[str]  # parameters that the state dict does not name, which have initial state now
    unexpected: list[str]  # names in the state dict that the optimizer does not have


def load_by_name(
    optimizer: torch.optim.Optimizer,
    state_dict: StateDict,
    *,
    names: Iterable[str] | None = None,
    missing: str = "error",
) -> LoadedByName:
    """Load the state of each parameter by its name, whatever the saved groups were.

    The groups of the optimizer keep their hyperparameters. The names are the `param_names` of the groups, which torch
    2.6 and newer note for named parameters, or the names that `torch.distributed.checkpoint` writes in place of
    numbers. The parts of names that wrappers add do not count. A leading `module.` does not count either, if all names
    of one side have it. The states are copied. A named parameter without saved state gets its initial state.

    Args:
        optimizer: an optimizer of `optim` or of torch, made from named parameters.
        state_dict: the state dict of an optimizer of the same class.
        names: the names of the parameters of a state dict without names, in its order.
        missing: "error", or "initial" to give initial state to the parameters that the state dict does not name.

    Returns:
        the names of the parameters that the state dict does not name, and its names that the optimizer does not have.

    Raises:
        TypeError: the optimizer is a `WeightAverage`, whose groups hold counts.
        ValueError: names are missing on one side, a name occurs twice, or a state does not fit its parameter.
            Nothing has changed.

    >>> import torch
    >>> import optim
    >>> model = torch.nn.Linear(2, 1)
    >>> saved = optim.AdamW(model.named_parameters())
    >>> saved.state[model.bias]["step"].fill_(7)
    tensor(7.)
    >>> groups = [{"params": [pair]} for pair in model.named_parameters()]
    >>> split = optim.AdamW(groups, lr=0.01)
    >>> optim.load_by_name(split, saved.state_dict())
    LoadedByName(missing=[], unexpected=[])
    >>> split.state[model.bias]["step"].item()
    7.0
    """
    if isinstance(optimizer, WeightAverage):
        raise TypeError("load_by_name.optimizer: a WeightAverage counts in its groups. Use its load_state_dict().")
    if missing not in ("error", "initial"):
        raise ValueError(f"load_by_name.missing={missing!r}: it is unknown. Pass 'error' or 'initial'.")
    for key in ("state", "param_groups"):
        if key not in state_dict:
            raise ValueError(f"load_by_name.state_dict: it has no {key!r}. Pass the result of state_dict().")
    groups = optimizer.state_dict()["param_groups"]
    names_here = _read_names(groups, "load_by_name.optimizer", "Make it from named_parameters(), in torch 2.6 or newer")
    saved_groups = state_dict["param_groups"]
    if names is None:
        saved_names = _read_names(saved_groups, "load_by_name.state_dict", "Pass its names as names=")
    else:
        saved_names = _clean_names(_check_names(saved_groups, list(names)), "load_by_name.names")
    number_by_name = dict(zip(saved_names, all_parameters(saved_groups)))
    missing_names = [name for name in names_here if name not in number_by_name]
    if missing_names and missing == "error":
        raise ValueError(
            f"load_by_name.state_dict: it does not name {', '.join(map(repr, missing_names))}. Pass missing='initial' "
            "to give these parameters initial state."
        )

    states: dict[int | str, Any] = {}
    for number, name, p in zip(all_parameters(groups), names_here, all_parameters(optimizer.param_groups)):
        state = state_dict["state"].get(number_by_name.get(name))
        if state:
            states[number] = state
            if not isinstance(optimizer, Optimizer):  # the optimizers of `optim` check more themselves, and copy
                _check_shapes(state, p, name)
                states[number] = copy.deepcopy(state)
    # torch's Adagrad makes its state in the constructor, so parameters without saved state need initial state.
    lacks_state = isinstance(optimizer, torch.optim.Adagrad) and len(states) < len(names_here)
    if lacks_state:
        require_known_class(type(optimizer), "load_by_name")  # before anything changes
    optimizer.load_state_dict({"state": states, "param_groups": groups})
    if lacks_state:
        preinitialize(optimizer)
    known = set(names_here)
    return LoadedByName(missing_names, [name for name in saved_names if name not in known])


def _find_names(groups: Sequence[ParamGroup]) -> list[str] | None:
    """The names of the parameters in the groups of a state dict, or None if one group does not have them."""
    names: list[str] = []
    for group in groups:
        numbers = group["params"]
        if not all(isinstance(number, str) for number in numbers):
            numbers = group.get("param_names") or ()
        if len(numbers) != len(group["params"]):
            return None
        names += numbers
    return names


def _read_names(groups: Sequence[ParamGroup], where: str, advice: str) -> list[str]:
    """The names of the parameters, cleaned. Raises `ValueError` if there are none, or one occurs twice."""
    names = _find_names(groups)
    if names is None:
        raise ValueError(f"{where}: its parameters have no names. {advice}.")
    return _clean_names(names, where)


def _check_names(saved_groups: Sequence[ParamGroup], names: list[str]) -> list[str]:
    """Return the argument `names`. Raises `ValueError` if the state dict has names or another length."""
    if not all(isinstance(name, str) for name in names):
        raise ValueError("load_by_name.names: it has values that are not strings. Pass the names alone.")
    if _find_names(saved_groups) is not None:
        raise ValueError("load_by_name.names: the state dict has names itself. Leave out `names`.")
    count = len(all_parameters(saved_groups))
    if len(names) != count:
        raise ValueError(
            f"load_by_name.names: it has {len(names)} names, and the state dict has {count} parameters. Pass a name "
            "for each of them, in their order."
        )
    return names


def _clean_names(names: list[str], where: str) -> list[str]:
    """The names without the parts that wrappers add. Raises `ValueError` if a name occurs twice."""
    clean = list(map(remove_wrappers, names))
    while clean and all(name.startswith("module.") for name in clean):  # again, if a part of the model has this name
        clean = [name.removeprefix("module.") for name in clean]
    twice = [name for name, count in Counter(clean).items() if count > 1]
    if twice:
        raise ValueError(f"{where}: it has the name {twice[0]!r} twice. Give each parameter a name of its own.")
    return clean


def _check_shapes(state: Mapping[str, object], p: Tensor, name: str) -> None:
    """Raise `ValueError` if a state with as many dimensions as its parameter has other sizes, except 1.

    Also if only one of the two is a DTensor.
    """
    for key, value in state.items():
        if not isinstance(value, Tensor) or value.dim() != p.dim():
            continue
        if p.dim() and hasattr(value, "placements") != hasattr(p, "placements"):
            raise ValueError(
                f"load_by_name.state_dict: {key} of {name!r} is {describe_tensor(value)}, and the parameter is "
                f"{describe_tensor(p)}. Shard both or neither: nothing is resharded here."
            )
        if any(size not in (1, expected) for size, expected in zip(value.shape, p.shape)):
            raise ValueError(
                f"load_by_name.state_dict: {key} of {name!r} has the shape {tuple(value.shape)}, and the parameter "
                f"{tuple(p.shape)}. Load it into a model of the saved shapes."
            )
