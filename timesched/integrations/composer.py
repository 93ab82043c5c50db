"""Schedules of any hyperparameter, run by the Trainer of MosaicML Composer: `Schedules`, a callback.

`Trainer(schedulers=...)` sets the learning rate of all groups alike. This callback sets everything else: weight decay,
betas, momentum, groups with a tag. It is saved in the Trainer's checkpoints, and runs together with `schedulers=`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain, product
from typing import Any

from composer import Callback, Logger, State
from torch.optim import Optimizer

from timesched.binding import Bound
from timesched.binding.evaluation import qualified_name
from timesched.binding.groups import named_values
from timesched.binding.keys import Key
from timesched.rules import read_ratio
from timesched.run.clock import Clock
from timesched.run.horizon import BatchSizes, ConversionFactor, Horizon
from timesched.schedulers.schedule import Schedule
from timesched.types import StateDict

from .common import Average, Binding, MakeAverage, Schedulers, check_average, make_average

__all__ = ["Binding", "Schedules"]

_SCHEDULER_METHODS = ("step", "state_dict", "load_state_dict")  # of a scheduler
_NO_STATE: StateDict = {"schedules": None}


# Composer calls the callback in this order, also if there is no checkpoint to load:
#
#     Trainer(...)  init              there is no run yet
#                   before_load       make the schedulers, from the initial values of the optimizer
#                   load_state_dict   keep the state of a checkpoint: the optimizer and the time are loaded later
#                   after_load        continue from the kept state; without one, from the time of the Trainer
#     fit()         fit_start         take the length of this fit, which may differ; make the schedulers, if the length
#                                     was unknown before
#                   batch_end         step, which writes the values of the next batch, and log them
#                   epoch_end         refresh: the counts of epochs move after the end of the batch
#                   state_dict        save, at any time
#     evaluations   eval_start        the model gets the average of its weights
#                   eval_end          and its weights again
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
        self._run: _RunSchedulers | None = None  # until the Trainer knows the length of the run
        self._saved = _NO_STATE  # the state of a checkpoint, until the optimizer and the time are loaded
        self._average_in_use = ExitStack()  # during an evaluation of the average: its end puts the weights back

    @property
    def schedulers(self) -> list[Any]:
        """The schedulers in use, in the order of the entries; empty before the Trainer is built."""
        return [] if self._run is None else self._run.schedulers

    @property
    def average(self) -> Average | None:
        """The average of the weights, if there is one; None before the Trainer is built."""
        return None if self._run is None else self._run.average

    @property
    def clock(self) -> _RunClock:
        """The run's state, with the callback's conversion factors: the clock of a `BatchSizeSampler`.

        Raises `ValueError` before the Trainer knows the length of the run.
        """
        if self._run is None:
            raise ValueError(
                "Schedules.clock: there is no run yet. Pass a function that reads it later: "
                "clock=lambda: callback.clock."
            )
        return self._run.clock

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
            self._run = _RunSchedulers(self, state)

    def load_state_dict(self, state: StateDict) -> None:
        """Keep a state until the optimizer and the time are loaded. Composer loads the callbacks first."""
        self._saved = state

    def after_load(self, state: State, logger: Logger) -> None:
        """Load the state that was kept until the optimizer and the time were loaded."""
        if self._run is None:
            return
        if self._saved["schedules"] is None:
            self._run.begin_at_loaded_time()
        else:
            self._run.load_state_dict(self._saved)
        self._saved = _NO_STATE
        self._run.refresh()

    def fit_start(self, state: State, logger: Logger) -> None:
        """Prepare for a run, which may be longer or shorter than the previous run."""
        self._average_in_use.close()
        if self._run is None:
            if self._saved["schedules"] is not None or state.timestamp.batch > 0:
                raise ValueError(
                    "Trainer.max_duration=None: the checkpoint was loaded before the length of the run was known. Pass "
                    "Trainer(max_duration=...), also where fit(duration=...) has a different length."
                )
            self._run = _RunSchedulers(self, state)
        self._run.check_shared_keys(state.schedulers)  # fit() also takes schedulers
        self._run.clock.max_duration = state.max_duration
        self._run.refresh()

    def batch_end(self, state: State, logger: Logger) -> None:
        """Write the values of the next batch."""
        assert self._run is not None  # `fit_start` made it
        self._run.step()
        if self.log and logger.destinations:
            logger.log_metrics(self._run.named_values())

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Follow the counts of epochs and iterations, which move after the end of the batch."""
        assert self._run is not None  # `fit_start` made it
        self._run.refresh()

    iteration_end = epoch_end

    def eval_start(self, state: State, logger: Logger) -> None:
        """Replace the weights by the average, if the average is evaluated."""
        self._average_in_use.close()
        if self.evaluate_averaged and self._run is not None:
            self._average_in_use.enter_context(self._run.averaged(state.model))

    def eval_end(self, state: State, logger: Logger) -> None:
        """Put the weights back, also where an evaluation ended with an error."""
        self._average_in_use.close()

    batch_start = predict_start = close = eval_end

    def state_dict(self) -> StateDict:
        """The state of the schedulers, and before they are made the state that was loaded."""
        self._average_in_use.close()  # the checkpoint has the model's tensors, which hold the weights afterwards
        return dict(self._saved) if self._run is None else self._run.state_dict()


