"""Positions on a run: the frame that a schedule asks for the marks, spans and periods of its times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor

from timesched.maths.counts import Counts, Mark, Period, Resolved, Span, elapsed_since
from timesched.maths.ops import Value
from timesched.run.horizon import Horizon, Position
from timesched.time.units import Counter, Exact, TimeError, TimeUnit, exact_number, unit_of
from timesched.time.value import TimeLike


class UnsuitableRun(ValueError):
    """A schedule does not fit this run, although all units convert: the schedule works on another run."""


@dataclass
class Usage:
    """What a schedule asked of its frames: the counters that it reads, and the named points of its phases."""

    counters: list[Counter] = field(default_factory=list)
    notes: list[tuple[str, Mark]] = field(default_factory=list)

    def index(self, counter: Counter) -> int:
        """The index of a counter's count in the tuple of counts; a new counter is added at the end."""
        if counter not in self.counters:
            self.counters.append(counter)
        return self.counters.index(counter)


@dataclass(frozen=True)
class Frame:
    """The positions of a schedule's times on one run, and the counters that the schedule reads to compare with them.

    `Schedule.resolve` receives a frame, and asks it for marks, spans and periods. `resolve` returns a function of the
    counts at a moment, and passes these counts to the marks, spans and periods.

    With `unit`, every time is converted to that unit, and its counter is the only one. Without `unit`, each time is
    read on its own counter. `section`: the schedule is a part of a sequence, so it need not reach the end of the run.
    `start`: the position on the run at which the counts of this frame begin; None for its start.
    `usage`: what the schedule asked of this frame, and of the frames that are made from it.

    >>> frame = Frame(Horizon("100ba"))
    >>> start, end = frame.mark("0.1dur"), frame.mark("50ba")
    >>> decay = frame.between(start, end)
    >>> counts = (20,)  # of batches: the only counter that the times above ask for
    >>> start.reached(counts), decay.done(counts), decay.left(counts)
    (True, 0.25, 0.75)
    """

    horizon: Horizon
    unit: TimeUnit | None = None
    section: bool = False
    start: Position | None = None
    usage: Usage = field(default_factory=Usage)

    def note(self, name: str, mark: Mark) -> None:
        """Keep a point under a name. `Schedule.marks` returns all of them."""
        if mark.count:
            self.usage.notes.append((name, mark))

    def mark(self, time: TimeLike, scale: bool = True, note: str = "") -> Mark:
        """The point on its counter at which a time of the schedule is reached. It is kept under the name `note`.

        `scale=False`: the scale-schedule ratio does not move the point. The end of a warmup is such a point.
        """
        count, counter = self.horizon.place(time, scale)
        if self.unit is not None:
            count, counter = self.change(count, unit_of(counter), self.unit), self.unit
        mark = Mark(self.usage.index(counter), unit_of(counter), count)
        if note:
            self.note(note, mark)
        return mark

    def run_mark(self, time: TimeLike) -> Mark:
        """The point at which a time of the run is reached, wherever on the run the schedule begins."""
        mark = self.mark(time)
        return mark.at(mark.count - self._start_in(mark.unit))

    def ordered_marks(self, milestones: Sequence[TimeLike], note: str) -> list[Mark]:
        """The points at which milestones are reached. Raises `TimeError` where the points of one counter decrease."""
        marks = [self.mark(milestone, note=note) for milestone in milestones]
        for before, mark in pairwise(marks):
            if before.index == mark.index and before.count > mark.count:
                raise TimeError(
                    f"milestones={list(map(str, milestones))}: on this run {before.time} comes after {mark.time}, "
                    f"which is listed after it. Put the milestones in order."
                )
        return marks

    def span(self, time: TimeLike, scale: bool = True, note: str = "") -> Span:
        """The span from 0 to a time of the schedule. Its end is kept under the name `note`.

        `scale=False`: the scale-schedule ratio does not stretch it.
        """
        end = self.mark(time, scale, note)
        return Span(end.index, 0, end.count)

    def between(self, start: Mark, end: Mark) -> Span:
        """The span from one mark to another, on the counter of the second. It never begins if its length is 0."""
        for argument in (start, end):
            if not isinstance(argument, Mark):
                raise TypeError(f"Frame.between: {argument!r} is a count. Pass marks: end.at(count) makes one.")
        first = self.change(start.count, start.unit, end.unit)
        return Span(end.index, first, end.count - first, empty=0.0)

    def change(self, count: Exact, old: TimeUnit, new: TimeUnit) -> Exact:
        """A position of the schedule, converted to another unit."""
        return self.horizon.change(count, old, new, self.start)

    def after(self, start: Mark, time: TimeLike) -> Exact:
        """The count at the end of a phase that begins at a mark and is as long as a time of the schedule."""
        first = self._start_in(start.unit)
        return exact_number(self.horizon.after(first + start.count, start.unit, time) - first)

    def before(self, end: Mark, time: TimeLike) -> Exact:
        """The count at the start of a phase that ends at a mark and is as long as a time of the schedule."""
        first = self._start_in(end.unit)
        return exact_number(self.horizon.before(first + end.count, end.unit, time) - first)

    def _start_in(self, unit: TimeUnit) -> Exact:
        """The position on the run at which the counts of this frame begin."""
        return 0 if self.start is None else self.horizon.change(*self.start, unit)

    def length(self, time: TimeLike, unit: TimeUnit) -> Exact:
        """The length of a time of the schedule in a unit, wherever it begins."""
        count, counter = self.horizon.place(time)
        if count and not self.horizon.conversion_factors.is_fixed(unit_of(counter), unit):
            raise UnsuitableRun(
                f"{time}: under a batch-size schedule, the length of this time in {unit.value!r} varies. Write the "
                f"times of this schedule in one unit."
            )
        return self.horizon.change(count, counter, unit)

    def value_at(self, mark: Mark, resolve: Callable[[Frame], Resolved]) -> float:
        """The value at a mark of the function that `resolve` makes for a frame like this one."""
        inner = replace(self, usage=Usage())
        function = resolve(inner)
        return float(function(tuple(self._counts_at(mark, inner.usage.counters))))

    def _counts_at(self, mark: Mark, counters: Sequence[Counter]) -> list[Exact]:
        """The counts of several counters at a mark."""
        return [exact_number(self.change(mark.count, mark.unit, unit_of(counter))) for counter in counters]

    def check_covers_run(self, t_max: TimeLike, schedule: object) -> None:
        """Raise `UnsuitableRun` if the run continues after the end of a schedule. In a sequence it may."""
        if not self.section and self.horizon.falls_short(t_max):
            raise UnsuitableRun(
                f"t_max {t_max} must be greater than or equal to max_duration {self.horizon.max_duration}: "
                f"{schedule!r} ends before the run. Pass t_max='1dur', or a longer time. To keep the last value to the "
                f"end of the run, pass SequenceScheduler([schedule], []) in its place."
            )

    def resolve_later(self, start: Mark, resolve: Callable[[Frame], Resolved]) -> Resolved:
        """The function that `resolve` makes for a frame that starts at a mark. Before the mark, its value at 0."""
        position = self._start_in(start.unit) + start.count, start.unit
        inner = replace(self, section=True, start=position, usage=Usage())
        function = resolve(inner)
        for name, mark in inner.usage.notes:
            self.note(name, mark.at(mark.count + self.change(start.count, start.unit, mark.unit)))
        counters = inner.usage.counters
        starts = self._counts_at(start, counters)
        elapsed_counts = [elapsed_since(self.usage.index(counter), first) for counter, first in zip(counters, starts)]
        return lambda counts: function(tuple([elapsed(counts) for elapsed in elapsed_counts]))

    def period_end(self, time: TimeLike, note: str = "period") -> Mark:
        """The end of a period that begins at 0. A period of length 0, as on a run of length 0, gets length 1."""
        mark = self.mark(time)
        end = mark if mark.count else mark.at(1)
        self.note(note, end)
        return end

    def period(self, time: TimeLike) -> Period:
        """The periods whose length is a time of the schedule."""
        end = self.period_end(time)
        return Period(end.index, end.count)


