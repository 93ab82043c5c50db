"""The schedules of the closed-form schedulers that are made of functions and of other schedules."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from timesched.curves import decay
from timesched.fields import number
from timesched.positions import Counts, Frame, Resolved
from timesched.schedule import Schedule
from timesched.time.units import TimeError

from .formulas import Formula, in_steps, time


def as_step(count: Any) -> Tensor:
    """A count as a 0-dim int64 tensor, rounded down."""
    if not isinstance(count, Tensor):
        return torch.tensor(math.floor(count), device="cpu")
    return count.floor().to(torch.int64) if count.is_floating_point() else count


@dataclass(frozen=True, eq=False, repr=False)
class Multiplicative(Formula):
    """The initial value times a coefficient once for each step."""

    initial_val: float = number()
    coefficient: float = number()

    def resolve(self, frame: Frame) -> Resolved:
        steps, _ = in_steps(frame, time(0))
        return lambda counts: self.initial_val * decay(steps(counts), self.coefficient)


@dataclass(frozen=True, eq=False, repr=False)
class Lambda(Formula):
    """The initial value times the product of functions of the step tensor."""

    initial_val: float = number()
    functions: Sequence[Callable[[Tensor], Any]] = ()

    def resolve(self, frame: Frame) -> Resolved:
        counter = frame.mark(time(0)).counter
        initial, functions = self.initial_val, self.functions  # without self: a cycle would keep what they hold alive

        def value(counts: Counts) -> Any:
            step = as_step(counts[counter])
            product: Any = initial
            for function in functions:
                factor = function(step.clone())
                product = product * (factor.double() if isinstance(factor, Tensor) else factor)
            return product

        return value


@dataclass(frozen=True, eq=False, repr=False)
class Chain(Formula):
    """The first of several schedules, times the ratio of each other one to its own first value."""

    schedules: Sequence[Schedule] = ()

    def resolve(self, frame: Frame) -> Resolved:
        first, *others = [schedule.resolve(frame) for schedule in self.schedules]
        start = tuple(0 for _ in frame.units)
        starts = [float(function(start)) for function in others]
        for begin in starts:
            if begin == 0.0 or not math.isfinite(begin):
                raise TimeError(
                    f"A chain multiplies by the ratio of each schedule but the first to its own first value, and one "
                    f"of them starts at {begin}: put that one first."
                )

        def value(counts: Counts) -> Any:
            product = first(counts)
            for function, begin in zip(others, starts):
                product = product * (function(counts) / begin)
            return product

        return value


@dataclass(frozen=True, eq=False, repr=False)
class Closed(Formula):
    """The closed form of a scheduler that defines its own."""

    form: Callable[[Any, Any], Any] = divmod
    formula: Schedule | None = None  # which it may be made of

    def resolve(self, frame: Frame) -> Resolved:
        counter = frame.mark(time(0)).counter
        form = self.form  # without self: a cycle would keep the scheduler alive, and its optimizer
        if self.formula is None:
            return lambda counts: form(counts[counter], None)
        own = self.formula.resolve(frame)
        return lambda counts: form(counts[counter], partial(own, counts))
