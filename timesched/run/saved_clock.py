"""The saved state of a clock: its counters, and what it takes to continue on a run with other conversion factors."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from timesched.rules import read_positive
from timesched.run.horizon import Horizon
from timesched.time.timestamp import MICROSECOND, WALL_CLOCKS, Timestamp
from timesched.time.units import Exact, TimeUnit
from timesched.types import StateDict

COUNTED_UNITS = {"samples": TimeUnit.SAMPLE, "tokens": TimeUnit.TOKEN}  # by the arguments of Clock.tick()


def make_state(timestamp: Timestamp, explicit_units: frozenset[TimeUnit], batches_per_epoch: int | None) -> StateDict:
    """The state of a clock in plain ints. `explicit_units`: the units of which `tick` was given counts."""
    state = timestamp.state_dict()
    state |= {name: state[name] // MICROSECOND for name in WALL_CLOCKS}
    for name, unit in COUNTED_UNITS.items():
        if unit in explicit_units and timestamp.get(unit) == 0:
            state[f"{name}_counted"] = 1
    return state if batches_per_epoch is None else state | {"batches_per_epoch": batches_per_epoch}


def read_explicit_units(state: StateDict) -> frozenset[TimeUnit]:
    """The units of which a clock's state says that 0 was counted."""
    return frozenset(unit for name, unit in COUNTED_UNITS.items() if state.get(f"{name}_counted"))


def read_timestamp(state: StateDict, horizon: Horizon) -> Timestamp:
    """The timestamp of a clock's state on a run, with its batch in the epoch as an exact fraction of the run's epochs.

    Samples and tokens that nobody counted follow from the conversion factors of the run. Raises `KeyError` or
    `TimeError` for the state of another object.
    """
    loaded = Timestamp()
    if isinstance(state, Mapping):
        if "last_epoch" in state:
            raise KeyError("Clock: this is the state of a scheduler. Load it there, or pass its entry 'clock' here.")
        state = {**state, **{name: state[name] * MICROSECOND for name in WALL_CLOCKS if type(state.get(name)) is int}}
    loaded.load_state_dict(state)
    fitted = _fit_epochs(loaded, state.get("batches_per_epoch"), horizon)
    return complete_counts(fitted, read_explicit_units(state), horizon)


def _fit_epochs(loaded: Timestamp, saved_length: object, horizon: Horizon) -> Timestamp:
    """The loaded timestamp in the epochs of a run. `saved_length`: the batches of an epoch when it was saved."""
    length = horizon.batches_per_epoch
    if length is None or saved_length == length:
        return loaded
    if saved_length is None:
        has_epochs = loaded.epoch != 0 or loaded.batch_in_epoch != loaded.batch
        return loaded if has_epochs else loaded.copy(**epochs_after(loaded.batch.value, horizon))
    factor: Any = Fraction(length, read_positive("batches_per_epoch", saved_length))
    return loaded._replace(batch_in_epoch=loaded.batch_in_epoch.exact * factor)


def epochs_after(batches: int, horizon: Horizon) -> dict[str, Any]:
    """The fields `epoch` and `batch_in_epoch` of a timestamp after full batches from the start of a run."""
    epoch, batch_in_epoch = divmod(batches, horizon.batches_per_epoch or batches + 1)
    return {"epoch": epoch, "batch_in_epoch": batch_in_epoch}


def complete_counts(timestamp: Timestamp, explicit_units: frozenset[TimeUnit], horizon: Horizon) -> Timestamp:
    """The timestamp with the samples and tokens that nobody counted, where the conversion factors give them.

    A count in the epoch is given together with its total. If the total was counted, both stay, also a 0 in the epoch.
    """
    finest_known = TimeUnit.BATCH
    for unit in COUNTED_UNITS.values():
        if timestamp.get(unit) == 0 and unit not in explicit_units:
            try:
                timestamp = _complete_count(timestamp, unit, finest_known, horizon)
            except ValueError:  # no conversion factor links them
                continue
        finest_known = unit
    return timestamp


def _complete_count(timestamp: Timestamp, unit: TimeUnit, known_unit: TimeUnit, horizon: Horizon) -> Timestamp:
    """The timestamp with its samples or tokens, of the run and of the epoch, computed from its count of a coarser unit.

    Raises `ValueError` if no conversion factor gives them.
    """
    known_count: Exact = timestamp.get(known_unit).exact
    known_in_epoch: Exact = getattr(timestamp, f"{known_unit.name.lower()}_in_epoch").exact
    count = int(horizon.change(known_count, known_unit, unit))
    epoch_start = int(horizon.change(known_count - known_in_epoch, known_unit, unit))
    name = unit.name.lower()
    return timestamp.copy(**{name: count, f"{name}_in_epoch": count - epoch_start})
