"""How a scheduler is made of a formula, and the methods by which a subclass gives a formula functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import Tensor
from typing_extensions import dataclass_transform  # which torch depends on

from timesched.time.value import Time

from . import composites
from .arguments import noting
from .closed_form import Scheduler, overridden
from .formulas import Formula

Steps = int | float | str | Time[Any]  # how a count is given: a number of steps, or a time; kept as an int or a `Time`
Functions = Callable[[Tensor], Any] | Sequence[Callable[[Tensor], Any]]
S = TypeVar("S", bound=type[Scheduler])


@dataclass_transform(eq_default=False)
def computed_by(formula: type[Formula]) -> Callable[[S], S]:
    """Make a scheduler of a formula: its annotated fields are its arguments, in their order.

    Those between `optimizer` and `param_group_tags` are the fields of the formula, under the scheduler's own names.
    """

    def decorate(cls: S) -> S:
        cls.formula = formula
        dataclasses.dataclass(eq=False, repr=False)(cls)
        cls.__init__ = noting(cls.__init__)  # type: ignore[method-assign]  # wrapped, as a decorator would
        return cls

    return decorate


class DefaultText(str):
    """A default, which can be told apart from the same text when a user gives it."""

    __slots__ = ()


CYCLE = DefaultText("cycle")


class Cyclic(Scheduler):
    """A cyclic scheduler, whose heights a subclass may scale."""

    mode: str
    scale_mode: str

    def __post_init__(self) -> None:
        if isinstance(self.scale_mode, DefaultText):
            self.scale_mode = "iterations" if self.mode == "exp_range" else "cycle"
        super().__post_init__()

    def set_scale_fn(self) -> Callable[[Tensor], Any]:
        """The factor of the height, as a function of a tensor: the number of the cycle or of iterations (`scale_mode`).

        A subclass may return another function, which then takes the place of what `mode` says.
        """
        plain = self._formula
        return lambda x: plain._scale(x - 1, x)

    def _filled(self, formula: Any) -> Formula:
        self._formula: Any = formula
        if overridden(type(self), ("set_scale_fn",)):
            formula = dataclasses.replace(formula, scale_fn=self.set_scale_fn())
        return formula  # type: ignore[no-any-return]  # a formula, as given


class Lambda(Scheduler):
    """A scheduler by functions of the step tensor."""

    def set_lr_lambda(self) -> Functions:
        """The same as `set_value_lambda()`, and called for it; override either."""
        return self.set_value_lambda()

    def set_value_lambda(self) -> Functions:
        """The functions of the step, a 0-dim int64 tensor, whose product multiplies the initial value."""
        return [_ramp, _fall]

    def _filled(self, formula: Any) -> Formula:
        given = self.set_lr_lambda()
        functions = (given,) if callable(given) else tuple(given) if isinstance(given, Sequence) else ()
        if not functions or not all(map(callable, functions)):
            raise TypeError(
                f"{type(self).__name__}: set_lr_lambda() returned {given!r}: it returns a function, or a list of them."
            )
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

    def _filled(self, formula: Any) -> Formula:
        if overridden(type(self), ("set_lr_lambda", "set_value_lambda")):
            formula = super()._filled(formula)
        return formula  # type: ignore[no-any-return]  # a formula, as given
