"""Schedules of any number in the parameter groups, run by the Trainer of MosaicML Composer: `Schedules`, a callback.

`Trainer(schedulers=...)` drives the learning rate of all groups alike. This callback drives what that leaves out:
weight decay, betas, single tags. It is saved in the Trainer's checkpoints, and runs next to `schedulers=`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from typing import Any

from composer import Callback

from timesched.binding import bind
from timesched.horizon import positive
from timesched.schedule import Schedule
from timesched.slots import Slot, known_tags, select
from timesched.timevalue import Time
from timesched.units import number_text

_SCHEDULER = ("step", "state_dict", "load_state_dict")  # what makes an object one


@dataclass(frozen=True)
class Binding:
    """A schedule, and what it drives: the arguments of `timesched.bind` that are known before the run is.

    `schedule`: a schedule, a function of `(state)` or `(state, ssr)`, or a list of them, which multiply the initial
    value. `key`: `"weight_decay"`, `"lr"`, `"betas[0]"`, ... `tags`: only groups that carry one of these; None for
    all groups, `[None]` for groups without tags. Raises `TypeError` for what is no schedule, `ValueError` for a key
    that names no number.

    >>> from timesched import LinearScheduler
    >>> Binding(LinearScheduler(alpha_f=0.1), "weight_decay", tags="head").schedule.alpha_f
    0.1
    """

    schedule: Any
    key: str | tuple[str, int]
    tags: Any = None

    def __post_init__(self) -> None:
        Slot(self.key)
        for one in _each(self.schedule):
            if not callable(one):
                raise TypeError(f"{one!r} is no schedule: pass one of timesched's, or a function of (state, ssr).")
        if not _each(self.schedule):
            raise ValueError("The list of schedules is empty: pass at least one.")


class Schedules(Callback):
    """A Composer callback that runs schedules on any number of the optimizer's parameter groups.

    Each of `entries` is one of

    * a `Binding`: a schedule of this package with a key of the groups, and tags;
    * a scheduler on the Trainer's optimizer: one of `optim`, or another object with `step`, `state_dict` and
      `load_state_dict`;
    * a function of `(optimizer)` or `(optimizer, clock)` that returns such a scheduler, called when the Trainer has
      loaded neither checkpoint nor batch; `clock` is the run's, for times such as `"0.1dur"`. A class of `optim` with
      its arguments in a `functools.partial` is such a function.

    `ssr`: the Trainer's `scale_schedule_ratio`, which it tells nobody: give it here too. `log`: log every value after
    every batch, as `LRMonitor` does, under `weight_decay-AdamW/group0` and the like.

    A batch runs with the value of the time at which it begins. (Composer's own `schedulers=` are one batch behind:
    they are stepped before the batch is counted.) Every scheduler is stepped once for every batch, whatever
    microbatches, a gradient scaler or `step_schedulers_every_batch` do; schedules in epochs also move at its end. A
    second `fit` goes on with its own length; `fit(reset_time=True)` sets back what follows the clock, and leaves
    schedulers that count their steps as they are, as the Trainer does.

    A run resumed by `load_path` or `autoresume` goes on exactly. A checkpoint of other schedules is refused with the
    difference: of functions and Composer's own schedules the name is compared, of ours everything. To start anew from
    such a checkpoint, load it with `load_ignore_keys=["state/callbacks/Schedules"]`. Where it has nothing of this
    callback, Composer warns; what follows the clock then has the value of the loaded time, from the initial values
    of the new optimizer, and what counts steps begins at its first.

    Raises `TypeError` for other entries; when the Trainer is built, or fits: `ValueError` when there are two such
    callbacks (a checkpoint has room for one), when two schedules drive one number (also one of `schedulers=`), and as
    `timesched.bind` does.

    >>> from timesched import CosineAnnealingScheduler, LinearScheduler
    >>> callback = Schedules(
    ...     Binding(CosineAnnealingScheduler(), "weight_decay"),
    ...     Binding(LinearScheduler(0.9, 1.0, "0.5dur"), "betas[0]", tags="head"),
    ... )
    >>> len(callback.entries)  # then Trainer(..., callbacks=[callback])
    2
    """

    def __init__(self, *entries: Any, ssr: float = 1.0, log: bool = False) -> None:
        for entry in entries:
            if isinstance(entry, Schedule):
                raise TypeError(f"{entry!r} does not say what it drives: pass Binding({entry!r}, 'weight_decay').")
            if not (isinstance(entry, Binding) or _is_scheduler(entry) or callable(entry)):
                raise TypeError(f"{entry!r} is none of a Binding, a scheduler, and a function of the optimizer.")
        self.entries = entries
        self.ssr = float(positive(ssr, "the scale-schedule ratio (ssr)"))
        self.log = log
        self.schedulers: list[Any] = []
        self._loaded: Mapping[str, Any] | None = None

    def init(self, state: Any, logger: Any) -> None:
        """Begin with a new Trainer."""
        if sum(type(other).__qualname__ == type(self).__qualname__ for other in state.callbacks) > 1:
            raise ValueError(
                f"There are two {type(self).__qualname__} callbacks, and a checkpoint has room for the state of one: "
                f"pass the entries of both to one."
            )
        self._release(self.schedulers)
        self.schedulers, self._loaded = [], None

    def before_load(self, state: Any, logger: Any) -> None:
        """Make the schedulers on the initial values, unless the length of the run is yet to be given to `fit`."""
        if state.max_duration is not None:
            self._make(state)

    def after_load(self, state: Any, logger: Any) -> None:
        """Take up what was loaded, now that optimizer and time are loaded too."""
        self._take_up()

    def fit_start(self, state: Any, logger: Any) -> None:
        """Be ready for a run, which may have another length than the one before."""
        if not self.schedulers:
            self._make(state)
        self._refuse_shared(self.schedulers, state)  # fit() takes schedulers= too
        self._take_up()

    def batch_end(self, state: Any, logger: Any) -> None:
        """Write the values of the next batch."""
        for scheduler in self.schedulers:
            scheduler.step()
        if self.log and logger.destinations:
            logger.log_metrics(dict(self._values(state)))

    def epoch_end(self, state: Any, logger: Any) -> None:
        """Follow the count of epochs, which has moved since the end of the batch."""
        self._refresh()

    def iteration_end(self, state: Any, logger: Any) -> None:
        """Follow the count of iterations."""
        self._refresh()

    def state_dict(self) -> dict[str, Any]:
        """What each scheduler is and its own state, all plain."""
        if self._loaded is not None:
            return dict(self._loaded)
        both = zip(self.entries, self.schedulers)
        return {"schedules": [{"about": self._about(e, s), "state": s.state_dict()} for e, s in both]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep a state until the optimizer and the time are loaded as well: Composer loads the callbacks first."""
        self._loaded = state

    def _make(self, state: Any) -> None:
        if len(state.optimizers) != 1:
            raise ValueError(f"The Trainer has {len(state.optimizers)} optimizers, and Schedules drives one.")
        optimizer, clock, made = state.optimizers[0], _Clock(state, self.ssr), []
        try:
            for entry in self.entries:
                made.append(_resolved(entry, optimizer, clock))
            self._refuse_shared(made, state)
            for scheduler in made:
                if hasattr(scheduler, "settle"):  # refuses what else its first step would
                    scheduler.settle()
        except BaseException:
            self._release(made)
            raise
        self.schedulers = made

    def _release(self, schedulers: Sequence[Any]) -> None:
        for entry, scheduler in zip(self.entries, schedulers):
            if entry is not scheduler and hasattr(scheduler, "unbind"):  # those made here
                scheduler.unbind()

    def _refuse_shared(self, schedulers: Sequence[Any], state: Any) -> None:
        groups = state.optimizers[0].param_groups
        of_trainer = list(state.schedulers)
        for one, other in combinations([*schedulers, *of_trainer], 2):
            (slot, mine), (second, its) = _driven(one, groups), _driven(other, groups)
            both = mine & its
            if slot.name == second.name and both and not any(one is each for each in of_trainer):
                raise ValueError(
                    f"{slot.name!r} of parameter group {min(both)} is driven by two schedules, {_name(one)} and "
                    f"{_name(other)}{' of schedulers=' if other in of_trainer else ''}: give each a tag of its own "
                    f"(there are: {known_tags(groups)}), and no schedulers= where Schedules drives the 'lr'."
                )

    def _take_up(self) -> None:
        if self._loaded is not None and self.schedulers:
            saved = list(self._loaded.get("schedules", ()))
            here = [self._about(e, s) for e, s in zip(self.entries, self.schedulers)]
            fix = f"or start anew with load_ignore_keys=['state/callbacks/{type(self).__qualname__}']"
            _refuse_other([each["about"] for each in saved], here, f"Give the schedules that were saved, {fix}.")
            for scheduler, each in zip(self.schedulers, saved):
                scheduler.load_state_dict(each["state"])
            self._loaded = None
        self._refresh()

    def _refresh(self) -> None:
        for scheduler in self.schedulers:
            if hasattr(scheduler, "refresh"):
                scheduler.refresh()

    def _about(self, entry: Any, scheduler: Any) -> dict[str, Any]:
        """What a scheduler is, in plain values."""
        if not isinstance(entry, Binding):
            return {"schedule": type(scheduler).__qualname__}
        tags = [entry.tags] if isinstance(entry.tags, str) else entry.tags
        return {
            "schedule": " * ".join(map(_text, _each(entry.schedule))),
            "key": Slot(entry.key).name,
            "tags": None if tags is None else sorted(tags, key=str),
            "ssr": self.ssr,
        }

    def _values(self, state: Any) -> Any:
        """The present values, by the names they are logged under."""
        optimizer = state.optimizers[0]
        for scheduler in self.schedulers:
            slot, indices = _driven(scheduler, optimizer.param_groups)
            for i in sorted(indices):
                value = slot.read(optimizer.param_groups[i], f"Parameter group {i}")
                yield f"{slot.name}-{type(optimizer).__name__}/group{i}", float(value)


