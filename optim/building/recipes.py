"""The optimizer of a config: its class, its arguments, and the rules that make its parameter groups."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from timesched.schedule import Schedule

from ..core.optimizer import Optimizer
from ..core.update_rule import RuleOptimizer
from ..param_groups import configure_param_groups
from .registry import (
    Known,
    catalogue,
    checked,
    find,
    is_number,
    located,
    named,
    nearest,
    parameters,
    refuse_number_texts,
)
from .selectors import FACTOR, RULE_KEYS, plain

GROUPING = ("no_decay", FACTOR, "decay_tag", "frozen")  # of an optimizer's entry, for configure_param_groups
# from a model the optimizer, and the indices of the groups that `no_decay` leaves without weight decay
_Maker = Callable[[Any], tuple[torch.optim.Optimizer, frozenset[int]]]


def optimizers() -> Known:
    """The optimizers there are, by name."""
    return catalogue(Optimizer, lambda cls: cls is not RuleOptimizer and not cls.__name__.startswith("_"))


def not_given(cls: type) -> tuple[str, ...]:
    """The arguments that are not for a config to give: the parameters, and what a subclass says to the base class."""
    takes, _ = parameters(cls)
    return (*list(takes)[:1], "defaults")


def own_arguments(cls: type) -> dict[str, inspect.Parameter]:
    """The arguments that a config may give, by name."""
    takes, _ = parameters(cls)
    return {name: parameter for name, parameter in takes.items() if name not in not_given(cls)}


def optimizer_maker(entry: Any) -> tuple[_Maker, dict[str, Any], tuple[str, ...]]:
    """A function that makes the optimizer for a model; what of its entry makes the groups; and the other keys of it."""
    if isinstance(entry, torch.optim.Optimizer):
        return lambda model: (entry, frozenset()), {}, ()
    if is_function(entry, "optimizer", "model"):

        def make_by_function(model: Any) -> tuple[torch.optim.Optimizer, frozenset[int]]:
            with calling(entry, "model", "optimizer"):
                optimizer = entry(model)
            if not isinstance(optimizer, torch.optim.Optimizer):
                kind = type(optimizer).__name__
                raise TypeError(f"optimizer: {called(entry, 'model')} returned a {kind}, and no optimizer.")
            return optimizer, frozenset()

        return make_by_function, {}, ()
    name, given, path = named(entry, "optimizer", "optimizer_type")
    cls = find(name, optimizers(), "optimizer", "optimizer")
    _, open_ended = parameters(cls)
    own = list(own_arguments(cls))
    groups = {key: given.pop(key) for key in ("params", *GROUPING) if key in given and key not in own}
    for key in given:
        if key not in own and not open_ended:
            known = [*own, "params", *GROUPING]
            raise ValueError(
                f"{path}: {cls.__name__} has no argument {key!r}: {nearest(key, known)} It takes {', '.join(own)}; "
                f"{', '.join(known[len(own) :])} make its groups."
            )
    arguments = checked(cls, given, path, not_given(cls))
    rules = groups.get("params") or []
    rules = [rules] if isinstance(rules, Mapping) else rules
    if isinstance(rules, list):
        rules = [_rule(rule, f"{path}.params[{i}]", cls, own, open_ended) for i, rule in enumerate(rules)]
    options = {"no_decay": False} | {key: groups[key] for key in GROUPING if key in groups}
    if options["no_decay"] is not False and "weight_decay" not in own and not open_ended:
        raise ValueError(f"{path}: {cls.__name__} has no weight decay: leave out 'no_decay'.")

    def make(model: Any) -> tuple[torch.optim.Optimizer, frozenset[int]]:
        with located(path, ("rules", "params")):
            made = configure_param_groups(model, rules, **options)
            spared = [i for i, group in enumerate(made) if plain(group.get("weight_decay")) == 0]
            return cls(made, **arguments), frozenset(spared if options["no_decay"] is not False else ())

    return make, groups, tuple(arguments)


def _rule(rule: Any, path: str, cls: type, own: list[str], open_ended: bool) -> Any:
    """A rule for parameters, its hyperparameters checked as arguments of the optimizer are."""
    if not isinstance(rule, Mapping):
        return rule
    keys, takes = (*RULE_KEYS, *own, FACTOR, "adjust_val"), own_arguments(cls)
    for name in rule:
        if name not in keys and not open_ended:
            raise ValueError(f"{path}: {cls.__name__} has no {name!r}: {nearest(name, keys)}")
        if name not in takes or is_number(cls, name, takes[name]):
            refuse_number_texts(rule[name] if name not in ("params", "tags") else None, f"{path}: {name}")
    tuples = [name for name in own if isinstance(takes[name].default, tuple)]
    return {name: tuple(value) if name in tuples and isinstance(value, list) else value for name, value in rule.items()}


def is_function(entry: Any, path: str, of: str) -> bool:
    """Whether an entry is a function of the model or the optimizer. Raises `TypeError` for a class or a schedule."""
    if isinstance(entry, Schedule):
        raise TypeError(f"{path}: {entry!r} is a schedule: put it into the list 'schedulers'.")
    if isinstance(entry, type):
        raise TypeError(f"{path}: {entry.__name__} is a class: write its name, or pass a function of the {of}.")
    return callable(entry)


def called(function: Any, argument: str) -> str:
    """A call, for a message."""
    return f"{getattr(function, '__name__', type(function).__name__)}({argument})"


@contextmanager
def calling(function: Any, argument: str, path: str) -> Iterator[None]:
    """Put the place in the config and the call before the message of a `TypeError` or `ValueError`; else in a note."""
    try:
        with located(f"{path}: {called(function, argument)}"):
            yield
    except Exception as error:  # of a user's function: raised again as it is
        if not isinstance(error, (TypeError, ValueError)) and hasattr(error, "add_note"):  # Python 3.11
            error.add_note(f"in the call {called(function, argument)} for {path}")
        raise
