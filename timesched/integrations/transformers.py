"""Schedules for the Trainer of Hugging Face transformers: `schedule(trainer, ...)`, one line after the Trainer is made.

The Trainer makes its scheduler late, saves only its `scheduler.state_dict()`, and does not count samples. This module
counts the samples and tokens of each step on a `Clock`, and the scheduler's state holds the state of the clock.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from accelerate.optimizer import AcceleratedOptimizer
from torch.optim import Optimizer
from transformers import DefaultFlowCallback, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_pt_utils import LayerWiseDummyOptimizer

from timesched.batch_size.sampler import find_sampler
from timesched.binding.bound import OnChange
from timesched.run.clock import Clock
from timesched.run.horizon import ConversionFactor
from timesched.run.rank_counts import has_several_ranks
from timesched.run.saved_clock import epochs_after
from timesched.time.timestamp import Timestamp
from timesched.time.units import TimeUnit
from timesched.time.value import TimeLike
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
    make_bindings,
    run_units,
)
from .transformers_epoch import Epoch, measure_epoch

__all__ = ["Binding", "schedule"]

_Method = Callable[..., Any]


def schedule(
    trainer: Trainer,
    *entries: Entry,
    max_duration: TimeLike | None = None,
    count: CountFunction | None = None,
    tokens_per_sample: ConversionFactor | None = None,
    ssr: float = 1.0,
    on_change: OnChange = "same",
    log: bool = True,
    average: MakeAverage | None = None,
    evaluate_averaged: bool = False,
) -> None:
    """Have a Trainer run schedules of the learning rate, and of any other hyperparameter in the parameter groups.

    `entries`: a schedule controls the learning rate, a `Binding` any key, with tags. `max_duration`: the length of the
    run, before scaling by `ssr`. The run ends there if the Trainer's `max_steps` or epochs have not ended it before,
    and the last step is saved and evaluated as at `max_steps`. None is for the Trainer's own length. `count`: a
    function of a microbatch of this process that returns its counts, as in `{"samples": 8}`, which are summed over the
    processes. None counts the samples that the data loader's batch sampler returns. `tokens_per_sample`: for samples of
    equal length, if a schedule mixes tokens with other units, or if the Trainer does not count tokens.

    `log`: log every value that a batch ran with where the Trainer logs the learning rate, under names such as
    `weight_decay/head`.

    `average`: a function of the parameters and the clock, such as `functools.partial(optim.WeightAverage,
    half_life="200Mtok")`, whose average of the weights is stepped with the schedules and saved in their state. It is
    `trainer.lr_scheduler.average`; with `evaluate_averaged`, the Trainer evaluates it.

    The Trainer makes the scheduler when it trains, after the optimizer. It saves the scheduler as `scheduler.pt`, which
    is enough to resume exactly. `on_change`: how a load treats one of other schedules or of another length of the run,
    as in `timesched.bind`. `trainer.lr_scheduler.clock` is the clock of the run. A batch is one step of the optimizer:
    of all ranks and all accumulated microbatches, whether a gradient scaler skips it or not. The Trainer counts tokens
    with `include_num_input_tokens_seen="all"` or `"non_padding"`. The samples of the dataset count; samples that a
    sampler repeats to fill the last batch of an epoch do not. If the data loader has no batch sampler, or no length,
    every batch counts as a full batch. The first rank measures the seconds, with evaluations.

    Raises `TypeError` for entries that are not schedules. Raises `ValueError` if the Trainer has a scheduler already,
    for a DeepSpeed config with a scheduler or an optimizer, for `ssr` without `max_duration`, and for times that cannot
    be read. Training raises `ValueError` before its first step for times in tokens that are not counted, in epochs of a
    data loader without a length, or in iterations. This holds for schedules, averages and the length of the run. It
    also raises for two schedules of one key, for a checkpoint of other schedules, for a data loader with a
    `BatchSizeSampler`, for an optimizer of `optim` or an average with ZeRO 1 to 3, and where `timesched.bind` does. It
    raises after its first batch if the Trainer found no tokens to count. Warns if the Trainer ends before the
    schedules, by a batch or more.

    >>> from timesched import CosineAnnealingWithWarmupScheduler, LinearScheduler
    >>> cosine = CosineAnnealingWithWarmupScheduler("0.03dur")
    >>> decay = Binding(LinearScheduler(alpha_f=0.1), "weight_decay")
    >>> # trainer = Trainer(model, args, train_dataset=data)
    >>> # schedule(trainer, cosine, decay); trainer.train()
    """
    if not isinstance(trainer, Trainer):
        raise TypeError(
            f"schedule.trainer: it is of type {type(trainer).__name__}. Pass the Trainer first, and then the schedules."
        )
    _check_trainer(trainer)
    check_average(evaluate_averaged, average)
    if ssr != 1.0 and max_duration is None:
        raise ValueError(
            f"schedule.ssr={ssr}: it scales max_duration, which is None. Pass the length of the run before scaling."
        )
    _warn_of_arguments(trainer.args, evaluate_averaged)
    options = RunOptions(
        entries=make_bindings(entries),
        max_duration=max_duration,
        count=count,
        tokens_per_sample=tokens_per_sample,
        ssr=ssr,
        on_change=on_change,
        log=log,
        average=average,
    )
    _CountingCallback(trainer, options).attach(evaluate_averaged)


def _check_trainer(trainer: Trainer) -> None:
    """Raise `ValueError` for a Trainer that has a scheduler already, or if DeepSpeed makes or steps the scheduler."""
    if any(isinstance(callback, _CountingCallback) for callback in trainer.callback_handler.callbacks):
        raise ValueError(
            "schedule.trainer: the Trainer has schedules already. Call schedule() once, with all entries, before "
            "train()."
        )
    if trainer.state.global_step > 0:
        raise ValueError("schedule.trainer: the Trainer has trained already. Call schedule() before train().")
    if trainer.lr_scheduler is not None:
        raise ValueError(
            f"schedule.trainer: the Trainer has a {type(trainer.lr_scheduler).__name__} already. Leave it out, as in "
            f"Trainer(optimizers=(optimizer, None))."
        )
    plugin = _deepspeed_plugin(trainer)
    for name in ("scheduler", "optimizer"):
        if plugin is not None and name in plugin.deepspeed_config:
            raise ValueError(
                f"schedule.trainer: the DeepSpeed config has {name!r}, so DeepSpeed makes it, and steps the scheduler "
                f"itself. Delete {name!r} from the config, or follow docs/trainers/deepspeed.md."
            )


def _warn_of_arguments(args: TrainingArguments, evaluate_averaged: bool) -> None:
    """Warn of arguments of the Trainer that do not go together with the schedules."""
    if evaluate_averaged and args.load_best_model_at_end:
        warnings.warn(
            "load_best_model_at_end=True: the average of the weights is compared, and the weights are saved. Leave it "
            "out, or evaluate_averaged.",
            stacklevel=3,
        )
    defaults = {"lr_scheduler_type": "linear", "warmup_steps": 0}
    ignored = [f"{name}={getattr(args, name)!r}" for name in defaults if getattr(args, name) != defaults[name]]
    if ignored:
        warnings.warn(
            f"TrainingArguments: {', '.join(ignored)} has no effect on the schedules of schedule(). Leave it out.",
            stacklevel=3,
        )


def _deepspeed_plugin(trainer: Trainer) -> Any:
    """accelerate's settings of DeepSpeed, or None."""
    return getattr(trainer.accelerator.state, "deepspeed_plugin", None)


