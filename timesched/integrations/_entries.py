"""What becomes of the entries of `Schedules`: schedulers, their clock, and the texts that a checkpoint compares."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from timesched.binding import Bound, bind
from timesched.clock import Clock
from timesched.schedule import Schedule
from timesched.slots import Slot, known_tags, select
from timesched.time.units import number_text
from timesched.time.value import Time

_SCHEDULER = ("step", "state_dict", "load_state_dict")  # what makes an object one


@dataclass(frozen=True)
class Binding:
    """A schedule, and what it drives: the arguments of `timesched.bind` that are known before the run is.

    `schedule`: a schedule, a function of `(state)` or `(state, ssr)`, or a list of them, which multiply the initial
    value. `key`: `"weight_decay"`, `"lr"`, `"betas[0]"`, ... `tags`: only groups that carry one of these; None for
    all groups, `[None]` for those without. Raises `TypeError` for what is no schedule, `ValueError` for no such key.

    >>> from timesched import LinearScheduler
    >>> Binding(LinearScheduler(alpha_f=0.1), "weight_decay", tags="head").schedule.alpha_f
    0.1
    """

    schedule: Any
    key: str | tuple[str, int]
    tags: Any = None

    def __post_init__(self) -> None:
        Slot(self.key)
        for one in each_of(self.schedule):
            if not callable(one):
                raise TypeError(f"{one!r} is no schedule: pass one of timesched's, or a function of (state, ssr).")


class RunClock:
    """The Trainer's State with a ratio, and without the end that `stop_training()` makes of the present moment.

    A run that is stopped has the values of the whole run, also in its last checkpoint.
    """

    def __init__(self, state: Any, ssr: float) -> None:
        self._state = state
        self._length = state.max_duration
        self.ssr = None if ssr == 1 else ssr  # as the State itself, which schedules read more quickly

    @property
    def max_duration(self) -> Any:
        now = self._state.max_duration
        if now is not self._length and now is not None and self._state.timestamp < now:
            self._length = now
        return self._length

    def __getattr__(self, name: str) -> Any:
        if name == "_state" or name.startswith("__"):  # a copy is asked for some before it has a state
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._state, name)


def each_of(schedule: Any) -> list[Any]:
    """A schedule, or the factors of a product, as a list."""
    return list(schedule) if isinstance(schedule, Sequence) and not isinstance(schedule, str) else [schedule]


def is_scheduler(thing: Any) -> bool:
    return not isinstance(thing, type) and all(callable(getattr(thing, name, None)) for name in _SCHEDULER)


def resolved(entry: Any, optimizer: Any, clock: RunClock) -> list[Any]:
    """The schedulers of an entry."""
    if isinstance(entry, Binding):
        return [bind(entry.schedule, optimizer, clock, entry.key, entry.tags)]
    return [entry] if is_scheduler(entry) else called(entry, optimizer, clock)


def called(function: Any, optimizer: Any, clock: RunClock) -> list[Any]:
    """What a function of `(optimizer)` or `(optimizer, clock)` returns, as a list."""
    signature = inspect.signature(function)
    wanted = signature.parameters.get("clock")
    if wanted is not None and (wanted.default is None or wanted.default is wanted.empty):
        found = function(optimizer, clock=clock)
    else:
        try:
            signature.bind(optimizer)
        except TypeError:
            found = function(optimizer, clock)
        else:
            found = function(optimizer)
    return list(found) if isinstance(found, (list, tuple)) else [found]


def refuse_misfit(scheduler: Any, entry: Any, optimizer: Any) -> None:
    """Raise `TypeError` for what is no scheduler, `ValueError` for one that cannot run in this Trainer."""
    if not is_scheduler(scheduler):
        raise TypeError(f"{name_of(entry)} returned {scheduler!r}: a scheduler has {', '.join(_SCHEDULER)}.")
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise ValueError(f"{name_of(scheduler)} drives another optimizer than the Trainer's: make it on that one.")
    refuse_clock(scheduler)
    if getattr(scheduler, "is_part", False):
        scheduler.settle()  # says of what


def refuse_clock(scheduler: Any) -> None:
    """Raise `ValueError` for a scheduler that follows a clock of its own, and so would stand still."""
    clocks = (getattr(scheduler, "clock", None), getattr(scheduler, "_clock", None))  # closed forms; bound schedules
    if any(isinstance(clock, Clock) for clock in clocks):
        raise ValueError(
            f"{name_of(scheduler)} follows a timesched.Clock, which nobody ticks in a Trainer: make it in a function "
            f"of (optimizer, clock), and pass that; the clock that it gets is the run's."
        )


def refuse_shared(schedulers: Sequence[Any], trainers: Sequence[Any], groups: Any, fix: str = "") -> None:
    """Raise `ValueError` when two schedulers drive one number, also one of the Trainer's own, for which is a `fix`."""
    for i, one in enumerate(schedulers):
        for other in (*schedulers[i + 1 :], *trainers):
            (slot, mine), (second, its) = driven(one, groups), driven(other, groups)
            if slot.name == second.name and mine & its:
                theirs = other in trainers
                raise ValueError(
                    f"{slot.name!r} of parameter group {min(mine & its)} is driven by two schedules, {name_of(one)} "
                    f"and {name_of(other)}{' of schedulers=' if theirs else ''}: give each a tag "
                    f"of its own (there are: {known_tags(groups)}), and no schedulers= where Schedules drives 'lr'."
                    f"{fix if theirs else ''}"
                )


