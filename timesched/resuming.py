"""Resuming under another schedule or on another horizon: what differs, and the saved ones made again."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from timesched.batch_plan import BatchPlan
from timesched.clock import Clock
from timesched.description import constructed
from timesched.fields import choice
from timesched.horizon import Horizon
from timesched.schedule import Schedule
from timesched.time.units import TimeUnit
from timesched.time.value import counter

_change = choice("same", "same", "new", "saved").metadata["read"]


def read_change(name: str, on_change: Any, clock: Any) -> str:
    """`on_change`, as an argument of what has a name. Raises `ValueError` for what it cannot be."""
    if on_change == "saved" and not isinstance(clock, (Clock, type(None))):
        raise ValueError(
            f"{name}: on_change='saved' needs a timesched.Clock, whose horizon is in the state; that of {clock!r} is "
            f"not: take 'new', and the schedule that was saved."
        )
    changed: str = _change(f"{name}: on_change", on_change)
    return changed


def rebuilt(description: Any) -> Any:
    """The schedule, or the list of them, that `description.plain` described.

    Raises `ValueError` for functions and for classes that are not of this package, of which it does not say all; and
    what the constructors raise.
    """
    if isinstance(description, list):
        return [rebuilt(each) for each in description]
    if not (isinstance(description, Mapping) and isinstance(description.get("arguments"), Mapping)):
        raise ValueError(f"{description!r} is a function or an object, of which a state holds the name alone")
    name = description.get("class")
    kinds, found = [Schedule], None
    while kinds and found is None:
        kind = kinds.pop()
        found = kind if kind.__name__ == name and kind.__module__.startswith("timesched.") else None
        kinds += kind.__subclasses__()
    if found is None:
        raise ValueError(f"{name} is not a schedule of timesched")
    return found(**{key: _argument(key, value) for key, value in description["arguments"].items()})


def _argument(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return rebuilt(value)
    if name == "horizon":
        return read_horizon(value)
    return [_argument(name, each) for each in value] if isinstance(value, list) else value


def read_horizon(text: str) -> Horizon:
    """The horizon whose `repr` a text is. Nothing is evaluated. Raises `ValueError` for any other text.

    >>> read_horizon("Horizon('10ep', batches_per_epoch=50)").max_duration
    Time(10, TimeUnit.EPOCH)
    """
    try:
        horizon = constructed(text, {"Horizon": Horizon, "Fraction": Fraction, "BatchPlan": BatchPlan}.__getitem__)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the horizon in the state, {text!r}, cannot be read: {error}") from None
    if not isinstance(horizon, Horizon):
        raise ValueError(f"the horizon in the state is {text!r}: pass what state_dict() saved")
    return horizon


def horizon_changes(theirs: Horizon, ours: Horizon) -> list[str]:
    """What differs between two horizons, as `max_duration: 10ep -> 20ep`."""
    saved, now = _parts(theirs), _parts(ours)
    return [f"{name}: {saved[name]} -> {now[name]}" for name in saved if saved[name] != now[name]]


def _parts(horizon: Horizon) -> dict[str, str]:
    names = ("max_duration", "batches_per_epoch", "samples_per_batch", "tokens_per_sample", "ssr")
    parts = (horizon._unscaled, *horizon._rates, horizon.ssr)
    return {name: "not known" if part is None else str(part) for name, part in zip(names, parts)}


def moment(clock: Clock) -> str:
    """Where a clock stands, in the unit of its run; in batches within an epoch."""
    unit, timestamp = clock.max_duration.unit, clock.timestamp
    within = unit is TimeUnit.EPOCH and timestamp.batch_in_epoch != 0
    return str(counter(timestamp, TimeUnit.BATCH if within else unit))


def compared(what: str, where: str, theirs: float | None, ours: float) -> str:
    """The values of two schedules at one moment, in as few digits as tell them apart; None where one has none."""
    if theirs is None:
        return f"{what} at {where}: {ours:.4g} now."
    if theirs == ours:
        return f"{what} at {where}: {ours!r}, saved and now."
    digits = next(n for n in range(4, 18) if f"{theirs:.{n}g}" != f"{ours:.{n}g}")
    return f"{what} at {where}: {theirs:.{digits}g} saved, {ours:.{digits}g} now."


def refusal(lines: list[str], values: str, saved: bool, cooldown: bool, why: str | None) -> str:
    """The message about another schedule: what differs, the values, and what a load or a user can do about it."""
    ways = ['on_change="new" to go on with the present one']
    if saved:
        ways.append('"saved" to go on with the saved one (past its end its last value holds)')
    if cooldown:
        ways.append("or cool down from here: schedule.cooldown(at=clock, t_decay=...)")
    differences = "\n    ".join(["The checkpoint was trained under another schedule:", *lines])
    reason = f" The saved one cannot be made again: {why}." if why else ""
    return f"{differences}\n  {values}\nLoad with {', '.join(ways)}.{reason}"
