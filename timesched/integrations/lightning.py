"""Schedules for the Trainer of Lightning: `schedule(self, optimizer, ...)`, one line in `configure_optimizers`.

Lightning has no hook between the step of the optimizer and the step of the scheduler. So the scheduler's `step` ticks
the clock before it writes. A fit has these objects:

    Clock                the position after the last complete batch
    _CallbackSchedulers  the schedules of an optimizer, which Lightning steps, saves and loads; one for each optimizer
    _BatchCounter        the counts of the batch that is not complete, until it ticks the clock, for all optimizers
    _CountingCallback    passes the events of the Trainer on, and follows its epochs, for all optimizers

Private attributes of Lightning are used in `_log_values` and `_make_clock` alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor
from torch.optim import Optimizer

from timesched.batch_size.sampler import find_sampler
from timesched.binding.bound import OnChange
from timesched.run.clock import Clock
from timesched.run.horizon import BatchSizes, ConversionFactor
from timesched.time.units import TimeUnit
from timesched.time.value import Time, TimeLike
from timesched.types import StateDict

from .common import (
    Binding,
    CountFunction,
    CountingSchedulers,
    Counts,
    Entry,
    MakeAverage,
    RunOptions,
    add_microbatch,
    check_average,
    make_average,
    plain_counts,
)

__all__ = ["Binding", "schedule"]

_PASS_LENGTH = "Pass a length to schedule(), such as max_duration='10000ba'."


def schedule(
    module: LightningModule,
    optimizer: Optimizer,
    *entries: Entry,
    max_duration: TimeLike | None = None,
    count: CountFunction | None = None,
    samples_per_batch: ConversionFactor | BatchSizes | None = None,
    tokens_per_sample: ConversionFactor | None = None,
    ssr: float = 1.0,
    on_change: OnChange = "same",
    log: bool = True,
    average: MakeAverage | None = None,
    evaluate_averaged: bool = False,
) -> dict[str, Any]:
    """Return the value for `configure_optimizers`: an optimizer, and schedules of any hyperparameters.

    `entries`: a schedule controls the learning rate, a `Binding` any key, with tags. `max_duration`: the length of the
    run, before scaling by `ssr`. The run ends there if the Trainer's steps or epochs have not ended it before, and its
    `min_steps` and `min_epochs` allow it. None is for the Trainer's own length, in steps of the optimizer. `count`: a
    function of a batch of this process that returns its counts, as in `{"samples": 8, "tokens": 512}`. None counts as
    samples the first dimension of the first tensor, and as tokens all of `input_ids`, with padding.
    `samples_per_batch`, `tokens_per_sample`: the conversion factors, where a schedule mixes units.

    A batch is one step of the optimizer: of all processes and all accumulated microbatches, whether a gradient scaler
    skips it or not. Epochs are the Trainer's epochs, each of its own length. Counts are summed over the processes, and
    the first process measures the seconds. Where several processes share a batch, as with tensor parallelism, let
    `count` return 0 on all but one of them.

    In manual optimization step the scheduler yourself: `self.lr_schedulers().step()`. There a batch is one call of
    `training_step`, also where several make a step of the optimizer. Several optimizers have one clock: call this for
    each optimizer and return the list. Pass arguments by name in the first call only, except `on_change` and the
    arguments of an average.

    `log`: log every value that a batch runs with to the loggers of the Trainer, every `log_every_n_steps`, under names
    such as `weight_decay/head`. The names of a second optimizer end in `-1`.

    `average`: a function of the optimizer's parameters and the clock, such as `functools.partial(optim.WeightAverage,
    half_life="200Mtok")`, whose average of the weights is stepped with the schedules and saved in their state. It is
    `self.lr_schedulers().average`; with `evaluate_averaged`, the validations of a fit run on it.

    A checkpoint of Lightning is enough to resume exactly. `on_change`: how a load treats one of other schedules or of
    another length of the run, as in `timesched.bind`.

    Raises `ValueError` without `max_duration`, if the Trainer has no end, reloads its data loader, has a
    `GradientAccumulationScheduler`, or has `max_steps` in manual optimization. Raises `ValueError` where
    `timesched.bind` does; when training begins, if `configure_optimizers` returned a changed value; and for a batch
    without a count that a schedule reads. Warns if the Trainer ends before the schedules, by a batch or more.

    >>> from timesched import CosineAnnealingWithWarmupScheduler, LinearScheduler
    >>> cosine = CosineAnnealingWithWarmupScheduler("0.03dur")
    >>> decay = Binding(LinearScheduler(alpha_f=0.1), "weight_decay")
    >>> # def configure_optimizers(self):
    >>> #     return schedule(self, optim.AdamW(self.parameters(), lr=3e-4), cosine, decay)
    """
    if not isinstance(module, LightningModule) or not isinstance(optimizer, Optimizer):
        types = f"{type(module).__name__}, {type(optimizer).__name__}"
        raise TypeError(
            f"schedule({types}, ...): the first two arguments are wrong. Pass the LightningModule, its optimizer, and "
            f"then the schedules."
        )
    check_average(evaluate_averaged, average)
    options = RunOptions(  # the other arguments are of this optimizer
        max_duration=str(max_duration) if isinstance(max_duration, Time) else max_duration,  # texts always compare
        count=count,
        samples_per_batch=samples_per_batch,
        tokens_per_sample=tokens_per_sample,
        ssr=ssr,
        log=log,
    )
    counting = _find_or_make_callback(module, options)
    weight_average = make_average(optimizer, counting.clock, average)
    schedulers = _CallbackSchedulers(optimizer, counting.clock, entries, on_change, weight_average)
    counting.attach(schedulers, evaluate_averaged)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedulers, "interval": "step"}}


def _find_or_make_callback(module: LightningModule, options: RunOptions) -> _CountingCallback:
    """The callback of the fit that begins, one for all optimizers. Raises `ValueError` if it has other options."""
    callbacks = module.trainer.callbacks
    counting = latest = next((callback for callback in callbacks if isinstance(callback, _CountingCallback)), None)
    if counting is None or counting.configs():  # there is none yet, or it is of an earlier fit
        counting = _CountingCallback(module.trainer, module, options)
        counting.continue_fit(latest)
    if options not in (counting.options, RunOptions()):  # without arguments, they are the defaults
        raise ValueError(
            "schedule: one clock counts for all optimizers. Pass arguments by name in the first schedule() alone."
        )
    return counting


class _CallbackSchedulers(CountingSchedulers):
    """The schedulers of an optimizer, whose step first counts the batch on the clock."""

    callback: _CountingCallback

    def advice_for(self, counted: str) -> str:
        return f"Pass schedule(..., count=lambda batch: {{'{counted}': ...}})."

    def step(self, epoch: int | None = None) -> None:
        """Count the batch, unless another scheduler has, and write the values of the next batch.

        Nothing happens for a batch that the module refused, and in a trial of `Tuner.scale_batch_size`, in which the
        Trainer has no callbacks.
        """
        is_trial = self.callback not in self.callback.trainer.callbacks
        if not is_trial and not self.callback.counter.is_refused():
            self.callback.counter.count_batch()
            super().step(epoch)

    def state_dict(self) -> StateDict:
        """The states of all schedulers, and the counts of a batch that is not complete."""
        return super().state_dict() | {"counts": plain_counts(self.callback.counter.add_pending())}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Resume from a state. If the epochs differ in length, resume in an epoch of the saved length."""
        clock, present_length = self.clock, self.clock.dataloader_len
        try:
            if self.callback.epochs_vary():
                for state in state_dict.get("schedulers", []):
                    clock._set_epochs(state["clock"].get("batches_per_epoch"), clock.timestamp)
            super().load_state_dict(state_dict)
        except Exception:  # of any kind: the epochs go back, and it is raised again
            clock._set_epochs(present_length, clock.timestamp)
            raise
        if state_dict.get("counts") is not None:  # of two optimizers, maybe only the first has saved them
            self.callback.counter.counts = state_dict["counts"]


class _CountingCallback(Callback):
    """Counts batches, follows the Trainer's epochs, and runs the validations of a fit on averages.

    A fit has these events, in this order:

        configure_optimizers    `schedule` makes the clock, the schedulers, and one callback for all of them
        a checkpoint is loaded  the schedulers, the clock and the counts of a batch that was not complete continue
        on_train_start          check how Lightning steps the schedulers; without a state, begin at its position
        on_train_batch_start    begin a microbatch; in the first of an epoch, set the clock to Lightning's position;
                                log the values of the batch that begins
        optimizer.step()        not while gradients accumulate
        scheduler.step()        likewise: count the batch, and write the values of the next batch
        on_train_batch_end      end the microbatch; end the run
        on_validation_start     the model gets the average of its weights, and at the end its weights again
        on_train_epoch_end      count an epoch that has not been counted
        on_train_end            warn if the schedules have not ended
    """

    def __init__(self, trainer: Trainer, module: LightningModule, options: RunOptions) -> None:
        self.trainer, self.options = trainer, options
        self.clock = _make_clock(trainer, module, options)
        self.schedulers: list[_CallbackSchedulers] = []  # of each optimizer
        self.counter = _BatchCounter(self, module, options.count or count_tensors)
        self.evaluated: list[_CallbackSchedulers] = []  # those whose average is evaluated
        self.swapped = ExitStack()  # closing it restores the weights
        self.resumed = False  # whether the clock must still follow the Trainer's position in a resumed epoch

    def continue_fit(self, earlier: _CountingCallback | None) -> None:
        """Set the clock to the end of an earlier fit of the Trainer, if this fit continues it. Trial fits do not count.

        Raises `ValueError` if the earlier fit has reached the length of this one.
        """
        if earlier is None or not self.trainer.global_step or self.trainer.ckpt_path is not None:
            return
        self.clock.go_to(earlier.clock.timestamp, earlier.clock._explicit_units)
        if self.clock.done:
            raise ValueError(
                f"schedule.max_duration={str(self.clock.max_duration)!r}: an earlier fit of this Trainer has reached "
                f"it. Pass a greater length, or make a new Trainer."
            )

    def attach(self, schedulers: _CallbackSchedulers, evaluate_averaged: bool) -> None:
        """Count for the schedulers of one more optimizer, as the Trainer's first callback.

        It replaces the callback of an earlier fit. Other callbacks read its clock, and a Checkpoint callback saves at
        the end of a validation, and must find the weights.
        """
        schedulers.callback = self
        self.schedulers.append(schedulers)
        if evaluate_averaged:
            self.evaluated.append(schedulers)
        callbacks = self.trainer.callbacks
        callbacks[:] = [self, *(other for other in callbacks if not isinstance(other, _CountingCallback))]

    def epochs_vary(self) -> bool:
        """Whether epochs may differ in length, so that a checkpoint may be of an epoch of another length."""
        return _changes_accumulation(self.trainer) or self.trainer.reload_dataloaders_every_n_epochs > 0

    def configs(self) -> list[LRSchedulerConfig]:
        """The Trainer's configs of these schedulers: empty before a fit has begun, also a fit of `lr_find`."""
        return [config for config in self.trainer.lr_scheduler_configs if config.scheduler in self.schedulers]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check how Lightning steps the schedulers, and what is counted; without a state, begin at its position."""
        configs = self.configs()
        if not configs or any((config.interval, config.frequency) != ("step", 1) for config in configs):
            raise ValueError(
                "configure_optimizers: the scheduler must be stepped after each step of the optimizer. Return the "
                "value of schedule() unchanged, or the list of several."
            )

        several = len(CombinedLoader(trainer.train_dataloader).flattened) > 1
        reads_samples = any(TimeUnit.SAMPLE in schedulers.units for schedulers in self.schedulers)
        if several and reads_samples and self.options.count is None:
            raise ValueError(
                "samples: a schedule reads them, and the Trainer has several data loaders, of which the first would be "
                "counted. Pass schedule(..., count=lambda batch: {'samples': ...})."
            )

        self.resumed = trainer.ckpt_path is not None
        if self.resumed and not any(schedulers.loaded for schedulers in self.schedulers):
            is_manual = not pl_module.automatic_optimization
            batches = trainer.fit_loop.epoch_loop.total_batch_idx + 1 if is_manual else trainer.global_step
            for schedulers in self.schedulers:
                schedulers.begin_at(batches, epoch=trainer.current_epoch)
        self._stop_at_end()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        """Begin a microbatch, follow the Trainer's epoch, and log the values that the batch runs with."""
        self.counter.begin_microbatch(batch)
        if batch_idx == 0 or self.resumed:  # earlier, Lightning does not know its position in the epoch
            self._follow_epoch(batch_idx)
        if self.options.log and self.counter.counts is None:  # in the first microbatch of a batch
            self._log_values()

    def on_train_batch_end(self, *arguments: object) -> None:
        """End a microbatch, and end the run."""
        self.counter.end_microbatch()
        self._stop_at_end()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count an epoch whose length was not known, or that ended early."""
        timestamp = self.clock.timestamp
        batches = find_sampler(trainer.train_dataloader)
        # After a resume at the end of an epoch, the data loader may have no batch left.
        is_end = trainer.is_last_batch if batches is None else batches.num_batches() == 0
        if is_end and timestamp.batch_in_epoch > 0:
            self.clock._set_epochs(self.clock.dataloader_len, timestamp.to_next_epoch())
        self._stop_at_end()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warn if the Trainer ended before the schedules."""
        if trainer.is_global_zero and not (trainer.should_stop or trainer.fast_dev_run):
            self.schedulers[0].warn_of_early_end()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Replace the weights by the average, but not in `trainer.validate()`, which may have loaded other weights."""
        if trainer.state.fn == TrainerFn.FITTING:
            for schedulers in self.evaluated:
                self.swapped.enter_context(schedulers.averaged(pl_module))

    def on_validation_end(self, *arguments: object) -> None:
        """Put the weights back, before another callback saves them. Also after a validation that failed."""
        self.swapped.close()

    on_exception = on_validation_end

    def _follow_epoch(self, batch_idx: int) -> None:
        """Set the clock to the position of the Trainer, before a microbatch of an epoch.

        If batches grow, the clock counts the epochs of the data: the Trainer counts an epoch without a batch, too.
        """
        trainer = self.trainer
        if find_sampler(trainer.train_dataloader) is not None:
            return
        batch_in_epoch, timestamp = batch_idx // trainer.accumulate_grad_batches, self.clock.timestamp
        if batch_in_epoch == 0 and timestamp.batch_in_epoch > 0:  # the last epoch was left early
            timestamp = timestamp.to_next_epoch()
        if self.resumed:
            timestamp = timestamp.copy(epoch=trainer.current_epoch, batch_in_epoch=batch_in_epoch)
        self.clock._set_epochs(_batches_per_epoch(trainer), timestamp)
        self.resumed = False

    def _log_values(self) -> None:
        """Log the values, if the Trainer logs at this batch: `LightningModule.log` would round them to float32.

        No public attribute says when the Trainer logs, or at which step: `global_step` counts each of several
        optimizers. Lightning's own `LearningRateMonitor` reads the same private attributes.
        """
        if not self.trainer._logger_connector.should_update_logs:
            return
        step = self.trainer.fit_loop.epoch_loop._batches_that_stepped
        values = {}
        for i, schedulers in enumerate(self.schedulers):
            suffix = f"-{i}" if i else ""
            values.update({f"{name}{suffix}": value for name, value in schedulers.named_values().items()})
        for logger in self.trainer.loggers:
            logger.log_metrics(values, step=step)

    def _stop_at_end(self) -> None:
        if self.options.max_duration is not None and self.clock.done:
            self.trainer.should_stop = True


class _BatchCounter:
    """Adds up the microbatches of a batch on this process, and counts each batch once on the clock.

    A microbatch is pending until the first event that needs its counts: a step of a scheduler, a save, or its end. By
    then, `training_step` has got it, or the module has refused it. A step of a scheduler counts the batch. In manual
    optimization each microbatch is a batch, and its end counts it if no step has.
    """

    def __init__(self, callback: _CountingCallback, module: LightningModule, count: CountFunction) -> None:
        self.callback, self.module, self.count = callback, module, count
        self.counts: Counts | None = None  # of the microbatches that are not pending; None if there are none
        self.pending: object = None  # the microbatch that has begun, if it was not added yet

    def begin_microbatch(self, microbatch: object) -> None:
        """Keep the microbatch. The previous one, if it is still pending, was refused."""
        self.pending = None
        self._end_manual_batch()  # in which a checkpoint was saved
        self.pending = microbatch

    def end_microbatch(self) -> None:
        """Add the microbatch, unless a step has."""
        self.add_pending()
        self._end_manual_batch()

    def _end_manual_batch(self) -> None:
        if not self.module.automatic_optimization:
            self.count_batch()

    def count_batch(self) -> None:
        """Count the batch that was trained since the last count, if there is one."""
        counts = self.add_pending()
        if counts is not None:
            for schedulers in self.callback.schedulers:
                schedulers.check_counts(counts)
            self.callback.clock.tick(counts.get("samples"), counts.get("tokens"))
            self.counts = None

    def is_refused(self) -> bool:
        """Whether the module's `on_train_batch_start` returned -1, so that `training_step` did not get the batch."""
        progress = self.callback.trainer.fit_loop.epoch_loop.batch_progress.current
        return bool(progress.started < progress.ready)

    def add_pending(self) -> Counts | None:
        """Add the pending microbatch, if `training_step` got it, and return the counts."""
        batch, self.pending = self.pending, None
        if batch is not None and not self.is_refused():
            self.counts = add_microbatch(self.counts, self.count, batch)
        return self.counts


def _make_clock(trainer: Trainer, module: LightningModule, options: RunOptions) -> Clock:
    """Make the clock of a run of the Trainer, with the length of its data loader."""
    makes_loader = trainer.train_dataloader is None  # the Trainer would make it after the optimizers
    if makes_loader and options.max_duration is not None:
        # `setup_data` begins to iterate the loader, and a loader whose batches grow reads this clock. Before that, only
        # this private attribute has the loader.
        makes_loader = find_sampler(trainer.fit_loop._data_source.dataloader()) is None
    if makes_loader:
        trainer.fit_loop.setup_data()
    clock = Clock(
        f"{_total_steps(trainer, module)}ba" if options.max_duration is None else options.max_duration,
        batches_per_epoch=_batches_per_epoch(trainer),
        samples_per_batch=options.samples_per_batch,
        tokens_per_sample=options.tokens_per_sample,
        ssr=options.ssr,
        process_group=trainer.world_size > 1,
    )
    if makes_loader and trainer.ckpt_path is not None:
        # The Trainer does not resume a loader that was made before it reads the checkpoint, and no public method drops
        # the loader.
        trainer.fit_loop._combined_loader = None
    return clock


def _batches_per_epoch(trainer: Trainer) -> int | None:
    """The length of an epoch, with the present accumulation and data loader."""
    microbatches = trainer.num_training_batches
    return math.ceil(microbatches / trainer.accumulate_grad_batches) if 0 < microbatches < math.inf else None


def _total_steps(trainer: Trainer, module: LightningModule) -> int:
    """The Trainer's own length, in steps of the optimizer. Raises `ValueError` if it is not known."""
    steps, epochs = trainer.estimated_stepping_batches, trainer.max_epochs
    if not 0 < steps < math.inf:
        raise ValueError(f"max_duration=None: the Trainer trains {steps} steps, without an end. {_PASS_LENGTH}")
    if not module.automatic_optimization and trainer.max_steps != -1:
        raise ValueError(
            f"max_duration=None: max_steps={trainer.max_steps} counts the steps of all optimizers, and a batch is a "
            f"call of training_step. {_PASS_LENGTH}"
        )
    reloads = 0 < trainer.reload_dataloaders_every_n_epochs < epochs
    if reloads or (epochs > 0 and _changes_accumulation(trainer)):
        raise ValueError(
            f"max_duration=None: the Trainer reloads its data loader or has a GradientAccumulationScheduler, so its "
            f"epochs may differ in length. {_PASS_LENGTH}"
        )
    return int(steps)


def _changes_accumulation(trainer: Trainer) -> bool:
    """Whether the number of microbatches in a batch changes between epochs."""
    return any(isinstance(callback, GradientAccumulationScheduler) for callback in trainer.callbacks)


def count_tensors(batch: object) -> dict[str, int]:
    """Count the samples and tokens of a batch by its tensors.

    >>> import torch
    >>> count_tensors({"input_ids": torch.zeros(8, 64), "labels": torch.zeros(8)})
    {'samples': 8, 'tokens': 512}
    """
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    if isinstance(ids, Tensor):
        return {"samples": len(ids), "tokens": ids.numel()}
    first = next(_tensors(batch), None)
    return {} if first is None else {"samples": len(first)}


def _tensors(batch: object) -> Iterator[Tensor]:
    if isinstance(batch, Tensor) and batch.dim():
        yield batch
    elif isinstance(batch, (Mapping, list, tuple)):
        for element in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _tensors(element)
