"""Schedules for the Trainer of Hugging Face transformers: `schedule(trainer, ...)`, one line after the Trainer is made.

The Trainer makes its scheduler late, saves nothing of it but `scheduler.state_dict()`, and says nothing of samples.
Here a `Clock` counts what each step of the optimizer was made of, and the scheduler's state holds the clock's.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from accelerate.optimizer import AcceleratedOptimizer
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import has_length

from timesched.binding import OnChange
from timesched.clock import Clock
from timesched.horizon import Rate
from timesched.reading import units_of
from timesched.time.timestamp import Timestamp
from timesched.time.units import TimeUnit
from timesched.time.value import Time

from .common import Binding, Schedulers, bindings

__all__ = ["Binding", "schedule"]


def schedule(
    trainer: Trainer,
    *entries: Any,
    max_duration: Time[Any] | str | None = None,
    tokens_per_sample: Rate | None = None,
    ssr: float = 1.0,
    on_change: OnChange = "same",
    log: bool = True,
) -> None:
    """Have a Trainer run schedules of the learning rate, and of any other number in the parameter groups.

    `entries`: a schedule is of the learning rate; a `Binding` is of any key, with tags. `max_duration`: the length of
    the run that the schedules see, before scaling by `ssr`; None takes the Trainer's own, `max_steps` or epochs, which
    end the run in either case. `tokens_per_sample`: where a schedule mixes tokens with other units, or where the
    Trainer does not count tokens, and all samples have as many.

    `log`: log every value that a batch ran with where the Trainer logs the learning rate, under names such as
    `weight_decay/head`.

    The Trainer makes the scheduler when it trains, after the optimizer, and saves it as `scheduler.pt`, which is enough
    to resume exactly. `on_change`: what is done with one of other schedules or of another length of the run, as in
    `timesched.bind`. `trainer.lr_scheduler.clock` is the run's clock. A batch is one step of the optimizer: of all
    ranks and all accumulated microbatches, whether a gradient scaler skips it or not. Tokens are those that the Trainer
    counts with `include_num_input_tokens_seen="all"` or `"non_padding"`. Samples are those of the dataset: what a
    sampler repeats to fill the last batch of an epoch does not count. Where the data loader has no length, every batch
    counts as a full one. Seconds are those of the first rank, with evaluations.

    Raises `TypeError` for entries that are not schedules; `ValueError` when the Trainer has a scheduler already, runs
    under DeepSpeed, or `ssr` is given without `max_duration`; and, when it trains, for a time in tokens that nobody
    counts, or in epochs of a data loader without a length, for two schedules of one key, for a checkpoint of other
    schedules, and where `timesched.bind` does; after its first batch, where the Trainer found no tokens to count.

    >>> from timesched import CosineAnnealingWithWarmupScheduler, LinearScheduler
    >>> cosine = CosineAnnealingWithWarmupScheduler("0.03dur")
    >>> decay = Binding(LinearScheduler(alpha_f=0.1), "weight_decay")
    >>> # trainer = Trainer(model, args, train_dataset=data)
    >>> # schedule(trainer, cosine, decay); trainer.train()
    """
    if not isinstance(trainer, Trainer):
        raise TypeError(f"trainer is of type {type(trainer).__name__}: pass the Trainer first, and then the schedules.")
    there = trainer.lr_scheduler
    if there is not None or any(isinstance(each, _Counting) for each in trainer.callback_handler.callbacks):
        what = "schedules" if there is None else f"a {type(there).__name__}"
        raise ValueError(
            f"The Trainer has a scheduler already, {what}: leave it out, as in Trainer(optimizers=(optimizer, None)), "
            f"and call schedule() once, with all entries, before train()."
        )
    if trainer.is_deepspeed_enabled:
        raise ValueError("DeepSpeed steps the scheduler itself here: see docs/trainers.md.")
    if ssr != 1.0 and max_duration is None:
        raise ValueError(f"ssr={ssr} scales max_duration, which is None: give the length of the run before scaling.")
    usual = {"lr_scheduler_type": "linear", "warmup_steps": 0}
    given = [f"{name}={got!r}" for name, value in usual.items() if (got := getattr(trainer.args, name)) != value]
    if given:
        warnings.warn(f"The schedules are those that are given here: {', '.join(given)} has no effect.", stacklevel=2)
    counting = _Counting(trainer, bindings(entries), max_duration, tokens_per_sample, ssr, on_change)
    counting.logs = log
    # The methods that a Trainer lets its users replace.
    trainer.create_scheduler = counting.create_scheduler
    trainer.get_train_dataloader = counting.get_train_dataloader
    trainer.log = counting.log
    trainer.add_callback(counting)


class _TrainersClock(Clock):
    """Continues in the epoch of the Trainer: it counts them from the batches, in their present length."""

    def read_state(self, state: Mapping[str, Any]) -> Timestamp:
        stamp = super().read_state(state)
        if self.dataloader_len is None:
            return stamp
        epoch, within = divmod(stamp.batch.value, self.dataloader_len)
        return stamp.copy(epoch=epoch, batch_in_epoch=within)


class _Counting(TrainerCallback):
    """Makes the clock and the schedulers of a Trainer, and counts its batches."""

    def __init__(
        self, trainer: Any, entries: Any, max_duration: Any, tokens_per_sample: Any, ssr: float, on_change: OnChange
    ) -> None:
        self.trainer, self.entries, self.on_change = trainer, entries, on_change
        self.max_duration, self.tokens_per_sample, self.ssr = max_duration, tokens_per_sample, ssr
        self.make_loader, self.log_before, self.logs = trainer.get_train_dataloader, trainer.log, True
        self.ran_with: dict[str, float] = {}  # the last batch
        self.loads: int | None = None  # microbatches in an epoch
        self.examples = 0  # in the dataset

    def log(self, logs: dict[str, float], *arguments: Any, **keywords: Any) -> None:
        """What the Trainer logs, with all that is scheduled where it logs the learning rate."""
        self.log_before({**logs, **self.ran_with} if "learning_rate" in logs else logs, *arguments, **keywords)

    def get_train_dataloader(self) -> Any:
        """The Trainer's data loader, which is at hand in no later hook before the scheduler is made."""
        loader = self.make_loader()
        self.loads = len(loader) if has_length(loader) else None
        self.examples = 0 if self.loads is None else self.trainer.num_examples(loader)
        return loader

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Schedulers:
        """The scheduler of a run, as `Trainer.create_scheduler`; a new one where a run begins anew."""
        trainer, args = self.trainer, self.trainer.args
        optimizer = trainer.optimizer if optimizer is None else optimizer
        optimizer = optimizer.optimizer if isinstance(optimizer, AcceleratedOptimizer) else optimizer
        self.batch_size = self.last_batch_size = trainer.get_total_train_batch_size(args)
        if trainer.accelerator.split_batches:  # of which that number takes no notice
            self.batch_size = self.last_batch_size = self.batch_size // args.world_size
        epoch = None
        if self.loads is not None:
            accumulation = args.gradient_accumulation_steps
            epoch = max(1, -(-self.loads // accumulation))
            size = self.batch_size // accumulation  # of the microbatches of all ranks
            missing = self.loads * size - self.examples  # in the last one, if the loader reads all of the dataset
            self.last_batch_size = (self.loads - 1) % accumulation * size + size - missing * (0 <= missing < size)
        clock = self.clock = _TrainersClock(
            f"{num_training_steps}ba" if self.max_duration is None else self.max_duration,
            batches_per_epoch=epoch,
            samples_per_batch=self.batch_size,
            tokens_per_sample=self.tokens_per_sample,
            ssr=self.ssr,
            process_group=False,
        )
        units = {unit for each in self.entries for unit in units_of(each.schedule, clock)}
        self.needs_tokens = TimeUnit.TOKEN in units
        self.counts_tokens = args.include_num_input_tokens_seen != "no"
        if self.needs_tokens and not self.counts_tokens and self.tokens_per_sample is None:
            raise ValueError(
                "A schedule counts tokens, and the Trainer does not: set "
                "TrainingArguments(include_num_input_tokens_seen='all'), or 'non_padding'."
            )
        if TimeUnit.EPOCH in units:
            raise ValueError(
                "A schedule counts epochs, and the data loader has no length: give its times in batches, samples "
                "or tokens."
            )
        made = self.made = Schedulers(optimizer, clock, self.entries, self.on_change)
        clock.process_group = args.world_size > 1 and TimeUnit.SECOND in units
        trainer.lr_scheduler = made
        return made

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take up the Trainer's own counts: of tokens, and those of a run whose checkpoint has no state of ours."""
        self.tokens = state.num_input_tokens_seen
        batches, epoch = state.global_step, self.clock.dataloader_len
        missing = self.batch_size - self.last_batch_size
        samples = batches * self.batch_size - (batches // epoch * missing if epoch else 0)
        counts = {"token": self.tokens} if self.counts_tokens else {}
        self.made.begin_at(batches, sample=samples, **counts)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count a batch, after the step of the optimizer and before that of the scheduler."""
        clock = self.clock
        self.ran_with = self.made.named_values() if self.logs else {}
        is_last = clock.dataloader_len is not None and clock.timestamp.batch_in_epoch == clock.dataloader_len - 1
        samples = self.last_batch_size if is_last else self.batch_size
        tokens = state.num_input_tokens_seen - self.tokens if self.counts_tokens else None
        self.tokens = state.num_input_tokens_seen
        if tokens == 0 and self.needs_tokens:
            raise ValueError(
                "A schedule counts tokens, and the Trainer found none in this batch: it counts the input that the "
                "model's main_input_name names. Set that, or include_num_input_tokens_seen='no' and tokens_per_sample."
            )
        if clock.process_group and args.process_index > 0:  # the numbers are of all ranks, and are summed there
            samples, tokens = 0, None if tokens is None else 0
        clock.tick(samples=samples, tokens=tokens)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the values of the next batch also where the Trainer skipped the scheduler's step."""
        if self.trainer.accelerator.optimizer_step_was_skipped:
            self.trainer.lr_scheduler.refresh()