class _Clock:
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
        return getattr(self._state, name)


def _each(schedule: Any) -> list[Any]:
    return list(schedule) if isinstance(schedule, Sequence) and not isinstance(schedule, str) else [schedule]


def _is_scheduler(thing: Any) -> bool:
    return not isinstance(thing, type) and all(callable(getattr(thing, name, None)) for name in _SCHEDULER)


def _resolved(entry: Any, optimizer: Any, clock: _Clock) -> Any:
    if isinstance(entry, Binding):
        return bind(entry.schedule, optimizer, clock, entry.key, entry.tags)
    scheduler = entry if _is_scheduler(entry) else _called(entry, optimizer, clock)
    if not _is_scheduler(scheduler):
        raise TypeError(f"{_name(entry)} returned {scheduler!r}: a scheduler has {', '.join(_SCHEDULER)}.")
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise ValueError(f"{_name(scheduler)} drives another optimizer than the Trainer's: make it on that one.")
    return scheduler


def _called(function: Any, optimizer: Any, clock: _Clock) -> Any:
    signature = inspect.signature(function)
    wanted = signature.parameters.get("clock")
    if wanted is not None and wanted.default is None:
        return function(optimizer, clock=clock)
    try:
        signature.bind(optimizer)
    except TypeError:
        return function(optimizer, clock)
    return function(optimizer)


