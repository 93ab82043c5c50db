"""Steps of an optimizer of any class on copies of one of its parameters. The optimizer itself does not change."""

from __future__ import annotations

import copy
import gc
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from types import FunctionType, ModuleType
from typing import Any
from weakref import ReferenceType

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.utils._pytree import tree_leaves

from timesched.types import ParamGroup

from ..base.sharding import note_dtensor
from .compare import differences
from .global_state import set_seeds

Values = dict[str, dict[str, Any]]  # of a parameter: its "state", and the other keys of its "group"


class Unproven(Exception):
    """The state of an optimizer cannot be made before its first step. The message says why."""


class Trial:
    """A copy of an optimizer whose only parameters are copies of one parameter, with given weights.

    The copies have the name of the parameter, and are in a copy of its group. The other groups are copied without
    parameters, since the behaviour of a class may depend on the index of a group.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, i: int, p: Tensor, weights: Sequence[Tensor]) -> None:
        self.optimizer: Any = type(optimizer).__new__(type(optimizer))
        copy_for_trial = partial(copy_values, optimizer, self.optimizer)
        vars(self.optimizer).update(copy_for_trial(attributes(optimizer)))
        vars(self.optimizer).update({name: OrderedDict() for name in vars(optimizer) if is_hook_attribute(name)})
        self.params = [make_parameter(p, own_weights) for own_weights in weights]
        groups = [copy_for_trial(empty_group(group)) for group in optimizer.param_groups]
        groups[i]["params"] += self.params
        if "param_names" in groups[i]:
            original = optimizer.param_groups[i]
            name = next(name for q, name in zip(original["params"], original["param_names"]) if q is p)
            groups[i]["param_names"] += [name] * len(weights)
        self.group, self.optimizer.param_groups = groups[i], groups
        self.optimizer.state = copy.copy(optimizer.state)  # a defaultdict
        self.optimizer.state.clear()
        if p in optimizer.state:
            for q in self.params:
                self.optimizer.state[q] = copy_for_trial(optimizer.state[p])

    def values(self) -> list[Values]:
        """The present values of each parameter."""
        state, group = self.optimizer.state, group_settings(self.group)
        return [{"state": state.get(q, {}), "group": group} for q in self.params]

    def set_initial_values(self, initial: Sequence[Values]) -> None:
        """Set the values of each parameter before its first step."""
        for q, values in zip(self.params, copy.deepcopy(initial)):
            write_values(self.optimizer, self.group, q, values)

    def step(self, gradients: Sequence[Tensor | None], seed: int) -> None:
        """Make a step that changes only states and groups.

        Raises Unproven if the class raises an error, or changes attributes, or adds state of something else.
        """
        before = copy_values(self.optimizer, self.optimizer, self.all_attributes())
        self.step_without_checks(gradients, seed)
        check_state_keys(self.optimizer)
        for path in differences(before, self.all_attributes()):
            raise Unproven(f"its step changes an attribute of the {path[0].key}, {path[1].key!r}")

    def step_without_checks(self, gradients: Sequence[Tensor | None], seed: int) -> None:
        """Make a step of the class itself, without the wrappers and hooks of the real optimizer's step."""
        for q, gradient in zip(self.params, gradients):
            q.grad = None if gradient is None else gradient.clone()
        set_seeds(seed, self.params[0].device)
        try:
            type(self.optimizer).step(self.optimizer)
        except Exception as error:  # a class may raise anything for a copy
            raise Unproven(f"its step raises {type(error).__name__}: {error}") from error

    def all_attributes(self) -> dict[str, dict[str, Any]]:
        """The attributes that a step changes only if the class keeps state outside of `state` and groups."""
        of_parameters = {f"parameter {i}": dict(vars(q)) for i, q in enumerate(self.params)}
        return {"optimizer": attributes(self.optimizer), **of_parameters}


# Copies


