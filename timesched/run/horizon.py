"""Horizon: the facts about a run as a whole. It converts units and applies the scale-schedule ratio.

A time, such as '0.3dur' or '10ep', is placed on the run: it becomes a position, which is an exact count from the start,
and the counter that reaches it. All conversions are arithmetic on such counts, which is in conversion.py.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from timesched.rules import read_positive, read_ratio
from timesched.run.conversion import FACTOR_NAMES, ConversionFactors, Stages
from timesched.time.timestamp import counts_of, time_at
from timesched.time.units import Counter, EpochCounter, Exact, TimeUnit, exact_number, number_text, unit_of
from timesched.time.value import Time, require_time

ConversionFactor = int | float | Fraction
Position = tuple[Exact, Counter]  # of a run: a count from its start

# The conversion factor that gives a count if nobody counts it.
FACTOR_BY_UNIT = {TimeUnit.SAMPLE: "samples_per_batch", TimeUnit.TOKEN: "tokens_per_sample"}


@runtime_checkable
class State(Protocol):
    """The run that a schedule is called with: a `Clock`, Composer's `State`, or any object with these three attributes.

    `max_duration` is a time that the ratio has already scaled, or None while it is not known. `dataloader_len` is the
    number of batches in an epoch, or None. A state may also have a ratio, `ssr`, and `conversion_factors`, those of
    samples and of tokens.
    """

    @property
    def timestamp(self) -> Any: ...

    @property
    def max_duration(self) -> Any: ...

    @property
    def dataloader_len(self) -> Any: ...


def check_counted(timestamp: Any, unit: TimeUnit, state: object) -> None:
    """Raise `ValueError` if a run is past batch 0, and nobody has counted its samples or tokens. Tensors are not read.

    `state`: the run. A `Clock` knows the units of which it was given counts, which may be 0.
    """
    if unit not in FACTOR_BY_UNIT or unit in getattr(state, "_explicit_units", ()):
        return
    batches, count = counts_of(timestamp, (TimeUnit.BATCH, unit))
    if isinstance(batches, Tensor) or isinstance(count, Tensor) or batches == 0 or count != 0:
        return
    name = unit.name.lower()
    advice = f"Pass {FACTOR_BY_UNIT[unit]}=... or tick({name}s=...) to the clock, or the same to ScheduleLR."
    if unit is TimeUnit.TOKEN:
        advice += " In Composer's Trainer, pass DataSpec(loader, get_num_tokens_in_batch=...)."
    raise ValueError(f"timestamp.{name}=0: the run is at batch {batches}, and nobody has counted its {name}s. {advice}")


class BatchSizes:
    """Batches whose size changes, as a horizon and a clock see them: the base of `BatchSizeSchedule`.

    `entries`: times, of which the first is 0, each with the size of the batches that begin at or after it.
    """

    entries: tuple[tuple[Time, int], ...]

    def at(self, state: State) -> int:
        """The size of the next batch of a run."""
        raise NotImplementedError(f"{type(self).__name__}.at is not defined. Define at(state) in this class.")


# The methods that convert. `place` reads a schedule's time; all others are built on `place` and `change`.
#
#     method                  argument and result                         the ratio stretches        a length begins
#     place(time)             time -> position: a count and its counter   the time, but not `dur`    at the start
#     change(count, ...)      count -> count in another unit              nothing                    at `start=`
#     after, before(n, time)  count -> end or beginning of a phase        the time, not the count    at the count
#     convert(time, unit)     time -> time in another unit                nothing                    at the start
#     add(one, other)         times -> their sum, a time                  nothing                    `other` at `one`
#
# `change` does its arithmetic with `ConversionFactors.convert`, in conversion.py. Only under a batch-size schedule does
# it matter where a length begins.
class Horizon:
    """The length of a run, its conversion factors, and the scale-schedule ratio. Immutable and hashable.

    `horizon.max_duration` is the exact length after scaling: half of 3ba is 1.5ba, and the run ends with the first
    batch at or after it. Conversion factors are never inferred.

    Args:
        max_duration: the length *before* scaling, as for Composer's Trainer, a time in any unit but `dur`; None if
            it is not known.
        batches_per_epoch: the batches of an epoch, above 0. Default: None, not known.
        samples_per_batch: the samples of a batch, above 0, or a `BatchSizeSchedule` if the size changes. Batches then
            convert to samples and tokens, and back, as positions from the start of the run. For a length, use
            `Horizon.after` and `Horizon.before`. Default: None, not known.
        tokens_per_sample: the tokens of a sample, above 0. Default: None, not known.
        ssr: the scale-schedule ratio, above 0. The float 5 / 3 means exactly five thirds, and likewise for each
            quotient of whole numbers up to a million. Default: 1.

    Raises:
        ValueError: a length, conversion factor or ratio is not positive and finite. A length is in `dur`. The
            thresholds of a batch-size schedule do not convert to samples or batches.

    >>> run = Horizon("10ep", batches_per_epoch=50, samples_per_batch=32, ssr=0.5)
    >>> run.max_duration, run.convert("2ep", "sp")
    (Time(5, TimeUnit.EPOCH), Time(3200, TimeUnit.SAMPLE))
    """

    __slots__ = ("_end", "_key", "_ratio", "conversion_factors", "max_duration", "ssr", "usual_batch")
    max_duration: Time | None
    ssr: float
    _end: Position | None  # the scaled length, and the counter that reaches it
    conversion_factors: ConversionFactors
    usual_batch: tuple[int, int] | None  # the samples and tokens of a batch: see `ConversionFactors`
    _ratio: Exact
    _key: tuple[object, ...]

    def __init__(
        self,
        max_duration: Time | str | None,
        *,
        batches_per_epoch: ConversionFactor | None = None,
        samples_per_batch: ConversionFactor | BatchSizes | None = None,
        tokens_per_sample: ConversionFactor | None = None,
        ssr: float = 1.0,
    ) -> None:
        factors = _read_factors(batches_per_epoch, samples_per_batch, tokens_per_sample)
        ratio = read_ratio(ssr)
        self._fill(_read_length(max_duration, ratio), ratio, factors)

    def _fill(self, length: Time | None, ratio: Exact, factors: ConversionFactors) -> None:
        """Set all attributes. `length`: scaled already."""
        put = object.__setattr__
        put(self, "max_duration", length)
        put(self, "_ratio", ratio)
        put(self, "ssr", float(ratio))
        put(self, "conversion_factors", factors)
        end = None if length is None else self._position_of(length.exact, length.unit)
        put(self, "_end", end)
        put(self, "_key", (end, factors, ratio))
        put(self, "usual_batch", factors.usual_batch(None if end is None else end[1]))
        if factors.batch_sizes is not None:
            sizes = [size for _, size in factors.batch_sizes.entries]
            thresholds = [self.place(time) for time, _ in factors.batch_sizes.entries[1:]]
            put(self, "conversion_factors", replace(factors, stages=Stages(factors, sizes, thresholds)))

    # A horizon of a state, and of the same run with a change

    @classmethod
    def of(cls, state: Horizon | State, ssr: float | None = None) -> Horizon:
        """The horizon of a run from its state: a `Horizon` itself, a `Clock`, or another `State`.

        `ssr` None means the state's own ratio, or 1.0 if it has none. Raises `ValueError` if `ssr`, the ratio of the
        state and the ratio of its horizon differ.
        """
        own = state if isinstance(state, Horizon) else getattr(state, "horizon", None)
        state_ratio = getattr(state, "ssr", None)
        if isinstance(own, Horizon):
            if ssr is not None or state_ratio not in (None, own.ssr):
                _single_ratio(ssr, state_ratio, own.ssr)  # raises if two of them differ
            return own
        ratio = _single_ratio(ssr, state_ratio)
        if not hasattr(state, "max_duration") or not hasattr(state, "dataloader_len"):
            raise TypeError(
                f"{state!r} is not a run. Pass a Horizon, a Clock, or a state with timestamp and max_duration."
            )
        epoch_length = read_positive("dataloader_len", state.dataloader_len, optional=True)
        length = _read_length(state.max_duration, 1, TimeUnit.EPOCH, allows_zero=True)  # 0: stopped at once
        factors = _read_factors(epoch_length, *getattr(state, "conversion_factors", (None, None)))
        return cls._make(length, ratio, factors)

    @classmethod
    def _make(cls, length: Time | None, ratio: Exact, factors: ConversionFactors) -> Horizon:
        """A horizon with values that were checked before. `length`: scaled already."""
        horizon = object.__new__(cls)
        horizon._fill(length, ratio, factors)
        return horizon

    def _with_length(self, max_duration: Time | str) -> Horizon:
        """The same run with another length, before scaling."""
        return Horizon._make(_read_length(max_duration, self._ratio), self._ratio, self.conversion_factors)

    def _with_end_after(self, timestamp: object, time: Time | str) -> Horizon:
        """The same run with its end `time` after a timestamp. The ratio does not stretch the time."""
        _, counter = self._require_end()
        length, length_counter = self.place(time, scale=False)
        (now,) = counts_of(timestamp, (counter,))
        end = now + self.change(length, length_counter, counter, start=(now, counter))
        return Horizon._make(time_at(end, counter), self._ratio, self.conversion_factors)

    def with_epochs(self, batches_per_epoch: Exact | None) -> Horizon:
        """The same run with another number of batches per epoch, or None if it is not known."""
        length = read_positive("batches_per_epoch", batches_per_epoch, optional=True)
        factors = replace(self.conversion_factors, batches_per_epoch=length)
        return Horizon._make(self.max_duration, self._ratio, factors)

    @property
    def batches_per_epoch(self) -> Exact | None:
        """Batches in one epoch, or None."""
        return self.conversion_factors.batches_per_epoch

    @property
    def samples_per_batch(self) -> Exact | BatchSizes | None:
        """Samples in one batch over all ranks, a batch-size schedule if the size changes, or None."""
        return self.conversion_factors.batch_sizes or self.conversion_factors.samples_per_batch

    @property
    def tokens_per_sample(self) -> Exact | None:
        """Tokens in one sample, or None."""
        return self.conversion_factors.tokens_per_sample

    # Converting: see the table above

    def place(self, time: Time | str, scale: bool = True) -> Position:
        """The position of a schedule's time on this run: an exact count, and the counter that reaches it.

        A `dur` becomes a fraction of the run's length, on the counter of the length. An epoch is counted in batches if
        its length is known. The ratio stretches every time but `dur`, unless `scale` is False. Raises `ValueError` for
        a `dur` when the run's length is not known.
        """
        time = Time.from_input(time)
        if time.unit is TimeUnit.DURATION:
            length, counter = self._require_end(time)
            return time.exact * length, counter
        count, counter = self._position_of(time.exact, time.unit)
        return (count * self._ratio if scale else count), counter

    def _require_end(self, time: Time | str = "1.0dur") -> Position:
        """The end of the run. Raises `ValueError` if it is not known: `time` needs it."""
        if self._end is None:
            raise ValueError(f"{time} needs the length of the run, which is not known. Set max_duration.")
        return self._end

    def _position_of(self, count: Exact, unit: TimeUnit) -> Position:
        """The position of a count of a unit: its counter is batches, if it counts epochs of a known length."""
        length = self.batches_per_epoch
        if unit is TimeUnit.EPOCH and length is not None:
            return count * length, EpochCounter(length)
        return count, unit

    def change(self, count: Exact, old: Counter, new: Counter, start: Position | None = None) -> Exact:
        """An exact count of one unit or counter as an exact count of another.

        `start`: the position on the run at which the count begins; None for the start of the run. Only under a
        batch-size schedule does it make a difference.

        Raises `ValueError` with the names of the missing conversion factors, or if no factor converts the two units.
        """
        old, new, factors = TimeUnit(unit_of(old)), TimeUnit(unit_of(new)), self.conversion_factors
        if start is None or count == 0 or factors.is_fixed(old, new):
            return factors.convert(count, old, new)
        end = self.change(*start, old) + count
        return self.change(end, old, new) - self.change(*start, new)

    def after(self, start: Exact, unit: TimeUnit | str, time: Time | str) -> Exact:
        """The end of a phase that begins at a count of `unit`, and lasts as long as a time of a schedule.

        The ratio stretches the time, but not the count. Raises `ValueError` where the two units do not convert.

        >>> from timesched import BatchSizeSchedule
        >>> run = Horizon("100ba", samples_per_batch=BatchSizeSchedule({"0sp": 8, "160sp": 16}))
        >>> run.after(10, "ba", "240sp")  # 10 batches of 8, and 10 of 16
        30
        """
        unit, (length, counter) = TimeUnit(unit), self.place(time)
        return exact_number(start + self.change(length, counter, unit, start=(start, unit)))

    def before(self, end: Exact, unit: TimeUnit | str, time: Time | str) -> Exact:
        """The beginning of a phase that ends at a count of `unit`, and lasts as long as a time of a schedule.

        It is below 0 if the time is longer than the count. The ratio acts as in `after`, and the errors are the same.
        """
        unit, (length, counter) = TimeUnit(unit), self.place(time)
        return exact_number(end + self.change(-length, counter, unit, start=(end, unit)))

    def convert(self, time: Time | str, unit: TimeUnit | str) -> Time:
        """A time of this run, exactly converted to another unit. In `dur` it is a fraction of the (scaled) run.

        Raises `ValueError` with the names of the missing conversion factors, and `TimeError` where the result is not a
        whole count.
        """
        time, unit = Time.from_input(time), TimeUnit(unit)
        if time.unit is unit:
            return Time(time.exact, unit)
        count, counter = self.place(time, scale=False)
        if unit is not TimeUnit.DURATION:
            return Time(self.change(count, counter, unit), unit)
        length, end_counter = self._require_end()
        return Time(Fraction(self.change(count, counter, end_counter)) / length, unit)

    def add(self, one: Time, other: Time) -> Time:
        """The sum of two times in the finer unit, or in `dur` if one of them is in `dur`.

        Under a batch-size schedule, `other` is a length that begins at `one`.

        >>> Horizon("10ep", batches_per_epoch=50).add(Time(1, "ep"), Time(3, "ba"))
        Time(53, TimeUnit.BATCH)
        """
        if one.unit is other.unit:
            return one + other
        if TimeUnit.DURATION in (one.unit, other.unit):
            divisor, counter = self._require_end()
            unit, sum_unit = unit_of(counter), TimeUnit.DURATION
        else:
            divisor = self._ratio  # which does not stretch a fraction of the run
            unit = sum_unit = max((unit_of(self.place(time)[1]) for time in (one, other)), key=list(TimeUnit).index)
        # Both times are stretched here, and the division undoes that.
        end = self.after(self.change(*self.place(one), unit), unit, other)
        return Time._make(Fraction(end) / divisor, sum_unit)

    # Before the end, and after it

    def progress(self, timestamp: object) -> Exact:
        """The exact fraction of the (scaled) run that is done at a timestamp; above 1 after the end.

        A run in epochs is measured by its epochs, and by the batches of the present epoch if the length of an epoch is
        known. Raises `ValueError` when the length of the run is not known.
        """
        end, counter = self._require_end()
        return Fraction(counts_of(timestamp, (counter,))[0]) / end if end else 1

    def falls_short(self, time: Time | str) -> bool:
        """Whether the run continues after `time`, scaled or not; False if that is not known, or does not convert."""
        try:
            length, counter = self._require_end()
            return all(self.change(*self.place(time, scale), counter) < length for scale in (True, False))
        except ValueError:
            return False

    # An immutable record, which is equal to another by what `_key` has

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Horizon.{name} cannot be set, since a Horizon never changes. Create a new one.")

    def __reduce__(self) -> tuple[object, ...]:
        return Horizon._make, (self.max_duration, self._ratio, self.conversion_factors)

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, Horizon) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        length = self.max_duration
        unscaled = None if length is None else str(Time._make(length.exact / Fraction(self._ratio), length.unit))
        arguments = [repr(unscaled)]
        for name in FACTOR_NAMES:
            factor = getattr(self, name)
            if isinstance(factor, BatchSizes):
                arguments.append(f"{name}={factor!r}")
            elif factor is not None:
                text = number_text(factor)
                arguments.append(f"{name}={repr(factor) if '/' in text else text}")
        if self._ratio != 1:
            arguments.append(f"ssr={self.ssr if read_ratio(self.ssr) == self._ratio else self._ratio!r}")
        return f"Horizon({', '.join(arguments)})"


def _single_ratio(*ratios: Any) -> Exact:
    """The one ratio of a run; 1 if all are None. Raises `ValueError` if two of them differ."""
    first, *others = [read_ratio(ratio) for ratio in ratios if ratio is not None] or [1]
    for other in map(float, others):
        if other != float(first):
            raise ValueError(f"ssr={float(first)}: it contradicts the state's ratio {other}. Pass None, or the same.")
    return first


def _read_factors(epoch_length: object, batch_size: object, sample_length: object) -> ConversionFactors:
    """The conversion factors of a run. The batch size may be a schedule. If it has one size, it is a number."""
    if isinstance(batch_size, BatchSizes) and len(batch_size.entries) == 1:
        batch_size = batch_size.entries[0][1]
    batch_sizes = batch_size if isinstance(batch_size, BatchSizes) else None
    batches = read_positive("batches_per_epoch", epoch_length, optional=True)
    samples = None if batch_sizes else read_positive("samples_per_batch", batch_size, optional=True)
    tokens = read_positive("tokens_per_sample", sample_length, optional=True)
    return ConversionFactors(batches, samples, tokens, batch_sizes)


def _read_length(value: object, ratio: Exact, unit: TimeUnit | None = None, allows_zero: bool = False) -> Time | None:
    """The length of a run, times the ratio. A plain number counts in `unit`, and is an error without `unit`."""
    if value is None:
        return None
    time = require_time("max_duration", value, unit)
    if time.unit is TimeUnit.DURATION:
        raise ValueError(f"max_duration={value!r}: it is a fraction of itself. Pass a time such as '10ep'.")
    if time.exact < 0 or (time.exact == 0 and not allows_zero):
        raise ValueError(f"max_duration={value!r}: it is not above 0. Pass a length above 0.")
    return Time._make(time.exact * ratio, time.unit)