def _unwrap(optimizer: Any) -> Any:
    """The user's optimizer in the wrappers of accelerate and of ZeRO, which is not a torch optimizer."""
    while isinstance(optimizer, AcceleratedOptimizer) or not isinstance(optimizer, Optimizer):
        optimizer = optimizer.optimizer
    return optimizer


def _check_optimizer(optimizer: Optimizer, trainer: Trainer, average: MakeAverage | None) -> None:
    """Raise `ValueError` for an optimizer that no schedule reaches, and for what ZeRO 1 to 3 would break silently.

    ZeRO steps flat parameters, group by group.
    """
    if isinstance(optimizer, LayerWiseDummyOptimizer):
        raise ValueError(
            f"TrainingArguments.optim={str(trainer.args.optim.value)!r}: the Trainer has an optimizer for each layer, "
            f"which no schedule reaches. Use an optimizer of all layers, such as optim='galore_adamw'."
        )
    plugin = _deepspeed_plugin(trainer)
    stage = 0 if plugin is None else plugin.zero_stage
    if stage > 0 and hasattr(optimizer, "preinitialize"):
        raise ValueError(
            f"Trainer.optimizer: ZeRO {stage} of DeepSpeed steps the parameter groups one by one, and "
            f"{type(optimizer).__name__} of optim would drop the state of the others. Use an optimizer of torch, or "
            f"ZeRO 0."
        )
    if stage > 0 and average is not None:
        raise ValueError(
            f"schedule.average: ZeRO {stage} of DeepSpeed flattens and divides the parameters, which the average would "
            f"read. Leave it out, or use ZeRO 0."
        )


