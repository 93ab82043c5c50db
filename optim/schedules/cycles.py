"""The schedules of the closed-form schedulers that go in steps or repeat: see formulas.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from timesched import ops, shapes
from timesched.curves import decay, wave
from timesched.fields import choice, count, counts, flag, number, numbers
from timesched.positions import Counts, Frame, Mark, Milestones, Period, Resolved
from timesched.restarts import restarting
from timesched.time.units import TimeError, exact

from .formulas import Count, Formula, in_steps, time


def rising(frame: Frame, milestones: Sequence[Count]) -> Milestones:
    return Milestones(frame.rising([time(milestone) for milestone in milestones], note="milestone"))


@dataclass(frozen=True, eq=False, repr=False)
class PiecewiseConstant(Formula):
    """One value after another, each from its milestone on."""

    vals: Sequence[float] = numbers()
    milestones: Sequence[Count] = counts()

    def check(self, name: str) -> None:
        if len(self.vals) != len(self.milestones) + 1:
            raise TimeError(
                f"{name}: {len(self.milestones)} milestones separate {len(self.milestones) + 1} values, and "
                f"there are {len(self.vals)}: {list(self.vals)}."
            )

    def resolve(self, frame: Frame) -> Resolved:
        passed = rising(frame, self.milestones).passed
        table = ops.table(self.vals, torch.float64)

        def value(counts: Counts) -> Any:
            n = passed(counts)
            return ops.pick(table, n) if isinstance(n, Tensor) else self.vals[n]

        return value


@dataclass(frozen=True, eq=False, repr=False)
class MultiStep(Formula):
    """The initial value times `gamma` for each milestone that has been reached."""

    initial_val: float = number()
    gamma: float = number()
    milestones: Sequence[Count] = counts()

    def resolve(self, frame: Frame) -> Resolved:
        return shapes.milestones(rising(frame, self.milestones), self.gamma, self.initial_val)


@dataclass(frozen=True, eq=False, repr=False)
class Step(Formula):
    """The initial value times `gamma` for each `step_size` that is complete."""

    initial_val: float = number()
    step_size: Count = count(least=1)
    gamma: float = number()

    def resolve(self, frame: Frame) -> Resolved:
        return shapes.steps(frame.period(time(self.step_size)), self.gamma, self.initial_val)


@dataclass(frozen=True, eq=False, repr=False)
class CosineAnnealing(Formula):
    """A cosine wave between two values."""

    initial_val: float = number()
    T_max: Count = count(least=1)
    eta_min: float = number(0.0)

    def resolve(self, frame: Frame) -> Resolved:
        half, start, end = frame.period(time(self.T_max)), self.initial_val, self.eta_min
        done, complete = half.done, half.complete
        return lambda counts: wave(done(counts), complete(counts), start, end)


@dataclass(frozen=True, eq=False, repr=False)
class CosineAnnealingWarmRestarts(Formula):
    """Falling halves of a cosine, each longer than the one before."""

    initial_val: float = number()
    T_0: Count = count(least=1)
    T_mult: float = number(1, above=0)
    eta_min: float = number(0.0)

    def resolve(self, frame: Frame) -> Resolved:
        done = restarting(frame, time(self.T_0), self.T_mult, "T_mult")
        return shapes.cosine(done, self.initial_val, self.eta_min)


@dataclass(frozen=True, eq=False, repr=False)
class Cyclic(Formula):
    """Straight lines up and down again, over and over."""

    base_val: float = number()
    max_val: float = number()
    step_size_up: Count = count(2000, least=1)
    step_size_down: Count | None = count(None, least=1, optional=True)
    mode: str = choice("triangular", "triangular", "triangular2", "exp_range")
    gamma: float = number(1.0, least=0)
    scale_mode: str = choice("cycle", "cycle", "iterations")
    scale_fn: Callable[[Tensor], Tensor] | None = None

    def resolve(self, frame: Frame) -> Resolved:
        up = frame.mark(time(self.step_size_up))
        down = up if self.step_size_down is None else frame.mark(time(self.step_size_down))
        length = up.count + (up.count if down is up else frame.length(time(self.step_size_down), up.unit))
        frame.note("period", Mark(up.counter, up.unit, length))
        cycles, share = Period(up.counter, length), float(up.count / Fraction(length))

        plain = self.scale_mode == "cycle" or (self.mode == "triangular" and self.scale_fn is None)
        iterations = (lambda counts: 0) if plain else in_steps(frame, time(self.step_size_up))[0]
        shrinks = self.scale_fn is None and (self.mode != "exp_range" or self.gamma <= 1.0)

        complete = cycles.complete

        def scale(counts: Counts) -> Any:
            return self._scale(complete(counts), iterations(counts))

        return shapes.triangles(cycles, share, self.base_val, self.max_val, scale, shrinks)

    def _scale(self, complete: Any, now: Any) -> Any:
        by_cycle = self.scale_mode == "cycle"
        if self.scale_fn is not None:
            n = complete + 1 if by_cycle else now
            dtype = torch.float64 if isinstance(n, float) else torch.int64
            return self.scale_fn(n if isinstance(n, Tensor) else torch.tensor(n, dtype=dtype, device="cpu"))
        if self.mode == "triangular":
            return 1.0
        if self.mode == "triangular2":
            return decay(complete if by_cycle else ops.real(now) - 1.0, 0.5)
        return decay(complete + 1 if by_cycle else ops.real(now), self.gamma)


@dataclass(frozen=True, eq=False, repr=False)
class OneCycle(Formula):
    """Up to the highest value, then down to the least."""

    initial_val: float = number()
    max_val: float = number()
    total_steps: Count = count(1000, least=1)
    pct_start: float = number(0.3, least=0)
    final_div_factor: float = number(1e4, above=0)
    three_phase: bool = flag(False)
    anneal_strategy: str = choice("cos", "cos", "linear")

    def check(self, name: str) -> None:
        if self.pct_start > (0.5 if self.three_phase else 1.0):
            raise TimeError(f"{name}.pct_start={self.pct_start}: it is at most 1, or 0.5 with three phases.")

    def resolve(self, frame: Frame) -> Resolved:
        total = frame.mark(time(self.total_steps), note="end")
        peak = frame.before(Mark(total.counter, total.unit, exact(self.pct_start) * total.count), time(1))
        last = (frame.before(total, time(1)), self.initial_val / self.final_div_factor)
        shape = shapes.WARMUPS["cosine" if self.anneal_strategy == "cos" else "linear"]
        turns = [(peak, self.max_val), (2 * peak, self.initial_val)] if self.three_phase else [(peak, self.max_val)]
        ends = [(exact(0), self.initial_val), *turns, last]
        frame.note("peak", Mark(total.counter, total.unit, peak))
        points = [(Mark(total.counter, total.unit, end), to, shape) for end, to in ends]
        value = shapes.through(frame, points)
        if peak != 0 or peak == last[0]:
            return value
        # the way up is step 0 alone, where it starts
        return lambda counts: ops.where(counts[total.counter] == 0, self.initial_val, value(counts))
