"""A run of Composer's Trainer, as a `Task` says."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from composer import ComposerModel, DataSpec, Event, Trainer
from composer.loggers import InMemoryLogger
from torch.utils.data import DataLoader

from tests.trainers.runs import (
    KEYS,
    UNEVEN,
    Model,
    Run,
    Task,
    batches_of_rank,
    collate,
    make_data,
    make_optimizer,
    split,
)
from timesched import BatchSizeSampler, Horizon
from timesched.integrations.composer import Binding, Schedules

DATA = make_data(UNEVEN)
Batch = list[dict[str, torch.Tensor]]  # of its microbatches


class Wrapped(ComposerModel):
    """The model, with the methods that Composer calls."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.net = model

    def forward(self, batch: Batch) -> torch.Tensor:
        return torch.stack([self.net(**microbatch)["loss"] for microbatch in batch]).mean()

    def loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        return outputs

    def eval_forward(self, batch: Batch, outputs: Any = None) -> torch.Tensor:
        return self(batch)


def make_spec(loader: Any, counts_tokens: bool = True) -> DataSpec:
    def count_samples(batch: Batch) -> int:
        return sum(len(microbatch["input_ids"]) for microbatch in batch)

    def count_tokens(batch: Batch) -> int:
        return sum(microbatch["input_ids"].numel() for microbatch in batch)

    return DataSpec(
        loader,
        split_batch=lambda batch, size: [[microbatch] for microbatch in batch],
        get_num_samples_in_batch=count_samples,
        get_num_tokens_in_batch=count_tokens if counts_tokens else None,
    )


def collate_one(samples: list[torch.Tensor]) -> Batch:
    return [collate(samples)]


def make_loader(task: Task, callback: Schedules | None) -> Any:
    if task.sizes:
        assert callback is not None
        sampler = BatchSizeSampler(range(len(DATA)), task.sizes, lambda: callback.clock, from_epoch_start=True)
        return DataLoader(DATA, batch_sampler=sampler, collate_fn=collate_one)
    microbatches = batches_of_rank(split(DATA, task.batch_size))
    return [[collate(samples) for samples in batch] for batch in split(microbatches, task.accumulate)]


def saving(folder: Path, task: Task) -> dict[str, Any]:
    """The options that save a run after some steps."""
    moments = [(step, Event.BATCH_CHECKPOINT) for step in task.save_after]
    return {
        "save_folder": str(folder),
        "save_filename": "{batch}.pt",
        "save_latest_filename": None,
        "save_interval": lambda state, event: (state.timestamp.batch, event) in moments,
    }


def train(folder: Path, task: Task, **options: Any) -> Run:
    model, logger = Model(), InMemoryLogger()
    run, optimizer = model.run, make_optimizer(model)
    entries = [entry if isinstance(entry, Binding) else Binding(entry, "lr") for entry in task.entries]
    given = task.arguments("ssr", "log", "average", "evaluate_averaged")
    callback = Schedules(*entries, **given) if entries else None
    settings: dict[str, Any] = {
        **{"callbacks": [callback] if callback else [], "loggers": logger},
        **{"train_dataloader": make_spec(make_loader(task, callback), task.counts_tokens)},
        **{"max_duration": str(Horizon(task.max_duration or f"{task.epochs}ep", ssr=task.ssr).max_duration)},
        **{"device_train_microbatch_size": 1, "seed": 1, "device": "cpu", "progress_bar": False},
        **(saving(folder, task) if task.save_after else {}),
        **({"load_path": str(task.load[0] / f"{task.load[1]}.pt")} if task.load else {}),
        **({"load_ignore_keys": ["state/callbacks/Schedules"]} if task.on_change == "new" else {}),
    }
    if task.evaluate_every:
        evaluated = make_spec(DataLoader(DATA[:3], 3, collate_fn=collate_one))
        settings |= {"eval_dataloader": evaluated, "eval_interval": f"{task.evaluate_every}ba"}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Schedules is not in the|No parts from loaded")  # as `on_change` asks
        trainer = Trainer(model=Wrapped(model), optimizers=optimizer, **settings | options)
    trainer.fit()
    trainer.close()
    rows: dict[int, dict[str, float]] = {step: {} for step in range(len(run.values) + 1)}
    for name, values in logger.data.items():
        for timestamp, value in values if name.startswith(KEYS) else []:
            rows.setdefault(int(timestamp.batch), {})[name] = value  # for the next step
    run.logs = [rows[step] for step in range(len(run.values))]
    return run.end(trainer.state, callback.average if callback else None)
