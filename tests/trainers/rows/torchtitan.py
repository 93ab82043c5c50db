"""What torchtitan's Trainer builds, in its order, and does in each step, as a `Task` says. The Trainer needs a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig

from tests.trainers import runs
from tests.trainers.runs import EQUAL, GROUPS, LR, Model, Run, Task
from timesched.integrations.torchtitan import Schedules

DATA = runs.make_data(EQUAL)


def configure_optimizers(of_embedding: str) -> OptimizersContainer.Config:
    """A group for each part of the model. The embedding may have another optimizer than the head."""
    given = {"lr": LR, "weight_decay": runs.WEIGHT_DECAY, "betas": runs.BETAS}
    groups = [
        ParamGroupConfig(pattern=tag, optimizer_name=name, optimizer_kwargs={**given, "tags": tag})
        for tag, name in zip(GROUPS, (of_embedding, "AdamW"))
    ]
    return OptimizersContainer.Config(param_groups=groups, implementation="for-loop")


class State:
    """The state of a Trainer."""

    step = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


class Loop:
    """A Trainer of a model that is whole, cut in two, or of which each rank has a half.

    `schedules`: another config than the task's. `exclude`: what a load leaves out.
    """

    def __init__(
        self,
        folder: Path | None,
        task: Task,
        parts: str = "whole",
        schedules: Any = None,
        of_embedding: str = "AdamW",
        exclude: Sequence[str] = (),
    ) -> None:
        self.task, self.batches, self.state = task, runs.batches_of_epoch(EQUAL, task), State()
        self.model = Model()
        rank, ranks = runs.rank_and_ranks()
        pieces = {"whole": [self.model], "cut": cut(self.model), "pipelined": cut(self.model)[rank : rank + 1]}[parts]
        if parts == "whole" and ranks > 1:
            fully_shard(self.model)
        self.optimizers = configure_optimizers(of_embedding).build(model_parts=pieces)
        steps = task.epochs * len(self.batches)
        self.schedules = (schedules or self.configure()).build(optimizers=self.optimizers, training_steps=steps)
        base = task.load[0] if task.load else folder
        saving = {"enable": base is not None, "interval": 1, "keep_latest_k": 0, "exclude_from_loading": list(exclude)}
        self.checkpointer = CheckpointManager.Config(**saving).build(
            **{"dataloader": None, "sd_adapter": None, "base_folder": str(base), "model_parts": pieces},
            **{"optimizers": self.optimizers, "lr_schedulers": self.schedules, "states": {"train_state": self.state}},
        )
        if task.load:
            assert self.checkpointer.load(task.load[1])  # with a step of the optimizer, which makes its state
        self.model.follow(next(iter(self.optimizers)))

    def configure(self) -> Schedules.Config:
        """The config of the task's schedules."""
        task = self.task
        factors = {"batches_per_epoch": len(self.batches), "samples_per_batch": task.batch_size * task.accumulate}
        factors |= {"tokens_per_sample": EQUAL[0]} if task.counts_tokens else {}
        return Schedules.Config(entries=list(task.entries), **task.arguments("max_duration", "on_change"), **factors)

    def train(self) -> Loop:
        """Train the steps that torchtitan's config would give the task."""
        run, task = self.model.run, self.task
        for step in range(self.state.step + 1, len(runs.plain_loop(EQUAL, task).values) + 1):
            self.state.step = step
            self.optimizers.zero_grad()
            for samples in runs.split(self.batches[(step - 1) % len(self.batches)], task.batch_size):
                self.model(**runs.collate([DATA[i] for i in samples]))["loss"].backward()
            run.logs.append(self.schedules.get_metrics())
            self.optimizers.step()
            self.schedules.step()
            if task.moment is not None and task.moment(self.schedules.clock):
                run.moments.append(step)
            if step in task.save_after and self.checkpointer.enable:
                assert self.checkpointer.save(step)
        return self


def cut(model: Model) -> list[torch.nn.Module]:
    """The two halves of a model. Each has a part of each group."""
    half = torch.nn.ModuleDict
    return [half({tag: half({i: getattr(model, tag)[int(i)]}) for tag in GROUPS}) for i in ("0", "1")]


@contextmanager
def process_group() -> Iterator[None]:
    """The group of this process alone, if it is not one of several ranks."""
    if dist.is_initialized():
        yield
        return
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def train(folder: Path | None, task: Task, **options: Any) -> Run:
    with process_group():
        loop = Loop(folder, task, **options).train()
        run = loop.model.run
        run.trainer = loop
        run.logs = [named(row) for row in run.logs]
        return run.end(getattr(loop.schedules, "clock", None))


def named(row: dict[str, float]) -> dict[str, float]:
    """What torchtitan logs of groups, by the tags of the groups."""
    for i, tag in enumerate(GROUPS):
        row = {name.replace(f"/AdamW/{i}", f"/{tag}"): value for name, value in row.items()}
    return row
