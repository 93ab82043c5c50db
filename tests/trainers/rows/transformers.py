"""A run of the Trainer of Hugging Face transformers, as a `Task` says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments

from tests.trainers.runs import UNEVEN, Model, Run, Task, collate, make_data, make_optimizer
from timesched import BatchSizeSampler
from timesched.integrations.transformers import schedule

DATA = make_data(UNEVEN)
OF_TRAINER = ("optimizers", "optimizer_cls_and_kwargs", "callbacks", "train_dataset", "eval_dataset", "data_collator")


class Following(TrainerCallback):
    """Saves after the steps of a task, and notes the steps after which its moment has come."""

    def __init__(self, task: Task, run: Run) -> None:
        self.task, self.run = task, run

    def on_step_end(self, args: Any, state: Any, control: Any, lr_scheduler: Any = None, **_: Any) -> None:
        control.should_save |= state.global_step in self.task.save_after
        if self.task.moment is not None and self.task.moment(lr_scheduler.clock):
            self.run.moments.append(state.global_step)


class Growing(Trainer):
    """Its data loader has a batch-size schedule."""

    def get_train_dataloader(self) -> Any:
        sampler = BatchSizeSampler(range(len(DATA)), self.sizes, lambda: self.lr_scheduler.clock)
        return DataLoader(DATA, batch_sampler=sampler, collate_fn=collate)


def make_trainer(folder: Path, task: Task, model: Any = None, **options: Any) -> Trainer:
    """A Trainer without schedules. `options`: its class as `kind`, its arguments, and those of `TrainingArguments`."""
    model = model or Model(task.skipped)
    given = {"train_dataset": DATA, "eval_dataset": DATA[:3], "data_collator": collate, "callbacks": []}
    given |= {name: options.pop(name) for name in OF_TRAINER if name in options}
    if not {"optimizers", "optimizer_cls_and_kwargs"} & given.keys():
        given["optimizers"] = make_optimizer(model), None
    if isinstance(model, Model):
        given["callbacks"] = [*given["callbacks"], Following(task, model.run)]
    kind = options.pop("kind", Growing if task.sizes else Trainer)
    settings = {
        **{"per_device_train_batch_size": task.batch_size, "gradient_accumulation_steps": task.accumulate},
        **{"num_train_epochs": task.epochs, "train_sampling_strategy": "sequential", "max_grad_norm": 0.5},
        **({"include_num_input_tokens_seen": "all"} if task.counts_tokens else {}),
        **({"eval_strategy": "steps", "eval_steps": task.evaluate_every} if task.evaluate_every else {}),
        **{"save_strategy": "no", "logging_steps": 1, "report_to": "none", "use_cpu": True},
        **{"disable_tqdm": True, "dataloader_pin_memory": False, **options},
    }
    trainer = kind(model, TrainingArguments(str(folder), **settings), **given)
    trainer.sizes = task.sizes
    if task.skipped:
        trainer.accelerator.scaler = torch.amp.GradScaler("cpu")
    return trainer


def train(folder: Path, task: Task, count: Any = None, tokens_per_sample: Any = None, **options: Any) -> Run:
    trainer = make_trainer(folder, task, **options)
    if task.entries:
        given = task.arguments("max_duration", "ssr", "on_change", "log", "average", "evaluate_averaged")
        schedule(trainer, *task.entries, count=count, tokens_per_sample=tokens_per_sample, **given)
    run = trainer.model.run
    run.trainer = trainer
    trainer.train(resume_from_checkpoint=task.load and str(task.load[0] / f"checkpoint-{task.load[1]}"))
    run.logs = [row for row in trainer.state.log_history if "learning_rate" in row]
    return run.end(*[getattr(trainer.lr_scheduler, name, None) for name in ("clock", "average")])