class _CountingCallback(TrainerCallback):
    """Makes the clock and the schedulers of each run of a Trainer, and passes the events of the run on to them.

    A run has these events, in this order. A method with a star replaces a method of the Trainer, since no event of a
    callback serves: see `attach`.

        get_train_dataloader *  keep the data loader, which an event gets only after the scheduler is loaded
        create_scheduler *      make the run: its clock, with the epochs of this loader, and its schedulers
        a checkpoint is loaded  the schedulers and the clock continue
        on_train_begin          without a state, set the clock to the Trainer's position
        get_batch_samples *     count the microbatches of a batch by a function of the user: no event gets a batch
        optimizer.step()
        on_optimizer_step       tick the clock
        scheduler.step()        write the values of the next batch; not if a gradient scaler skipped the optimizer
        on_step_end             write them in any case, and end the run
        on_log                  log the values that the batch ran with
        evaluate *              evaluate the average: no event comes before an evaluation
        on_epoch_end            end an epoch that a callback has ended early
        on_train_end            warn if the schedules have not ended
    """

    def __init__(self, trainer: Trainer, options: RunOptions) -> None:
        self.trainer, self.options = trainer, options
        self.loader: Any = None  # of the present run, for `create_scheduler`
        self.run: _RunSchedulers  # the present run, once `create_scheduler` has made it
        self.last_values: dict[str, float] = {}  # with which the last batch ran, for the log

    def attach(self, evaluate_averaged: bool) -> None:
        """Replace methods of the Trainer, each of which gets the Trainer's own as `own`, and add the callback.

        It is the first callback, since the others write the logs, and ask the clock.
        """
        trainer, count = self.trainer, self.options.count
        trainer.get_train_dataloader = partial(self.get_train_dataloader, trainer.get_train_dataloader)
        trainer.create_scheduler = self.create_scheduler
        if count is not None:
            trainer.get_batch_samples = partial(self.get_batch_samples, trainer.get_batch_samples, count)
        if evaluate_averaged:
            trainer.evaluate = partial(self.evaluate, trainer.evaluate)
        trainer.callback_handler.callbacks.insert(0, self)

    def get_train_dataloader(self, own: _Method, *arguments: object, **keywords: object) -> Any:
        """Return the Trainer's data loader, and keep it. Raises `ValueError` if its batches grow."""
        self.loader = own(*arguments, **keywords)
        if find_sampler(self.loader) is not None:
            raise ValueError(
                "Trainer.get_train_dataloader: the loader has a BatchSizeSampler, and the Trainer computes its epochs "
                "and steps from one batch size. Use a loop of your own, or accelerate."
            )
        return self.loader

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> _RunSchedulers:
        """Make the scheduler of a run, as `Trainer.create_scheduler` does. A new run has a new scheduler."""
        options = self.options
        optimizer = _unwrap(self.trainer.optimizer if optimizer is None else optimizer)
        _check_optimizer(optimizer, self.trainer, options.average)
        epoch = measure_epoch(self.loader, self.trainer)
        clock = self._make_clock(num_training_steps, epoch)
        average = make_average(optimizer, clock, options.average)
        units = run_units(clock, [entry.schedule for entry in options.entries], average)
        self._check_units(units, clock)
        counts_per_rank = options.count is not None or TimeUnit.SECOND in units  # the Trainer counts for all ranks
        clock.process_group = self.trainer.args.world_size > 1 and counts_per_rank
        self.run = _RunSchedulers(optimizer, clock, options.entries, options.on_change, average)
        self.run.epoch = epoch
        self.trainer.lr_scheduler = self.run
        return self.run

    def _make_clock(self, num_training_steps: int, epoch: Epoch) -> Clock:
        """Make the clock of a run, with the conversion factors of its data loader."""
        clock = _TrainerClock(
            f"{num_training_steps}ba" if self.options.max_duration is None else self.options.max_duration,
            batches_per_epoch=epoch.batches,
            samples_per_batch=epoch.samples_per_batch,
            tokens_per_sample=self.options.tokens_per_sample,
            ssr=self.options.ssr,
            process_group=False,
        )
        clock.skips_data = not self.trainer.args.ignore_data_skip
        return clock

    def _check_units(self, units: set[TimeUnit], clock: Clock) -> None:
        """Raise `ValueError` if a schedule, the average or the length has a unit that is not counted."""
        trainer_counts_tokens = self.trainer.args.include_num_input_tokens_seen != "no"
        is_given = self.options.tokens_per_sample is not None or self.options.count is not None
        if TimeUnit.TOKEN in units and not (trainer_counts_tokens or is_given):
            raise ValueError(
                "tokens: the run counts them, and the Trainer does not. Set "
                "TrainingArguments(include_num_input_tokens_seen='all') or 'non_padding', or pass count= or "
                "tokens_per_sample= to schedule()."
            )
        if TimeUnit.EPOCH in units and clock.dataloader_len is None:
            raise ValueError(
                "epochs: the run counts them, and the data loader has no length. Give times in batches, samples or "
                "tokens."
            )
        if TimeUnit.ITERATION in units:
            raise ValueError(
                "iterations: the run counts them, and the Trainer has none. Give times in batches, which are the steps "
                "of the optimizer, such as '100ba'."
            )

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: object, **__: object) -> None:
        """Start with the Trainer's own counts, and repeat the warnings of a load."""
        self.run.begin(args, state)
        for warning in self.run.load_warnings if state.is_world_process_zero else ():
            warnings.warn(warning.message, warning.category, stacklevel=2)

    def get_batch_samples(self, own: _Method, count: CountFunction, *arguments: object, **keywords: object) -> object:
        """Return the microbatches of a batch, and count them by the user's function."""
        microbatches, *rest = own(*arguments, **keywords)
        self.run.user_counts = None
        for microbatch in microbatches:
            self.run.user_counts = add_microbatch(self.run.user_counts, count, microbatch)
        return microbatches, *rest

    def on_optimizer_step(self, args: TrainingArguments, state: TrainerState, *_: object, **__: object) -> None:
        """Count a batch, between the step of the optimizer and the step of the scheduler."""
        self.last_values = self.run.named_values() if self.options.log else {}
        self.run.count_batch(args, state)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Write the values of the next batch even if the Trainer skipped the scheduler's step, and end the run."""
        if self.trainer.accelerator.optimizer_step_was_skipped:
            self.run.refresh()
        if self.options.max_duration is not None and self.run.clock.done:
            end = copy.copy(state)
            end.max_steps = state.global_step
            DefaultFlowCallback().on_step_end(args, end, control)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: object, logs: dict[str, float], **_: object
    ) -> None:
        """Add all scheduled values where the Trainer logs the learning rate, for later callbacks and the history."""
        if "learning_rate" in logs:
            logs.update(self.last_values)
            state.log_history[-1].update(self.last_values)

    def evaluate(self, own: _Method, *arguments: object, **keywords: object) -> object:
        """Evaluate the average in place of the weights, once the first training has made it."""
        schedulers = self.trainer.lr_scheduler
        with nullcontext() if schedulers is None else schedulers.averaged(self.trainer.model):
            return own(*arguments, **keywords)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """End the clock's epoch, too, if a callback has ended the Trainer's epoch early."""
        if control.should_epoch_stop and self.run.clock.timestamp.batch_in_epoch > 0:
            self.run.clock.next_epoch()
            self.run.refresh()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, *_: object, **__: object) -> None:
        """Warn if the Trainer ended before the schedules."""
        if state.is_world_process_zero and state.global_step >= state.max_steps:
            self.run.warn_of_early_end()


