"""Schedules for the Trainer of Lightning: `schedule(self, optimizer, ...)`, one line in `configure_optimizers`.

Lightning has no hook between the step of the optimizer and that of the scheduler. So a callback notes what each batch
is made of when it begins, and the scheduler counts that on its clock when it is stepped, before it writes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule
from torch import Tensor
from torch.optim import Optimizer

from timesched.binding import OnChange
from timesched.clock import Clock
from timesched.horizon import BatchSizes, Rate
from timesched.time.value import Time

from .common import Binding, CountingSchedulers

__all__ = ["Binding", "schedule"]


def schedule(
    module: LightningModule,
    optimizer: Optimizer,
    *entries: Any,
    max_duration: Time[Any] | str | None = None,
    count: Callable[[Any], Mapping[str, Any]] | None = None,
    samples_per_batch: Rate | BatchSizes | None = None,
    tokens_per_sample: Rate | None = None,
    ssr: float = 1.0,
    on_change: OnChange = "same",
    log: bool = True,
) -> dict[str, Any]:
    """What `configure_optimizers` returns: an optimizer, and schedules of any numbers in its parameter groups.

    `entries`: a schedule is of the learning rate; a `Binding` is of any key, with tags. `max_duration`: the length of
    the run that the schedules see, before scaling by `ssr`; None takes the Trainer's own,
    `trainer.estimated_stepping_batches`. `count`: a function of a batch of this process that returns its numbers, as in
    `{"samples": 8, "tokens": 512}`. None counts as samples the first dimension of the first tensor, and as tokens all
    of `input_ids`, padding too. `samples_per_batch`, `tokens_per_sample`: where a schedule mixes units.

    A batch is one step of the optimizer: of all processes and all accumulated microbatches, whether a gradient scaler
    skips it or not. Counts are summed over the processes, and seconds are those of the first. Where several processes
    share a batch, as with tensor parallelism, let `count` return 0 on all but one of them.

    In manual optimization step the scheduler yourself: `self.lr_schedulers().step()`. There a batch is one call of
    `training_step`, also where several make a step of the optimizer. Several optimizers have one clock: call this for
    each and return the list; the arguments by name are those of the first call, but for `on_change`.

    `log`: log every value that a batch runs with to the loggers of the Trainer, every `log_every_n_steps`, under names
    such as `weight_decay/head`; those of a second optimizer end in `-1`.

    A checkpoint of Lightning is enough to resume exactly. `on_change`: what is done with one of other schedules or of
    another length of the run, as in `timesched.bind`.

    Raises `ValueError` when the Trainer has no end and there is no `max_duration`, and where `timesched.bind` does;
    when training begins, if `configure_optimizers` did not return this as it is; and for a batch without a count that
    a schedule reads.

    >>> from timesched import CosineAnnealingWithWarmupScheduler, LinearScheduler
    >>> cosine = CosineAnnealingWithWarmupScheduler("0.03dur")
    >>> decay = Binding(LinearScheduler(alpha_f=0.1), "weight_decay")
    >>> # def configure_optimizers(self):
    >>> #     return schedule(self, optim.AdamW(self.parameters(), lr=3e-4), cosine, decay)
    """
    if not isinstance(module, LightningModule) or not isinstance(optimizer, Optimizer):
        given = f"{type(module).__name__}, {type(optimizer).__name__}"
        raise TypeError(f"schedule({given}, ...): pass the LightningModule, its optimizer, and then the schedules.")
    trainer: Any = module.trainer
    options = {
        "max_duration": max_duration,
        "count": count,
        "samples_per_batch": samples_per_batch,
        "tokens_per_sample": tokens_per_sample,
        "ssr": ssr,
        "log": log,
    }
    # Those whose schedulers the Trainer has are of an earlier fit, as after `lr_find`.
    there = [each.scheduler for each in trainer.lr_scheduler_configs]
    found = [each for each in trainer.callbacks if isinstance(each, _Counting)]
    counting = next((each for each in found if not any(made in there for made in each.made)), None)
    if counting is None:
        counting = _Counting(_clock(trainer, max_duration, samples_per_batch, tokens_per_sample, ssr), options, module)
    elif options not in (counting.options, {**dict.fromkeys(options), "ssr": 1.0, "log": True}):
        raise ValueError("One clock counts for all optimizers: give arguments by name in the first schedule() alone.")
    made = _CallbackSchedulers(optimizer, counting, entries, on_change)
    trainer.callbacks[:] = [each for each in trainer.callbacks if each not in found] + [counting]
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": made, "interval": "step"}}


def _clock(
    trainer: Any, max_duration: Any, samples: Rate | BatchSizes | None, tokens: Rate | None, ssr: float
) -> Clock:
    """The clock of a run of the Trainer."""
    early = trainer.train_dataloader is None
    if early:
        trainer.fit_loop.setup_data()
    if max_duration is None:
        steps = trainer.estimated_stepping_batches
        if not 0 < steps < math.inf:
            raise ValueError(
                f"The Trainer's length is {steps} steps, so its end is not known: pass "
                f"max_duration='10000ba', or set Trainer(max_steps=...)."
            )
        max_duration = f"{int(steps)}ba"
    loads = trainer.num_training_batches
    if early and trainer.ckpt_path is not None:
        trainer.fit_loop._combined_loader = None  # made before a checkpoint is read, a loader would not be resumed
    return Clock(
        max_duration,
        batches_per_epoch=math.ceil(loads / trainer.accumulate_grad_batches) if 0 < loads < math.inf else None,
        samples_per_batch=samples,
        tokens_per_sample=tokens,
        ssr=ssr,
        process_group=trainer.world_size > 1,
    )


class _CallbackSchedulers(CountingSchedulers):
    """Schedulers that count what a callback has noted before they write."""

    fix = "pass schedule(..., count=lambda batch: {{'{}': ...}})"

    def __init__(self, optimizer: Optimizer, counting: _Counting, entries: Any, on_change: OnChange) -> None:
        super().__init__(optimizer, counting.clock, entries, on_change)
        self.counting = counting
        counting.made.append(self)

    def step(self, epoch: int | None = None) -> None:
        """Count the batch, if no other scheduler has, and write the values of the next one."""
        for counts in self.counting.take():
            self.tick(counts)
        super().step(epoch)


class _Counting(Callback):
    """Notes what batches are made of."""

    def __init__(self, clock: Clock, options: dict[str, Any], module: LightningModule) -> None:
        self.clock, self.options = clock, options
        self.count = options["count"] or count_tensors
        self.manual = not module.automatic_optimization
        self.made: list[_CallbackSchedulers] = []
        self.noted: list[Mapping[str, Any]] = []  # of the microbatches since the last step

    def take(self) -> list[Mapping[str, Any]]:
        """The numbers of each batch to count: in automatic optimization the microbatches are one."""
        noted, self.noted = self.noted, []
        if self.manual or not noted:
            return noted
        names = {name for counts in noted for name in counts}
        return [{name: sum(counts.get(name, 0) for counts in noted) for name in names}]

    def on_train_start(self, trainer: Any, pl_module: LightningModule) -> None:
        """Refuse schedulers that Lightning would not step after each step of the optimizer."""
        configs = [each for each in trainer.lr_scheduler_configs if each.scheduler in self.made]
        if not configs or any((each.interval, each.frequency) != ("step", 1) for each in configs):
            raise ValueError(
                "The scheduler has to be stepped after each step of the optimizer: let configure_optimizers() return "
                "what schedule() returned, as it is, or the list of several."
            )
        if trainer.ckpt_path is not None and not any(each.loaded for each in self.made):
            batches = trainer.fit_loop.epoch_loop.total_batch_idx + 1 if self.manual else trainer.global_step
            self.made[0].begin_at(batches, epoch=trainer.current_epoch)

    def on_train_batch_start(self, trainer: Any, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Note what a microbatch is made of, and log what it runs with."""
        counts = self.count(batch)
        if not isinstance(counts, Mapping) or not {"samples", "tokens"}.issuperset(counts):
            raise TypeError(f"count(batch) returned {counts!r}: let it return {{'samples': ..., 'tokens': ...}}.")
        self.noted.append(counts)
        log = self.options["log"] and len(self.noted) == 1  # once for each step of the optimizer
        if log and trainer._logger_connector.should_update_logs:  # what `LearningRateMonitor` asks
            found = [each.named_values().items() for each in self.made]
            values = {f"{name}-{i}" if i else name: value for i, each in enumerate(found) for name, value in each}
            for logger in trainer.loggers:
                logger.log_metrics(values, step=trainer.fit_loop.epoch_loop._batches_that_stepped)

    def on_train_epoch_end(self, trainer: Any, pl_module: LightningModule) -> None:
        """Count an epoch whose length was not known before."""
        if self.clock.dataloader_len is None:
            self.clock.next_epoch()
            for each in self.made:
                each.refresh()


def count_tensors(batch: Any) -> dict[str, int]:
    """The numbers of a batch as far as its tensors tell them.

    >>> import torch
    >>> count_tensors({"input_ids": torch.zeros(8, 64), "labels": torch.zeros(8)})
    {'samples': 8, 'tokens': 512}
    """
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    if isinstance(ids, Tensor):
        return {"samples": len(ids), "tokens": ids.numel()}
    first = next(_tensors(batch), None)
    return {} if first is None else {"samples": len(first)}


def _tensors(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        if batch.dim():
            yield batch
    elif isinstance(batch, (Mapping, list, tuple)):
        for each in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _tensors(each)
