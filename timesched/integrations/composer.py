"""Schedules of any number in the parameter groups, run by the Trainer of MosaicML Composer: `Schedules`, a callback.

`Trainer(schedulers=...)` drives the learning rate of all groups alike. This callback drives what that leaves out:
weight decay, betas, single tags. It is saved in the Trainer's checkpoints, and runs next to `schedulers=`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from composer import Callback

from timesched.binding import bind
from timesched.horizon import positive
from timesched.schedule import Schedule
from timesched.slots import Slot

from ._entries import (
    RunClock,
    about,
    called,
    driven,
    each_of,
    is_scheduler,
    refuse_clock,
    refuse_misfit,
    refuse_other,
    refuse_shared,
)


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
    difference; of functions of the state, which Composer's own schedules are, and of the schedulers of torch, the name
    alone is compared. To start anew from such a checkpoint, load it with
    `load_ignore_keys=["state/callbacks/Schedules"]`. Where a checkpoint has nothing of this callback, Composer warns:
    what follows the clock then has the value of the loaded time, from the initial values of the new optimizer, and
    what counts its own steps begins at the first.

    A scheduler that follows a `timesched.Clock` is refused, since nobody ticks that in a Trainer; one in
    `Trainer(schedulers=...)` cannot be, and keeps its first value for the whole run.

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
            if not (isinstance(entry, Binding) or is_scheduler(entry) or callable(entry)):
                raise TypeError(f"{entry!r} is none of a Binding, a scheduler, and a function of the optimizer.")
            refuse_clock(entry)
        self.entries = entries
        self.ssr = float(positive(ssr, "the scale-schedule ratio (ssr)"))
        self.log = log
        self._made: list[tuple[Any, Any]] = []  # an entry and a scheduler of it
        self._ready = False  # they are made; there may be none
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
        self._made, self._ready, self._loaded = [], False, None

    def before_load(self, state: Any, logger: Any) -> None:
        """Make the schedulers on the initial values, unless the length of the run is yet to be given to `fit`."""
        if state.max_duration is not None:
            self._make(state)

    def after_load(self, state: Any, logger: Any) -> None:
        """Take up what was loaded, now that optimizer and time are loaded too."""
        self._write()

    def fit_start(self, state: Any, logger: Any) -> None:
        """Be ready for a run, which may have another length than the one before."""
        if not self._ready:
            self._make(state)
        refuse_shared(self.schedulers, state.schedulers, state.optimizers[0].param_groups)  # fit() takes some too
        self._write()

    def batch_end(self, state: Any, logger: Any) -> None:
        """Write the values of the next batch."""
        for scheduler in self.schedulers:
            scheduler.step()
        if self.log and logger.destinations:
            (optimizer,) = state.optimizers
            for slot, indices in (driven(scheduler, optimizer.param_groups) for scheduler in self.schedulers):
                name = f"{slot.name}-{type(optimizer).__name__}/group"
                values = {f"{name}{i}": slot.read(optimizer.param_groups[i], name) for i in sorted(indices)}
                logger.log_metrics({key: float(value) for key, value in values.items()})

    def epoch_end(self, state: Any, logger: Any) -> None:
        """Follow the counts of epochs and iterations, which move after the end of the batch."""
        self._write()

    iteration_end = epoch_end

    def close(self, state: Any, logger: Any) -> None:
        """Let others have the groups."""
        _release(self._made)

    def state_dict(self) -> dict[str, Any]:
        """What each scheduler is and its own state, all plain."""
        if not self._ready:  # saved before it fits
            return dict(self._loaded or {})
        return {"about": self._about(), "states": [scheduler.state_dict() for scheduler in self.schedulers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep a state until the optimizer and the time are loaded as well: Composer loads the callbacks first."""
        self._loaded = state

    def _make(self, state: Any) -> None:
        (optimizer,), clock = state.optimizers, RunClock(state, self.ssr)  # a Trainer takes no second one
        made: list[tuple[Any, Any]] = []
        try:
            for entry in self.entries:
                made += [(entry, scheduler) for scheduler in _resolved(entry, optimizer, clock)]
            for entry, scheduler in made:
                refuse_misfit(scheduler, entry, optimizer)
            refuse_shared([scheduler for _, scheduler in made], state.schedulers, optimizer.param_groups)
            for _, scheduler in made:
                if hasattr(scheduler, "settle"):  # refuses what else its first step would
                    scheduler.settle()
        except BaseException:
            _release(made)
            raise
        self._made, self._ready = made, True

    def _write(self) -> None:
        """Take up what was loaded, and have the groups hold the values of this moment."""
        if self._loaded and self._ready:
            try:
                self._take_up(self._loaded)
            except BaseException:  # there will be no Trainer to close
                _release(self._made)
                self._made, self._ready = [], False
                raise
            self._loaded = None
        for scheduler in self.schedulers:
            if hasattr(scheduler, "refresh"):
                scheduler.refresh()

    def _take_up(self, loaded: Mapping[str, Any]) -> None:
        fix = f"or start anew with load_ignore_keys=['state/callbacks/{type(self).__qualname__}']"
        refuse_other(loaded["about"], self._about(), f"Give the schedules that were saved, {fix}.")
        for scheduler, state in zip(self.schedulers, loaded["states"]):
            scheduler.load_state_dict(state)

    def _about(self) -> list[dict[str, Any]]:
        return [about(scheduler, self.ssr) for scheduler in self.schedulers]


def _resolved(entry: Any, optimizer: Any, clock: RunClock) -> list[Any]:
    if isinstance(entry, Binding):
        return [bind(entry.schedule, optimizer, clock, entry.key, entry.tags)]
    return [entry] if is_scheduler(entry) else called(entry, optimizer, clock)


def _release(made: list[tuple[Any, Any]]) -> None:
    for entry, scheduler in made:
        if entry is not scheduler and hasattr(scheduler, "unbind"):  # not what the user made
            scheduler.unbind()
