"""Branches: runs of several lengths that share one stable run, planned before any of them begins."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from timesched.horizon import BatchSizes, Horizon, State
from timesched.schedule import Schedule
from timesched.time.units import FRACTIONAL_UNITS, TimeUnit, exact_number
from timesched.time.value import Time, TimeLike

_STEPS = 1000  # between the even times at which two runs are compared


@dataclass(frozen=True)
class Branch:
    """A run that shares the stable run until its own decay starts.

    `length`: the length of the whole run. `start`: the time at which its decay starts. Save the stable run at
    `clock.before(start)`; the state loads into a run of `length`. `own`: what is left to train then, `length` minus
    `start`. `horizon`: the horizon of the whole run.
    """

    length: Time
    start: Time
    own: Time
    horizon: Horizon


@dataclass(frozen=True)
class BranchPlan:
    """The branches of one stable run, the shortest first. `plan_branches` makes it, and all its times have one unit."""

    branches: tuple[Branch, ...]

    @property
    def stable(self) -> Time:
        """How long the stable run must be: until the latest start of a branch."""
        return max(branch.start for branch in self.branches)

    @property
    def together(self) -> Time:
        """What is trained in all: the stable run once, and what each branch trains on its own."""
        return sum((branch.own for branch in self.branches), self.stable)

    @property
    def separately(self) -> Time:
        """What would be trained without branches: the sum of the lengths."""
        first, *others = [branch.length for branch in self.branches]
        return sum(others, first)


def plan_branches(
    schedule: Schedule | Iterable[Schedule], run: Horizon | State, lengths: Iterable[TimeLike]
) -> BranchPlan:
    """Plan runs of several lengths, of which each decays from one stable run.

    A branch starts at the earliest mark "decay" of the schedules on a run of its length, rounded down to a whole count
    of the unit (but not in `ep` and `sec`). Until then, each schedule has the same value as in the longest run, bit for
    bit. It is compared at all marks of both runs and at 1,001 even times. So `WarmupStableDecayScheduler`,
    `InverseSquareRootWithWarmupScheduler` and a `CooldownScheduler` can branch, also inside products and warmups. A
    cosine cannot, nor a warmup or a milestone in `dur`.

    Args:
        schedule: a schedule, or a list of all schedules of the run.
        run: a `Horizon` or a `Clock`, for its conversion factors. Its length is not used.
        lengths: different times above 0 in one unit, in any order.

    Raises:
        ValueError: until the start of a branch, a value or a batch size is different in the longest run. No schedule
            has a mark "decay" on a run, or one has several. A decay starts after the end of its run. A length is wrong,
            or listed twice, or in another unit. `run` has a ratio other than 1. Times do not convert to the unit of the
            lengths.
        TypeError: a schedule is not of timesched, as a function.

    >>> from timesched import WarmupStableDecayScheduler
    >>> schedule = WarmupStableDecayScheduler("500ba", t_decay="0.2dur")
    >>> run = Horizon("1ba", samples_per_batch=1000, tokens_per_sample=1000)
    >>> plan = plan_branches(schedule, run, ["10Btok", "20Btok"])
    >>> [str(branch.start) for branch in plan.branches]
    ['8000000000tok', '16000000000tok']
    >>> str(plan.together), str(plan.separately)
    ('22000000000tok', '30000000000tok')
    """
    horizon = Horizon.of(run)
    if horizon.ssr != 1:
        raise ValueError(
            f"plan_branches.run: its scale-schedule ratio is {horizon.ssr}. Pass a run without ssr, and the lengths "
            f"that you want."
        )
    schedules = _read_schedules(schedule)
    horizons = [horizon._with_length(length) for length in read_lengths(lengths)]
    branches = [_make_branch(schedules, branch_horizon) for branch_horizon in horizons]
    for branch in branches[:-1]:
        _check_batch_sizes(branch, branches[-1])
        for one in schedules:
            _check_values(one, branch, branches[-1])
    return BranchPlan(tuple(branches))


def read_lengths(lengths: Iterable[TimeLike]) -> list[Time]:
    """The lengths of branches as times, the shortest first. Raises `ValueError` as `plan_branches` does."""
    times = [Time.from_input(length) for length in lengths]
    if not times:
        raise ValueError("plan_branches.lengths is empty. Pass at least one length, such as '10000ba'.")
    others = [time for time in times if time.unit is not times[0].unit]
    if others:
        raise ValueError(f"plan_branches.lengths: {times[0]} and {others[0]} have different units. Use one unit.")
    for time in times:
        if time.unit is TimeUnit.DURATION or time.exact <= 0:
            raise ValueError(f"plan_branches.lengths: {time} is not the length of a run. Pass one such as '10000ba'.")
        if times.count(time) > 1:
            raise ValueError(f"plan_branches.lengths: {time} is listed twice. Pass each length once.")
    return sorted(times)


def _read_schedules(schedule: object) -> Sequence[Schedule]:
    schedules: list[Schedule] = []
    for one in schedule if isinstance(schedule, Iterable) else [schedule]:
        if not isinstance(one, Schedule):
            raise TypeError(
                f"plan_branches.schedule={one!r}: the value is not a schedule of timesched. Pass one, or a list."
            )
        schedules.append(one)
    return schedules


def _make_branch(schedules: Sequence[Schedule], horizon: Horizon) -> Branch:
    """The branch of a run, which starts at the earliest decay."""
    length = horizon.max_duration
    assert length is not None
    decays = []
    for schedule in schedules:
        marks = [mark for name, mark in schedule.marks(horizon) if name == "decay"]
        if len(marks) > 1:
            raise ValueError(
                f"plan_branches.schedule={schedule!r}: in a run of {length} it decays {len(marks)} times, at "
                f"{' and '.join(map(str, marks))}. Pass schedules that decay once."
            )
        decays += [horizon.change(mark.exact, mark.unit, length.unit) for mark in marks]
    if not decays:
        raise ValueError(
            f"plan_branches.schedule: in a run of {length}, no schedule has a mark 'decay' above 0. Pass one that has, "
            f"such as a WarmupStableDecayScheduler, or longer lengths."
        )
    first = min(decays)
    if first > length.exact:
        raise ValueError(
            f"plan_branches.lengths: the run of {length} ends before its decay starts, at "
            f"{Time._make(first, length.unit)}. Pass a longer length."
        )
    start = Time._make(first if length.unit in FRACTIONAL_UNITS else math.floor(first), length.unit)
    return Branch(length, start, length - start, horizon)


def _check_batch_sizes(branch: Branch, longest: Branch) -> None:
    """Raise `ValueError` if the batch size changes at other times in the longest run, before a branch starts."""
    sizes, unit = branch.horizon.samples_per_batch, branch.length.unit
    for threshold, size in sizes.entries[1:] if isinstance(sizes, BatchSizes) else ():
        own, other = [run.change(*run.locate(threshold), unit) for run in (branch.horizon, longest.horizon)]
        if own != other and min(own, other) < branch.start.exact:
            raise ValueError(
                f"plan_branches.run: the batch size becomes {size} at {Time._make(own, unit)} in the run of "
                f"{branch.length}, and at {Time._make(other, unit)} in the run of {longest.length}. Write the "
                f"thresholds in another unit than 'dur'."
            )


def _check_values(schedule: Schedule, branch: Branch, longest: Branch) -> None:
    """Raise `ValueError` if a schedule has another value in the longest run, before or where a branch starts."""
    unit, start = branch.length.unit, branch.start.exact
    runs = branch.horizon, longest.horizon
    value, longest_value = [schedule.curve(run, unit) for run in runs]
    counts = {exact_number(Fraction(start) * i / _STEPS) for i in range(_STEPS + 1)}
    for run in runs:
        marks = [run.change(mark.exact, mark.unit, unit) for _, mark in schedule.marks(run)]
        counts.update(mark for mark in marks if mark <= start)
    for count in sorted(counts):
        own, other = value(count), longest_value(count)
        if own != other:
            raise ValueError(
                f"plan_branches.schedule={schedule!r}: at {Time._make(count, unit)} its value is {own} in the run of "
                f"{branch.length}, and {other} in the run of {longest.length}. Before the decay, write its times in "
                f"another unit than 'dur'."
            )
