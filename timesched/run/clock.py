"""Clock: counts the progress of a hand-written training loop, and has the horizon of its run."""

from __future__ import annotations

import copy
import datetime
import math
from collections.abc import Mapping
from time import monotonic
from typing import Any

from torch import Tensor

from timesched.run import events
from timesched.run.horizon import FACTOR_BY_UNIT, BatchSizes, ConversionFactor, Horizon, Position, check_counted
from timesched.run.listeners import Listeners
from timesched.run.rank_counts import check_initialized, has_several_ranks, read_count, sum_over_ranks
from timesched.run.saved_clock import COUNTED_UNITS, complete_counts, make_state, read_explicit_units, read_timestamp
from timesched.time.timestamp import MICROSECOND, Timestamp, counts_of, time_at
from timesched.time.units import Exact, TimeError, TimeUnit, unit_of
from timesched.time.value import Time
from timesched.types import StateDict

_SAMPLE, _TOKEN = TimeUnit.SAMPLE, TimeUnit.TOKEN  # members of an Enum are slow to look up in every call
# The attributes that a copy or a pickle has, and the attributes that a tick changes.
_COPIED = ("horizon", "timestamp", "process_group", "_stop", "_stop_time", "_explicit_units")
_TICKED = ("timestamp", "_explicit_units", "_last_move", "_last_tick_time", "_ticks_until_warning")


