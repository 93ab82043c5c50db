"""Schedules of any number in the parameter groups, run by the Trainer of MosaicML Composer: `Schedules`, a callback.

`Trainer(schedulers=...)` sets the learning rate of all groups alike. This callback sets everything else: weight decay,
betas, momentum, groups with a tag. It is saved in the Trainer's checkpoints, and runs beside `schedulers=`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import chain
from typing import Any

from composer import Callback

from timesched.binding import Bound, bind
from timesched.binding.evaluation import qualified_name
from timesched.binding.groups import named_values
from timesched.binding.keys import Key
from timesched.clock import Clock
from timesched.horizon import Horizon, read_ratio
from timesched.schedule import Schedule
from timesched.time.units import TimeUnit

from .common import Binding, check_average, make_average

__all__ = ["Binding", "Schedules"]

_SCHEDULER_METHODS = ("step", "state_dict", "load_state_dict")  # what makes an object a scheduler


class Schedules(Callback):
    """A Composer callback that runs schedules on any number of the optimizer's parameter groups.

    Each of `entries` is one of

    * a `Binding`: a schedule of this package, a key of the groups, and tags;
    * a scheduler on the Trainer's optimizer: one of `optim`, or whatever else has `step`, `state_dict` and
      `load_state_dict`;
    * a function of `(optimizer)` or `(optimizer, clock)` that returns such a scheduler, or a list of them, called when
      the Trainer is built, before it loads a checkpoint. `clock` is the run's, for times such as `"0.1dur"`. A class
      of `optim` with its other arguments in a `functools.partial` is such a function, and gets the clock too.

    `ssr`: the Trainer's `scale_schedule_ratio`, which Composer does not tell to callbacks. `samples_per_batch` (of all
    ranks, or a `BatchSizeSchedule`) and `tokens_per_sample`: the rates of the run, which Composer does not know and a
    `HalfLife("2e9tok")` needs. `log`: log every value after every batch, as `LRMonitor` does, under names such as
    `weight_decay/head`: see `timesched.binding.Bound`'s `named_values`. `schedulers` are those in use, in the order of
    the entries; none before the Trainer is built. `average`: a function of the parameters and a clock, such as
    `functools.partial(optim.WeightAverage, half_life="200Mtok")`, whose average of the weights is stepped after every
    batch and saved with the callback; with `evaluate_averaged`, the Trainer evaluates it.

    A batch runs with the value of the time at which it begins. (Composer's own `schedulers=` are one batch behind:
    they are stepped before the batch is counted.) Every scheduler is stepped once for every batch, whatever
    microbatches, a gradient scaler or `step_schedulers_every_batch` do. A second `fit` has the length that it is
    given; `fit(reset_time=True)` sets back what follows the clock, and what counts its own steps continues, as the
    schedulers of torch do in a Trainer. A step that is missed, because another callback raises an error or saves a
    checkpoint before the turn of this one, is made when the run continues.

    A run continues exactly from `load_path` or `autoresume`. A checkpoint of other schedules, which are compared as
    strings, or of another ratio raises. A scheduler that counts its own steps may be another one that has the saved
    value at the saved step, as in `timesched.bind`; schedulers of torch are compared by name. The length of the run is
    not compared. To start anew, load with `load_ignore_keys=["state/callbacks/Schedules"]`. Where a checkpoint has
    nothing of this callback, Composer warns: what follows the clock then has the value of the loaded time, from the
    initial values of the new optimizer, and what counts its own steps begins at the first. To resume from a checkpoint,
    the Trainer has to know the length of the run: `Trainer(max_duration=...)`; `fit(duration=...)` alone is not enough.

    A new Trainer on the same optimizer owns what its callback sets; the callback of the one before raises
    `ValueError` when it is fitted on.

    A scheduler that follows a `timesched.Clock` is refused, since nobody ticks that in a Trainer; one in
    `Trainer(schedulers=...)` cannot be, and keeps its first value for all of the run.

    Raises `TypeError` for other entries, and when the Trainer is built or fits: `ValueError` when there are two such
    callbacks (a checkpoint has room for one), when two schedules set one number, also one of `schedulers=`, when a
    checkpoint was loaded before the length of the run was known, and where `timesched.bind` does. The schedules that
    were made before the one that fails have written their first values then, and own their keys while they live.
    After the first batch raises `ValueError` where a schedule or the average reads tokens and the Trainer counts none.

    >>> from timesched import CosineAnnealingScheduler, LinearScheduler
    >>> callback = Schedules(
    ...     Binding(CosineAnnealingScheduler(), "weight_decay"),
    ...     Binding(LinearScheduler(0.9, 1.0, "0.5dur"), "betas[0]", tags="head"),
    ... )
    >>> len(callback.entries)  # then Trainer(..., callbacks=[callback])
    2
    """

    def __init__(
        self,
        *entries: Any,
        ssr: float = 1.0,
        samples_per_batch: Any = None,
        tokens_per_sample: Any = None,
        log: bool = True,
        average: Callable[[list[Any], Clock], Any] | None = None,
        evaluate_averaged: bool = False,
    ) -> None:
        for entry in entries:
            if isinstance(entry, Schedule):
                raise TypeError(f"{entry!r} does not say which key it sets: pass Binding({entry!r}, 'weight_decay').")
            if not (isinstance(entry, Binding) or _is_scheduler(entry) or callable(entry)):
                raise TypeError(f"{entry!r} is none of a Binding, a scheduler, and a function of the optimizer.")
        self.entries = entries
        self.ssr = float(read_ratio(ssr))
        horizon = Horizon("1ba", samples_per_batch=samples_per_batch, tokens_per_sample=tokens_per_sample)
        self._conversion_factors = horizon.conversion_factors[1:]
        self.log = log
        check_average(evaluate_averaged, average)
        self._make_average, self.evaluate_averaged = average, evaluate_averaged
        self._reset()

    def _reset(self) -> None:
        self.schedulers: list[Any] = []
        self._clock: _RunClock | None = None  # until the schedulers are made
        self._saved_schedules: Any = None
        self.average: Any = None
        self._saved_average: Any = None
        self._average_in_use = ExitStack()  # during an evaluation of the average: its end puts the weights back
        self._stepped_batches = 0  # the batches done when the schedulers were stepped last
        self._reads_tokens = False  # in this fit

    def init(self, state: Any, logger: Any) -> None:
        """Begin with a new Trainer."""
        name = type(self).__qualname__
        if sum(type(other).__qualname__ == name for other in state.callbacks) > 1:
            raise ValueError(f"There are two {name} callbacks, and room to save one: pass the entries of both to one.")
        self._reset()

    def before_load(self, state: Any, logger: Any) -> None:
        """Make the schedulers on the initial values, unless the length of the run is yet to be given to `fit`."""
        if state.max_duration is not None:
            self._make_schedulers(state)

    def _make_schedulers(self, state: Any) -> None:
        (optimizer,) = state.optimizers  # a Trainer has no second one
        clock = _RunClock(state, self.ssr, self._conversion_factors)
        schedulers: list[Any] = []
        for entry in self.entries:
            schedulers += _schedulers_of_entry(entry, optimizer, clock)
        self._check_shared_keys(schedulers, state)
        self.schedulers, self._clock, self._stepped_batches = schedulers, clock, int(state.timestamp.batch)
        if self._make_average is not None:
            self.average = make_average(optimizer, _make_average_clock(clock), self._make_average)

    def after_load(self, state: Any, logger: Any) -> None:
        """Load what was kept, now that optimizer and time are loaded too."""
        if self._clock is None:
            return
        self._load_average()
        if self._saved_schedules is None:
            self._start_without_state(state)
        else:
            self._load_schedulers()
        self._refresh_values(state)

    def _start_without_state(self, state: Any) -> None:
        """Begin at the loaded time, from a checkpoint without a state of this callback."""
        self._stepped_batches = int(state.timestamp.batch)
        for scheduler in self.schedulers:
            if not isinstance(scheduler, Bound) and hasattr(scheduler, "get_last_lr"):
                # torch's own multiply the rates that they find, which must not be those of the checkpoint
                for group, rate in zip(scheduler.optimizer.param_groups, scheduler.get_last_lr()):
                    Key("lr").write(group, rate)

    def _load_schedulers(self) -> None:
        saved_schedules, self._saved_schedules = self._saved_schedules, None
        restart = self._advice_to_restart()
        if len(saved_schedules) != len(self.schedulers):
            raise ValueError(
                f"The checkpoint has {len(saved_schedules)} schedules, here are {len(self.schedulers)}; or {restart}."
            )
        for i, (scheduler, saved) in enumerate(zip(self.schedulers, saved_schedules)):
            present = self._describe_scheduler(scheduler)
            saved_fields = {key: saved[key] for key in present}
            try:
                if saved_fields != present:
                    raise ValueError(f"it was saved with {saved_fields}, and here it is {present}.")
                scheduler.load_state_dict(saved["state"])
            except ValueError as error:
                raise ValueError(
                    f"Schedule {i} of the checkpoint: {error} Give the schedules that were saved, or {restart}."
                ) from None
            self._stepped_batches = saved["batch"]

    def _load_average(self) -> None:
        """Load a state of the average, or begin one anew with the weights that were loaded without it."""
        if self.average is None:
            return
        self._move_average_clock()
        if self._saved_average is not None:
            self.average.load_state_dict(self._saved_average)
        elif self._saved_schedules is None:
            self.average.reset_state()
        else:
            raise ValueError(
                f"The checkpoint has no average of the weights: leave average= out, or {self._advice_to_restart()}."
            )

    def _advice_to_restart(self) -> str:
        return f"start anew with load_ignore_keys=['state/callbacks/{type(self).__qualname__}']"

    def _move_average_clock(self) -> None:
        """Let the clock of the average stand where the Trainer does."""
        assert self._clock is not None
        self.average.clock = _make_average_clock(self._clock)

    def eval_start(self, state: Any, logger: Any) -> None:
        """Put the average in place of the weights, if that is what is evaluated."""
        self._average_in_use.close()
        if self.evaluate_averaged and self.average is not None:
            self._average_in_use.enter_context(self.average.swapped(state.model))

    def eval_end(self, state: Any, logger: Any) -> None:
        """Put the weights back, also where an evaluation ended with an error."""
        self._average_in_use.close()

    batch_start = predict_start = close = eval_end

    def fit_start(self, state: Any, logger: Any) -> None:
        """Be ready for a run, which may have another length than the one before."""
        self._average_in_use.close()
        if self._clock is None:
            if self._saved_schedules is not None or state.timestamp.batch > 0:
                raise ValueError(
                    "The checkpoint was loaded before the length of the run was known: give it to the Trainer, "
                    "Trainer(max_duration=...); fit(duration=...) may be another."
                )
            self._make_schedulers(state)
        else:
            self._check_shared_keys(self.schedulers, state)  # fit() takes schedulers, too
            self._clock.max_duration = state.max_duration
        self._refresh_values(state)
        readers = [reader for reader in (*self.schedulers, self.average) if hasattr(reader, "units")]
        self._reads_tokens = any(TimeUnit.TOKEN in reader.units() for reader in readers)

    def _refresh_values(self, state: Any) -> None:
        """Write the values of now, after the one step that a callback before this one kept from its turn, if it did."""
        # any other difference is of a time that somebody set
        missed_one_step = int(state.timestamp.batch) - self._stepped_batches == 1
        self._stepped_batches = int(state.timestamp.batch)
        for scheduler in self.schedulers:
            if missed_one_step:
                scheduler.step()
            if isinstance(scheduler, Bound):
                scheduler.refresh()

    def batch_end(self, state: Any, logger: Any) -> None:
        """Write the values of the next batch."""
        if self._reads_tokens and state.timestamp.token == 0:
            raise ValueError(
                "Schedules: a schedule or the average reads tokens, and the Trainer has counted no tokens. Pass "
                "Trainer(train_dataloader=DataSpec(loader, get_num_tokens_in_batch=...))."
            )
        for scheduler in self.schedulers:
            scheduler.step()
        self._stepped_batches = int(state.timestamp.batch)
        if self.average is not None:
            self._move_average_clock()
            self.average.step()
        if self.log and logger.destinations:
            (optimizer,) = state.optimizers
            keys = sorted(chain.from_iterable(map(_scheduled_keys, self.schedulers)))
            logger.log_metrics(named_values(optimizer.param_groups, keys))

    def epoch_end(self, state: Any, logger: Any) -> None:
        """Follow the counts of epochs and iterations, which move after the end of the batch."""
        self._refresh_values(state)

    iteration_end = epoch_end

    def state_dict(self) -> dict[str, Any]:
        """What each scheduler is, its own state, and how many batches it has seen, all plain.

        It is one tuple under one key, whatever there is: a sharded checkpoint is read into what is there before, and
        torch.distributed.checkpoint does not look into a tuple.
        """
        self._average_in_use.close()  # the checkpoint has the model's tensors, which hold the weights from now on
        if self._clock is None:
            return {"schedules": self._saved_schedules}
        batch = self._stepped_batches
        states = (
            {**self._describe_scheduler(scheduler), "state": scheduler.state_dict(), "batch": batch}
            for scheduler in self.schedulers
        )
        average_state = {} if self.average is None else {"average": self.average.state_dict()}
        return {"schedules": tuple(states), **average_state}

    def _describe_scheduler(self, scheduler: Any) -> dict[str, Any]:
        """What a scheduler's own state may not say."""
        return {"name": qualified_name(scheduler), "ssr": self.ssr}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep a state until the optimizer and the time are loaded as well: Composer loads the callbacks first."""
        self._saved_schedules = state["schedules"]
        self._saved_average = state.get("average")

    def _check_shared_keys(self, schedulers: Sequence[Any], state: Any) -> None:
        """Raise `ValueError` when two schedulers set one key, also one of the Trainer's own."""
        for scheduler in schedulers:
            if isinstance(scheduler, Bound):
                scheduler.catch_up()
            for other in state.schedulers:
                for key, i in sorted(_scheduled_keys(scheduler) & _scheduled_keys(other)):
                    raise ValueError(
                        f"{key!r} of parameter group {i} is set by two schedulers, {qualified_name(scheduler)} and "
                        f"{qualified_name(other)} of schedulers=: give each a tag of its own, or use one of them. The "
                        f"Trainer keeps those that fit() was given: trainer.state.schedulers = [] drops them."
                    )


