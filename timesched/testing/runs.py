"""Runs to test a schedule on: lengths, rates, and the state of the run at any batch."""

from __future__ import annotations

import dataclasses
import datetime
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from timesched.horizon import Horizon
from timesched.time.timestamp import Timestamp
from timesched.time.units import Exact, TimeUnit
from timesched.time.value import Time


@dataclasses.dataclass(frozen=True)
class Run:
    """A run of `batches` batches at constant rates, measured in `unit`; an iteration and a second last one batch."""

    batches: int
    batches_per_epoch: int = 4
    samples_per_batch: int = 8
    tokens_per_sample: int = 16
    unit: TimeUnit = TimeUnit.BATCH

    def horizon(self, ssr: Any = 1.0) -> Horizon:
        """The horizon with all rates."""
        rates = dataclasses.asdict(self)
        del rates["batches"], rates["unit"]
        return Horizon(self.time(self.batches, self.unit), ssr=ssr, **rates)

    def bare(self) -> Horizon:
        """The horizon without any rate."""
        return Horizon(self.time(self.batches, self.unit))

    def per_batch(self, unit: TimeUnit) -> Exact:
        """How much of a unit one batch is; of `dur`, how much of the unscaled run."""
        samples = self.samples_per_batch
        amounts: dict[TimeUnit, Exact] = {
            TimeUnit.EPOCH: Fraction(1, self.batches_per_epoch),
            TimeUnit.SAMPLE: samples,
            TimeUnit.TOKEN: samples * self.tokens_per_sample,
            TimeUnit.DURATION: Fraction(1, self.batches),
        }
        return amounts.get(unit, 1)

    def time(self, batches: Exact, unit: TimeUnit) -> Time[Any]:
        """The time of so many batches, in a unit."""
        return Time(batches * self.per_batch(unit), unit)

    def state(self, batch: int, ssr: Any = 1.0) -> Moment:
        """What a schedule is called with when `batch` batches are done."""
        epoch, in_epoch = divmod(batch, self.batches_per_epoch)
        samples, tokens = self.per_batch(TimeUnit.SAMPLE), self.per_batch(TimeUnit.TOKEN)
        timestamp = Timestamp(
            iteration=batch,
            epoch=epoch,
            batch=batch,
            sample=batch * int(samples),
            token=batch * int(tokens),
            batch_in_epoch=in_epoch,
            total_wct=datetime.timedelta(seconds=batch),
        )
        return Moment(self.horizon(ssr), timestamp)


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
ALL_UNITS = tuple(TimeUnit)


@st.composite
def runs(draw: Any, shortest: int = 1, longest: int = 10_000, units: Any = COUNTED) -> Run:
    """Runs of `shortest` to `longest` batches; token counts go past 2**53."""
    rate = st.one_of(st.integers(1, 9), st.integers(1, 10**7))
    return Run(
        batches=draw(st.one_of(st.integers(shortest, shortest + 40), st.integers(shortest, longest))),
        batches_per_epoch=draw(st.integers(1, 50)),
        samples_per_batch=draw(rate),
        tokens_per_sample=draw(rate),
        unit=draw(st.sampled_from(units)),
    )


RATIOS = st.sampled_from([Fraction(1, 4), Fraction(1, 2), Fraction(3, 4), Fraction(3, 2), Fraction(2), Fraction(5)])
