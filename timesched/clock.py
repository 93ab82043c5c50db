"""Clock: the progress of a hand-written training loop, and the horizon it runs towards."""

from __future__ import annotations

import datetime
import time
import weakref
from collections.abc import Mapping
from typing import Any

from timesched.horizon import BatchSizes, Horizon, Rate
from timesched.time.timestamp import (
    BATCH_IN_EPOCH,
    LONGEST,
    WALL_CLOCKS,
    Timestamp,
    after_batch,
    after_epoch,
    field_number,
    microseconds,
)
from timesched.time.units import Exact, TimeError
from timesched.time.value import Time

_MICROSECOND = datetime.timedelta(microseconds=1)


class Clock:
    """Counts a loop's batches, samples, tokens, epochs, iterations and seconds, and knows when the run is over.

    The arguments are those of `Horizon`: `max_duration` before scaling, the known rates, and `ssr`. A clock is what a
    schedule calls a state. Order in the loop: the optimizer's step, `clock.tick(...)`, then the scheduler's step.

    Raises `ValueError` as `Horizon` does, and when `max_duration` is None.

    >>> clock = Clock("3ba", samples_per_batch=32)
    >>> while not clock.done:
    ...     clock.tick()
    >>> clock.timestamp.batch, clock.timestamp.sample
    (Time(3, TimeUnit.BATCH), Time(96, TimeUnit.SAMPLE))
    """

    def __init__(
        self,
        max_duration: Time[Any] | str | int,
        batches_per_epoch: Rate | None = None,
        samples_per_batch: Rate | BatchSizes | None = None,
        tokens_per_sample: Rate | None = None,
        ssr: float = 1.0,
    ) -> None:
        if max_duration is None:
            raise ValueError("max_duration is None: a clock has to know when its run is over; pass '10ep' or the like.")
        self.horizon = Horizon(
            max_duration,
            batches_per_epoch=batches_per_epoch,
            samples_per_batch=samples_per_batch,
            tokens_per_sample=tokens_per_sample,
            ssr=ssr,
        )
        if not isinstance(self.horizon.batches_per_epoch, (int, type(None))):
            raise ValueError(f"batches_per_epoch={batches_per_epoch}: an epoch of a loop is a whole number of batches.")
        self.timestamp = Timestamp()
        self._pace: tuple[Horizon, int | None, int, int] | None = None  # what a tick without arguments counts
        self._last = time.monotonic()
        self._listeners: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def max_duration(self) -> Time[Any]:
        """The (scaled) length of the run."""
        assert self.horizon.max_duration is not None
        return self.horizon.max_duration

    @property
    def ssr(self) -> float:
        """The scale-schedule ratio."""
        return self.horizon.ssr

    @property
    def dataloader_len(self) -> int | None:
        """Batches in an epoch, or None."""
        return self.horizon.batches_per_epoch  # type: ignore[return-value]  # whole: __init__ checks

    @property
    def done(self) -> bool:
        """Whether the run has reached its (scaled) length."""
        return self.horizon._is_over(self.timestamp)

    @property
    def fraction(self) -> float:
        """The fraction of the run that is done, from 0.0; past 1.0 when the last batch went beyond the end."""
        return float(self.horizon.progress(self.timestamp))

    def tick(
        self,
        samples: int | Time[int] | None = None,
        tokens: int | Time[int] | None = None,
        duration: datetime.timedelta | None = None,
    ) -> None:
        """Count one batch: its samples and tokens over all ranks, and the time it took.

        What is None follows from the clock's rates, or counts 0 if they are unknown; `duration` None is the time
        since the last tick. When `batches_per_epoch` is known, the last batch of an epoch also ends the epoch.
        Raises `ValueError` when the run is measured in samples or tokens and their number is neither given nor
        known, and `TimeError` for negative and fractional numbers; nothing is counted then.
        """
        pace = self._pace
        if pace is None or samples is not None or tokens is not None or pace[0] is not self.horizon:
            pace = self._count_batch(samples, tokens)
        _, batches, more_samples, more_tokens = pace
        stamp, now = self.timestamp, time.monotonic()
        took = round((now - self._last) * 1e6) if duration is None else microseconds(duration)
        after = after_batch(stamp._numbers, more_samples, more_tokens, took)
        if batches is not None and after[BATCH_IN_EPOCH] >= batches:
            after = after_epoch(after)
        self.timestamp, self._last = Timestamp._of(after), now

    def next_epoch(self) -> None:
        """Count an epoch: for loops whose `batches_per_epoch` is not known, or that leave an epoch early.

        Raises `ValueError` when `tick` has just ended the epoch by itself.
        """
        if self.dataloader_len is not None and self.timestamp.batch_in_epoch == 0:
            raise ValueError(
                f"Epoch {self.timestamp.epoch.value} has no batch yet: tick() ends an epoch by itself after "
                f"batches_per_epoch={self.dataloader_len} batches. Leave out next_epoch(), or batches_per_epoch."
            )
        self.timestamp = self.timestamp.to_next_epoch()

    def next_iteration(self) -> None:
        """Count an iteration, in Composer's sense: a stretch of the run that the user defines."""
        self.timestamp = self.timestamp.to_next_iteration()

    def state_dict(self) -> dict[str, int]:
        """The counters as plain ints, the wall clocks in microseconds; loads with `torch.load(weights_only=True)`."""
        state = self.timestamp.state_dict()
        return state | {name: state[name] // _MICROSECOND for name in WALL_CLOCKS}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict()`; bound schedulers write the value of that point into their groups.

        Raises `KeyError` or `TimeError` when it is not the state of a clock, and what a scheduler that follows raises
        when it cannot write; nothing is changed then.
        """
        loaded = Timestamp()
        loaded.load_state_dict(_with_durations(state) if isinstance(state, Mapping) else state)
        before, self.timestamp = self.timestamp, loaded
        written = []
        try:
            for listener in list(self._listeners):
                listener.refresh()
                written.append(listener)
        except BaseException:
            self.timestamp = before
            for listener in written:
                listener.refresh()
            raise
        self._last = time.monotonic()

    def __getstate__(self) -> dict[str, Any]:  # a copy has listeners of its own, and time goes on from then
        return {"horizon": self.horizon, "timestamp": self.timestamp}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _last=time.monotonic(), _listeners=weakref.WeakSet())
        self._pace = None

    def notify(self, listener: Any) -> None:
        """Have `listener.refresh()` called after a load, for as long as the listener lives."""
        self._listeners.add(listener)

    def forget(self, listener: Any) -> None:
        """Undo `notify`."""
        self._listeners.discard(listener)

    def _count_batch(self, samples: Any, tokens: Any) -> tuple[Horizon, int | None, int, int]:
        """The horizon, the batches of an epoch, and the samples and tokens that one batch counts."""
        horizon = self.horizon
        size = horizon.samples_per_batch
        changes = isinstance(size, BatchSizes)
        if isinstance(size, BatchSizes):
            size = size.at(self)
        more_samples = self._count("samples", samples, size, 1)
        more_tokens = self._count("tokens", tokens, horizon.tokens_per_sample, more_samples)
        pace = horizon, self.dataloader_len, more_samples or 0, more_tokens or 0
        if samples is None and tokens is None and not changes:
            self._pace = pace  # of every batch whose numbers follow from the rates
        return pace

    def _count(self, what: str, given: Any, rate: Exact | None, of: int | None) -> int | None:
        if given is not None:
            return field_number(what[:-1], given)
        if rate is None or of is None:
            if self.max_duration.unit.name.lower() + "s" == what:
                known = {"samples": "samples_per_batch", "tokens": "tokens_per_sample"}[what]
                raise ValueError(
                    f"The run is {self.max_duration} long, and this batch's {what} are not known: pass "
                    f"tick({what}=...), or give the clock {known}."
                )
            return None
        count = rate * of
        if not isinstance(count, int) and count.denominator != 1:
            raise TimeError(f"A batch has {float(count)} {what} on average, no whole count: pass tick({what}=...).")
        return int(count)

    def __repr__(self) -> str:
        return f"<Clock at {self.timestamp.batch} of {self.horizon!r}>"


def _with_durations(state: Mapping[str, Any]) -> dict[str, Any]:
    read = dict(state)
    for name in WALL_CLOCKS:
        if type(read.get(name)) is int and 0 <= read[name] <= LONGEST:  # any other number is refused as it is
            read[name] *= _MICROSECOND
    return read