class _RunClock:
    """The Trainer's State with a ratio, rates, and the length that the run began with, also after `stop_training()`."""

    def __init__(self, state: Any, ssr: float, rates: tuple[Any, ...]) -> None:
        self._state, self.ssr, self.rates, self.max_duration = state, ssr, rates, state.max_duration

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)


def _make_average_clock(run: _RunClock) -> Clock:
    """A clock of the Trainer's run, as an average wants one."""
    clock = Clock("1ba", process_group=False)  # Composer's counts and seconds are the same on all ranks
    clock.horizon = Horizon.of(run)
    clock.timestamp.load_state_dict(run.timestamp.state_dict())
    return clock


def _schedulers_of_entry(entry: Any, optimizer: Any, clock: _RunClock) -> Sequence[Any]:
    """The schedulers of an entry: itself, a bound schedule, or what a function of (optimizer[, clock]) returns.

    Raises `TypeError` for what is not a scheduler, `ValueError` for one that cannot run in this Trainer.
    """
    if isinstance(entry, Binding):
        return [bind(entry.schedule, optimizer, clock, entry.key, entry.tags)]
    result = entry if _is_scheduler(entry) else _call_entry(entry, optimizer, clock)
    schedulers = result if isinstance(result, (list, tuple)) else [result]
    for scheduler in schedulers:
        if not _is_scheduler(scheduler):
            raise TypeError(
                f"{qualified_name(entry)} returned {scheduler!r}: a scheduler has {', '.join(_SCHEDULER_METHODS)}."
            )
        if getattr(scheduler, "optimizer", optimizer) is not optimizer:
            raise ValueError(
                f"{qualified_name(scheduler)} is for another optimizer than the Trainer's: make it on that one."
            )
        if isinstance(getattr(scheduler, "clock", None), Clock):
            raise ValueError(
                f"{qualified_name(scheduler)} follows a timesched.Clock, which nobody ticks in a Trainer: make it in a "
                f"function of (optimizer, clock), and pass that; the clock that it gets is the run's."
            )
    return schedulers


def _call_entry(function: Any, optimizer: Any, clock: _RunClock) -> Any:
    """What a function of (optimizer) or (optimizer, clock) returns; an argument `clock` is given by its name."""
    parameters = inspect.signature(function).parameters
    if "clock" in parameters and parameters["clock"].default in (None, inspect.Parameter.empty):
        return function(optimizer, clock=clock)
    required = [p for p in parameters.values() if p.default is p.empty and p.kind < p.VAR_POSITIONAL]
    return function(optimizer, clock) if len(required) >= 2 else function(optimizer)


def _is_scheduler(thing: Any) -> bool:
    return not isinstance(thing, type) and all(callable(getattr(thing, name, None)) for name in _SCHEDULER_METHODS)


def _scheduled_keys(scheduler: Any) -> set[tuple[str, int]]:
    """The numbers that a scheduler writes, as key and group; torch's own write the learning rate of all groups."""
    if isinstance(scheduler, Bound):
        return {(scheduler.key, i) for i in scheduler.indices}
    optimizer = getattr(scheduler, "optimizer", None)
    return {("lr", i) for i in range(len(optimizer.param_groups))} if optimizer is not None else set()
