"""Schedules in a loop of Hugging Face accelerate: `schedule(accelerator, optimizer, ...)`, after `prepare`.

`accelerator.prepare` would step a scheduler once for each process, and not at all while gradients accumulate. The
scheduler of this module is stepped after each microbatch, with its counts, and detects when the batch is complete.
"""

from __future__ import annotations

from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from torch import Tensor

from timesched.batch_size.sampler import find_sampler
from timesched.binding.bound import OnChange
from timesched.run.clock import Clock
from timesched.run.horizon import BatchSizes, ConversionFactor
from timesched.time.value import TimeLike
from timesched.types import StateDict

from .common import Binding, CountingSchedulers, Counts, Entry, MakeAverage, add_counts, make_average, plain_counts

__all__ = ["Binding", "MicrobatchSchedulers", "schedule"]


class MicrobatchSchedulers(CountingSchedulers):
    """The scheduler that `schedule` returns: stepped after each microbatch, it counts each step of the optimizer."""

    accelerator: Accelerator
    counts: Counts | None = None  # of the microbatches since the last step of the optimizer

    def advice_for(self, counted: str) -> str:
        return f"Call step({counted}=...), or pass the conversion factors to schedule()."

    def step(
        self, epoch: int | None = None, *, samples: int | Tensor | None = None, tokens: int | Tensor | None = None
    ) -> None:
        """Count a microbatch of this process; when the optimizer has stepped, write the values of the next batch.

        Call it after `optimizer.step()` on every process, inside or after `accelerator.accumulate(model)`. The
        conversion factors give a count that is None. Raises `ValueError` if the scheduler was prepared, if a loader
        with a `BatchSizeSampler` was prepared on several processes, and for a missing count that a schedule reads.
        """
        if any(prepared.scheduler is self for prepared in self.accelerator._schedulers):
            raise ValueError(
                "This scheduler was prepared, and it counts the processes itself. Leave it out of "
                "accelerator.prepare()."
            )
        if self.accelerator.num_processes > 1 and find_sampler(self.accelerator._dataloaders) is not None:
            raise ValueError(
                "A data loader with a BatchSizeSampler was prepared, and a step would use a batch for each process. "
                "Leave it out of accelerator.prepare(), and move its batches to accelerator.device."
            )
        microbatch = {name: count for name, count in (("samples", samples), ("tokens", tokens)) if count is not None}
        counts = add_counts(self.counts, microbatch)
        if not self.accelerator.sync_gradients:
            self.counts = counts
            return
        self.tick(counts)  # which counts nothing if it raises
        self.counts = None
        super().step(epoch)

    def state_dict(self) -> StateDict:
        """The states of all schedulers, and the counts of a batch that is not complete."""
        return super().state_dict() | {"counts": plain_counts(self.counts)}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Resume from a state, as `Schedulers` do, also between two microbatches."""
        super().load_state_dict(state_dict)
        self.counts = state_dict.get("counts")


def schedule(
    accelerator: Accelerator,
    optimizer: AcceleratedOptimizer,
    *entries: Entry,
    max_duration: TimeLike,
    batches_per_epoch: ConversionFactor | None = None,
    samples_per_batch: ConversionFactor | BatchSizes | None = None,
    tokens_per_sample: ConversionFactor | None = None,
    ssr: float = 1.0,
    on_change: OnChange = "same",
    average: MakeAverage | None = None,
) -> MicrobatchSchedulers:
    """Schedule the learning rate, and any other hyperparameter of the groups, in a training loop of accelerate.

    `optimizer`: the optimizer that `accelerator.prepare` returned. `entries`: a schedule controls the learning rate, a
    `Binding` any key, with tags. `max_duration`, `batches_per_epoch`, `samples_per_batch`, `tokens_per_sample` and
    `ssr` are the arguments of `Clock`. A batch is one step of the optimizer, for the conversion factors too: of all
    processes and all accumulated microbatches, whether a gradient scaler skips it or not.

    Returns a scheduler to step after each microbatch: `scheduler.step(samples=..., tokens=...)`, with the counts of
    this process. They are summed over microbatches and processes. The first process measures the seconds, and all
    processes have the same values. Where several processes share a batch, as with tensor parallelism, pass 0 on all but
    one. `scheduler.clock` has the position of the run, and is `done` at its end. `save_state` saves the scheduler,
    which is enough to resume exactly. Between two microbatches it saves the counts of the first process, and a load
    restores them on each process. `on_change`: how a load treats the state of other schedules or of another length of
    the run, as in `timesched.bind`.

    `average`: a function of the parameters and the clock, such as `functools.partial(optim.WeightAverage,
    half_life="200Mtok")`, whose average of the weights is stepped and saved with the schedules. Evaluate it inside of
    `with scheduler.average.swapped():`.

    Raises `TypeError` if the optimizer was not prepared, and `ValueError` where `Clock` and `timesched.bind` do.

    >>> from timesched import CosineAnnealingWithWarmupScheduler
    >>> cosine = CosineAnnealingWithWarmupScheduler("0.03dur")
    >>> # model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    >>> # scheduler = schedule(accelerator, optimizer, cosine, max_duration="1e9tok")
    >>> # after each optimizer.step(): scheduler.step(tokens=batch["input_ids"].numel())
    """
    if not isinstance(optimizer, AcceleratedOptimizer):
        raise TypeError(
            f"schedule.optimizer: it is of type {type(optimizer).__name__}, and may be replaced. Pass the one that "
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
    scheduler = MicrobatchSchedulers(optimizer.optimizer, clock, entries, on_change, weight_average)
    scheduler.accelerator = accelerator
    accelerator.register_for_checkpointing(scheduler)
    return scheduler
