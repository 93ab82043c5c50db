"""The formulas that go in steps or repeat: the second part of the table in formulas.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from timesched import ops
from timesched.curves import cosine, decay, linear, mix
from timesched.fields import choice, count, counts, flag, number, numbers
from timesched.positions import Counts, Frame, Mark, Milestones, Period, Resolved, Span, stages
from timesched.restarts import restarting
from timesched.time.units import TimeError, exact, number_text

from .formulas import Count, Formula, in_steps, time


def rising(frame: Frame, milestones: Sequence[Count]) -> Milestones:
    """Milestones on a run; raises `TimeError` where those of one counter fall."""
    marks = [frame.mark(time(milestone)) for milestone in milestones]
    for before, mark in pairwise(marks):
        if before.counter == mark.counter and before.count > mark.count:
            raise TimeError(
                f"milestones={list(map(str, milestones))}: on this run {number_text(before.count)}{before.unit.value} "
                f"comes after {number_text(mark.count)}{mark.unit.value}: put them in order."
            )
    return Milestones(marks)


@dataclass(frozen=True, eq=False, repr=False)
class PiecewiseConstant(Formula):
    """One value after another, each from its milestone on.

    Args:
        vals: the values, one more than the milestones.
        milestones: the steps at which the second value and each further one begins, not falling.

    >>> PiecewiseConstant(vals=[0.1, 0.05, 0.01], milestones=[1, 3]).values(5)
    [0.1, 0.05, 0.05, 0.01, 0.01]
    """

    vals: Sequence[float] = numbers()
    milestones: Sequence[Count] = counts()

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.vals) != len(self.milestones) + 1:
            raise TimeError(
                f"PiecewiseConstant: {len(self.milestones)} milestones part {len(self.milestones) + 1} values, and "
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
    """The initial value times `gamma` for each milestone that has been reached.

    Args:
        initial_val: the value before the first milestone.
        gamma: the factor.
        milestones: steps, not falling; one that is there twice counts twice.

    >>> MultiStep(initial_val=0.1, gamma=0.5, milestones=[1, 3]).values(5)
    [0.1, 0.05, 0.05, 0.025, 0.025]
    """

    initial_val: float = number()
    gamma: float = number()
    milestones: Sequence[Count] = counts()

    def resolve(self, frame: Frame) -> Resolved:
        passed = rising(frame, self.milestones).passed
        table = [self.initial_val * decay(n, self.gamma) for n in range(len(self.milestones) + 1)]

        def value(counts: Counts) -> Any:
            n = passed(counts)
            return self.initial_val * decay(n, self.gamma) if isinstance(n, Tensor) else table[n]

        return value


@dataclass(frozen=True, eq=False, repr=False)
class Step(Formula):
    """The initial value times `gamma` for each `step_size` steps that are complete.

    Args:
        initial_val: the value at first.
        step_size: the steps from one decay to the next, 1 or more.
        gamma: the factor.

    >>> Step(initial_val=0.1, step_size=2, gamma=0.5).values(5)
    [0.1, 0.1, 0.05, 0.05, 0.025]
    """

    initial_val: float = number()
    step_size: Count = count(least=1)
    gamma: float = number()

    def resolve(self, frame: Frame) -> Resolved:
        complete = frame.period(time(self.step_size)).complete
        return lambda counts: self.initial_val * decay(complete(counts), self.gamma)


@dataclass(frozen=True, eq=False, repr=False)
class CosineAnnealing(Formula):
    """A cosine wave from the initial value down to `eta_min` at `T_max`, up again, and so on.

    Source: `CosineAnnealingLR` of torch; arXiv:1608.03983.

    Args:
        initial_val: the value at step 0.
        T_max: half of the wave's length in steps, 1 or more.
        eta_min: the least value.

    >>> [round(value, 4) for value in CosineAnnealing(initial_val=0.1, T_max=2).values(5)]
    [0.1, 0.05, 0.0, 0.05, 0.1]
    """

    initial_val: float = number()
    T_max: Count = count(least=1)
    eta_min: float = number(0.0)

    def resolve(self, frame: Frame) -> Resolved:
        half = frame.period(time(self.T_max))

        def value(counts: Counts) -> Any:
            done, rising = half.done(counts), half.complete(counts) % 2 == 1
            return cosine(ops.where(rising, 1.0 - done, done), self.initial_val, self.eta_min)

        return value


@dataclass(frozen=True, eq=False, repr=False)
class CosineAnnealingWarmRestarts(Formula):
    """Falling halves of a cosine from the initial value to `eta_min`, each `T_mult` times as long as the one before.

    Source: `CosineAnnealingWarmRestarts` of torch; arXiv:1608.03983.

    Args:
        initial_val: the value at the start of each cycle.
        T_0: the steps of the first cycle, 1 or more.
        T_mult: the growth of the cycles, more than 0; below 1 they end where their lengths add up to. Refused where
            the run has more than 4096 cycles or no known length, and the growth is so near to 1 that there may be more.
        eta_min: the value towards which each cycle falls.

    >>> [round(value, 4) for value in CosineAnnealingWarmRestarts(initial_val=0.1, T_0=2, T_mult=2).values(6)]
    [0.1, 0.05, 0.1, 0.0854, 0.05, 0.0146]
    """

    initial_val: float = number()
    T_0: Count = count(least=1)
    T_mult: float = number(1, above=0)
    eta_min: float = number(0.0)

    def resolve(self, frame: Frame) -> Resolved:
        done = restarting(frame, time(self.T_0), self.T_mult, "T_mult")
        return lambda counts: cosine(done(counts), self.initial_val, self.eta_min)


@dataclass(frozen=True, eq=False, repr=False)
class Cyclic(Formula):
    """Straight lines from the base value up to the highest one and down again, over and over.

    Source: `CyclicLR` of torch; arXiv:1506.01186.

    Args:
        base_val: the lowest value, and the one at step 0.
        max_val: the highest value of the first cycle.
        step_size_up: the steps up, 1 or more.
        step_size_down: the steps down, 1 or more; None for as many as up.
        mode: what the height of a cycle is multiplied by: "triangular" 1, "triangular2" half as much in each cycle as
            in the one before, "exp_range" a power of `gamma`.
        gamma: the base of "exp_range", 0 or more.
        scale_mode: whether that power, or the function of `set_scale_fn`, depends on the number of the "cycle", from 1
            on, or on the "iterations", from 0 on. A scheduler of "exp_range" goes by iterations if it is left out.

    >>> [round(value, 4) for value in Cyclic(base_val=0.1, max_val=0.3, step_size_up=2).values(6)]
    [0.1, 0.2, 0.3, 0.2, 0.1, 0.2]
    """

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
        length = up.count + frame.horizon.change(down.count, down.unit, up.unit)
        cycles, share = Period(up.counter, length), float(up.count / Fraction(length))

        plain = self.scale_mode == "cycle" or (self.mode == "triangular" and self.scale_fn is None)
        iterations = (lambda counts: 0) if plain else in_steps(frame, up)
        shrinks = self.scale_fn is None and (self.mode != "exp_range" or self.gamma <= 1.0)

        def value(counts: Counts) -> Any:
            done = cycles.done(counts)
            height = ops.where(done <= share, done / share, (1.0 - done) / (1.0 - share))
            scale = self._scale(cycles.complete(counts), iterations(counts))
            if shrinks:
                return mix(ops.clip(height * scale), self.base_val, self.max_val)
            return self.base_val + (self.max_val - self.base_val) * ops.clip(height) * scale

        return value

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
    """Up to the highest value, then down to the least, `initial_val / final_div_factor`, at the last step; held after.

    Source: `OneCycleLR` of torch; arXiv:1708.07120.

    Args:
        initial_val: the value at step 0; with torch, the highest value over `div_factor`. Where
            `pct_start * total_steps` is below 1, step 0 is on the way down already, as it is with torch.
        max_val: the highest value.
        total_steps: the number of steps; the last has the index `total_steps - 1`.
        pct_start: the share of the steps that goes up, in [0, 1].
        final_div_factor: the initial value over the last one, more than 0.
        three_phase: come down to the initial value as fast as up, and then to the last one.
        anneal_strategy: "cos" or "linear", the shape of each phase.

    >>> [round(value, 4) for value in OneCycle(initial_val=0.1, max_val=1.0, total_steps=5, pct_start=0.4).values(6)]
    [0.1, 1.0, 0.75, 0.25, 0.0, 0.0]
    """

    initial_val: float = number()
    max_val: float = number()
    total_steps: Count = count(1000, least=1)
    pct_start: float = number(0.3, least=0)
    final_div_factor: float = number(1e4, above=0)
    three_phase: bool = flag(False)
    anneal_strategy: str = choice("cos", "cos", "linear")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pct_start > (0.5 if self.three_phase else 1.0):
            raise TimeError(f"OneCycle.pct_start={self.pct_start}: it is at most 1, or 0.5 with three phases.")

    def resolve(self, frame: Frame) -> Resolved:
        total = frame.mark(time(self.total_steps))
        one = frame.horizon.change(*frame.horizon.locate(time(1)), total.unit)
        peak = exact(self.pct_start) * total.count - one
        last = (total.count - one, self.initial_val / self.final_div_factor)
        ends = [(peak, self.max_val), last]
        if self.three_phase:
            ends = [(peak, self.max_val), (2 * peak, self.initial_val), last]
        line = cosine if self.anneal_strategy == "cos" else linear
        parts, before, begin = [], self.initial_val, exact(0)
        for end, to in ends:
            parts.append(_between(Span(total.counter, begin, max(end - begin, 0)), line, before, to))
            before, begin = to, end
        value = stages([Mark(total.counter, total.unit, end) for end, _ in ends[:-1]], parts)
        if peak != 0 or peak == last[0]:
            return value
        # the way up is step 0 alone, where it starts
        return lambda counts: ops.where(counts[total.counter] == 0, self.initial_val, value(counts))


def _between(span: Span, line: Callable[[Any, float, float], Any], start: float, end: float) -> Resolved:
    done = span.done
    return lambda counts: line(done(counts), start, end)
