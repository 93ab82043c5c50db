"""Horizon: the facts about a run as a whole. Only this module converts units and applies the scale-schedule ratio."""

from __future__ import annotations

import math
from bisect import bisect_right
from fractions import Fraction
from typing import Any, Protocol, runtime_checkable

from timesched.time.timestamp import counts_of
from timesched.time.units import Counter, EpochCounter, Exact, TimeError, TimeUnit, exact_number, number_text, unit_of
from timesched.time.value import Time

ConversionFactor = int | float | Fraction

# The units from coarse to fine. A conversion factor is the number of the next unit in one of a unit.
_UNIT_CHAIN = (TimeUnit.EPOCH, TimeUnit.BATCH, TimeUnit.SAMPLE, TimeUnit.TOKEN)
_FACTOR_NAMES = ("batches_per_epoch", "samples_per_batch", "tokens_per_sample")


@runtime_checkable
class State(Protocol):
    """The run that a schedule is called with: a `Clock`, Composer's `State`, or any object with these three attributes.

    `max_duration` is a time that the ratio has already scaled, or None while it is not known. `dataloader_len` is the
    number of batches in an epoch, or None. A state may also have a ratio, `ssr`, and `rates`, the conversion factors of
    samples and tokens.
    """

    @property
    def timestamp(self) -> Any: ...

    @property
    def max_duration(self) -> Any: ...

    @property
    def dataloader_len(self) -> Any: ...


