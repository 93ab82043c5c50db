"""Schedules for the Trainer of Hugging Face transformers: `schedule(trainer, ...)`, one line after the Trainer is made.

The Trainer makes its scheduler late, saves nothing of it but `scheduler.state_dict()`, and says nothing of samples. Here
a `Clock` counts what each step of the optimizer was made of, and the scheduler's state holds the clock's.
"""

from __future__ import annotations

from typing import Any

from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import has_length

from timesched.clock import Clock
from timesched.horizon import Rate
from timesched.time.units import TimeUnit
from timesched.time.value import Time

from .common import Binding, Schedulers

__all__ = ["Binding", "schedule"]


def schedule(
    trainer: Trainer,
    *entries: Any,
    max_duration: Time[Any] | str | None = None,
    tokens_per_sample: Rate | None = None,
    ssr: float = 1.0,
) -> None:
    """Have a Trainer run schedules of the learning rate, and of any other number in the parameter groups.

    `entries`: a schedule is of the learning rate; a `Binding` is of any key, with tags. `max_duration`: the length of
    the run that the schedules see, before scaling by `ssr`; None takes the Trainer's own, `max_steps` or epochs.
    `tokens_per_sample`: where a schedule mixes tokens with other units; the tokens themselves are counted.

    The Trainer makes the scheduler when it trains, after the optimizer, and saves it as `scheduler.pt`, which is enough
    to go on exactly. A batch is one step of the optimizer: of all ranks and all accumulated microbatches, whether a
    gradient scaler skips it or not. Tokens are those that the Trainer counts with
    `include_num_input_tokens_seen="all"` or `"non_padding"`. Samples are those of the dataset: what a sampler repeats to
    fill the last batch of an epoch does not count. Seconds are those of the first rank.

    Raises `ValueError` when the Trainer has a scheduler already, and, when it trains, for a time in tokens without
    `include_num_input_tokens_seen`, for a data loader of another length than its dataset says, and where
    `timesched.bind` does.

    >>> from timesched import CosineAnnealingWithWarmupScheduler, LinearScheduler
    >>> cosine = CosineAnnealingWithWarmupScheduler("0.03dur")
    >>> decay = Binding(LinearScheduler(alpha_f=0.1), "weight_decay")
    >>> # trainer = Trainer(model, args, train_dataset=data)
    >>> # schedule(trainer, cosine, decay); trainer.train()
    """
    if trainer.lr_scheduler is not None:
        raise ValueError(
            f"The Trainer has a scheduler already, a {type(trainer.lr_scheduler).__name__}: leave it out, as in "
            f"Trainer(optimizers=(optimizer, None)), and call this before train()."
        )
    counting = _Counting(trainer, entries, max_duration, tokens_per_sample, ssr)
    trainer.create_scheduler = counting.create_scheduler  # the method that a Trainer lets its users replace
    trainer.add_callback(counting)


class _Counting(TrainerCallback):  # type: ignore[misc]  # which has no types
    """Makes the clock and the schedulers of a Trainer, and counts its batches."""

    def __init__(self, trainer: Any, entries: Any, max_duration: Any, tokens_per_sample: Any, ssr: float) -> None:
        self.trainer, self.entries = trainer, entries
        self.max_duration, self.tokens_per_sample, self.ssr = max_duration, tokens_per_sample, ssr
        self.clock: Clock | None = None

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The scheduler of a run, as `Trainer.create_scheduler`: made once, and again where a run begins anew."""
        trainer = self.trainer
        if trainer.lr_scheduler is not None:
            return trainer.lr_scheduler
        optimizer = trainer.optimizer if optimizer is None else optimizer
        self.batch_size = trainer.get_total_train_batch_size(trainer.args)
        self.samples, epoch = self._epoch()
        self.clock = clock = Clock(
            f"{num_training_steps}ba" if self.max_duration is None else self.max_duration,
            batches_per_epoch=epoch,
            samples_per_batch=self.batch_size,
            tokens_per_sample=self.tokens_per_sample,
            ssr=self.ssr,
            process_group=False,
        )
        made = Schedulers(getattr(optimizer, "optimizer", optimizer), clock, self.entries)
        units = {unit for each in made.bound for unit in each.units()}
        if TimeUnit.TOKEN in units and trainer.args.include_num_input_tokens_seen == "no":
            raise ValueError(
                "A schedule counts tokens, and the Trainer does not: set "
                "TrainingArguments(include_num_input_tokens_seen='all'), or 'non_padding'."
            )
        if TimeUnit.SECOND in units and trainer.args.world_size > 1:
            clock.process_group = True
        trainer.lr_scheduler, trainer._created_lr_scheduler = made, True
        return made

    def _epoch(self) -> tuple[int | None, int | None]:
        """The samples and the batches of an epoch, None where the dataset has no length."""
        args, data = self.trainer.args, self.trainer.train_dataset
        if not has_length(data):
            return None, None
        size = self.batch_size // args.gradient_accumulation_steps  # of the microbatches of all ranks
        loads = len(data) // size if args.dataloader_drop_last else -(-len(data) // size)
        samples = loads * size if args.dataloader_drop_last else len(data)
        return samples, max(1, -(-loads // args.gradient_accumulation_steps))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take up the Trainer's own count of tokens."""
        self.tokens = state.num_input_tokens_seen

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count a batch, after the step of the optimizer and before that of the scheduler."""
        assert self.clock is not None
        before, self.tokens = self.tokens, state.num_input_tokens_seen
        samples = self.batch_size
        if self.samples is not None:
            samples = max(0, min(samples, self.samples - samples * int(self.clock.timestamp.batch_in_epoch)))
        tokens = None if args.include_num_input_tokens_seen == "no" else self.tokens - before
        if self.clock.process_group and args.process_index > 0:  # the numbers are of all ranks, and are summed there
            samples, tokens = 0, None if tokens is None else 0
        self.clock.tick(samples=samples, tokens=tokens)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the values of the next batch also where the Trainer skipped the scheduler's step."""
        self.trainer.lr_scheduler.refresh()
