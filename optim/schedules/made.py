"""How a formula becomes a scheduler."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from timesched.schedule import Schedule
from timesched.time.units import TimeError

from . import composites
from .closed_form import Scheduler
from .formulas import Formula

F = TypeVar("F", bound=Callable[..., None])
Functions = Callable[[Tensor], Any] | Sequence[Callable[[Tensor], Any]]


class Made(Scheduler):
    """A scheduler that a formula was made into: families.py gives it the formula's arguments."""

    formula: ClassVar[type[Formula]]
    names: ClassVar[Mapping[str, str]]
    hidden: ClassVar[tuple[str, ...]] = ("scale_fn", "functions")  # fields that a method fills

    def make(self, given: Mapping[str, Any]) -> None:
        """Construct from the arguments that were given, `self` among them."""
        values = dict(given)
        del values["self"]
        self.optimizer = values.pop("optimizer")
        tags, clock = values.pop("param_group_tags", None), values.pop("clock", None)
        public = {self.names.get(field.name, field.name): field.name for field in dataclasses.fields(self.formula)}
        try:
            schedule = self.formula(**self.adapt({public[name]: value for name, value in values.items()}))
        except TimeError as error:
            raise TimeError(self._in_own_words(str(error))) from None
        self.effective = {name: getattr(schedule, own) for name, own in public.items() if own not in self.hidden}
        self.__dict__.update(self.effective)
        self._formula = schedule
        total = getattr(schedule, "total_iters", getattr(schedule, "total_steps", None))
        Scheduler.__init__(self, self.optimizer, total, -1, tags, clock, schedule=self.filled(schedule))

    def _in_own_words(self, text: str) -> str:
        """A message of the formula with the names that this family has."""
        for old, new in ((self.formula.__name__, type(self).__name__), *self.names.items()):
            text = re.sub(rf"\b{old}\b", new, text)
        return text

    def adapt(self, given: dict[str, Any]) -> dict[str, Any]:
        """The arguments of the formula from those that were given."""
        return given

    def filled(self, schedule: Any) -> Schedule:
        """The formula with the functions that a method of the scheduler returns."""
        return schedule  # type: ignore[no-any-return]  # what came in, of whatever formula


class Cyclic(Made):
    """A cyclic scheduler, whose heights a subclass may scale."""

    def adapt(self, given: dict[str, Any]) -> dict[str, Any]:
        if given.get("mode") == "exp_range":
            given.setdefault("scale_mode", "iterations")
        return given

    def set_scale_fn(self) -> Callable[[Tensor], Any]:
        """The factor of the height, as a function of a tensor: the number of the cycle or of iterations (`scale_mode`).

        A subclass may return another function, which then takes the place of what `mode` says.
        """
        plain: Any = self._formula
        return lambda x: plain._scale(x - 1, x)

    def filled(self, schedule: Any) -> Schedule:
        if type(self).set_scale_fn is not Cyclic.set_scale_fn:
            schedule = dataclasses.replace(schedule, scale_fn=self.set_scale_fn())
        return schedule  # type: ignore[no-any-return]  # what came in, of whatever formula


class Lambda(Made):
    """A scheduler by functions of the step tensor."""

    def set_lr_lambda(self) -> Functions:
        """The same as `set_value_lambda()`, and called for it; override either."""
        return self.set_value_lambda()

    def set_value_lambda(self) -> Functions:
        """The functions of the step, a 0-dim int64 tensor, whose product multiplies the initial value."""
        return [_ramp, _fall]

    def filled(self, schedule: Any) -> Schedule:
        given = self.set_lr_lambda()
        functions = (given,) if callable(given) else tuple(given) if isinstance(given, Sequence) else ()
        if not functions or not all(map(callable, functions)):
            raise TypeError(
                f"{type(self).__name__}: set_lr_lambda() returned {given!r}: it returns a function, or a list of them."
            )
        return composites.Lambda(schedule.initial_val, functions)


def _ramp(t: Tensor) -> Tensor:
    return t.double() / 30.0


def _fall(t: Tensor) -> Tensor:
    return 0.95 ** t.double()


class Multiplicative(Lambda):
    """A scheduler by one factor for each step; or, in a subclass, by functions of the step."""

    def set_value_lambda(self) -> Functions:
        """The functions of the step, a 0-dim int64 tensor, whose product multiplies the initial value."""
        coefficient: float = self.coefficient  # type: ignore[attr-defined]  # an argument
        return [lambda t: coefficient ** t.double()]

    def filled(self, schedule: Any) -> Schedule:
        own = type(self).set_value_lambda is Multiplicative.set_value_lambda
        if own and type(self).set_lr_lambda is Lambda.set_lr_lambda:
            return schedule  # type: ignore[no-any-return]  # what came in, of whatever formula
        return super().filled(schedule)