def driven(scheduler: Any, groups: Any) -> tuple[Slot, set[int]]:
    """What a scheduler writes to; torch's own drive the learning rate of all groups."""
    key = getattr(scheduler, "key", None) or getattr(scheduler, "param_group_key", None) or "lr"
    tags = getattr(scheduler, "tags", None)
    return Slot(key), set(select(groups, getattr(scheduler, "param_group_tags", tags)))


def about(scheduler: Any, ssr: float) -> dict[str, Any]:
    """What a scheduler is, in plain values: of a bound schedule all of it, of others the name; the ratio of a clock."""
    if not isinstance(scheduler, Bound):  # the others compare the rest themselves when they load
        timed = getattr(scheduler, "clock", None) is not None
        return {"schedule": name_of(scheduler), **({"ssr": ssr} if timed else {})}
    tags = [scheduler.tags] if isinstance(scheduler.tags, str) else scheduler.tags
    text = " * ".join(map(_text, each_of(scheduler.schedule)))
    return {"schedule": text, "key": scheduler.key, "tags": tags and sorted(tags, key=str), "ssr": ssr}


def name_of(thing: Any) -> str:
    return getattr(thing, "__qualname__", type(thing).__qualname__)


def _text(value: Any) -> str:
    """A schedule as a text: the same one for two that are equal, however their times were written."""
    if isinstance(value, Schedule):
        return f"{name_of(value)}({', '.join(f'{key}={_text(each)}' for key, each in value.__getstate__().items())})"
    if isinstance(value, Time):
        return f"{number_text(value.exact)}{value.unit.value}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_text, value))}]"
    return name_of(value) if callable(value) else repr(value)


def refuse_other(saved: list[dict[str, Any]], here: list[dict[str, Any]], fix: str) -> None:
    """Raise `ValueError` when what was saved is not what is here, with the difference."""
    if len(saved) != len(here):
        raise ValueError(f"The checkpoint has {len(saved)} schedules, and here are {len(here)}. {fix}")
    for i, (old, new) in enumerate(zip(saved, here)):
        said = [f"{key} {old[key]!r} there, {new[key]!r} here" for key in old if key in new and old[key] != new[key]]
        if said:
            raise ValueError(f"Schedule {i} of the checkpoint is another one: {'; '.join(said)}. {fix}")
