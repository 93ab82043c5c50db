"""The families of classes that a config names, and the arguments of their constructors."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from timesched.hints import argument_hint, arguments_of
from timesched.reading import SCHEDULE, Classes, Family
from timesched.schedulers.schedule import Schedule

from .. import lr_scheduler, weight_decay_scheduler
from ..scheduler import Scheduler
from ..state.optimizer import Optimizer
from ..step.rule_optimizer import RuleOptimizer


@dataclass(frozen=True)
class Constructor:
    """A class that a config may name, and what its constructor takes."""

    cls: type
    first: str | None  # the argument for the parameters or the optimizer; None if there is none
    has_clock: bool
    parameters: Mapping[str, inspect.Parameter]  # the other arguments, which a config may set
    required: Sequence[str]  # those without a default
    is_schedule: bool
    child: str  # the argument for one child,
    children: str  # and the argument for a list of children

    def read_arguments(
        self, arguments: dict[str, object], path: str, other_keys: Sequence[str] = (), require_all: bool = True
    ) -> dict[str, Any]:
        """Read the arguments for the constructor: a list becomes a tuple if the default is a tuple.

        Raises `ValueError` for arguments that the constructor does not name, with a line for each. The error lists the
        arguments that it has, and `other_keys`, which are the keys of an optimizer's groups. With `require_all`, a
        missing argument is an error, too.
        """
        errors, result = [], dict(arguments)
        for name, value in arguments.items():
            if name not in self.parameters:
                hint = argument_hint(name, [*self.parameters, *other_keys])
                errors.append(f"{path}: {self.cls.__name__} has no argument {name!r}{hint}")
            elif isinstance(value, list) and isinstance(self.parameters[name].default, tuple):
                result[name] = tuple(value)
        if errors:
            raise ValueError("\n".join(errors))
        missing = " and ".join(repr(name) for name in self.required if name not in arguments)
        if missing and require_all:
            raise ValueError(
                f"{path}: {self.cls.__name__} needs {missing}. An argument without a default must have a value."
            )
        return result


@cache
def read_constructor(cls: type) -> Constructor:
    """Read what the constructor of a class takes."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = {name: parameter for name, parameter in arguments_of(cls).items() if parameter.kind not in variadic}
    clock, is_schedule = parameters.pop("clock", None), issubclass(cls, Schedule)
    child, children = ("schedule", "schedules") if is_schedule else ("scheduler", "schedulers")
    first = None if is_schedule else next(iter(parameters), None)
    if first in (child, children):  # a ChainedLR has the optimizer of its children
        first = None
    parameters.pop(first or "", None)
    required = [name for name, parameter in parameters.items() if parameter.default is parameter.empty]
    has_clock = clock is not None and not is_schedule
    return Constructor(cls, first, has_clock, parameters, required, is_schedule, child, children)


def _public_subclasses(module: ModuleType, base: type) -> Classes:
    """The public subclasses of a class in a module, by their names."""
    members = ((name, getattr(module, name)) for name in sorted(module.__all__))
    return {name: cls for name, cls in members if isinstance(cls, type) and issubclass(cls, base) and cls != base}


_LR = {"LR": _public_subclasses(lr_scheduler, lr_scheduler.LRScheduler)}
_WD = {"WD": _public_subclasses(weight_decay_scheduler, weight_decay_scheduler.WeightDecayScheduler)}
LR = Family("lr scheduler", _LR, (lr_scheduler.LRScheduler,))
CLOSED_FORM = Family("absolute-value scheduler", _LR | _WD, (Scheduler,))
SCHEDULER = Family("scheduler", {**SCHEDULE.by_suffix, **_LR, **_WD}, (Scheduler, Schedule))


@cache
def optimizers() -> Family:
    """The optimizers. They have no short names."""
    import optim  # not above: it imports this package

    return Family("optimizer", {"": _public_subclasses(optim, RuleOptimizer)}, (Optimizer,))
