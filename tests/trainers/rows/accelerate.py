"""A loop of Hugging Face accelerate, as a `Task` says."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader

from tests.trainers.runs import UNEVEN, Model, Run, Task, collate, make_data, make_optimizer
from timesched import BatchSizeSampler
from timesched.integrations.accelerate import schedule

DATA = make_data(UNEVEN)


class Loop:
    """The loop of docs/trainers/accelerate.md, with checkpoints and evaluations."""

    def __init__(self, folder: Path, task: Task) -> None:
        self.folder, self.task = folder, task
        data = DataLoaderConfiguration(even_batches=False)
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=task.accumulate, dataloader_config=data)
        if task.skipped:
            self.accelerator.scaler = torch.amp.GradScaler("cpu")
        model = Model(task.skipped)
        self.run = model.run
        self.model, self.optimizer = self.accelerator.prepare(model, make_optimizer(model))
        given = task.arguments("max_duration", "ssr", "on_change", "average")
        if not task.sizes:
            self.loader: Any = DataLoader(DATA, task.batch_size, collate_fn=collate)
            self.loader = self.accelerator.prepare(self.loader)
            given["batches_per_epoch"] = math.ceil(len(self.loader) / task.accumulate)
        self.scheduler = schedule(self.accelerator, self.optimizer, *task.entries, **given)
        self.clock = self.scheduler.clock
        if task.sizes:
            sampler = BatchSizeSampler(range(len(DATA)), task.sizes, self.clock)
            self.loader = DataLoader(DATA, batch_sampler=sampler, collate_fn=collate)
        if task.load:
            self.accelerator.load_state(str(task.load[0] / str(task.load[1])))

    def train(self, microbatches: float = math.inf) -> Loop:
        """Train to the end of the run, or so many microbatches."""
        counted = self.clock.timestamp.sample_in_epoch.value + (self.scheduler.counts or {}).get("samples", 0)
        done = 0 if self.task.sizes else counted // self.task.batch_size
        epoch = self.accelerator.skip_first_batches(self.loader, done) if done else self.loader
        while not self.clock.done:
            for batch in epoch:
                self.train_on(batch)
                microbatches -= 1
                if self.clock.done or not microbatches:
                    return self
            epoch = self.loader
            if self.task.sizes:
                self.clock.next_epoch()
        return self

    def train_on(self, batch: dict[str, torch.Tensor]) -> None:
        ids = batch["input_ids"]
        with self.accelerator.accumulate(self.model):
            self.accelerator.backward(self.model(**batch)["loss"])
            if self.accelerator.sync_gradients:
                self.accelerator.clip_grad_norm_(self.model.parameters(), 0.5)
                self.run.logs.append(self.scheduler.named_values())
            self.optimizer.step()
            self.scheduler.step(samples=len(ids), **({"tokens": ids.numel()} if self.task.counts_tokens else {}))
            self.optimizer.zero_grad()
        if self.accelerator.sync_gradients:
            self.after_step(int(self.clock.timestamp.batch))

    def after_step(self, step: int) -> None:
        if self.task.moment is not None and self.task.moment(self.clock):
            self.run.moments.append(step)
        if self.task.evaluate_every and step % self.task.evaluate_every == 0:
            self.model.eval()
            with self.scheduler.averaged(self.model):
                self.model(**collate(DATA[:3]))
            self.model.train()
        if step in self.task.save_after:
            self.accelerator.save_state(str(self.folder / str(step)))


def train(folder: Path, task: Task) -> Run:
    try:
        loop = Loop(folder, task).train()
    finally:
        AcceleratorState._reset_state()  # which accelerate keeps for the process
    return loop.run.end(loop.clock, loop.scheduler.average)
