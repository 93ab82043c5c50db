"""Schedules of any number in the parameter groups, run by the Trainer of MosaicML Composer: `Schedules`, a callback.

`Trainer(schedulers=...)` drives the learning rate of all groups alike. This callback drives what that leaves out:
weight decay, betas, single tags. It is saved in the Trainer's checkpoints, and runs next to `schedulers=`.
"""

from __future__ import annotations

from typing import Any

from composer import Callback

from timesched.horizon import positive
from timesched.schedule import Schedule

from ._entries import Binding, driven, is_scheduler, refuse_clock
from ._run import Run, release, saved

__all__ = ["Binding", "Schedules"]


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
    ratio, is refused with the difference; of functions of the state, which Composer's own schedules are, and of the
    schedulers of torch, the name alone is compared. To start anew from such a checkpoint, load it with
    `load_ignore_keys=["state/callbacks/Schedules"]`. Where a checkpoint has nothing of this callback, Composer warns:
    what follows the clock then has the value of the loaded time, from the initial values of the new optimizer, and
    what counts its own steps begins at the first. Without the length of the run, which `fit(duration=...)` may give,
    functions are called when it fits; the initial values are those before the load all the same.

    A new Trainer on the same optimizer takes the groups over from the callback of the one before, which then raises
    `RuntimeError` when it is fitted on. A copy of a callback has its entries, and begins in a Trainer of its own.

    A scheduler that follows a `timesched.Clock` is refused, since nobody ticks that in a Trainer; one in
    `Trainer(schedulers=...)` cannot be, and keeps its first value for the whole run.

    Raises `TypeError` for other entries, and when the Trainer is built or fits: `ValueError` when there are two such
    callbacks (a checkpoint has room for one), when two schedules drive one number, also one of `schedulers=`, when a
    sharded checkpoint needs the length of the run to be loaded, and where `timesched.bind` does.

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
        self._running.before_load()

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
            for slot, indices in (driven(scheduler, optimizer.param_groups) for scheduler in self.schedulers):
                name = f"{slot.name}-{type(optimizer).__name__}/group"
                values = {f"{name}{i}": slot.read(optimizer.param_groups[i], name) for i in sorted(indices)}
                logger.log_metrics({key: float(value) for key, value in values.items()})

    def epoch_end(self, state: Any, logger: Any) -> None:
        """Follow the counts of epochs and iterations, which move after the end of the batch."""
        self._running.refresh()

    iteration_end = epoch_end

    def close(self, state: Any, logger: Any) -> None:
        """Let others have the groups."""
        if self._run:
            release(self._run.made)

    def state_dict(self) -> dict[str, Any]:
        """What each scheduler is, its own state, and how many batches it has seen, all plain."""
        return self._run.state_dict() if self._run else saved(None)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep a state until the optimizer and the time are loaded as well: Composer loads the callbacks first."""
        if self._run:
            self._run.load_state_dict(state)

    @property
    def _running(self) -> Run:
        """The run in the Trainer; raises `RuntimeError` where another Trainer has the optimizer."""
        if self._run is None or self._run.replaced:
            raise RuntimeError(
                f"The optimizer of this {type(self).__name__} has been taken over by another Trainer, which was built "
                f"later: fit that one, or build this one anew, and it takes over in turn."
            )
        return self._run

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_run": None}  # a copy begins in a Trainer of its own
