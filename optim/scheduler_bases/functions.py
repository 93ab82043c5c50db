"""The schedulers in which a subclass may define functions of the step, as in the Cerebras API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from ..closed_form.formulas import ClosedForm, Cyclic, Lambda, Multiplicative
from ..scheduler import Scheduler

Function = Callable[[Tensor], Any]


class Functions(Scheduler):
    """A scheduler that multiplies functions of the step tensor."""

    def set_lr_lambda(self) -> Function | Sequence[Function]:
        """The functions of the step, a 0-dim int64 tensor, whose product multiplies the initial value."""
        return [lambda t: t.double() / 30.0, lambda t: 0.95 ** t.double()]

    def _add_functions(self, closed_form: Lambda | Multiplicative) -> ClosedForm:
        result = self.set_lr_lambda()
        functions = (result,) if callable(result) else tuple(result) if isinstance(result, Sequence) else ()
        if not functions or not all(map(callable, functions)):
            name = type(self).__name__
            raise TypeError(f"{name}.set_lr_lambda: it returned {result!r}. Return a function, or a list of functions.")
        return Lambda(closed_form.initial_val, functions)


class Coefficient(Functions):
    """A scheduler that multiplies by a coefficient in each step, or in a subclass, by functions of the step."""

    coefficient: float

    def set_lr_lambda(self) -> Function | Sequence[Function]:
        """The functions of the step, a 0-dim int64 tensor, whose product multiplies the initial value."""
        coefficient = self.coefficient
        return lambda t: coefficient ** t.double()

    def _add_functions(self, closed_form: Lambda | Multiplicative) -> ClosedForm:
        is_overridden = type(self).set_lr_lambda is not Coefficient.set_lr_lambda
        return super()._add_functions(closed_form) if is_overridden else closed_form


class ScaleFunction(Scheduler):
    """A cyclic scheduler. A subclass may scale the heights by its own function."""

    def set_scale_fn(self) -> Function | None:
        """The factor of the height, as a function of the number of the cycle or of iterations: see `scale_mode`.

        The default is None, for the factor that `mode` describes.
        """
        return None

    def _add_functions(self, closed_form: Cyclic) -> Cyclic:
        return replace(closed_form, scale_fn=self.set_scale_fn())
