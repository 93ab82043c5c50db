"""Schedules of any number in the parameter groups, run by the Trainer of MosaicML Composer: `Schedules`, a callback.

`Trainer(schedulers=...)` drives the learning rate of all groups alike. This callback drives what that leaves out:
weight decay, betas, single tags. It is saved in the Trainer's checkpoints, and runs next to `schedulers=`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
        for one in _each(self.schedule):
            if not callable(one):
                raise TypeError(f"{one!r} is no schedule: pass one of timesched's, or a function of (state, ssr).")

    def about(self, ssr: float = 1.0) -> dict[str, Any]:
        """All of it, and the ratio, in plain values."""
        text = " * ".join(map(_text, _each(self.schedule)))
        tags = [self.tags] if isinstance(self.tags, str) else self.tags
        return {"schedule": text, "key": Slot(self.key).name, "tags": tags and sorted(tags, key=str), "ssr": ssr}


class Schedules(Callback):
    """A Composer callback that runs schedules on any number of the optimizer's parameter groups.

    Each of `entries` is one of

    * a `Binding`: a schedule of this package, a key of the groups, and tags;
    * a scheduler on the Trainer's optimizer: one of `optim`, or whatever else has `step`, `state_dict` and
      `load_state_dict`;
    * a function of `(optimizer)` or `(optimizer, clock)` that returns such a scheduler, or a list of them, called when
      the Trainer is built, before it loads a checkpoint. `clock` is the run's, for times such as `"0.1dur"`. A class
      of `optim` with its other arguments in a `functools.partial` is such a function, and gets the clock too.

    `ssr`: the Trainer's `scale_schedule_ratio`, which it tells nobody: give it here too. `log`: log every value after
    every batch, as `LRMonitor` does, under `weight_decay-AdamW/group0` and the like.

    A batch runs with the value of the time at which it begins. (Composer's own `schedulers=` are one batch behind:
    they are stepped before the batch is counted.) Every scheduler is stepped once for every batch, whatever
    microbatches, a gradient scaler or `step_schedulers_every_batch` do. A second `fit` has the length that it is
    given; `fit(reset_time=True)` sets back what follows the clock, and what counts its own steps goes on, as the
    schedulers of torch do in a Trainer.

    A run resumed by `load_path` or `autoresume` goes on exactly. A checkpoint of other schedules is refused with the
    difference; of functions and of Composer's own schedules the name alone is compared. To start anew from such a
    checkpoint, load it with `load_ignore_keys=["state/callbacks/Schedules"]`. Where a checkpoint has nothing of this
    callback, Composer warns: what follows the clock then has the value of the loaded time, from the initial values
    of the new optimizer, and what counts its own steps begins at the first.

    Raises `TypeError` for other entries, and when the Trainer is built or fits: `ValueError` when there are two such
    callbacks (a checkpoint has room for one), when two schedules drive one number, also one of `schedulers=`, and
    where `timesched.bind` does.

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
        self._made: list[tuple[Any, Any]] = []  # a scheduler and the entry that it is of
        self._loaded: Mapping[str, Any] | None = None

    @property
    def schedulers(self) -> list[Any]:
        """The schedulers in use, in the order of the entries; none before the Trainer is built."""
        return [scheduler for _, scheduler in self._made]

    def init(self, state: Any, logger: Any) -> None:
        """Begin with a new Trainer."""
        if sum(type(other).__qualname__ == type(self).__qualname__ for other in state.callbacks) > 1:
            raise ValueError(
                f"There are two {type(self).__qualname__} callbacks, and a checkpoint has room for the state of one: "
                f"pass the entries of both to one."
            )
        self._made, self._loaded = [], None

    def before_load(self, state: Any, logger: Any) -> None:
        """Make the schedulers on the initial values, unless the length of the run is yet to be given to `fit`."""
        if state.max_duration is not None:
            self._make(state)

    def after_load(self, state: Any, logger: Any) -> None:
        """Take up what was loaded, now that optimizer and time are loaded too."""
        self._write()

    def fit_start(self, state: Any, logger: Any) -> None:
        """Be ready for a run, which may have another length than the one before."""
        if not self._made:
            self._make(state)
        self._refuse_shared(self.schedulers, state)  # fit() takes schedulers= too
        self._write()

    def batch_end(self, state: Any, logger: Any) -> None:
        """Write the values of the next batch."""
        for scheduler in self.schedulers:
            scheduler.step()
        if self.log and logger.destinations:
            (optimizer,) = state.optimizers
            for slot, indices in (_driven(scheduler, optimizer.param_groups) for scheduler in self.schedulers):
                name = f"{slot.name}-{type(optimizer).__name__}/group"
                values = {f"{name}{i}": slot.read(optimizer.param_groups[i], name) for i in sorted(indices)}
                logger.log_metrics({key: float(value) for key, value in values.items()})

    def epoch_end(self, state: Any, logger: Any) -> None:
        """Follow the counts of epochs and iterations, which move after the end of the batch."""
        self._write()

    iteration_end = epoch_end

    def close(self, state: Any, logger: Any) -> None:
        """Let others have the groups."""
        self._release(self._made)

    def state_dict(self) -> dict[str, Any]:
        """What each scheduler is and its own state, all plain."""
        if not self._made:  # saved before it fits
            return dict(self._loaded or {})
        return {"about": self._about(), "states": [scheduler.state_dict() for scheduler in self.schedulers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep a state until the optimizer and the time are loaded as well: Composer loads the callbacks first."""
        self._loaded = state

    def _make(self, state: Any) -> None:
        (optimizer,), clock = state.optimizers, _Clock(state, self.ssr)  # a Trainer takes no second one
        made: list[tuple[Any, Any]] = []
        try:
            for entry in self.entries:
                made += [(entry, scheduler) for scheduler in _resolved(entry, optimizer, clock)]
            self._refuse_shared([scheduler for _, scheduler in made], state)
            for _, scheduler in made:
                if hasattr(scheduler, "settle"):  # refuses what else its first step would
                    scheduler.settle()
            self._made = made
        except BaseException:
            self._release(made)
            raise

    def _release(self, made: list[tuple[Any, Any]]) -> None:
        for entry, scheduler in made:
            if entry is not scheduler and hasattr(scheduler, "unbind"):  # not what the user made
                scheduler.unbind()

    def _refuse_shared(self, schedulers: Sequence[Any], state: Any) -> None:
        groups = state.optimizers[0].param_groups
        for i, one in enumerate(schedulers):
            for other in (*schedulers[i + 1 :], *state.schedulers):
                (slot, mine), (second, its) = _driven(one, groups), _driven(other, groups)
                if slot.name == second.name and mine & its:
                    raise ValueError(
                        f"{slot.name!r} of parameter group {min(mine & its)} is driven by two schedules, {_name(one)} "
                        f"and {_name(other)}{' of schedulers=' if other in state.schedulers else ''}: give each a tag "
                        f"of its own (there are: {known_tags(groups)}), and no schedulers= where Schedules drives 'lr'."
                    )

    def _write(self) -> None:
        """Take up what was loaded, and have the groups hold the values of this moment."""
        if self._loaded and self._made:
            fix = f"or start anew with load_ignore_keys=['state/callbacks/{type(self).__qualname__}']"
            _refuse_other(self._loaded["about"], self._about(), f"Give the schedules that were saved, {fix}.")
            for scheduler, state in zip(self.schedulers, self._loaded["states"]):
                scheduler.load_state_dict(state)
            self._loaded = None
        for scheduler in self.schedulers:
            if hasattr(scheduler, "refresh"):
                scheduler.refresh()

    def _about(self) -> list[dict[str, Any]]:
        return [e.about(self.ssr) if isinstance(e, Binding) else {"schedule": _name(s)} for e, s in self._made]


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


def _resolved(entry: Any, optimizer: Any, clock: _Clock) -> list[Any]:
    if isinstance(entry, Binding):
        return [bind(entry.schedule, optimizer, clock, entry.key, entry.tags)]
    found = entry if _is_scheduler(entry) else _called(entry, optimizer, clock)
    schedulers = list(found) if isinstance(found, (list, tuple)) else [found]
    for each in schedulers:
        if not _is_scheduler(each):
            raise TypeError(f"{_name(entry)} returned {each!r}: a scheduler has {', '.join(_SCHEDULER)}.")
        if getattr(each, "optimizer", optimizer) is not optimizer:
            raise ValueError(f"{_name(each)} drives another optimizer than the Trainer's: make it on that one.")
    return schedulers


def _called(function: Any, optimizer: Any, clock: _Clock) -> Any:
    signature = inspect.signature(function)
    wanted = signature.parameters.get("clock")
    if wanted is not None and (wanted.default is None or wanted.default is wanted.empty):
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
        return f"{_name(value)}({', '.join(f'{key}={_text(each)}' for key, each in value.__getstate__().items())})"
    if isinstance(value, Time):
        return f"{number_text(value.exact)}{value.unit.value}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_text, value))}]"
    return _name(value) if callable(value) else repr(value)


def _refuse_other(saved: list[dict[str, Any]], here: list[dict[str, Any]], fix: str) -> None:
    if len(saved) != len(here):
        raise ValueError(f"The checkpoint has {len(saved)} schedules, and here are {len(here)}. {fix}")
    for i, (old, new) in enumerate(zip(saved, here)):
        said = [f"{key} {old[key]!r} there, {new[key]!r} here" for key in old if key in new and old[key] != new[key]]
        if said:
            raise ValueError(f"Schedule {i} of the checkpoint is another one: {'; '.join(said)}. {fix}")