class BatchSizes:
    """Batches whose size changes, as a horizon and a clock see them: the base of `BatchSizeSchedule`.

    `entries`: times, of which the first is 0, each with the size of the batches that begin at or after it.
    """

    entries: tuple[tuple[Time[Any], int], ...]

    def at(self, state: Any) -> int:
        """The size of the next batch of a run."""
        raise NotImplementedError(f"{type(self).__name__}.at is not defined. Define at(state) in this class.")


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

    __slots__ = ("_end", "_key", "_ratio", "_stages", "_unscaled", "conversion_factors", "max_duration", "ssr")
    max_duration: Time[Any] | None
    ssr: float
    _unscaled: Time[Any] | None
    _end: tuple[Exact, Counter] | None  # the scaled length, and the counter that reaches it
    conversion_factors: tuple[Any, ...]  # exact numbers or None; for samples_per_batch also a batch-size schedule
    _stages: _Stages | None  # the stages of the batch-size schedule on this run
    _ratio: Exact
    _key: tuple[Any, ...]

    def __init__(
        self,
        max_duration: Time[Any] | str | None,
        *,
        batches_per_epoch: ConversionFactor | None = None,
        samples_per_batch: ConversionFactor | BatchSizes | None = None,
        tokens_per_sample: ConversionFactor | None = None,
        ssr: float = 1.0,
    ) -> None:
        sizes = samples_per_batch if isinstance(samples_per_batch, BatchSizes) else None
        size = sizes.entries[0][1] if sizes else samples_per_batch
        numbers = (batches_per_epoch, size, tokens_per_sample)
        factors: tuple[Any, ...] = tuple(
            None if r is None else read_positive(r, name) for r, name in zip(numbers, _FACTOR_NAMES)
        )
        if sizes and len(sizes.entries) > 1:  # else it is a number
            factors = factors[0], sizes, factors[2]
        self._fill(_read_length(max_duration), read_ratio(ssr), factors, scaled=False)

    def _fill(self, length: Time[Any] | None, ratio: Exact, factors: tuple[Any, ...], scaled: bool) -> None:
        """Set all attributes. `scaled`: whether the length is scaled already, as in a state that is not ours."""
        put = object.__setattr__
        scaled_length = length if length is None or scaled else Time._make(length.exact * ratio, length.unit)
        put(self, "_unscaled", length)
        put(self, "conversion_factors", factors)
        put(self, "_ratio", ratio)
        put(self, "ssr", float(ratio))
        put(self, "max_duration", scaled_length)
        end = None if scaled_length is None else (scaled_length.exact, scaled_length.unit)
        put(self, "_end", None if end is None else self._count_and_counter(*end))
        put(self, "_key", (end, factors, ratio))
        put(self, "_stages", None)
        if isinstance(factors[1], BatchSizes):
            put(self, "_stages", _Stages(self, factors[1].entries))

    @classmethod
    def of(cls, state: Any, ssr: float | None = None) -> Horizon:
        """The horizon of a run from its state: a `Horizon` itself, a `Clock`, or another `State`.

        `ssr` None means the state's own ratio, or 1.0 if it has none. Raises `ValueError` if `ssr`, the ratio of the
        state and the ratio of its horizon differ.
        """
        own = state if isinstance(state, Horizon) else getattr(state, "horizon", None)
        ratios = [ssr, getattr(state, "ssr", None), own.ssr if isinstance(own, Horizon) else None]
        known = [read_ratio(ratio) for ratio in ratios if ratio is not None]
        for other in known[1:]:
            if float(other) != float(known[0]):
                ratio = float(known[0])
                raise ValueError(
                    f"ssr={ratio}: it contradicts the state's ratio {float(other)}. Pass None, or the same."
                )
        if isinstance(own, Horizon):
            return own
        if not hasattr(state, "max_duration") or not hasattr(state, "dataloader_len"):
            raise TypeError(
                f"{state!r} is not a run. Pass a Horizon, a Clock, or a state with timestamp and max_duration."
            )
        batches = state.dataloader_len
        return cls._make(
            _read_length(state.max_duration, TimeUnit.EPOCH, allows_zero=True),  # 0 where a run was stopped at once
            known[0] if known else 1,
            (
                None if batches is None else read_positive(batches, "dataloader_len"),
                *getattr(state, "rates", (None, None)),
            ),
            scaled=True,
        )

    @classmethod
    def _make(cls, length: Time[Any] | None, ratio: Exact, factors: tuple[Any, ...], scaled: bool) -> Horizon:
        """A horizon with values that were checked before."""
        horizon = object.__new__(cls)
        horizon._fill(length, ratio, factors, scaled)
        return horizon

    def _with_length(self, max_duration: Time[Any] | str) -> Horizon:
        """The same run with another length, before scaling."""
        return Horizon._make(_read_length(max_duration), self._ratio, self.conversion_factors, scaled=False)

    def _with_end_after(self, timestamp: Any, time: Time[Any] | str) -> Horizon:
        """The same run with its end `time` after a timestamp. The ratio does not stretch the time."""
        assert self._end is not None and self.max_duration is not None
        counter, unit = self._end[1], unit_of(self._end[1])
        length, length_unit = self.locate(time, scale=False)
        if length <= 0:
            raise TimeError(f"Clock.end_after.time={str(time)!r}: a run ends later than now. Pass a time above 0.")
        end = self._add_length(counts_of(timestamp, (counter,))[0], unit, length, length_unit)
        if isinstance(counter, EpochCounter):
            end = Fraction(end) / counter.length
        max_duration = Time._make(exact_number(end / Fraction(self._ratio)), self.max_duration.unit)
        return Horizon._make(max_duration, self._ratio, self.conversion_factors, scaled=False)

    def with_epochs_of(self, other: Horizon) -> Horizon:
        """The same run with the epoch length of another horizon, if both epoch lengths are known."""
        return self.with_epochs(
            self.conversion_factors[0] and (other.conversion_factors[0] or self.conversion_factors[0])
        )

    def with_epochs(self, batches_per_epoch: Exact | None) -> Horizon:
        """The same run with another number of batches per epoch, or None if it is not known."""
        length = None if batches_per_epoch is None else read_positive(batches_per_epoch, _FACTOR_NAMES[0])
        return Horizon._make(
            self._unscaled, self._ratio, (length, *self.conversion_factors[1:]), self.max_duration is self._unscaled
        )

    @property
    def batches_per_epoch(self) -> Exact | None:
        """Batches in one epoch, or None."""
        return self.conversion_factors[0]  # type: ignore[no-any-return]  # see `conversion_factors`

    @property
    def samples_per_batch(self) -> Exact | BatchSizes | None:
        """Samples in one batch over all ranks, a batch-size schedule if the size changes, or None."""
        return self.conversion_factors[1]  # type: ignore[no-any-return]  # see `conversion_factors`

    @property
    def tokens_per_sample(self) -> Exact | None:
        """Tokens in one sample, or None."""
        return self.conversion_factors[2]  # type: ignore[no-any-return]  # see `conversion_factors`

    def is_fixed(self, one: TimeUnit, other: TimeUnit) -> bool:
        """Whether a length in one unit has the same length in another unit everywhere in the run.

        Under a batch-size schedule, this is false between epochs or batches and samples or tokens.
        """
        return self._stages is None or (one in _UNIT_CHAIN[:2]) == (other in _UNIT_CHAIN[:2])

    def locate(self, time: Time[Any] | str, scale: bool = True) -> tuple[Exact, TimeUnit]:
        """The position of a schedule's time on this run: an exact count, and its unit.

        A `dur` becomes a fraction of the run's length, in the unit of the length. An epoch is counted in batches if its
        length is known. The ratio stretches every time but `dur`, unless `scale` is False. Raises `ValueError` for a
        `dur` when the run's length is not known.
        """
        count, counter = self.place(time, scale)
        return count, unit_of(counter)

    def place(self, time: Time[Any] | str, scale: bool = True) -> tuple[Exact, Counter]:
        """The position of a time, as `locate` returns it, and the counter that reaches it."""
        time = Time.from_input(time)
        number, unit = time.exact, time.unit
        if unit is TimeUnit.DURATION:
            if self._end is None:
                raise ValueError(f"{time} needs the length of the run, which is not known. Set max_duration.")
            length, counter = self._end
            return number * length, counter
        count, counter = self._count_and_counter(number, unit)
        return (count * self._ratio if scale else count), counter

    def change(self, count: Exact, old: TimeUnit, new: TimeUnit) -> Exact:
        """An exact count of one unit as an exact count of another. Under a batch-size schedule, both are counted from
        the start of the run.

        Raises `ValueError` with the names of the missing conversion factors, or if no factor converts the two units.
        """
        old, new = TimeUnit(old), TimeUnit(new)
        if old is new or count == 0:
            return count
        if old not in _UNIT_CHAIN or new not in _UNIT_CHAIN:
            raise ValueError(
                f"{number_text(count)}{old.value} cannot be converted to {new.value}: no conversion factor links "
                f"{(old if old not in _UNIT_CHAIN else new).value!r} to another unit. Write both times in one unit."
            )
        i, j = _UNIT_CHAIN.index(old), _UNIT_CHAIN.index(new)
        if self._stages is not None and i <= 1 < j:
            return self.change(self._stages.samples(self.change(count, old, TimeUnit.BATCH)), TimeUnit.SAMPLE, new)
        if self._stages is not None and j <= 1 < i:
            return self.change(self._stages.batches(self.change(count, old, TimeUnit.SAMPLE)), TimeUnit.BATCH, new)
        needed = range(min(i, j), max(i, j))
        missing = [_FACTOR_NAMES[k] for k in needed if self.conversion_factors[k] is None]
        if missing:
            names = " and ".join(missing).replace(_FACTOR_NAMES[0], f"{_FACTOR_NAMES[0]} (the state's dataloader_len)")
            raise ValueError(
                f"{number_text(count)}{old.value} cannot be converted to {new.value} without {names}. Pass "
                f"{' and '.join(f'{name}=...' for name in missing)} to the Clock, the Horizon or the adapter of the "
                f"trainer, or write both times in one unit."
            )
        factor: Exact = math.prod(self.conversion_factors[k] for k in needed)
        return count * factor if i < j else Fraction(count) / factor

    def after(self, start: Exact, unit: TimeUnit | str, time: Time[Any] | str) -> Exact:
        """The end of a phase that begins at a count of `unit`, and lasts as long as a time of a schedule.

        The ratio stretches the time, but not the count. Raises `ValueError` where the two units do not convert.

        >>> from timesched import BatchSizeSchedule
        >>> run = Horizon("100ba", samples_per_batch=BatchSizeSchedule({"0sp": 8, "160sp": 16}))
        >>> run.after(10, "ba", "240sp")  # 10 batches of 8, and 10 of 16
        30
        """
        return self._add_length(start, TimeUnit(unit), *self.locate(time))

    def before(self, end: Exact, unit: TimeUnit | str, time: Time[Any] | str) -> Exact:
        """The beginning of a phase that ends at a count of `unit`, and lasts as long as a time of a schedule.

        It is below 0 if the time is longer than the count. The ratio acts as in `after`, and the errors are the same.
        """
        length, length_unit = self.locate(time)
        return self._add_length(end, TimeUnit(unit), -length, length_unit)

    def _add_length(self, count: Exact, unit: TimeUnit, length: Exact, length_unit: TimeUnit) -> Exact:
        """A count of a unit plus a length, which may be in another unit."""
        if length == 0 or self.is_fixed(length_unit, unit):
            return count + self.change(length, length_unit, unit)
        return exact_number(self.change(self.change(count, unit, length_unit) + length, length_unit, unit))

    def convert(self, time: Time[Any] | str, unit: TimeUnit | str) -> Time[Any]:
        """A time of this run, exactly converted to another unit. In `dur` it is a fraction of the (scaled) run.

        Raises `ValueError` with the names of the missing conversion factors, and `TimeError` where the result is not a
        whole count.
        """
        time, unit = Time.from_input(time), TimeUnit(unit)
        count, own = (time.exact, time.unit) if time.unit is unit else self.locate(time, scale=False)
        if unit is TimeUnit.DURATION and own is not unit:
            if self._end is None:
                raise ValueError(f"{time} cannot be converted to dur without the length of the run. Set max_duration.")
            length, last = self._end
            return Time(Fraction(self.change(count, own, unit_of(last))) / length, unit)
        return Time(self.change(count, own, unit), unit)

    def add(self, one: Time[Any], other: Time[Any]) -> Time[Any]:
        """The sum of two times in the finer unit, or in `dur` if one of them is in `dur`.

        Under a batch-size schedule, `other` is a length that begins at `one`.

        >>> Horizon("10ep", batches_per_epoch=50).add(Time(1, "ep"), Time(3, "ba"))
        Time(53, TimeUnit.BATCH)
        """
        if one.unit is other.unit:
            return one + other
        if TimeUnit.DURATION in (one.unit, other.unit):  # the ratio does not stretch a fraction of the run
            length, unit = self.locate("1dur")
            end = self.after(self.change(*self.locate(one), unit), unit, other)
            return Time._make(Fraction(end) / length, TimeUnit.DURATION)
        unit = max((self.locate(time)[1] for time in (one, other)), key=list(TimeUnit).index)
        end = self.after(self.change(*self.locate(one), unit), unit, other)
        return Time._make(Fraction(end) / self._ratio, unit)

    def progress(self, timestamp: Any) -> Exact:
        """The exact fraction of the (scaled) run that is done at a timestamp; above 1 after the end.

        A run in epochs is measured by its epochs, and by the batches of the present epoch if the length of an epoch is
        known. Raises `ValueError` when the length of the run is not known.
        """
        if self._end is None:
            raise ValueError(
                "The fraction that is done needs the length of the run, which is not known. Set max_duration."
            )
        end, counter = self._end
        return Fraction(counts_of(timestamp, (counter,))[0]) / end if end else 1

    def falls_short(self, time: Time[Any] | str) -> bool:
        """Whether the run continues after `time`, scaled or not; False where their units do not convert."""
        if self._end is None:
            return False
        length, counter = self._end
        try:
            return all(self.change(*self.locate(time, scale), unit_of(counter)) < length for scale in (True, False))
        except ValueError:
            return False

    def _count_and_counter(self, count: Exact, unit: TimeUnit) -> tuple[Exact, Counter]:
        if unit is TimeUnit.EPOCH and self.conversion_factors[0] is not None:
            return count * self.conversion_factors[0], EpochCounter(self.conversion_factors[0])
        return count, unit

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Horizon.{name} cannot be set, since a Horizon never changes. Create a new one.")

    def __reduce__(self) -> tuple[Any, ...]:
        is_scaled = self.max_duration is self._unscaled
        return Horizon._make, (self._unscaled, self._ratio, self.conversion_factors, is_scaled)

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, Horizon) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        arguments = [repr(None if self._unscaled is None else str(self._unscaled))]
        for name, factor in zip(_FACTOR_NAMES, self.conversion_factors):
            if isinstance(factor, BatchSizes):
                arguments.append(f"{name}={factor!r}")
            elif factor is not None:
                text = number_text(factor)
                arguments.append(f"{name}={repr(factor) if '/' in text else text}")
        if self._ratio != 1:
            arguments.append(f"ssr={self.ssr if read_ratio(self.ssr) == self._ratio else self._ratio!r}")
        return f"Horizon({', '.join(arguments)})"


