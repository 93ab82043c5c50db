"""What the trainers of test_conformance.py share: the data and the model, what a run must do, and what it has done."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import optim
from timesched import BatchSizeSchedule, Clock, CosineAnnealingWithWarmupScheduler, HalfLife, LinearScheduler
from timesched.integrations.common import Binding

LR, WEIGHT_DECAY, BETAS = 0.1, 0.3, (0.9, 0.99)
KEYS = ("lr", "weight_decay", "betas[0]", "betas[1]")
GROUPS = ("embedding", "head")  # the parameter groups, and their tags
LENGTH = "400tok"  # ends in the second epoch
COSINE = CosineAnnealingWithWarmupScheduler("90tok", alpha_f=0.1)
DECAY = LinearScheduler(alpha_f=0.2, t_max="15ba")
ENTRIES = (COSINE, Binding(DECAY, "weight_decay"))
AVERAGE = partial(optim.WeightAverage, half_life="3ba", start="2ba")
ROUNDED = 5e-7  # two spacings of a float32 weight between 1 and 4, to which a step of the average rounds

MICROBATCH = 3  # samples
UNEVEN = [4 + 3 * (i // MICROBATCH) % 7 for i in range(37)]  # tokens of each sample; the last microbatch has one sample
EQUAL = [7] * 36

# Lightning's own: deprecations in torch that it meets, and advice to its users.
IGNORE_LIGHTNING = [
    pytest.mark.filterwarnings(f"ignore::{kind}Warning:lightning") for kind in ("Deprecation", "Future", "User")
]


def make_data(lengths: Sequence[int]) -> list[Tensor]:
    """The samples. The first token of a sample is its index."""
    return [torch.tensor([i, *(i * j % 7 for j in range(1, length))]) for i, length in enumerate(lengths)]


def collate(samples: Sequence[Tensor]) -> dict[str, Tensor]:
    return {"input_ids": pad_sequence(list(samples), batch_first=True)}


def flat(tensors: Any) -> Tensor:
    whole = [x.full_tensor() if hasattr(x, "full_tensor") else x for x in tensors]
    return torch.cat([x.detach().reshape(-1) for x in whole]).clone()


def rank_and_ranks() -> tuple[int, int]:
    """The rank of this process, and the number of ranks."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def of_all_ranks(value: Any) -> list[Any]:
    """The values of all ranks."""
    values = [value] * rank_and_ranks()[1]
    if len(values) > 1:
        dist.all_gather_object(values, value)
    return values


def batches_of_rank(batches: list[Any]) -> list[Any]:
    """The batches of this rank. All ranks have equally many."""
    rank, ranks = rank_and_ranks()
    return batches[rank : len(batches) - len(batches) % ranks : ranks]


@dataclass(frozen=True)
class Task:
    """What a run must do."""

    entries: Sequence[Any] = ENTRIES  # none: a run without schedules
    max_duration: str | None = LENGTH  # before scaling; None is for the trainer's own length
    ssr: float = 1.0
    epochs: int = 2
    accumulate: int = 1
    batch_size: int = MICROBATCH  # of a microbatch
    sizes: BatchSizeSchedule | None = None  # of the batches, if their size changes
    counts_tokens: bool = True
    on_change: str = "same"
    log: bool = True
    average: Any = None
    evaluate_every: int = 0  # steps
    evaluate_averaged: bool = False
    moment: Callable[[Clock], bool] | None = None  # asked after each step
    skipped: Collection[int] = ()  # the microbatches whose gradients overflow
    save_after: Sequence[int] = ()  # steps
    load: tuple[Path, int] | None = None  # the folder of a run, and the step after which it was saved

    def arguments(self, *names: str) -> dict[str, Any]:
        """The arguments of an adapter."""
        return {name: getattr(self, name) for name in names}


@dataclass
class Run:
    """What a run has done."""

    values: list[list[dict[str, float]]] = field(default_factory=list)  # with which each step ran, for each group
    seen: list[list[int]] = field(default_factory=list)  # the samples of each microbatch
    before: list[Tensor] = field(default_factory=list)  # the weights before each step
    after: list[Tensor] = field(default_factory=list)
    evaluated: list[Tensor] = field(default_factory=list)  # the weights of each evaluation
    logs: list[dict[str, float]] = field(default_factory=list)
    moments: list[int] = field(default_factory=list)  # the steps after which `Task.moment` was true
    counts: dict[str, int] = field(default_factory=dict)  # of the clock at the end
    average: Tensor | None = None
    trainer: Any = None

    def of(self, key: str, group: int = 0) -> list[float]:
        """The values of one key in one group."""
        return [values[group][key] for values in self.values]

    def end(self, clock: Any, average: Any = None) -> Run:
        """Note the counts of the adapter's clock, and the average."""
        if clock is not None:
            self.counts = read_counts(clock.timestamp)
        if average is not None:
            self.average = flat(state["average"] for state in average.state.values())
        return self


