"""How a scheduler is made of a formula, and the methods by which a subclass gives a formula functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from . import composites, cycles
from .closed_form import Scheduler
from .formulas import Formula

Functions = Callable[[Tensor], Any] | Sequence[Callable[[Tensor], Any]]


class Unsaid(str):
    """A default that is told from the same text when it is given."""

    __slots__ = ()


CYCLE = Unsaid("cycle")


class Cyclic(Scheduler):
    """A cyclic scheduler, whose heights a subclass may scale."""

    def set_scale_fn(self) -> Callable[[Tensor], Any]:
        """The factor of the height, as a function of a tensor: the number of the cycle or of iterations (`scale_mode`).

        A subclass may return another function, which then takes the place of what `mode` says.
        """
        plain: Any = self._formula
        return lambda x: plain._scale(x - 1, x)

    def _filled(self, formula: Formula) -> Formula:
        if type(self).set_scale_fn is not Cyclic.set_scale_fn:
            assert isinstance(formula, cycles.Cyclic)
            formula = dataclasses.replace(formula, scale_fn=self.set_scale_fn())
        return formula


def by_mode(scale_mode: str, mode: str) -> str:
    """The `scale_mode` of a cyclic scheduler: "exp_range" goes by iterations, unless another is given."""
    if isinstance(scale_mode, Unsaid):
        return "iterations" if mode == "exp_range" else "cycle"
    return scale_mode


class Lambda(Scheduler):
    """A scheduler by functions of the step tensor."""

    def set_lr_lambda(self) -> Functions:
        """The same as `set_value_lambda()`, and called for it; override either."""
        return self.set_value_lambda()

    def set_value_lambda(self) -> Functions:
        """The functions of the step, a 0-dim int64 tensor, whose product multiplies the initial value."""
        return [_ramp, _fall]

    def _filled(self, formula: Formula) -> Formula:
        given = self.set_lr_lambda()
        functions = (given,) if callable(given) else tuple(given) if isinstance(given, Sequence) else ()
        if not functions or not all(map(callable, functions)):
            raise TypeError(
                f"{type(self).__name__}: set_lr_lambda() returned {given!r}: it returns a function, or a list of them."
            )
        assert isinstance(formula, (composites.Lambda, composites.Multiplicative))
        return composites.Lambda(formula.initial_val, functions)


def _ramp(t: Tensor) -> Tensor:
    return t.double() / 30.0


def _fall(t: Tensor) -> Tensor:
    return 0.95 ** t.double()


class Multiplicative(Lambda):
    """A scheduler by one factor for each step; or, in a subclass, by functions of the step."""

    coefficient: float

    def set_value_lambda(self) -> Functions:
        """The functions of the step, a 0-dim int64 tensor, whose product multiplies the initial value."""
        coefficient = self.coefficient
        return [lambda t: coefficient ** t.double()]

    def _filled(self, formula: Formula) -> Formula:
        own = type(self).set_value_lambda is Multiplicative.set_value_lambda
        if own and type(self).set_lr_lambda is Lambda.set_lr_lambda:
            return formula
        return super()._filled(formula)


def schedule_by(
    scheduler: Scheduler, formula: type[Formula], given: tuple[Any, ...], optimizer: Any, tags: Any, clock: Any
) -> None:
    """The last line of each constructor: the scheduler takes the values of a formula, whose fields are `given`.

    What became of the arguments is kept in attributes of their names. Errors have these names too.
    """
    names = [scheduler._words.get(field.name, field.name) for field in dataclasses.fields(formula)][: len(given)]
    scheduler.optimizer = optimizer  # a method below may read it
    schedule = formula(*given, called=(type(scheduler).__name__, *names))
    scheduler.effective = {
        name: getattr(schedule, field.name) for name, field in zip(names, dataclasses.fields(schedule))
    }
    scheduler.__dict__.update(scheduler.effective)
    scheduler._formula = schedule
    total = getattr(schedule, "total_iters", getattr(schedule, "total_steps", None))
    filled = scheduler._filled(schedule) if isinstance(scheduler, (Cyclic, Lambda)) else schedule
    Scheduler.__init__(scheduler, optimizer, total, -1, tags, clock, schedule=filled)