# What other modules use of a clock's private members:
#
#     binding/bound.py         _add_listener, _listeners    the clock refreshes its schedulers after a move
#     binding/schedule_lr.py   _tick_epoch                  a step counts an epoch
#                              _before_tick                 after an error a step undoes its tick, by _set_attributes
#                              _ticks_until_warning         a fast step leaves the tick that warns to a full step
#     binding/cursor.py        _at_state                    a scheduler is evaluated at the moment of its saved state
#     integrations             _set_epochs                  a Trainer has epochs of its own
#     both, and batch_size/    _explicit_units              of which counts were given, so that a 0 is a count
class Clock:
    """Counts a loop's batches, samples, tokens, epochs, iterations and seconds, and knows when the run is over.

    A schedule accepts a clock as its state. A batch is one step of the optimizer, also where its gradients come from
    several microbatches. In the loop, first call the optimizer's step, then `clock.tick(...)`, then the scheduler's
    step. A loop may run past the end: the counters continue, and schedules stay at their last value.

    Args:
        max_duration: the length of the run before scaling, a time in any unit but `dur`.
        batches_per_epoch: the batches of an epoch, a whole number above 0. Default: None, not known.
        samples_per_batch: the samples of a batch over all ranks, above 0, or a `BatchSizeSchedule` if the size changes.
            Default: None, not known.
        tokens_per_sample: the tokens of a sample, above 0. Default: None, not known.
        ssr: the scale-schedule ratio, above 0, by which the run is longer or shorter. Default: 1.
        process_group: a group of torch.distributed, or True for the default group, if each rank passes its own counts
            to `tick`. The clock sums the counts over the ranks and takes the seconds of rank 0, so all ranks have the
            same timestamp. Pass False if the counts are sums over all ranks already. Default: None, which warns where
            ranks may differ.
        stop_at: a time, also in `dur`, at which the run is `done` before its end. Schedules do not see it, and the
            ratio does not stretch it. Default: None.

    Raises:
        ValueError: a length, conversion factor or ratio is not positive and finite. `max_duration` is None or in `dur`.
            The times of a batch-size schedule do not convert to samples or batches. `process_group` is given before
            torch.distributed is initialized.

    >>> clock = Clock("3ba", samples_per_batch=32)
    >>> while not clock.done:
    ...     clock.tick()
    >>> clock.timestamp.batch, clock.timestamp.sample
    (Time(3, TimeUnit.BATCH), Time(96, TimeUnit.SAMPLE))
    """

    def __init__(
        self,
        max_duration: Time | str,
        batches_per_epoch: ConversionFactor | None = None,
        samples_per_batch: ConversionFactor | BatchSizes | None = None,
        tokens_per_sample: ConversionFactor | None = None,
        ssr: float = 1.0,
        process_group: Any = None,
        stop_at: Time | str | None = None,
    ) -> None:
        if max_duration is None:
            raise ValueError(
                "Clock.max_duration=None: a clock must know when its run ends. Pass a time, such as '10ep'."
            )
        self.horizon = Horizon(
            max_duration,
            batches_per_epoch=batches_per_epoch,
            samples_per_batch=samples_per_batch,
            tokens_per_sample=tokens_per_sample,
            ssr=ssr,
        )
        if not isinstance(self.horizon.batches_per_epoch, (int, type(None))):
            raise ValueError(f"Clock.batches_per_epoch={batches_per_epoch!r}: it is not a whole number. Pass an int.")
        self.timestamp = Timestamp()
        check_initialized(process_group)
        self.process_group = process_group
        self.stop_at = stop_at  # and with it `_stop_time`, which is the argument, and `_stop`, its position on the run
        self._explicit_units: frozenset[TimeUnit] = frozenset()  # of which tick() was given counts
        self._last_move = self.timestamp, self.timestamp  # where the last tick or the like began and ended, for events
        self._last_tick_time = monotonic()  # for the duration of the next batch
        self._listeners = Listeners()  # the schedulers on this clock
        self._ticks_until_warning = 0  # the tick that makes this 0 warns of schedulers without a step; else 0 or less

    @property
    def max_duration(self) -> Time:
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
        return self.horizon.conversion_factors.batches_per_epoch  # type: ignore[return-value]  # __init__ checks

    @property
    def stop_at(self) -> Time | None:
        """The time at which the run is `done` before its end, or None. It can be set."""
        return self._stop_time

    @stop_at.setter
    def stop_at(self, time: Time | str | None) -> None:
        self._stop = None if time is None else self._read_position(time, "stop_at")
        self._stop_time = None if time is None else Time.from_input(time)

    @property
    def done(self) -> bool:
        """Whether the run has reached its (scaled) length, or `stop_at`."""
        ends = [end for end in (self.horizon._end, self._stop) if end is not None]
        return any([counts_of(self.timestamp, (counter,))[0] >= end for end, counter in ends])

    @property
    def fraction(self) -> float:
        """The fraction of the run that is done, from 0.0; above 1.0 if the last batch went past the end."""
        return float(self.horizon.progress(self.timestamp))

    # Counting

    def tick(
        self,
        samples: int | Time[int] | Tensor | None = None,
        tokens: int | Time[int] | Tensor | None = None,
        duration: datetime.timedelta | None = None,
    ) -> None:
        """Count one batch: its samples and tokens, and the time it took. Padding counts if you include it.

        A count that is None follows from the clock's conversion factors, and is 0 if they are unknown. A count that
        you pass replaces the conversion factor, as for a short last batch. `duration` None is the time since the last
        tick. A tensor of one whole number is read. When `batches_per_epoch` is known, the last batch of an epoch also
        ends the epoch. With a `process_group`, each rank passes its own counts, and all ranks tick together. This
        takes one `all_reduce` of six integers.

        Raises `ValueError` when the run is measured in samples or tokens and their count is neither passed nor known,
        and when only some ranks pass it. Raises `TimeError` on all ranks for a negative or fractional count. After an
        error nothing is counted.
        """
        now, horizon = monotonic(), self.horizon
        microseconds = round((now - self._last_tick_time) * 1e6)
        is_plain = samples is tokens is None and duration is None
        sums_nothing = self.process_group is None or self.process_group is False
        if is_plain and sums_nothing and horizon.usual_batch is not None:
            new_samples, new_tokens = horizon.usual_batch
        else:
            new_samples, new_tokens, microseconds = self._measure_batch(samples, tokens, duration, microseconds)
        length = horizon.conversion_factors.batches_per_epoch
        timestamp = self.timestamp.after_batch(new_samples, new_tokens, microseconds, length)
        self._last_move = self._last_move[1], timestamp  # as `_move_to`, without its call
        self.timestamp = timestamp
        self._last_tick_time, self._ticks_until_warning = now, self._ticks_until_warning - 1
        if self._ticks_until_warning == 0:
            self._listeners.warn_of_missing_step(timestamp.batch)

    def _measure_batch(self, samples: object, tokens: object, duration: object, elapsed: int) -> tuple[int, int, int]:
        """The samples, tokens and microseconds of a batch on all ranks. Notes of which units counts were given."""
        samples, tokens, microseconds = sum_over_ranks(self.process_group, samples, tokens, duration, elapsed)
        factors = self.horizon.conversion_factors
        batch_size = factors.samples_per_batch if factors.batch_sizes is None else factors.batch_sizes.at(self)
        batch_samples = self._count_or_expected("samples", samples, batch_size, 1)
        batch_tokens = self._count_or_expected("tokens", tokens, factors.tokens_per_sample, batch_samples)
        for unit, count in ((_SAMPLE, samples), (_TOKEN, tokens)):
            if count is not None and unit not in self._explicit_units:  # so that few ticks make a new set
                self._explicit_units |= {unit}
        return batch_samples or 0, batch_tokens or 0, microseconds

    def _count_or_expected(self, name: str, value: object, factor: Exact | None, base: int | None) -> int | None:
        """The samples or tokens of a batch: `value`, else `factor` times the count `base`; None if unknown."""
        if value is not None:
            return read_count(name, value)
        if factor is None or base is None:
            unit = COUNTED_UNITS[name]
            if self.max_duration.unit is unit:
                raise ValueError(
                    f"Clock.tick.{name}=None: a run of {self.max_duration} needs the {name} of each batch. Pass "
                    f"tick({name}=...), or pass {FACTOR_BY_UNIT[unit]} to the clock. With ScheduleLR, pass "
                    f"step({name}=...), or {FACTOR_BY_UNIT[unit]} to ScheduleLR."
                )
            return None
        count = factor * base
        if not isinstance(count, int) and count.denominator != 1:
            raise TimeError(f"Clock.tick.{name}=None: {float(count)} is not a whole count. Pass tick({name}=...).")
        return int(count)

    def _tick_epoch(self) -> None:
        """Count the rest of an epoch, with the time since the last tick. It has the batches that are left, if known."""
        start, length = self._last_move[1], self.dataloader_len
        if length is None:
            now = monotonic()
            elapsed = round((now - self._last_tick_time) * 1e6)
            _, _, microseconds = sum_over_ranks(self.process_group, None, None, None, elapsed)
            self._move_to(self.timestamp.to_next_epoch(microseconds * MICROSECOND))
            self._last_tick_time, self._ticks_until_warning = now, self._ticks_until_warning - 1
            if self._ticks_until_warning == 0:
                self._listeners.warn_of_missing_step(self.timestamp.batch)
            return
        for _ in range(length - self.timestamp.batch_in_epoch.value):
            self.tick()
        self._last_move = start, self.timestamp

    def next_epoch(self) -> None:
        """Count an epoch, in a loop whose `batches_per_epoch` is not known, or that leaves an epoch early.

        Raises `ValueError` when `tick` has just ended the epoch.
        """
        if self.dataloader_len is not None and self.timestamp.batch_in_epoch == 0:
            raise ValueError(
                f"Clock.next_epoch: epoch {self.timestamp.epoch.value} has no batch yet, since tick() ends an epoch by "
                f"itself. Leave out next_epoch(), or batches_per_epoch={self.dataloader_len}."
            )
        self._move_to(self.timestamp.to_next_epoch())

    def next_iteration(self) -> None:
        """Count an iteration, as in Composer: a part of the run that the user defines."""
        self._move_to(self.timestamp.to_next_iteration())

    def _move_to(self, timestamp: Timestamp) -> None:
        """Move on to a timestamp. The move begins where the last move ended, also if `_set_epochs` came in between."""
        self._last_move = self._last_move[1], timestamp
        self.timestamp = timestamp

    # Times that the last move has reached

    def passed(self, time: Time | str) -> bool:
        """Whether the last `tick()`, `next_epoch()` or `next_iteration()` reached a time: true once in a run.

        `time` is 0 or more, in any unit that the clock counts, or a fraction of the run. The ratio does not stretch it,
        so the times of `schedule.marks(clock)` can be passed on. On a new clock, and after a load, no time is passed
        until the clock moves: call `passed` before you save. 0 is never passed. For the end of the run, use `done`.

        Raises `ValueError` for a negative time, for a unit of which the clock has counted nothing, and for counts that
        may differ between ranks.

        >>> clock = Clock("10ba")
        >>> for _ in range(10):
        ...     clock.tick()
        ...     if clock.passed("0.6dur"):
        ...         print(clock.timestamp.batch)
        6ba
        """
        count, counter = self._read_position(time, "passed.time")
        self._check_counts(unit_of(counter))
        return events.has_reached(self._last_move, count, counter)

    def before(self, time: Time | str) -> bool:
        """Whether this is the last batch boundary at or before a time: true once in a run.

        `time` is as for `passed`. Save a state at this boundary, before a decay begins: it loads into a longer run.

        The clock's conversion factors say where the next batch ends. If a batch is shorter than that, an earlier
        boundary may be reported. If a batch is longer, it may jump over the time, and no boundary is reported. Where
        tokens are measured, call `passed` with a time that is earlier by the most tokens of a batch.

        The result is False on a new clock, and after a load until the clock moves. So a time in the first batch is
        never reported.

        Raises `ValueError` as `passed` does. It also raises for seconds, for iterations, and where the clock lacks a
        conversion factor.

        >>> clock = Clock("1000sp", samples_per_batch=64)
        >>> while not clock.done:
        ...     clock.tick()
        ...     if clock.before("0.8dur"):
        ...         print(clock.timestamp.sample)
        768sp
        """
        count, counter = self._read_position(time, "before.time")
        self._check_counts(unit_of(counter))
        try:
            return events.has_become_last_before(self._last_move, count, counter, self)
        except ValueError as error:
            raise ValueError(
                f"Clock.before.time={str(time)!r}: no conversion factor gives the {unit_of(counter).name.lower()}s of "
                f"the next batch. Call passed() with a time that is earlier by the longest batch."
            ) from error

    def every(self, period: Time | str, start: Time | str | None = None) -> bool:
        """Whether the last `tick()`, `next_epoch()` or `next_iteration()` completed one or more periods.

        A period ends one, two, three ... times `period` after `start`. If `start` is above 0, a period also ends at
        `start`. Both are times as for `passed`, and `period` is above 0. `start` None is the beginning of the run.

        Raises `ValueError` as `passed` does, and where `start` does not convert to the unit of the period.

        >>> clock = Clock("10ba", samples_per_batch=8)
        >>> for _ in range(10):
        ...     clock.tick()
        ...     if clock.every("30sp"):
        ...         print(clock.timestamp.sample, end=" ")
        32sp 64sp
        """
        length, counter = self._read_position(period, "every.period")
        if length == 0:
            raise TimeError(f"Clock.every.period={str(period)!r}: a period must be above 0. Pass one such as '0.1dur'.")
        first = 0 if start is None else self.horizon.change(*self._read_position(start, "every.start"), counter)
        self._check_counts(unit_of(counter))
        return events.has_completed_period(self._last_move, length, counter, first)

    def _read_position(self, time: Time | str, name: str) -> Position:
        """The position of a time of an argument. Raises `TimeError` if it is below 0."""
        read = Time.from_input(time)
        if read.exact < 0:
            raise TimeError(f"Clock.{name}={str(time)!r}: a run begins at 0. Pass a time of 0 or more.")
        return self.horizon.place(read, scale=False)

    def _check_counts(self, unit: TimeUnit) -> None:
        """Raise `ValueError` if the counts of a unit may differ between ranks, or if the batches so far had none."""
        if unit in self._rank_local_units():
            raise ValueError(
                f"Clock.process_group={self.process_group!r}: the {unit.name.lower()}s may differ between ranks, and "
                f"some would act without the others. Pass process_group=True to the clock, or use a time in batches."
            )
        check_counted(self.timestamp, unit, self)

    def _rank_local_units(self) -> set[TimeUnit]:
        """The units whose counters may differ between the ranks of torch.distributed."""
        if self.process_group is not None or not has_several_ranks():
            return set()
        return {TimeUnit.SECOND, _SAMPLE, _TOKEN} if self._explicit_units else {TimeUnit.SECOND}

    # Saving and loading, and another length of the run

    def state_dict(self) -> dict[str, int]:
        """The counters as plain ints, the wall clocks in microseconds, and `batches_per_epoch` where it is known.

        If all counts of samples or tokens that `tick` was given are 0, `samples_counted` or `tokens_counted` is 1. The
        state loads with `torch.load(weights_only=True)`.
        """
        return make_state(self.timestamp, self._explicit_units, self.dataloader_len)

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from a `state_dict()`; bound schedulers write the value of that moment into their groups.

        An unfinished epoch that had another number of batches resumes at the same fraction of it, rounded down to a
        batch. If the state has no `batches_per_epoch` and no epochs were counted, its batches are divided into epochs
        of the present length. Samples or tokens that nobody counted follow from the conversion factors of the clock.
        All other counts stay as they are.

        Raises `KeyError` or `TimeError` when it is not the state of a clock, and any error of a bound scheduler that
        cannot write its value. After an error nothing is changed.
        """
        self.go_to(self._read_state(state), read_explicit_units(state))

    def go_to(self, timestamp: Timestamp, explicit_units: frozenset[TimeUnit] = frozenset()) -> None:
        """Continue from a timestamp, as from a state; a fraction of a batch is dropped.

        A count of 0 samples or tokens after batch 0 follows from the conversion factors, unless its unit is one of
        `explicit_units`. The samples or tokens of the epoch then follow, too, from `batch_in_epoch`.
        """
        timestamp = timestamp.copy(batch_in_epoch=math.floor(timestamp.batch_in_epoch.exact))
        timestamp = complete_counts(timestamp, explicit_units, self.horizon)
        self._set_and_refresh(timestamp=timestamp, _explicit_units=explicit_units)
        self._last_move = self.timestamp, self.timestamp
        self._last_tick_time = monotonic()
        self._expect_step()

    def _set_epochs(self, batches_per_epoch: int | None, timestamp: Timestamp) -> None:
        """Set the batches of an epoch (None: not known) and the timestamp; bound schedulers write their value, as
        after a load.

        It is for a trainer whose epochs change their length, or end early. Unlike `go_to`, it counts the time since the
        last tick.
        """
        if batches_per_epoch != self.dataloader_len or timestamp != self.timestamp:
            horizon, stop = self.horizon.with_epochs(batches_per_epoch), self._stop
            if stop is not None:  # a stop that counts epochs moves with their length
                stop = horizon.place(time_at(*stop), scale=False)
            self._set_and_refresh(horizon=horizon, timestamp=timestamp, _stop=stop)

    def _at_state(self, state: StateDict) -> Clock:
        """A copy of the clock at the moment of a saved state."""
        moment = copy.copy(self)
        moment.timestamp, moment._explicit_units = self._read_state(state), read_explicit_units(state)
        return moment

    def _read_state(self, state: StateDict) -> Timestamp:
        """The timestamp of a saved state on this run: see `read_timestamp`."""
        return read_timestamp(state, self.horizon)

    def extend(self, max_duration: Time | str) -> None:
        """Make the run longer; bound schedulers write their value on the longer run into their groups.

        `max_duration` is the new length before scaling, in any unit that the clock's conversion factors reach. The
        times of a schedule in `dur` move with it. Warns where that changes the value within a warmup, or undoes a decay
        that has begun, as with a `WarmupStableDecayScheduler`. Raises `ValueError` for a length that is not above the
        present length, and any error of a bound scheduler that cannot write its value. After an error nothing is
        changed.

        >>> clock = Clock("10ba", stop_at="2ba")
        >>> clock.extend("20ba")
        >>> clock.max_duration
        Time(20, TimeUnit.BATCH)
        """
        longer, now = self.horizon._with_length(max_duration), self.max_duration
        end = longer.max_duration
        if end is None or end.exact <= longer.change(now.exact, now.unit, end.unit):
            name = f"Clock.extend.max_duration={str(max_duration)!r}"
            raise ValueError(f"{name}: a run of {now} cannot be extended to {end}. Pass a greater length.")
        self._replace_horizon(longer)

    def end_after(self, time: Time | str) -> None:
        """End the run `time` after the present moment, for instance to decay at once in a branch of the run.

        The new end may be earlier or later than the previous end. `time` is above 0, in any unit that the clock's
        conversion factors convert to the unit of the length. The ratio does not stretch it, and a `dur` is a fraction
        of the present length. The times of a schedule in `dur` move with the end, and bound schedulers write their
        value on the new run into their groups. Warns and raises as `extend` does.

        >>> clock = Clock("40ba")
        >>> for _ in range(20):
        ...     clock.tick()
        >>> clock.end_after("8ba")
        >>> clock.max_duration
        Time(28, TimeUnit.BATCH)
        """
        if Time.from_input(time).exact <= 0:
            raise TimeError(f"Clock.end_after.time={str(time)!r}: a run ends later than now. Pass a time above 0.")
        self._replace_horizon(self.horizon._with_end_after(self.timestamp, time))

    def _replace_horizon(self, horizon: Horizon) -> None:
        """Set a horizon of another length. Warns where that moves an unfinished warmup, or undoes a decay."""
        checks = [listener.expect_new_length() for listener in list(self._listeners)]
        self._set_and_refresh(horizon=horizon)
        for warn_of_jump in checks:
            warn_of_jump()

    def _set_and_refresh(self, **attributes: object) -> None:
        """Set attributes, and let all listeners write their values. If a listener raises, nothing is changed."""
        old = {name: getattr(self, name) for name in attributes}
        self._set_attributes(attributes)
        self._listeners.refresh(undo=lambda: self._set_attributes(old))

    def _before_tick(self) -> dict[str, object]:
        """What a tick changes, for `_set_attributes` to undo it."""
        return {name: getattr(self, name) for name in _TICKED}

    def _set_attributes(self, values: Mapping[str, object]) -> None:
        """Set attributes one by one. A clock whose `__dict__` was used would tick more slowly from then on."""
        for name, value in values.items():
            setattr(self, name, value)

    def __getstate__(self) -> StateDict:  # a copy has its own listeners, and counts time from its creation
        return {name: getattr(self, name) for name in _COPIED}

    def __setstate__(self, state: StateDict) -> None:
        self._set_attributes(state)
        self._last_tick_time, self._listeners, self._ticks_until_warning = monotonic(), Listeners(), 0
        self._last_move = self.timestamp, self.timestamp

    # The schedulers that follow the clock

    def _add_listener(self, scheduler: object) -> None:
        """Let a scheduler write its value after each change that is not a tick. It must step soon."""
        self._listeners.add(scheduler)
        self._expect_step()

    def _expect_step(self) -> None:
        """Expect a step of each new scheduler within 100 ticks and two epochs, or 1,000 ticks. The next tick warns."""
        self._ticks_until_warning = 1001 if self.dataloader_len is None else max(100, 2 * self.dataloader_len) + 1

    def __repr__(self) -> str:
        return f"<Clock at {self.timestamp.batch}, {self.fraction:.1%} of {self.horizon!r}>"
