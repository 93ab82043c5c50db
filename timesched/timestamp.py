"""Timestamp: where a run stands on each of its clocks."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from timesched.fields import LARGEST
from timesched.timevalue import Time, counter
from timesched.units import Ordered, TimeError, TimeUnit

# Every counter with its unit, in the order of the constructor; then the wall clocks.
_COUNTERS = {
    "iteration": TimeUnit.ITERATION,
    "epoch": TimeUnit.EPOCH,
    "batch": TimeUnit.BATCH,
    "sample": TimeUnit.SAMPLE,
    "token": TimeUnit.TOKEN,
    "epoch_in_iteration": TimeUnit.EPOCH,
    "token_in_iteration": TimeUnit.TOKEN,
    "batch_in_epoch": TimeUnit.BATCH,
    "sample_in_epoch": TimeUnit.SAMPLE,
    "token_in_epoch": TimeUnit.TOKEN,
}
WALL_CLOCKS = ("total_wct", "iteration_wct", "epoch_wct", "batch_wct")
_FIELDS = (*_COUNTERS, *WALL_CLOCKS)
_ALWAYS_SAVED = ("epoch", "batch", "sample", "token", "batch_in_epoch", "sample_in_epoch", "token_in_epoch")
_SECOND = datetime.timedelta(seconds=1)
_NONE = datetime.timedelta(0)


class Timestamp(Ordered):
    """How far a run has come: counts of iterations, epochs, batches, samples and tokens, and wall-clock durations.

    Counters are `Time`s, given as ints, times or texts of the right unit, and never negative. A timestamp is not
    updated in place (`epoch_in_iteration` can be set, as in Composer): `to_next_batch` and its like return new ones.
    It compares with a `Time` or a time text on the counter of that unit.

    Raises `TimeError` for a counter of another unit, negative or fractional.

    >>> after = Timestamp().to_next_batch(samples=8, tokens=512)
    >>> after.batch, after.token, after >= "500tok", after.get("sp")
    (Time(1, TimeUnit.BATCH), Time(512, TimeUnit.TOKEN), True, Time(8, TimeUnit.SAMPLE))

    Names and behaviour: `composer.core.time` of MosaicML Composer 0.32.
    """

    __slots__ = _FIELDS
    iteration: Time[int]
    epoch: Time[int]
    batch: Time[int]
    sample: Time[int]
    token: Time[int]
    epoch_in_iteration: Time[int]
    token_in_iteration: Time[int]
    batch_in_epoch: Time[int]
    sample_in_epoch: Time[int]
    token_in_epoch: Time[int]
    total_wct: datetime.timedelta
    iteration_wct: datetime.timedelta
    epoch_wct: datetime.timedelta
    batch_wct: datetime.timedelta

    def __init__(
        self,
        iteration: int | Time[int] | str = 0,
        epoch: int | Time[int] | str = 0,
        batch: int | Time[int] | str = 0,
        sample: int | Time[int] | str = 0,
        token: int | Time[int] | str = 0,
        epoch_in_iteration: int | Time[int] | str = 0,
        token_in_iteration: int | Time[int] | str = 0,
        batch_in_epoch: int | Time[int] | str = 0,
        sample_in_epoch: int | Time[int] | str = 0,
        token_in_epoch: int | Time[int] | str = 0,
        total_wct: datetime.timedelta | None = None,
        iteration_wct: datetime.timedelta | None = None,
        epoch_wct: datetime.timedelta | None = None,
        batch_wct: datetime.timedelta | None = None,
    ) -> None:
        given = locals()
        for name in _FIELDS:
            value = given[name]
            object.__setattr__(self, name, _checked(name, _NONE if value is None else value))

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "epoch_in_iteration":
            raise AttributeError(f"a Timestamp is not updated in place: use .copy({name}=...).")
        object.__setattr__(self, name, _checked(name, value))

    def __reduce__(self) -> tuple[Any, ...]:
        return Timestamp, tuple(getattr(self, name) for name in _FIELDS)

    def state_dict(self) -> dict[str, Any]:
        """Every counter as an int and every wall clock as a `timedelta`, under their names."""
        return {name: getattr(self, name).value for name in _COUNTERS} | {
            name: getattr(self, name) for name in WALL_CLOCKS
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the counters of a `state_dict()`, Composer's included; what old ones lack keeps its value.

        Raises `KeyError` for a missing counter and `TimeError` for a bad one; nothing is changed then.
        """
        if not isinstance(state, Mapping):
            raise TimeError(f"{state!r} is not the state of a timestamp or clock: pass what its state_dict() returned.")
        missing = [name for name in _ALWAYS_SAVED if name not in state]
        if missing:
            raise KeyError(f"the state of a Timestamp lacks {', '.join(missing)}: is it of another object?")
        loaded = {name: _checked(name, state[name]) for name in _FIELDS if name in state}
        for name, value in loaded.items():
            object.__setattr__(self, name, value)

    def get(self, unit: str | TimeUnit) -> Time[int]:
        """The counter of `unit`; for `sec`, the whole seconds of `total_wct`, which comparisons read exactly.

        Raises `TimeError` for `dur`: the fraction that is done needs the length of the run, which a horizon knows.
        """
        unit = TimeUnit(unit)
        if unit is TimeUnit.SECOND:
            return Time(self.total_wct // _SECOND, unit)
        if unit is TimeUnit.DURATION:
            raise TimeError("A timestamp has no counter in 'dur': divide by the run's max_duration instead.")
        time: Time[int] = getattr(self, unit.name.lower())
        return time

    @property
    def _seconds(self) -> Time[Any]:
        return Time.from_timedelta(self.total_wct)

    def copy(self, **changes: Any) -> Timestamp:
        """A new timestamp with the given fields replaced (those that are None keep their value).

        >>> Timestamp(epoch=1).copy(batch=2).batch
        Time(2, TimeUnit.BATCH)
        """
        unknown = [name for name in changes if name not in _FIELDS]
        if unknown:
            raise TypeError(f"{unknown[0]!r} is not a field of a Timestamp: use one of {', '.join(_FIELDS)}.")
        new = object.__new__(Timestamp)
        for name in _FIELDS:
            value = changes.get(name)
            object.__setattr__(new, name, getattr(self, name) if value is None else _checked(name, value))
        return new

    def to_next_batch(
        self,
        samples: int | Time[int] = 0,
        tokens: int | Time[int] = 0,
        duration: datetime.timedelta | None = None,
    ) -> Timestamp:
        """The timestamp after one more batch of `samples` and `tokens`, summed over all ranks, that took `duration`."""
        took = duration or _NONE
        more_samples = _checked("sample", samples)
        more_tokens = _checked("token", tokens)
        return self.copy(
            batch=self.batch + 1,
            batch_in_epoch=self.batch_in_epoch + 1,
            sample=self.sample + more_samples,
            sample_in_epoch=self.sample_in_epoch + more_samples,
            token=self.token + more_tokens,
            token_in_epoch=self.token_in_epoch + more_tokens,
            token_in_iteration=self.token_in_iteration + more_tokens,
            total_wct=self.total_wct + took,
            iteration_wct=self.iteration_wct + took,
            epoch_wct=self.epoch_wct + took,
            batch_wct=took,
        )

    def to_next_epoch(self, duration: datetime.timedelta | None = None) -> Timestamp:
        """The timestamp at the start of the next epoch; `duration` passed since the last batch."""
        took = duration or _NONE
        return self.copy(
            epoch=self.epoch + 1,
            epoch_in_iteration=self.epoch_in_iteration + 1,
            batch_in_epoch=0,
            sample_in_epoch=0,
            token_in_epoch=0,
            total_wct=self.total_wct + took,
            iteration_wct=self.iteration_wct + took,
            epoch_wct=_NONE,
            batch_wct=_NONE,
        )

    def to_next_iteration(self, duration: datetime.timedelta | None = None) -> Timestamp:
        """The timestamp at the start of the next iteration; `duration` passed since the last batch."""
        took = duration or _NONE
        return self.copy(
            iteration=self.iteration + 1,
            epoch_in_iteration=0,
            token_in_iteration=0,
            batch_in_epoch=0,
            sample_in_epoch=0,
            token_in_epoch=0,
            total_wct=self.total_wct + took,
            iteration_wct=_NONE,
            epoch_wct=_NONE,
            batch_wct=_NONE,
        )

    __hash__ = None  # counters can be loaded in place

    def _compare(self, other: object) -> int | None:
        if isinstance(other, str):
            other = Time.from_timestring(other)
        unit = getattr(other, "unit", None)
        return None if unit is None else counter(self, TimeUnit(unit))._compare(other)

    def __eq__(self, other: object) -> bool:
        if hasattr(other, "batch_in_epoch") and hasattr(other, "state_dict"):  # a timestamp, perhaps Composer's
            return bool(self.state_dict() == other.state_dict())
        return super().__eq__(other)

    def __repr__(self) -> str:
        fields = [f"{name}={getattr(self, name).value}" for name in _COUNTERS]
        fields += [f"{name}={getattr(self, name)!r}" for name in WALL_CLOCKS]
        return f"Timestamp({', '.join(fields)})"


def _checked(name: str, value: Any) -> Any:
    """The value of a field, as a Time of the field's unit or a timedelta; refused where it is neither."""
    unit = _COUNTERS.get(name)
    if unit is None:
        if not isinstance(value, datetime.timedelta) or value < _NONE:
            raise TimeError(f"{name}={value!r} is not a datetime.timedelta of 0 or more, as a wall-clock duration is.")
        return value
    try:
        time = value if type(value) is Time else Time.from_input(value, unit)
    except TimeError as error:
        raise TimeError(f"{name}: {error}") from None
    if time.unit is not unit:
        raise TimeError(f"{name}={value} counts in {time.unit.value}: give a number or a time in {unit.value}.")
    if type(time.exact) is not int or not 0 <= time.exact <= LARGEST:
        raise TimeError(
            f"{name}={str(value)[:40]} is not a count: a counter is a whole number, 0 or more, below 1e300."
        )
    return time
