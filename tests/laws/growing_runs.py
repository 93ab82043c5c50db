"""Runs whose batches change their size, and what the law of units says of them."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from timesched import BatchSizeSchedule, Horizon, Time, TimeUnit
from timesched.testing import LawBroken
from timesched.testing.laws import evaluate
from timesched.testing.runs import COUNTED, Run, runs


@dataclasses.dataclass(frozen=True)
class GrowingRun(Run):
    """A run with a batch-size schedule. Its times are those of the first batches of the run.

    Thresholds in `dur` are only for runs that are measured in batches or epochs.
    """

    batch_sizes: BatchSizeSchedule | None = None

    def horizon(self, ssr: object = 1.0) -> Horizon:
        return self._make_horizon(self.time(self.batches, self.unit), ssr)

    def _make_horizon(self, length: Time, ssr: Any = 1.0) -> Horizon:
        factors = {"batches_per_epoch": self.batches_per_epoch, "tokens_per_sample": self.tokens_per_sample}
        return Horizon(length, samples_per_batch=self.batch_sizes, ssr=ssr, **factors)

    def time(self, batches: Any, unit: TimeUnit) -> Time:
        in_batches = self._make_horizon(Time(self.batches, TimeUnit.BATCH))
        if unit is TimeUnit.DURATION and self.unit not in (TimeUnit.EPOCH, TimeUnit.BATCH):
            length = in_batches.change(self.batches, TimeUnit.BATCH, self.unit)
            return Time(Fraction(in_batches.change(batches, TimeUnit.BATCH, self.unit)) / length, unit)
        if unit in (*COUNTED, TimeUnit.DURATION):
            return in_batches.convert(Time._make(batches, TimeUnit.BATCH), unit)
        return super().time(batches, unit)


@st.composite
def runs_with_batch_sizes(draw: st.DrawFn) -> GrowingRun:
    """Runs whose batches change their size up to three times, sometimes after the end of the run."""
    run: Run = draw(runs(longest=500))
    sizes = draw(st.lists(st.one_of(st.integers(1, 9), st.integers(1, 10**4)), min_size=2, max_size=4))
    units = [TimeUnit.SAMPLE, TimeUnit.TOKEN, TimeUnit.BATCH]
    unit = draw(st.sampled_from([*units, TimeUnit.DURATION] if run.unit in COUNTED[:2] else units))
    reach = {TimeUnit.SAMPLE: max(sizes), TimeUnit.TOKEN: max(sizes) * run.tokens_per_sample}.get(unit, 1)
    points = st.integers(1, 2 * run.batches * reach + 3)
    times = [0, *sorted(draw(st.sets(points, min_size=len(sizes) - 1, max_size=len(sizes) - 1)))]
    share = run.batches if unit is TimeUnit.DURATION else 1
    batch_sizes = BatchSizeSchedule({Time(Fraction(time, share), unit): size for time, size in zip(times, sizes)})
    return GrowingRun(**vars(run), batch_sizes=batch_sizes)


def check_same_point(schedule: Any, run: GrowingRun, batch: int) -> None:
    """A point of the run has one value, whatever the unit of the point.

    The times of the schedule are not rewritten. Their unit says on which counter progress is measured: a straight line
    over samples is not straight over batches.
    """
    horizon = run.horizon()
    here = evaluate(schedule, run.state(batch))
    for to in COUNTED:
        point = run.time(batch, to)
        values = {"at()": schedule.at(point, horizon), "curve()": schedule.curve(horizon, to)(point.exact)}
        for method, there in values.items():
            if here != there:
                raise LawBroken(
                    f"law 'unit': {schedule!r} on {run} has {here!r} at batch {batch}, and by {method} {there!r} at "
                    f"{point}, which is the same place."
                )
