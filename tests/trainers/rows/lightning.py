"""A run of Lightning's Trainer, as a `Task` says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.plugins import MixedPrecision
from torch.utils.data import DataLoader

from tests.trainers import runs
from tests.trainers.runs import UNEVEN, Model, Run, Task, collate, make_data
from timesched import BatchSizeSampler
from timesched.integrations.lightning import schedule

DATA = make_data(UNEVEN)


class Loader:
    """A data loader that can be resumed within an epoch. Each rank has its own batches."""

    def __init__(self, batch_size: int) -> None:
        self.batches = runs.batches_of_rank(runs.split(DATA, batch_size))
        self.start = self.at = 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Any:
        start, self.start = self.start, 0
        for k in range(start, len(self)):
            self.at = (k + 1) % len(self)
            yield collate(self.batches[k])

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["at"]


class Module(LightningModule):
    """The model, with the schedules of a task. `options` are more arguments of `schedule`."""

    def __init__(self, task: Task, **options: Any) -> None:
        super().__init__()
        self.net, self.task, self.options = Model(task.skipped), task, options
        self.clock, self.average = None, None

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        return self.net(**batch)["loss"]

    def validation_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> None:
        self.net(**batch)

    def configure_optimizers(self) -> Any:
        optimizer = runs.make_optimizer(self.net)
        if not self.task.entries:
            return optimizer
        names = ("max_duration", "ssr", "on_change", "log", "average", "evaluate_averaged")
        given = self.task.arguments(*names) | self.options
        if not self.task.counts_tokens:
            given["count"] = lambda batch: {"samples": len(batch["input_ids"])}
        made = schedule(self, optimizer, *self.task.entries, **given)
        schedulers = made["lr_scheduler"]["scheduler"]
        self.clock, self.average = schedulers.clock, schedulers.average
        return made


class WithTorch(Module):
    """It has a scheduler of torch in place of our schedules: a line over 26 steps."""

    def configure_optimizers(self) -> Any:
        optimizer = runs.make_optimizer(self.net)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 26)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Following(Callback):
    """Saves after the steps of a task, and notes the steps after which its moment has come."""

    def __init__(self, folder: Path, task: Task) -> None:
        self.folder, self.task, self.steps = folder, task, 0

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.steps = trainer.global_step

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        is_step, self.steps = trainer.global_step > self.steps, trainer.global_step
        if is_step and self.task.moment is not None and self.task.moment(module.clock):
            module.net.run.moments.append(self.steps)
        if is_step and self.steps in self.task.save_after:
            trainer.save_checkpoint(self.folder / f"{self.steps}.ckpt")


class Memory(Logger):
    """Keeps what is logged."""

    name, version = "memory", 0

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, float]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append(metrics)

    def log_hyperparams(self, *_: Any) -> None:
        pass


def make_trainer(folder: Path, task: Task, **options: Any) -> Trainer:
    """A Trainer on the CPU that saves and evaluates as a task says. `options` are other arguments."""
    settings: dict[str, Any] = {
        **dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False),
        **{"accelerator": "cpu", "devices": runs.rank_and_ranks()[1], "use_distributed_sampler": False},
        **{"max_epochs": -1 if task.sizes else task.epochs, "accumulate_grad_batches": task.accumulate},
        **{"default_root_dir": folder, "log_every_n_steps": 1, "num_sanity_val_steps": 0},
    }
    if task.skipped:
        settings["plugins"] = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    if task.evaluate_every:
        every = task.evaluate_every * task.accumulate
        settings |= {"val_check_interval": every, "check_val_every_n_epoch": None}
    return Trainer(**settings | options)


def make_loader(module: Module, **options: Any) -> Any:
    """The data loader of a module's task."""
    task = module.task
    if task.sizes is None:
        return Loader(task.batch_size)
    sampler = BatchSizeSampler(range(len(DATA)), task.sizes, lambda: module.clock)
    return DataLoader(DATA, batch_sampler=sampler, collate_fn=collate, **options)


def train(folder: Path, task: Task, module: Module | None = None, loader: Any = None, **options: Any) -> Run:
    module, memory = module or Module(task), Memory()
    callbacks = [Following(folder, task), *options.pop("callbacks", [])]
    trainer = make_trainer(folder, task, **{"logger": memory, "callbacks": callbacks, **options})
    evaluated = DataLoader(DATA[:3], 3, collate_fn=collate) if task.evaluate_every else None
    loaded = task.load and task.load[0] / f"{task.load[1]}.ckpt"
    trainer.fit(module, make_loader(module) if loader is None else loader, evaluated, ckpt_path=loaded)
    run = module.net.run
    run.logs, run.trainer = memory.rows, trainer
    return run.end(module.clock, module.average)
