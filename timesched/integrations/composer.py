"""Schedules of any hyperparameter, run by the Trainer of MosaicML Composer: `Schedules`, a callback.

`Trainer(schedulers=...)` sets the learning rate of all groups alike. This callback sets everything else: weight decay,
betas, momentum, groups with a tag. It is saved in the Trainer's checkpoints, and runs together with `schedulers=`.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import chain
from typing import Any

from composer import Callback, Logger, State
from torch.optim import Optimizer

from timesched.binding import Bound
from timesched.binding.evaluation import qualified_name
from timesched.binding.groups import named_values
from timesched.binding.keys import Key
from timesched.clock import Clock
from timesched.horizon import BatchSizes, ConversionFactor, Horizon, read_ratio
from timesched.schedule import Schedule
from timesched.types import StateDict

from .common import Average, Binding, MakeAverage, check_average, make_average

__all__ = ["Binding", "Schedules"]

_SCHEDULER_METHODS = ("step", "state_dict", "load_state_dict")  # of a scheduler


class Schedules(Callback):
    """A Composer callback that runs schedules of any hyperparameter in the optimizer's parameter groups.

    Each of `entries` is one of

    * a `Binding`: a schedule of this package, a key of the groups, and tags;
    * a scheduler on the Trainer's optimizer: one of `optim`, or any other object with `step`, `state_dict` and
      `load_state_dict`;
    * a function of `(optimizer)` or `(optimizer, clock)` that returns such a scheduler, or a list of them, called when
      the Trainer is built, before it loads a checkpoint. `clock` is the clock of the run, for times such as `"0.1dur"`.
      A class of `optim` with its other arguments in a `functools.partial` is such a function, and also gets the clock.

    `ssr`: the Trainer's `scale_schedule_ratio`, which callbacks cannot read. `samples_per_batch` (of all ranks, or a
    `BatchSizeSchedule`) and `tokens_per_sample`: the conversion factors of the run, which Composer does not know and a
    `HalfLife("2e9tok")` needs. `log`: log every value after every batch, as `LRMonitor` does, under names such as
    `weight_decay/head`: see `timesched.binding.Bound`'s `named_values`. `schedulers` are the schedulers in use, in the
    order of the entries; the list is empty before the Trainer is built. `average`: a function of the parameters and a
    clock, such as `functools.partial(optim.WeightAverage, half_life="200Mtok")`, whose average of the weights is
    stepped after every batch and saved with the callback; with `evaluate_averaged`, the Trainer evaluates it.

    A batch runs with the value of the time at which it begins. (Composer's own `schedulers=` are one batch behind:
    they are stepped before the batch is counted.) Every scheduler is stepped once for every batch, whatever
    microbatches, a gradient scaler or `step_schedulers_every_batch` do. A second `fit` has the length of
    its own `duration`. `fit(reset_time=True)` resets schedulers that follow the clock. Schedulers that count their own
    steps continue, as the schedulers of torch do in a Trainer. Another callback may raise an error or save a checkpoint
    before this callback has stepped. The missed step is then made when the run continues.

    A run continues exactly from `load_path` or `autoresume`. A checkpoint of other schedules, which are compared as
    strings, or of another ratio raises. A different scheduler that counts its own steps is accepted if it has the saved
    value at the saved step, as in `timesched.bind`. Schedulers of torch are compared by name, and the length of the run
    is not compared. To start again without the saved state, load with
    `load_ignore_keys=["state/callbacks/Schedules"]`. If a checkpoint has no state of this callback, Composer warns.
    Schedulers that follow the clock then have the value of the loaded time, from the initial values of the new
    optimizer. Schedulers that count their own steps begin at the first step. To resume from a checkpoint, the Trainer
    must know the length of the run: `Trainer(max_duration=...)`; `fit(duration=...)` alone is not enough.

    The callback of a new Trainer on the same optimizer controls the keys that it sets. The callback of the previous
    Trainer raises `ValueError` if that Trainer fits again.

    A scheduler that follows a `timesched.Clock` is refused, since a Trainer does not tick that clock. The callback
    cannot refuse one in `Trainer(schedulers=...)`, which keeps its first value for the whole run.

    Raises `TypeError` for other entries. When the Trainer is built or fits, raises `ValueError` for two such callbacks
    (a checkpoint has room for one), for two schedules of one key, `schedulers=` included, for a checkpoint that was
    loaded before the length of the run was known, and where `timesched.bind` does. The schedules that were made before
    the error have written their first values by then, and control their keys while they live. After the first batch,
    raises `ValueError` if a schedule or the average reads tokens and the Trainer counts no tokens.

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
        *entries: object,
        ssr: float = 1.0,
        samples_per_batch: ConversionFactor | BatchSizes | None = None,
        tokens_per_sample: ConversionFactor | None = None,
        log: bool = True,
        average: MakeAverage | None = None,
        evaluate_averaged: bool = False,
    ) -> None:
        for entry in entries:
            if isinstance(entry, Schedule):
                raise TypeError(
                    f"Schedules.entries: {entry!r} has no key. Pass a Binding of it and a key such as 'weight_decay'."
                )
            if not (isinstance(entry, Binding) or _is_scheduler(entry) or callable(entry)):
                raise TypeError(
                    f"Schedules.entries: {entry!r} cannot be run. Pass a Binding, a scheduler, or a function of the "
                    f"optimizer."
                )
        self.entries = entries
        self.ssr = float(read_ratio(ssr))
        horizon = Horizon("1ba", samples_per_batch=samples_per_batch, tokens_per_sample=tokens_per_sample)
        self._conversion_factors = horizon.samples_per_batch, horizon.tokens_per_sample
        self.log = log
        check_average(evaluate_averaged, average)
        self._make_average, self.evaluate_averaged = average, evaluate_averaged
        self._reset()

    def _reset(self) -> None:
        self.schedulers: list[Any] = []
        self._clock: _RunClock | None = None  # until the schedulers are made
        self.average: Average | None = None
        self._saved: StateDict | None = None  # the state of a checkpoint, until the optimizer and the time are loaded
        self._average_in_use = ExitStack()  # during an evaluation of the average: its end puts the weights back
        self._stepped_batches = 0  # the batches done when the schedulers were stepped last

    @property
    def clock(self) -> _RunClock:
        """The run's state, with the callback's conversion factors: the clock of a `BatchSizeSampler`.

        Raises `ValueError` before the Trainer knows the length of the run.
        """
        if self._clock is None:
            raise ValueError(
                "Schedules.clock: there is no run yet. Pass a function that reads it later: "
                "clock=lambda: callback.clock."
            )
        return self._clock

    def init(self, state: State, logger: Logger) -> None:
        """Start with a new Trainer."""
        name = type(self).__qualname__
        if sum(type(other).__qualname__ == name for other in state.callbacks) > 1:
            raise ValueError(
                f"{name}: there are two such callbacks, and a checkpoint saves one. Pass the entries of both to one."
            )
        self._reset()

    def before_load(self, state: State, logger: Logger) -> None:
        """Make the schedulers on the initial values, unless only `fit` will know the length of the run."""
        if state.max_duration is not None:
            self._make_schedulers(state)

    def _make_schedulers(self, state: State) -> None:
        (optimizer,) = state.optimizers  # a Trainer has one optimizer
        clock = _RunClock(state, self.ssr, self._conversion_factors)
        schedulers: list[Any] = []
        for entry in self.entries:
            schedulers += _schedulers_of_entry(entry, optimizer, clock)
        self._check_shared_keys(schedulers, state)
        self.schedulers, self._clock, self._stepped_batches = schedulers, clock, int(state.timestamp.batch)
        if self._make_average is not None:
            self.average = make_average(optimizer, _make_average_clock(clock), self._make_average)

    def load_state_dict(self, state: StateDict) -> None:
        """Keep a state until the optimizer and the time are loaded. Composer loads the callbacks first."""
        self._saved = state if state["schedules"] is not None else None

    def after_load(self, state: State, logger: Logger) -> None:
        """Load the state that was kept until the optimizer and the time were loaded."""
        if self._clock is None:
            return
        if self._saved is None:
            self._start_without_state(state)
        else:
            self._load_average(self._saved.get("average"))
            self._load_schedulers(self._saved["schedules"])
            self._saved = None
        self._refresh_values(state)

    def _start_without_state(self, state: State) -> None:
        """Start at the loaded time, from a checkpoint without a state of this callback."""
        self._stepped_batches = int(state.timestamp.batch)
        for scheduler in self.schedulers:
            if not isinstance(scheduler, Bound) and hasattr(scheduler, "get_last_lr"):
                # torch's schedulers multiply the present learning rates, which must not come from the checkpoint
                for group, learning_rate in zip(scheduler.optimizer.param_groups, scheduler.get_last_lr()):
                    Key("lr").write(group, learning_rate)
        if self.average is not None:
            self._move_average_clock(self.average)
            self.average.reset_state()

    def _load_schedulers(self, saved_schedules: Sequence[StateDict]) -> None:
        restart = self._advice_to_restart()
        if len(saved_schedules) != len(self.schedulers):
            raise ValueError(
                f"Schedules.entries: the checkpoint has {len(saved_schedules)} schedules, and here are "
                f"{len(self.schedulers)}. Make the schedules that were saved, or {restart}."
            )
        for i, (scheduler, saved) in enumerate(zip(self.schedulers, saved_schedules)):
            present = {"name": qualified_name(scheduler), "ssr": self.ssr}
            saved_fields = {key: saved[key] for key in present}
            try:
                if saved_fields != present:
                    raise ValueError(f"it was saved with {saved_fields}, and here it is {present}.")
                scheduler.load_state_dict(saved["state"])
            except ValueError as error:
                raise ValueError(
                    f"Schedule {i} of the checkpoint: {error} Make the schedules that were saved, or {restart}."
                ) from None
            self._stepped_batches = saved["batch"]

    def _load_average(self, saved_average: StateDict | None) -> None:
        if self.average is None:
            return
        if saved_average is None:
            raise ValueError(
                f"Schedules.average: the checkpoint has no average. Leave average= out, or {self._advice_to_restart()}."
            )
        self._move_average_clock(self.average)
        self.average.load_state_dict(saved_average)

    def _advice_to_restart(self) -> str:
        return f"start again with load_ignore_keys=['state/callbacks/{type(self).__qualname__}']"

    def _move_average_clock(self, average: Average) -> None:
        """Set the clock of the average to the position of the Trainer."""
        assert self._clock is not None  # it is made before the average
        average.clock = _make_average_clock(self._clock)

    def eval_start(self, state: State, logger: Logger) -> None:
        """Replace the weights by the average, if the average is evaluated."""
        self._average_in_use.close()
        if self.evaluate_averaged and self.average is not None:
            self._average_in_use.enter_context(self.average.swapped(state.model))

    def eval_end(self, state: State, logger: Logger) -> None:
        """Put the weights back, also where an evaluation ended with an error."""
        self._average_in_use.close()

    batch_start = predict_start = close = eval_end

    def fit_start(self, state: State, logger: Logger) -> None:
        """Prepare for a run, which may be longer or shorter than the previous run."""
        self._average_in_use.close()
        if self._clock is None:
            if self._saved is not None or state.timestamp.batch > 0:
                raise ValueError(
                    "Trainer.max_duration=None: the checkpoint was loaded before the length of the run was known. Pass "
                    "Trainer(max_duration=...), also where fit(duration=...) has a different length."
                )
            self._make_schedulers(state)
        else:
            self._check_shared_keys(self.schedulers, state)  # fit() also takes schedulers
            self._clock.max_duration = state.max_duration
        self._refresh_values(state)

    def _refresh_values(self, state: State) -> None:
        """Write the present values, after the one step that an earlier callback may have prevented."""
        # any other difference comes from a time that the user set
        missed_one_step = int(state.timestamp.batch) - self._stepped_batches == 1
        self._stepped_batches = int(state.timestamp.batch)
        for scheduler in self.schedulers:
            if missed_one_step:
                scheduler.step()
            if isinstance(scheduler, Bound):
                scheduler.refresh()

    def batch_end(self, state: State, logger: Logger) -> None:
        """Write the values of the next batch."""
        for scheduler in self.schedulers:
            scheduler.step()
        self._stepped_batches = int(state.timestamp.batch)
        if self.average is not None:
            self._move_average_clock(self.average)
            self.average.step()
        if self.log and logger.destinations:
            (optimizer,) = state.optimizers
            keys = sorted(chain.from_iterable(map(_scheduled_keys, self.schedulers)))
            logger.log_metrics(named_values(optimizer.param_groups, keys))

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Follow the counts of epochs and iterations, which move after the end of the batch."""
        self._refresh_values(state)

    iteration_end = epoch_end

    def state_dict(self) -> StateDict:
        """The name, the ratio, the state and the number of batches of each scheduler, in plain values.

        The state is always one tuple under one key: a sharded checkpoint is read into the existing state, and
        torch.distributed.checkpoint does not look into a tuple.
        """
        self._average_in_use.close()  # the checkpoint has the model's tensors, which hold the weights afterwards
        if self._clock is None:
            return {"schedules": None} if self._saved is None else dict(self._saved)
        batch = self._stepped_batches
        states = (
            {"name": qualified_name(scheduler), "ssr": self.ssr, "state": scheduler.state_dict(), "batch": batch}
            for scheduler in self.schedulers
        )
        average_state = {} if self.average is None else {"average": self.average.state_dict()}
        return {"schedules": tuple(states), **average_state}

    def _check_shared_keys(self, schedulers: Sequence[object], state: State) -> None:
        """Raise `ValueError` if two schedulers set one key of a group, the Trainer's own schedulers included."""
        for scheduler in schedulers:
            if isinstance(scheduler, Bound):
                scheduler.catch_up()
            for other in state.schedulers:
                for key, i in sorted(_scheduled_keys(scheduler) & _scheduled_keys(other)):
                    raise ValueError(
                        f"{key!r} of parameter group {i}: two schedulers set it, {qualified_name(scheduler)} and "
                        f"{qualified_name(other)} of schedulers=. Use one of them, or give each a tag of its own. The "
                        f"Trainer keeps the schedulers of fit(): trainer.state.schedulers = [] drops them."
                    )