def _driven(scheduler: Any, groups: Any) -> tuple[Slot, set[int]]:
    """What a scheduler writes to; torch's own drive the learning rate of all groups."""
    key = getattr(scheduler, "key", None) or getattr(scheduler, "param_group_key", None) or "lr"
    tags = getattr(scheduler, "tags", None)
    return Slot(key), set(select(groups, getattr(scheduler, "param_group_tags", tags)))


def _name(thing: Any) -> str:
    return getattr(thing, "__qualname__", type(thing).__qualname__)


def _text(value: Any) -> str:
    """A schedule as a text: the same one for two that are equal, however their times were written."""
    if isinstance(value, Schedule):
        given: Any = value
        return f"{_name(value)}({', '.join(f'{f.name}={_text(getattr(value, f.name))}' for f in fields(given))})"
    if isinstance(value, Time):
        return f"{number_text(value.exact)}{value.unit.value}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_text, value))}]"
    return _name(value) if callable(value) else repr(value)


def _refuse_other(saved: list[dict[str, Any]], here: list[dict[str, Any]], fix: str) -> None:
    if len(saved) != len(here):
        raise ValueError(f"The checkpoint has {len(saved)} schedules, and here are {len(here)}. {fix}")
    for i, (old, new) in enumerate(zip(saved, here)):
        others = [key for key in old.keys() & new if old[key] != new[key]]
        if others:
            said = "; ".join(f"{key} {old[key]!r} there, {new[key]!r} here" for key in sorted(others))
            raise ValueError(f"Schedule {i} of the checkpoint is another one: {said}. {fix}")