class _Stages:
    """The positions in one run where the batch size changes: the first batch that begins at or after each threshold.

    Positions are in whole batches and samples from the start of the run.
    """

    __slots__ = ("_batches", "_samples", "_sizes")

    def __init__(self, run: Horizon, entries: tuple[tuple[Time[Any], int], ...]) -> None:
        batch, sample, size = 0, 0, entries[0][1]
        self._batches, self._samples, self._sizes = [batch], [sample], [size]
        for time, next_size in entries[1:]:
            count, unit = run.locate(time)
            if unit in _UNIT_CHAIN[:2]:
                batches = math.ceil(run.change(count, unit, TimeUnit.BATCH)) - batch
            else:
                batches = math.ceil(Fraction(run.change(count, unit, TimeUnit.SAMPLE) - sample) / size)
            batches = max(batches, 0)  # one batch may pass several thresholds
            batch, sample, size = batch + batches, sample + batches * size, next_size
            self._batches.append(batch)
            self._samples.append(sample)
            self._sizes.append(size)

    def samples(self, batches: Exact) -> Exact:
        """The samples of the batches up to a position. It may be below 0, where a phase that is too long begins."""
        i = max(bisect_right(self._batches, batches) - 1, 0)
        return self._samples[i] + (batches - self._batches[i]) * self._sizes[i]

    def batches(self, samples: Exact) -> Exact:
        """The inverse of `samples`."""
        i = max(bisect_right(self._samples, samples) - 1, 0)
        return self._batches[i] + Fraction(samples - self._samples[i]) / self._sizes[i]