class Model(nn.Module):
    """Its forward returns the loss. It notes in `run` what is trained and evaluated."""

    def __init__(self, skipped: Collection[int] = ()) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding = nn.Sequential(nn.Embedding(40, 4), nn.Linear(4, 4))
        self.head = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        self.skipped, self.run = skipped, Run()

    def forward(self, input_ids: Tensor, **_: Any) -> dict[str, Tensor]:
        loss = self.head(self.embedding(input_ids)).square().mean()
        if not self.training:
            self.run.evaluated.append(flat(self.parameters()))
            return {"loss": loss}
        self.run.seen.append(input_ids[:, 0].tolist())
        return {"loss": loss * torch.inf if len(self.run.seen) - 1 in self.skipped else loss}

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Note what each step of an optimizer runs with, and the weights before and after it."""

        def note_before(stepped: Any, *_: Any) -> None:
            if stepped is optimizer:  # Lightning steps a wrapper first, with the same hooks
                self.run.values.append([read_values(group) for group in optimizer.param_groups])
                self.run.before.append(flat(self.parameters()))

        def note_after(stepped: Any, *_: Any) -> None:
            if stepped is optimizer:
                self.run.after.append(flat(self.parameters()))

        optimizer.register_step_pre_hook(note_before)
        optimizer.register_step_post_hook(note_after)


def make_optimizer(model: Model) -> torch.optim.Optimizer:
    """An optimizer with a group for each part of the model, which the model follows."""
    groups = [{"params": [*getattr(model, name).parameters()], "tags": [name]} for name in GROUPS]
    optimizer = optim.AdamW(groups, lr=LR, weight_decay=WEIGHT_DECAY, betas=BETAS)
    model.follow(optimizer)
    return optimizer


def read_values(group: Mapping[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in zip(KEYS, (group["lr"], group["weight_decay"], *group["betas"]))}


def read_counts(timestamp: Any) -> dict[str, int]:
    return {name: int(getattr(timestamp, name)) for name in ("epoch", "batch", "batch_in_epoch", "sample", "token")}


# The same as a plain loop


def split(samples: Sequence[Any], size: int) -> list[Any]:
    """The samples in batches of a size. The last batch may be smaller."""
    return [samples[i : i + size] for i in range(0, len(samples), size)]


def batches_of_epoch(lengths: Sequence[int], task: Task) -> list[list[int]]:
    """The samples of each step of an epoch."""
    microbatches = split(range(len(lengths)), task.batch_size)
    return [[i for microbatch in batch for i in microbatch] for batch in split(microbatches, task.accumulate)]


def plain_loop(lengths: Sequence[int], task: Task, batches: Sequence[Sequence[int]] | None = None) -> Run:
    """The values of each step, and the counts at the end.

    `batches`: the samples of each step, from the start of the run. By default an epoch has all samples in their order.
    """
    epoch = batches_of_epoch(lengths, task)
    length = task.max_duration or f"{task.epochs * len(epoch)}ba"
    clock = Clock(length, batches_per_epoch=len(epoch), ssr=task.ssr, process_group=False)
    run = Run()
    for step, batch in enumerate(cycle(epoch) if batches is None else batches, 1):
        if clock.done:
            break
        run.values.append([values_at(clock, task.entries, tag) for tag in GROUPS])
        clock.tick(samples=len(batch), tokens=sum(lengths[i] for i in batch))
        if task.moment is not None and task.moment(clock):
            run.moments.append(step)
    return run.end(clock)


def values_at(clock: Any, entries: Sequence[Any], tag: str) -> dict[str, float]:
    """The values of a group at the time of a clock."""
    values = dict(zip(KEYS, (LR, WEIGHT_DECAY, *BETAS)))
    for entry in entries:
        binding = entry if isinstance(entry, Binding) else Binding(entry, "lr")
        if binding.tags in (None, tag):
            is_value = isinstance(binding.schedule, HalfLife)
            values[binding.key] = (1.0 if is_value else values[binding.key]) * binding.schedule.at(
                clock.timestamp, clock
            )
    return values


def averages(weights: Sequence[Tensor]) -> list[Tensor]:
    """`AVERAGE` after each step, from the weights after each."""
    averaged: list[Tensor] = []
    keeps = 2 ** (-1 / 3)
    for step, x in enumerate(weights, 1):
        averaged.append(x.double() if step <= 2 else keeps * averaged[-1] + (1 - keeps) * x.double())
    return averaged