def resolve_in_unit(unit: TimeUnit, horizon: Horizon, resolve: Callable[[Frame], Resolved]) -> Resolved:
    """The function that `resolve` makes for a frame, as a function of counts in one unit.

    Under a batch-size schedule each time stays on its own counter, so the value is the run's value at this position.
    """
    if horizon.conversion_factors.is_fixed(TimeUnit.BATCH, TimeUnit.SAMPLE):
        return resolve(Frame(horizon, unit))
    frame = Frame(horizon)
    function = resolve(frame)
    units = list(map(unit_of, frame.usage.counters))
    if units in ([], [unit]):
        return function
    for counter_unit in units:
        horizon.change(1, unit, counter_unit)  # raises where a conversion factor is missing

    def value(counts: Counts) -> Value:
        count = counts[0]
        if not isinstance(count, Tensor):
            count = exact_number(count)
            return function(tuple([exact_number(horizon.change(count, unit, counter_unit)) for counter_unit in units]))
        if torch.compiler.is_compiling() or count.requires_grad:
            raise TimeError(
                f"unit={unit.value!r}: under a batch-size schedule, these counts are converted on the host: not in a "
                f"graph, and not with a gradient. Pass numbers, or counts in the unit of the schedule's times."
            )
        values = [value((number,)) for number in count.flatten().tolist()]
        return torch.tensor(values, dtype=torch.float64, device=count.device).reshape(count.shape)

    return value
