"""The arguments of schedulers: bound to names, described in plain values, and compared."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any

import torch
from torch.optim import Optimizer

from timesched.description import plain
from timesched.schedule import Schedule
from timesched.time.units import TimeUnit
from timesched.time.value import Time

# Arguments that do not say which schedule it is; a state dict has tags and steps in places of their own.
_OF_A_RUN = ("self", "optimizer", "clock", "param_group_tags", "last_epoch", "on_change")


def noting(init: Callable[..., None]) -> Callable[..., None]:
    """Keep the arguments of the outermost constructor in plain values, under the names of its signature."""
    signature = inspect.signature(init)

    @wraps(init)
    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        if "arguments" not in self.__dict__:
            self.arguments = _arguments(type(self).__name__, signature, (self, *args), kwargs)
        init(self, *args, **kwargs)

    noted.notes = True  # type: ignore[attr-defined]  # functions take attributes
    return noted


def _arguments(
    name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a schedule by name, with the defaults of those that are not given.

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
    bound.apply_defaults()
    found: dict[str, Any] = {}
    for key, value in bound.arguments.items():
        kind = parameters[key].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            found |= value
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            found[key] = [each for each in value if not isinstance(each, Optimizer) and not hasattr(each, "timestamp")]
        else:
            found[key] = value
    kept = ((key, value) for key, value in found.items() if key not in _OF_A_RUN and not isinstance(value, Optimizer))
    return {key: plain(value) for key, value in kept}


def timed(schedule: Schedule) -> Iterator[str]:
    """The arguments of a schedule that are times in another unit than batches, each in words."""
    for field in dataclasses.fields(schedule):  # type: ignore[arg-type]  # every schedule is a dataclass
        value = getattr(schedule, field.name)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, Time) and each.unit is not TimeUnit.BATCH:
                yield f"{field.name}={str(each)!r}"


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