def attributes(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The attributes to copy. A `step` from a scheduler or trainer is left out: it is bound to the real optimizer."""
    left_out = ("step", "state", "param_groups")
    return {name: x for name, x in vars(optimizer).items() if name not in left_out and not is_hook_attribute(name)}


def is_hook_attribute(name: str) -> bool:
    return name.startswith("_optimizer_") and name.endswith("_hooks")


def group_settings(group: ParamGroup) -> dict[str, Any]:
    return {key: x for key, x in group.items() if key not in ("params", "param_names")}


def empty_group(group: ParamGroup) -> dict[str, Any]:
    """A group with empty lists of parameters and names."""
    return {key: [] if key in ("params", "param_names") else x for key, x in group.items()}


def copy_values(original: torch.optim.Optimizer, trial: torch.optim.Optimizer, values: object) -> Any:
    """Copy values of an optimizer. Its bound methods become bound methods of the trial."""
    known: dict[int, Any] = {id(original): trial}
    for x in tree_leaves(values):
        if isinstance(x, Tensor):  # deepcopy() cannot copy fake tensors
            known[id(x)] = x.detach().clone()
    return copy.deepcopy(values, known)


def make_parameter(p: Tensor, weights: Tensor) -> Tensor:
    """Make a parameter with these weights and the attributes of `p`."""
    q = weights.detach().clone()
    q = Parameter(q, p.requires_grad) if isinstance(p, Parameter) else q.requires_grad_(p.requires_grad)
    vars(q).update({name: copy.deepcopy(x) for name, x in vars(p).items() if name not in vars(q)})
    return q


def write_values(optimizer: torch.optim.Optimizer, group: ParamGroup, p: Tensor, values: Values) -> None:
    """Write values into the state of a parameter and into its group."""
    if values["state"]:
        optimizer.state[p].update(values["state"])
    group.update(values["group"])


# Optimizers and parameters that can be tried


def numbered_parameters(optimizer: torch.optim.Optimizer) -> Iterator[tuple[int, int, dict[str, Any], Tensor]]:
    """Each parameter that can have a gradient, after its group's index, its index in the group, and the group."""
    for i, group in enumerate(optimizer.param_groups):
        note_dtensor(group["params"])
        for j, p in enumerate(group["params"]):
            if p.is_floating_point() or p.is_complex():
                yield i, j, group, p


def check_state_keys(optimizer: torch.optim.Optimizer) -> None:
    """Raise Unproven if a key of the state is no parameter."""
    params = parameter_ids(optimizer)
    for key in optimizer.state:
        if id(key) not in params:
            raise Unproven(f"{key!r:.40} is a key of its state and no parameter")


def check_not_shared(optimizer: torch.optim.Optimizer, group: ParamGroup, p: Tensor) -> None:
    """Raise Unproven if a copy would reach parameters of the optimizer, a module or an optimizer.

    It may reach parameters by reference or by id.
    """
    copied_values = {
        "its attribute": attributes(optimizer),
        "its group's": group_settings(group),
        "its state": optimizer.state.get(p, {}),
        "its parameter's attribute": vars(p),
    }
    todo: list[tuple[str, Any, bool]] = []  # a name, an object, and whether the copy shares the object
    for owner, values in copied_values.items():
        todo += [(f"{owner} {name!r}", (name, x), False) for name, x in values.items()]
    params = parameter_ids(optimizer)
    seen: dict[int, Any] = {}
    while todo:
        name, x, is_shared = todo.pop()
        if isinstance(x, (Parameter, Module, torch.optim.Optimizer)) or id(x) in params:
            if x is optimizer and not is_shared:
                continue  # a bound method, which becomes a bound method of the copy
            raise Unproven(f"{name} reaches a {type(x).__name__} other than the parameter that is tried")
        if isinstance(x, int) and x in params:
            raise Unproven(f"{name} has the id of a parameter, and a copy has a different id")
        if id(x) not in seen and not isinstance(x, (type, ModuleType, Tensor)):
            seen[id(x)] = x
            is_shared = is_shared or isinstance(x, (FunctionType, ReferenceType))  # deepcopy() does not copy these
            todo += [(name, referent, is_shared) for referent in referents(x)]


def referents(x: object) -> list[Any]:
    """The objects that an object refers to, without the globals of a function."""
    if isinstance(x, FunctionType):
        return [x.__closure__, x.__defaults__, x.__kwdefaults__]
    return [x()] if isinstance(x, ReferenceType) else gc.get_referents(x)


def parameter_ids(optimizer: torch.optim.Optimizer) -> set[int]:
    return set(map(id, chain.from_iterable(group["params"] for group in optimizer.param_groups)))
