"""The arguments of schedulers: bound to names, described in plain values, and compared."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from timesched.schedule import Schedule
from timesched.time.units import TimeUnit
from timesched.time.value import Time

APART = ("optimizer", "clock", "self")  # arguments that belong to a run, and not to the schedule
_ELSEWHERE = ("param_group_tags", "last_epoch")  # what a state dict says in its own place


def bound_arguments(
    name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments that are given, by name, without those in `APART`; and the same with the defaults of the others.

    Raises `TypeError` for one that is not known, saying which is nearest, and for one that is missing.
    """
    parameters = signature.parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for key in kwargs:
            if key not in parameters:
                known = [k for k in parameters if k != "self"]
                near = difflib.get_close_matches(key, known, 1, 0.5)
                hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(known)}."
                raise TypeError(f"{name} has no argument {key!r}: {hint}")
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{name}: {error}; it takes {signature}.") from None
    given = _own(bound)
    bound.apply_defaults()
    return given, _own(bound)


def _own(bound: inspect.BoundArguments) -> dict[str, Any]:
    """The arguments that belong to the schedule."""
    own: dict[str, Any] = {}
    for key, value in bound.arguments.items():
        kind = bound.signature.parameters[key].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            own.update({name: _copied(each) for name, each in value.items() if _is_own(name, each)})
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            own[key] = [_copied(each) for each in value if _is_own("", each) and not hasattr(each, "timestamp")]
        elif _is_own(key, value):
            own[key] = _copied(value)
    return own


def _copied(value: Any) -> Any:
    """A value whose lists and dicts nobody else has: a scheduler is described as it was made."""
    if type(value) is list:
        return [_copied(each) for each in value]
    if type(value) is dict:
        return {key: _copied(each) for key, each in value.items()}
    return value


def _is_own(key: str, value: Any) -> bool:
    return key not in APART and not isinstance(value, Optimizer)


def describe(scheduler: Any) -> dict[str, Any]:
    """A scheduler as plain values: its class, its arguments, and the tags of its groups."""
    made = getattr(scheduler, "effective", None)
    arguments = {**scheduler.completed, **(made or {})}
    if made is not None:  # these are among them, under their names
        arguments = {key: value for key, value in arguments.items() if key not in ("args", "kwargs")}
    described = {key: plain(value) for key, value in arguments.items() if key not in (*APART, *_ELSEWHERE)}
    if scheduler.is_part:
        return {"class": type(scheduler).__name__, "arguments": described}  # a part has the tags of the whole
    tags = scheduler.param_group_tags
    known = sorted([tags] if isinstance(tags, str) else tags or (), key=str)
    return {"class": type(scheduler).__name__, "arguments": described, "param_group_tags": known}


def plain(value: Any) -> Any:
    """A value in types that any checkpoint may hold; of what has no such form, the name of its type."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, Time) or hasattr(value, "to_timestring"):
        return str(Time.from_input(value))
    if hasattr(value, "param_group_key") and hasattr(value, "arguments"):
        return describe(value)
    if callable(getattr(value, "tolist", None)):  # tensors, and what numpy has
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(plain, value), key=repr)
    if isinstance(value, (list, tuple, range)):
        return [plain(each) for each in value]
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def difference(theirs: Any, ours: Any, path: str) -> str:
    """The first difference between two plain values, in words; empty where there is none."""
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        for key in (*ours, *(key for key in theirs if key not in ours)):
            if key not in theirs or key not in ours:
                return f"{path}.{key} is only {'here' if key in ours else 'in the state'}"
            found = difference(theirs[key], ours[key], f"{path}.{key}")
            if found:
                return found
        return ""
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        return next(filter(None, (difference(a, b, f"{path}[{i}]") for i, (a, b) in enumerate(zip(theirs, ours)))), "")
    # arrays and tensors, which a state may hold in error, have no such comparison
    scalars = all(value is None or isinstance(value, (bool, int, float, str)) for value in (theirs, ours))
    same = scalars and (theirs == ours or repr(theirs) == repr(ours) == "nan")
    return "" if same else f"{path} is {theirs!r} in the state, and {ours!r} here"


def timed(schedule: Schedule) -> Iterator[str]:
    """The arguments of a schedule that are times in another unit than batches, each in words."""
    for field in dataclasses.fields(schedule):  # type: ignore[arg-type]  # every schedule is a dataclass
        value = getattr(schedule, field.name)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, Schedule):
                yield from timed(each)
            elif isinstance(each, Time) and each.unit is not TimeUnit.BATCH:
                yield f"{field.name}={str(each)!r}"


def noting(init: Callable[..., None]) -> Callable[..., None]:
    """Keep the arguments that the outermost constructor was given, under the names of its signature."""
    signature = inspect.signature(init)

    @wraps(init)
    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        if "arguments" not in self.__dict__:
            self.arguments, self.completed = bound_arguments(type(self).__name__, signature, (self, *args), kwargs)
        init(self, *args, **kwargs)

    noted.notes = True  # type: ignore[attr-defined]  # functions take attributes
    return noted


def adjustment(group: Mapping[str, Any], where: str = "A parameter group") -> float:
    """The factor of a group: its `adjust_learning_rate`, else its `adjust_val`, else 1."""
    for key in ("adjust_learning_rate", "adjust_val"):
        factor = group.get(key)
        if factor is not None:
            if torch.compiler.is_compiling():  # checked when the group was taken
                return factor  # type: ignore[no-any-return]  # a number, as checked
            if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not math.isfinite(factor):
                raise ValueError(
                    f"{where}: {key}={factor!r} ({type(factor).__name__}): it has to be a finite int or float."
                )
            return float(factor)
    return 1.0


def is_number(value: Any) -> bool:
    """Whether a value is a finite number, or a 0-dim tensor of one; a tensor elsewhere is not read."""
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex() or value.dtype is torch.bool or value.is_meta:
            return False
        return value.device.type != "cpu" or math.isfinite(value)
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
