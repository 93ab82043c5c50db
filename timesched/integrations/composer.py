"""Schedules of any number in the parameter groups, run by the Trainer of MosaicML Composer: `Schedules`, a callback.

`Trainer(schedulers=...)` drives the learning rate of all groups alike. This callback drives what that leaves out:
weight decay, betas, single tags. It is saved in the Trainer's checkpoints, and runs next to `schedulers=`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from composer import Callback

from timesched.horizon import positive
from timesched.keys import Key
from timesched.schedule import Schedule

from ._run import Run, driven, is_scheduler, refuse_clock, release

__all__ = ["Binding", "Schedules"]


@dataclass(frozen=True)
class Binding:
    """A schedule, and what it drives: the arguments of `timesched.bind` that are known before the run is.

    `schedule`: a schedule, a function of `(state)` or `(state, ssr)`, or a list of them, which multiply the initial
    value. `key`: `"weight_decay"`, `"lr"`, `"betas[0]"`, ... `tags`: only groups that carry one of these; None for
    all groups, `[None]` for those without. Raises `TypeError` for what is not a schedule, `ValueError` for no such key.

    >>> from timesched import LinearScheduler
    >>> Binding(LinearScheduler(alpha_f=0.1), "weight_decay", tags="head").schedule.alpha_f
    0.1
    """

    schedule: Any
    key: str | tuple[str, int]
    tags: Any = None

    def __post_init__(self) -> None:
        Key(self.key)
        several = isinstance(self.schedule, Sequence) and not isinstance(self.schedule, str)
        for one in self.schedule if several else [self.schedule]:
            if not callable(one):
                raise TypeError(f"{one!r} is not a schedule: pass one of timesched's, or a function of (state, ssr).")


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
    schedulers of torch do in a Trainer. A step that is missed, because another callback raises an error or saves a
    checkpoint before the turn of this one, is taken when the run goes on.

    A run resumed by `load_path` or `autoresume` goes on exactly. A checkpoint of other schedules, or of another
    ratio, is refused with the difference; functions and schedulers of torch are compared by name. To start anew from
    such a checkpoint, load it with `load_ignore_keys=["state/callbacks/Schedules"]`. Where a checkpoint has nothing of
    this callback, Composer warns: what follows the clock then has the value of the loaded time, from the initial values
    of the new optimizer, and what counts its own steps begins at the first. To go on from a checkpoint, the Trainer has
    to know the length of the run: `Trainer(max_duration=...)`; `fit(duration=...)` alone is not enough.

    A new Trainer on the same optimizer owns what its callback drives; the callback of the one before raises
    `ValueError` when it is fitted on. A copy of a callback has its entries, and begins in a Trainer of its own.

    A scheduler that follows a `timesched.Clock` is refused, since nobody ticks that in a Trainer; one in
    `Trainer(schedulers=...)` cannot be, and keeps its first value for the whole run.

    Raises `TypeError` for other entries, and when the Trainer is built or fits: `ValueError` when there are two such
    callbacks (a checkpoint has room for one), when two schedules drive one number, also one of `schedulers=`, when a
    checkpoint was loaded before the length of the run was known, and where `timesched.bind` does.

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
        self._run: Run | None = None  # in the Trainer that was built last

    @property
    def schedulers(self) -> list[Any]:
        """The schedulers in use, in the order of the entries; none before the Trainer is built."""
        return self._run.schedulers if self._run else []

    def init(self, state: Any, logger: Any) -> None:
        """Begin with a new Trainer."""
        name = type(self).__qualname__
        if sum(type(other).__qualname__ == name for other in state.callbacks) > 1:
            raise ValueError(
                f"There are two {name} callbacks, and a checkpoint has room for the state of one: "
                f"pass the entries of both to one."
            )
        self._run = Run(self.entries, self.ssr, name, state)

    def before_load(self, state: Any, logger: Any) -> None:
        """Make the schedulers on the initial values, unless the length of the run is yet to be given to `fit`."""
        if state.max_duration is not None:
            self._running.make()

    def after_load(self, state: Any, logger: Any) -> None:
        """Take up what was loaded, now that optimizer and time are loaded too."""
        self._running.after_load()

    def fit_start(self, state: Any, logger: Any) -> None:
        """Be ready for a run, which may have another length than the one before."""
        self._running.fit_start()

    def batch_end(self, state: Any, logger: Any) -> None:
        """Write the values of the next batch."""
        self._running.step()
        if self.log and logger.destinations:
            (optimizer,) = state.optimizers
            for scheduler in self.schedulers:
                key, indices = driven(scheduler)
                name = f"{key}-{type(optimizer).__name__}/group"
                values = {f"{name}{i}": Key(key).read(optimizer.param_groups[i], name) for i in sorted(indices)}
                logger.log_metrics({each: float(value) for each, value in values.items()})

    def epoch_end(self, state: Any, logger: Any) -> None:
        """Follow the counts of epochs and iterations, which move after the end of the batch."""
        self._running.refresh()

    iteration_end = epoch_end

    def close(self, state: Any, logger: Any) -> None:
        """Let others have the groups."""
        if self._run:
            release(self._run.made or ())

    def state_dict(self) -> dict[str, Any]:
        """What each scheduler is, its own state, and how many batches it has seen, all plain."""
        return self._run.state_dict() if self._run else {"schedules": None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep a state until the optimizer and the time are loaded as well: Composer loads the callbacks first."""
        if self._run:
            self._run.loaded = state["schedules"]

    @property
    def _running(self) -> Run:
        if self._run is None:
            raise RuntimeError(f"This {type(self).__name__} is in no Trainer: pass it to Trainer(callbacks=...).")
        return self._run

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_run": None}  # a copy begins in a Trainer of its own
