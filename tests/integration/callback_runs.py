"""Runs of the Trainer whose parameter groups are scheduled by the callback: what the tests of the callback share."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from composer import Callback, Event, Trainer

import optim
from optim.lr_scheduler import CosineDecayLR, LinearLR, SequentialLR
from optim.scheduler import Scheduler
from optim.weight_decay_scheduler import ConstantWD, CosineDecayWD, LinearWD, PiecewiseConstantWD
from tests.integration import training
from tests.integration.training import NextByte, Record, finish
from timesched import CosineAnnealingWithWarmupScheduler, LinearScheduler, MultiStepScheduler, bind
from timesched.integrations.composer import Binding, Schedules

BATCHES = 20  # two epochs of 8 batches, and a half
EMBEDDING, MATRIX, BIAS = range(3)  # the groups
TAGS: tuple[Any, ...] = ({"embedding"}, {"head", "matrix"}, None)  # of the three groups
LR, WEIGHT_DECAY, BETA = 0.1, 0.25, 0.9
MOMENTS = (3, Event.BATCH_CHECKPOINT), (8, Event.EPOCH_CHECKPOINT), (13, Event.BATCH_CHECKPOINT)
BOTH = pytest.mark.parametrize("kind", [torch.optim.AdamW, optim.AdamW])
HALVED = [1.0 - 0.5 * k / BATCHES for k in range(BATCHES)]  # the values of `linear`


def linear(state: Any, ssr: float = 1.0) -> float:
    return 1.0 - 0.5 * state.timestamp.batch.value / (BATCHES * ssr)


class Beta(Scheduler):
    """A key of its own, in closed form."""

    param_group_key = "betas[1]"

    def _get_closed_form(self) -> torch.Tensor:
        return 1.0 - 1.0 / (self.last_epoch.double() + 10.0)


def sequence(optimizer: Any, clock: Any) -> Any:
    """Warmup and decay in closed form, with times; their parent is what the Trainer steps."""
    children = [LinearLR(optimizer, 0.0, 0.1, 5), CosineDecayLR(optimizer, 0.1, 0.01, 15)]
    return SequentialLR(optimizer, children, ["0.25dur"], clock=clock)


def counted(optimizer: Any, tags: Any = None) -> LinearWD:
    """What counts its own steps."""
    return LinearWD(optimizer, 1.0, 0.0, 20, param_group_tags=tags)


def torchs(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)


CASES: dict[str, list[Any]] = {
    # of timesched: tagged learning rates, weight decay, and the first beta as a product with a function
    "bindings": [
        Binding(CosineAnnealingWithWarmupScheduler("4ba", "1dur", alpha_f=0.1), "lr", "head"),
        Binding(LinearScheduler(1.0, 0.5, "1000tok"), "lr", ["embedding", None]),
        Binding(MultiStepScheduler(["1ep", "0.8dur"], gamma=0.5), "weight_decay", "matrix"),
        Binding([LinearScheduler(0.9, 1.0, "40sp"), linear], ("betas", 0)),
    ],
    # in closed form: some count their steps, some follow the clock, and one is of a user's own
    "closed": [
        sequence,
        partial(CosineDecayWD, initial_val=0.3, end_val=0.1, total_iters="1dur", param_group_tags="matrix"),
        lambda optimizer: PiecewiseConstantWD(optimizer, [0.2, 0.1], [7], param_group_tags=["embedding", None]),
        Beta,
    ],
    "mixed": [
        partial(ConstantWD, val=0.05, param_group_tags=[None]),
        lambda optimizer, run: bind(linear, optimizer, run, key="betas[0]"),
        torchs,
    ],
}


def make_optimizer(kind: Any = torch.optim.AdamW) -> tuple[NextByte, Any]:
    """The small model, and an optimizer of it in three groups."""
    model = NextByte()
    parts = model.embedding.weight, model.head.weight, model.head.bias
    groups = [{"params": [part]} | ({"tags": tags} if tags else {}) for part, tags in zip(parts, TAGS, strict=True)]
    return model, kind(groups, lr=LR, weight_decay=WEIGHT_DECAY, betas=(BETA, 0.999))


def make_trainer(callbacks: list[Any], kind: Any = torch.optim.AdamW, **options: Any) -> tuple[Trainer, Record]:
    """A Trainer of the small model, with an optimizer of three groups unless one is given, and its record."""
    settings: dict[str, Any] = {"max_duration": f"{BATCHES}ba"}
    if "optimizers" not in options:
        settings["model"], settings["optimizers"] = make_optimizer(kind)
    return training.make_trainer(callbacks, **(settings | options))


def done(*entries: Any, **options: Any) -> Record:
    """The record of a run with these entries to its end."""
    trainer, record = make_trainer([Schedules(*entries)], **options)
    finish(trainer, record)
    return record


def run(name: str, *callbacks: Callback, **options: Any) -> dict[str, Any]:
    """A run of one of the cases, with torch's optimizer or, where the name says so, with ours."""
    case, _, ours = name.partition("-")
    kind = optim.AdamW if ours else torch.optim.AdamW
    return finish(*make_trainer([Schedules(*CASES[case]), *callbacks], kind, run_name=name, **options))


def saving(folder: Path) -> dict[str, Any]:
    """The options that save a run inside an epoch, at the end of one, and inside a later one."""
    return training.saving(folder, *MOMENTS)


def falling(start: float, first: int, last: int, steps: int = BATCHES) -> Any:
    """A line from `start` to 0 in so many steps, from step `first` up to `last`."""
    return pytest.approx([start * (1 - k / steps) for k in range(first, last)], rel=4e-16, abs=1e-16)