class _RunClock:
    """The Trainer's State with a ratio, conversion factors, and the initial length, also after `stop_training()`."""

    def __init__(self, state: State, ssr: float, conversion_factors: tuple[object, ...]) -> None:
        self._state = state
        self.ssr = ssr
        self.conversion_factors = conversion_factors
        self.max_duration = state.max_duration

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of a copy that has no attributes yet, and so no State to ask
            raise AttributeError(name)
        return getattr(self._state, name)

    def copy_as_clock(self) -> Clock:
        """A clock at the position of the Trainer, for an average."""
        clock = Clock("1ba", process_group=False)  # Composer's counts and seconds are the same on all ranks
        clock.horizon = Horizon.of(self)
        clock.timestamp.load_state_dict(self.timestamp.state_dict())
        return clock


class _RunSchedulers(Schedulers):
    """The schedulers of the entries in a run of the Trainer: bound schedules, and schedulers of torch.

    `schedulers` has all of them, and the base class's `bound` the bound schedules among them. `stepped_batches`: the
    batches that the Trainer had done when they were stepped last. Where the Trainer has done one more, an earlier
    callback has prevented a step, which `refresh` makes.
    """

    clock: _RunClock

    def __init__(self, callback: Schedules, state: State) -> None:
        (optimizer,) = state.optimizers  # a Trainer has one optimizer
        clock = _RunClock(state, callback.ssr, callback._conversion_factors)
        average = make_average(optimizer, clock.copy_as_clock(), callback._make_average)
        self.schedulers: list[Any] = []
        for entry in callback.entries:
            self.schedulers += _make_schedulers(entry, optimizer, clock)
        super().__init__(optimizer, clock, self.schedulers, average=average)
        self.advice = f"pass load_ignore_keys=['state/callbacks/{type(callback).__qualname__}']"
        self.stepped_batches = self.batches
        self.check_shared_keys(state.schedulers)

    def bind_entries(self, entries: Sequence[Any]) -> list[Bound]:
        """Return the bound schedules among schedulers that are made already."""
        return [scheduler for scheduler in entries if isinstance(scheduler, Bound)]

    @property
    def batches(self) -> int:
        """The batches that the Trainer has done."""
        return int(self.clock.timestamp.batch)

    def current_average(self) -> Average | None:
        """The average, if there is one, with a `Clock` at the Trainer's position, which it reads in its next call."""
        if self.average is not None:
            self.average.clock = self.clock.copy_as_clock()
        return self.average

    def check_shared_keys(self, others: Iterable[object]) -> None:
        """Raise `ValueError` if one of the Trainer's own schedulers sets a key that these schedulers set."""
        for scheduler, other in product(self.schedulers, others):
            for key, i in sorted(_scheduled_keys(scheduler) & _scheduled_keys(other)):
                raise ValueError(
                    f"{key!r} of parameter group {i}: two schedulers set it, {qualified_name(scheduler)} and "
                    f"{qualified_name(other)} of schedulers=. Use one of them, or give each a tag of its own. The "
                    f"Trainer keeps the schedulers of fit(): trainer.state.schedulers = [] drops them."
                )

    def step(self, epoch: int | None = None) -> None:
        """Write the values of the next batch."""
        for scheduler in self.schedulers:
            scheduler.step()
        self.stepped_batches = self.batches
        if (average := self.current_average()) is not None:
            average.step()

    def refresh(self) -> None:
        """Write the present values, after the one step that an earlier callback may have prevented."""
        if self.batches - self.stepped_batches == 1:
            self.step()
        self.stepped_batches = self.batches  # another difference comes from a time that the user set
        super().refresh()

    def named_values(self) -> dict[str, float]:
        """The value of each key that a scheduler sets, by the names that logs show."""
        keys = sorted(chain.from_iterable(map(_scheduled_keys, self.schedulers)))
        return named_values(self.optimizer.param_groups, keys)

    def begin_at_loaded_time(self) -> None:
        """Start at the time of a checkpoint that has no state of these schedulers."""
        self.stepped_batches = self.batches
        for scheduler in self.schedulers:
            if not isinstance(scheduler, Bound) and hasattr(scheduler, "get_last_lr"):
                # torch's schedulers multiply the present learning rates, which must not come from the checkpoint
                for group, learning_rate in zip(scheduler.optimizer.param_groups, scheduler.get_last_lr()):
                    Key("lr").write(group, learning_rate)
        if (average := self.current_average()) is not None:
            average.reset_state()

    def state_dict(self) -> StateDict:
        """The name, the ratio, the state and the number of batches of each scheduler, in plain values.

        The state is always one tuple under one key: a sharded checkpoint is read into the existing state, and
        torch.distributed.checkpoint does not look into a tuple.
        """
        states = [
            {**self._identity(scheduler), "state": scheduler.state_dict(), "batch": self.stepped_batches}
            for scheduler in self.schedulers
        ]
        return {"schedules": tuple(states), **self.average_state()}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Resume from a state, after the time is loaded.

        For the state of other schedules, raises `ValueError` and changes nothing. A scheduler of torch reads its state
        only when it is loaded, after the others that come before it.
        """
        states = state_dict["schedules"]
        self.check_state(len(states), len(self.schedulers), state_dict.get("average"))
        restore_calls = [self._read_state(i, state) for i, state in enumerate(states)]
        if (average := self.current_average()) is not None:
            average.load_state_dict(state_dict["average"])
        if states:
            self.stepped_batches = states[0]["batch"]  # each state has the same number
        for restore in restore_calls:
            restore()

    def _read_state(self, index: int, state: StateDict) -> Callable[[], object]:
        """Check the state of a scheduler, and return the call that restores it.

        Raises `ValueError` for the state of another schedule.
        """
        scheduler = self.schedulers[index]
        present = self._identity(scheduler)
        saved = {name: state[name] for name in present}
        try:
            if saved != present:
                raise ValueError(f"it was saved with {saved}, and here it is {present}.")
            if isinstance(scheduler, Bound):
                return partial(scheduler.restore, scheduler.read_state(state["state"]))
            return partial(scheduler.load_state_dict, state["state"])
        except ValueError as error:
            raise ValueError(
                f"Schedule {index} of the checkpoint: {error} Make the schedules that were saved, or {self.advice} "
                f"to start again."
            ) from None

    def _identity(self, scheduler: object) -> StateDict:
        """The entries of a scheduler's state that say what it is of."""
        return {"name": qualified_name(scheduler), "ssr": self.clock.ssr}


def _make_schedulers(entry: object, optimizer: Optimizer, clock: _RunClock) -> Sequence[Any]:
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