def read_positive(value: Any, name: str) -> Exact:
    """`value` as an exact number. Raises `ValueError` unless it is positive and finite."""
    number = exact_number(getattr(value, "value", value), name)  # Composer gives the length of an epoch as a time
    if number <= 0:
        raise ValueError(f"{name}={value!r}: it is not above 0. Pass a positive number.")
    return number


def read_ratio(value: Any) -> Exact:
    """A scale-schedule ratio as an exact number.

    A float that is a quotient of whole numbers up to a million means this quotient: 5 / 3 is five thirds. Any other
    float means its shortest decimal. Raises `ValueError` unless the ratio is positive and finite.

    >>> read_ratio(5 / 3), read_ratio(0.29), read_ratio(1.6666667)
    (Fraction(5, 3), Fraction(29, 100), Fraction(16666667, 10000000))
    """
    number = read_positive(value, "ssr")
    if isinstance(number, int) or not isinstance(value, float):
        return number
    quotient = number.limit_denominator()
    return quotient if float(quotient) == value and quotient.numerator <= 10**6 else number


def _read_length(value: Any, unit: TimeUnit | None = None, allows_zero: bool = False) -> Time[Any] | None:
    """The length of a run. A plain number counts in `unit`, and is an error without `unit`."""
    if value is None:
        return None
    try:
        time = Time.from_input(value, unit)
    except TimeError as error:
        raise TimeError(f"max_duration: {error}") from None
    if time.unit is TimeUnit.DURATION:
        raise ValueError(f"max_duration={value!r}: it is a fraction of itself. Pass a time such as '10ep'.")
    if time.exact < 0 or (time.exact == 0 and not allows_zero):
        raise ValueError(f"max_duration={value!r}: it is not above 0. Pass a length above 0.")
    return time


def _convert_time(time: Time[Any] | str, state: Any, ssr: float = 1.0) -> Time[Any]:
    """The count at which a time is reached on a run. Composer's tests and some of its users import this name."""
    count, unit = Horizon.of(state, ssr).locate(Time.from_input(time))
    return Time._make(count, unit)
