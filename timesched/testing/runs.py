"""Runs to test a schedule on: lengths, conversion factors, and the state of the run at any batch."""

from __future__ import annotations

import dataclasses
import datetime
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from timesched.run.horizon import Horizon
from timesched.time.timestamp import Timestamp
from timesched.time.units import Exact, TimeUnit
from timesched.time.value import Time


@dataclasses.dataclass(frozen=True)
class Run:
    """A run of `batches` batches with constant conversion factors, measured in `unit`.

    An iteration and a second last one batch. `changes`: batches at which a schedule is known to change.
    """

    batches: int
    batches_per_epoch: int = 4
    samples_per_batch: int = 8
    tokens_per_sample: int = 16
    unit: TimeUnit = TimeUnit.BATCH
    changes: tuple[int, ...] = dataclasses.field(default=(), repr=False)

    def horizon(self, ssr: Any = 1.0) -> Horizon:
        """The horizon with all conversion factors."""
        return Horizon(
            self.time(self.batches, self.unit),
            batches_per_epoch=self.batches_per_epoch,
            samples_per_batch=self.samples_per_batch,
            tokens_per_sample=self.tokens_per_sample,
            ssr=ssr,
        )

    def per_batch(self, unit: TimeUnit) -> Exact:
        """The size of a batch in a unit; in `dur`, its share of the unscaled run."""
        amounts: dict[TimeUnit, Exact] = {
            TimeUnit.EPOCH: Fraction(1, self.batches_per_epoch),
            TimeUnit.SAMPLE: self.samples_per_batch,
            TimeUnit.TOKEN: self.samples_per_batch * self.tokens_per_sample,
            TimeUnit.DURATION: Fraction(1, self.batches),
        }
        return amounts.get(unit, 1)

    def time(self, batches: Exact, unit: TimeUnit) -> Time:
        """The time of `batches` batches, in a unit."""
        return Time(batches * self.per_batch(unit), unit)

    def state(self, batch: int, ssr: object = 1.0) -> Moment:
        """The state of the run when `batch` batches are done."""
        epoch, in_epoch = divmod(batch, self.batches_per_epoch)
        horizon = self.horizon(ssr)
        samples = int(horizon.change(batch, TimeUnit.BATCH, TimeUnit.SAMPLE))
        timestamp = Timestamp(
            iteration=batch,
            epoch=epoch,
            batch=batch,
            sample=samples,
            token=samples * self.tokens_per_sample,
            batch_in_epoch=in_epoch,
            total_wct=datetime.timedelta(seconds=batch),
        )
        return Moment(horizon, timestamp)


class Moment:
    """The state of a run at one timestamp."""

    def __init__(self, horizon: Horizon, timestamp: Timestamp) -> None:
        self.horizon = horizon
        self.timestamp = timestamp
        self.max_duration = horizon.max_duration
        self.dataloader_len = horizon.batches_per_epoch
        self.ssr = horizon.ssr

    def __repr__(self) -> str:
        return f"<batch {self.timestamp.batch.value} of {self.horizon!r}>"


COUNTED = (TimeUnit.EPOCH, TimeUnit.BATCH, TimeUnit.SAMPLE, TimeUnit.TOKEN)  # the units that convert


@st.composite
def runs(draw: st.DrawFn, longest: int = 10_000) -> Run:
    """Runs of 1 to `longest` batches; token counts go past 2**53."""
    rate = st.one_of(st.integers(1, 9), st.integers(1, 10**7))
    return Run(
        batches=draw(st.one_of(st.integers(1, 41), st.integers(1, longest))),
        batches_per_epoch=draw(st.integers(1, 50)),
        samples_per_batch=draw(rate),
        tokens_per_sample=draw(rate),
        unit=draw(st.sampled_from(COUNTED)),
    )


RATIOS = st.sampled_from([Fraction(1, 4), Fraction(1, 2), Fraction(3, 4), Fraction(3, 2), Fraction(2), Fraction(5)])
