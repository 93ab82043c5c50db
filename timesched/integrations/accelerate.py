"""Schedules in a loop of Hugging Face accelerate: `schedule(accelerator, optimizer, ...)`, after `prepare`.

`accelerator.prepare` would step a scheduler once for each process, and not at all while gradients accumulate. Here one
scheduler is stepped after each microbatch, with what that was made of, and knows itself when the batch is complete.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from torch import Tensor

from timesched.binding.bound import OnChange
from timesched.clock import Clock
from timesched.horizon import BatchSizes, ConversionFactor
from timesched.time.value import Time

from .common import Binding, CountingSchedulers, add_counts, make_average

__all__ = ["Binding", "MicrobatchSchedulers", "schedule"]


class MicrobatchSchedulers(CountingSchedulers):
    """What `schedule` returns: stepped after each microbatch, it counts a batch when the optimizer has stepped."""

    fix = "call step({}=...), or give schedule() the rates that they follow from"

    def __init__(
        self, optimizer: Any, clock: Clock, entries: Any, on_change: OnChange, accelerator: Any, average: Any
    ) -> None:
        super().__init__(optimizer, clock, entries, on_change, average)
        self.accelerator = accelerator

    def step(
        self, epoch: int | None = None, *, samples: int | Tensor | None = None, tokens: int | Tensor | None = None
    ) -> None:
        """Count a microbatch of this process; when the optimizer has stepped, write the values of the next batch.

        Call it after `optimizer.step()` on every process, inside or after `accelerator.accumulate(model)`. What is
        None follows from the rates. Raises `ValueError` when the scheduler was prepared, and for a count that a
        schedule reads and nobody gives.
        """
        if any(prepared.scheduler is self for prepared in self.accelerator._schedulers):
            raise ValueError("This scheduler counts the processes by itself: leave it out of accelerator.prepare().")
        microbatch = {name: count for name, count in (("samples", samples), ("tokens", tokens)) if count is not None}
        counts = add_counts(self.counts, microbatch)
        if not self.accelerator.sync_gradients:
            self.counts = counts
            return
        self.tick(counts)  # counts nothing where it raises
        super().step(epoch)


def schedule(
    accelerator: Accelerator,
    optimizer: AcceleratedOptimizer,
    *entries: Any,
    max_duration: Time[Any] | str,
    batches_per_epoch: ConversionFactor | None = None,
    samples_per_batch: ConversionFactor | BatchSizes | None = None,
    tokens_per_sample: ConversionFactor | None = None,
    ssr: float = 1.0,
    on_change: OnChange = "same",
    average: Callable[[list[Any], Clock], Any] | None = None,
) -> MicrobatchSchedulers:
    """Schedule the learning rate, and any other number in the parameter groups, in a loop of accelerate.

    `optimizer`: what `accelerator.prepare` returned. `entries`: a schedule is of the learning rate; a `Binding` is of
    any key, with tags. `max_duration`, the rates and `ssr` are those of `Clock`. A batch is one step of the optimizer:
    of all processes and all accumulated microbatches, whether a gradient scaler skips it or not. The rates are of such
    a batch, too.

    Returns a scheduler to step after each microbatch: `scheduler.step(samples=..., tokens=...)`, with the numbers of
    this process. They are summed over microbatches and processes, seconds are those of the first process, and all
    processes have the same values. Where several share a batch, as with tensor parallelism, give 0 on all but one.
    `scheduler.clock` says how far the run is, and when it is `done`. `save_state` saves the scheduler, which is enough
    to resume exactly; between two microbatches it saves what the first process has counted, and a load gives that to
    each. `on_change`: what is done with the state of other schedules or of another length of the run, as in
    `timesched.bind`.

    `average`: a function of the parameters and the clock, such as `functools.partial(optim.WeightAverage,
    half_life="200Mtok")`, whose average of the weights is stepped and saved with the schedules. To evaluate it, `with
    scheduler.average.swapped():`.

    Raises `TypeError` when the optimizer was not prepared, and `ValueError` where `Clock` and `timesched.bind` do.

    >>> from timesched import CosineAnnealingWithWarmupScheduler
    >>> cosine = CosineAnnealingWithWarmupScheduler("0.03dur")
    >>> # model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    >>> # scheduler = schedule(accelerator, optimizer, cosine, max_duration="1e9tok")
    >>> # after each optimizer.step(): scheduler.step(tokens=batch["input_ids"].numel())
    """
    if not isinstance(optimizer, AcceleratedOptimizer):
        raise TypeError(
            f"optimizer is of type {type(optimizer).__name__}, and may be replaced: pass the one that "
            f"accelerator.prepare() returned."
        )
    clock = Clock(
        max_duration,
        batches_per_epoch=batches_per_epoch,
        samples_per_batch=samples_per_batch,
        tokens_per_sample=tokens_per_sample,
        ssr=ssr,
        process_group=accelerator.num_processes > 1,
    )
    weight_average = make_average(optimizer.optimizer, clock, average)
    scheduler = MicrobatchSchedulers(optimizer.optimizer, clock, entries, on_change, accelerator, weight_average)
    accelerator.register_for_checkpointing(scheduler)
    return scheduler