class _RunClock:
    """The Trainer's State with a ratio, conversion factors, and the initial length, also after `stop_training()`."""

    def __init__(self, state: State, ssr: float, rates: tuple[object, ...]) -> None:
        self._state, self.ssr, self.rates, self.max_duration = state, ssr, rates, state.max_duration

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)


def _make_average_clock(run: _RunClock) -> Clock:
    """Make a clock at the position of the Trainer, for an average."""
    clock = Clock("1ba", process_group=False)  # Composer's counts and seconds are the same on all ranks
    clock.horizon = Horizon.of(run)
    clock.timestamp.load_state_dict(run.timestamp.state_dict())
    return clock


def _schedulers_of_entry(entry: object, optimizer: Optimizer, clock: _RunClock) -> Sequence[Any]:
    """The schedulers of an entry: itself, a bound schedule, or the result of a function of (optimizer[, clock]).

    Raises `TypeError` for other objects, and `ValueError` for a scheduler that cannot run in this Trainer.
    """
    if isinstance(entry, Binding):
        return [entry.bind(optimizer, clock)]
    result = entry if _is_scheduler(entry) else _call_entry(entry, optimizer, clock)
    schedulers = result if isinstance(result, (list, tuple)) else [result]
    for scheduler in schedulers:
        if not _is_scheduler(scheduler):
            raise TypeError(
                f"{qualified_name(entry)} returned {scheduler!r}: this is not a scheduler. Return an object with "
                f"{', '.join(_SCHEDULER_METHODS)}."
            )
        if getattr(scheduler, "optimizer", optimizer) is not optimizer:
            raise ValueError(
                f"{qualified_name(scheduler)}: its optimizer is not the Trainer's. Make it on the Trainer's optimizer."
            )
        if isinstance(getattr(scheduler, "clock", None), Clock):
            raise ValueError(
                f"{qualified_name(scheduler)}: it follows a timesched.Clock, which a Trainer does not tick. Pass a "
                f"function of (optimizer, clock) that makes it: it gets the clock of the run."
            )
    return schedulers


def _call_entry(function: Any, optimizer: Optimizer, clock: _RunClock) -> Any:
    """Call a function of (optimizer) or (optimizer, clock). It gets an argument `clock` by name."""
    parameters = inspect.signature(function).parameters
    if "clock" in parameters and parameters["clock"].default in (None, inspect.Parameter.empty):
        return function(optimizer, clock=clock)
    required = [p for p in parameters.values() if p.default is p.empty and p.kind < p.VAR_POSITIONAL]
    return function(optimizer, clock) if len(required) >= 2 else function(optimizer)


def _is_scheduler(thing: object) -> bool:
    return not isinstance(thing, type) and all(callable(getattr(thing, name, None)) for name in _SCHEDULER_METHODS)


def _scheduled_keys(scheduler: object) -> set[tuple[str, int]]:
    """The keys that a scheduler writes, each with its group. torch's schedulers write `lr` in all groups."""
    if isinstance(scheduler, Bound):
        return {(scheduler.key, i) for i in scheduler.indices}
    optimizer = getattr(scheduler, "optimizer", None)
    return {("lr", i) for i in range(len(optimizer.param_groups))} if optimizer is not None else set()