class _TrainerClock(Clock):
    """A clock that continues in the epoch of the Trainer, which counts epochs by batches, in their present length."""

    skips_data = True  # in an epoch that is resumed; otherwise the Trainer reads all of it again

    def epoch_after(self, batches: int) -> dict[str, int]:
        """The Trainer's epoch, and its position in the data loader, when it resumes after `batches`."""
        epochs = epochs_after(batches, self.horizon)
        return epochs if self.skips_data else epochs | {"batch_in_epoch": 0}

    def _rank_local_units(self) -> set[TimeUnit]:
        """The seconds, unless the clock takes those of the first rank. The Trainer counts all else for all ranks."""
        return {TimeUnit.SECOND} if not self.process_group and has_several_ranks() else set()

    def _read_state(self, state: StateDict) -> Timestamp:
        timestamp = super()._read_state(state)
        return timestamp.copy(**self.epoch_after(timestamp.batch.value))


class _RunSchedulers(CountingSchedulers):
    """The schedulers of one run, and what is known of its batches. A new run of the Trainer has a new object."""

    clock: _TrainerClock
    epoch: Epoch  # of the data loader; `create_scheduler` sets it
    load_warnings: Sequence[warnings.WarningMessage] = ()  # of the last load
    trainer_tokens = 0  # that the Trainer had counted before the present batch
    user_counts: Counts | None = None  # of the present batch on this rank, by the function `count`, if there is one

    def begin(self, args: TrainingArguments, state: TrainerState) -> None:
        """Start with the Trainer's own counts, and with its position if no state of these schedules was loaded."""
        self.trainer_tokens = state.num_input_tokens_seen
        counts = {} if args.include_num_input_tokens_seen == "no" else {"token": self.trainer_tokens}
        counts |= {"sample": self.epoch.samples_of(state.global_step), **self.clock.epoch_after(state.global_step)}
        self.begin_at(state.global_step, **counts)

    def count_batch(self, args: TrainingArguments, state: TrainerState) -> None:
        """Count a batch: by the Trainer's tokens and the data loader's samples, which are of all ranks, or the user."""
        batch_in_epoch = self.clock.timestamp.batch_in_epoch.value
        counts = {"samples": self.epoch.samples_of(batch_in_epoch + 1) - self.epoch.samples_of(batch_in_epoch)}
        if args.include_num_input_tokens_seen != "no" and state.num_input_tokens_seen > 0:
            counts["tokens"] = state.num_input_tokens_seen - self.trainer_tokens
            self.trainer_tokens = state.num_input_tokens_seen
        if self.clock.process_group and args.process_index > 0:  # the clock sums over ranks, and the first adds these
            counts = dict.fromkeys(counts, 0)
        self.tick({**counts, **(self.user_counts or {})})

    def advice_for(self, counted: str) -> str:
        return (
            f"Pass schedule(..., count=), a function that returns {{'{counted}': ...}}. If the Trainer should count, "
            f"check the main_input_name of its model."
        )

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Resume from a state. Raises `ValueError` as `Schedulers` do. Keeps the warnings: the Trainer drops them."""
        try:
            with warnings.catch_warnings(record=True) as self.load_warnings:
                warnings.simplefilter("always")
                super().load_state_dict(state_dict)
        except ValueError as error:
            states, present = state_dict.get("schedulers", []), self.clock.dataloader_len
            saved = states[0]["clock"].get("batches_per_epoch") if states else present
            if saved == present:
                raise
            raise ValueError(
                f"batches_per_epoch={present}: an epoch had {saved} batches when this was saved. With another batch "
                f"size pass max_duration to schedule(): the saved length, or from the start a length in samples or "
                f"tokens."
            ) from error
