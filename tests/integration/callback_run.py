"""Runs of the Trainer whose parameter groups are driven by the callback; as a program it resumes them.

python -m tests.integration.callback_run FOLDER: goes on from every checkpoint FOLDER/NAME/*.pt, in a process of its
own, and writes what the runs did to FOLDER/resumed.pt. FOLDER NAME: that run goes on by Composer's autoresume.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from composer import Callback, Event, Trainer
from composer.optim import CosineAnnealingScheduler

import optim
from optim.lr_scheduler import CosineDecayLR, LinearLR, SequentialLR
from optim.scheduler import Scheduler
from optim.weight_decay_scheduler import ConstantWD, CosineDecayWD, PiecewiseConstantWD
from tests.integration.training import NextByte, data, tensors_of
from timesched import (
    CosineAnnealingWarmRestartsScheduler,
    CosineAnnealingWithWarmupScheduler,
    LinearScheduler,
    MultiStepScheduler,
    bind,
)
from timesched.integrations.composer import Binding, Schedules

BATCHES = 20  # two epochs of 8 batches, and a half
RATE, DECAY, BETA_1, BETA_2 = range(4)  # what a record has of each group
EMBEDDING, MATRIX, BIAS = range(3)  # the groups
MIDDLE = (3, Event.BATCH_CHECKPOINT), (8, Event.EPOCH_CHECKPOINT), (13, Event.BATCH_CHECKPOINT)
LR, WEIGHT_DECAY, BETA = 0.1, 0.25, 0.9
TAGS: tuple[Any, ...] = ({"embedding"}, {"head", "matrix"}, None)  # of the three groups


def linear(state: Any, ssr: float = 1.0) -> float:
    return 1.0 - 0.5 * state.timestamp.batch.value / (BATCHES * ssr)


class Beta(Scheduler):
    """A key of its own, in closed form."""

    param_group_key = "betas[1]"

    def _get_closed_form(self) -> torch.Tensor:
        return 1.0 - 1.0 / (self.last_epoch.double() + 10.0)


def bindings() -> list[Any]:
    """Schedules of timesched: tagged learning rates, weight decay, and the first beta as a product of a function."""
    return [
        Binding(CosineAnnealingWithWarmupScheduler("4ba", "1dur", alpha_f=0.1), "lr", "head"),
        Binding(LinearScheduler(1.0, 0.5, "1000tok"), "lr", ["embedding", None]),
        Binding(MultiStepScheduler(["1ep", "0.8dur"], gamma=0.5), "weight_decay", "matrix"),
        Binding([LinearScheduler(0.9, 1.0, "40sp"), linear], "betas[0]"),
    ]


def beside() -> list[Any]:
    """What leaves the learning rate to the Trainer's own schedules."""
    return [
        Binding(CosineAnnealingWarmRestartsScheduler("5ba", 2.0), "weight_decay", ["head", "embedding"]),
        Binding(LinearScheduler(1.0, 0.9), ("betas", 0)),
    ]


def sequence(optimizer: Any, clock: Any) -> Any:
    """Warmup and decay in closed form, with times; their parent is what the Trainer drives."""
    parts = [LinearLR(optimizer, 0.0, 0.1, 5), CosineDecayLR(optimizer, 0.1, 0.01, 15)]
    return SequentialLR(optimizer, parts, ["0.25dur"], clock=clock)


def closed() -> list[Any]:
    """Schedulers in closed form: that count their steps, that follow the clock, and one of a user's own."""
    return [
        sequence,
        partial(CosineDecayWD, initial_val=0.3, end_val=0.1, total_iters="1dur", param_group_tags="matrix"),
        lambda optimizer: PiecewiseConstantWD(optimizer, [0.2, 0.1], [7], param_group_tags=["embedding", None]),
        Beta,
    ]


def mixed() -> list[Any]:
    """All kinds of entries next to each other."""
    return [
        partial(ConstantWD, val=0.05, param_group_tags=[None]),
        Binding(LinearScheduler(1.0, 0.1), "weight_decay", ["head", "embedding"]),
        lambda optimizer, run: bind(linear, optimizer, run, key="betas[0]"),
    ]


def torchs() -> list[Any]:
    """A scheduler of torch, which counts its steps and drives the learning rate of all groups."""
    return [
        lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.5),
        Binding(LinearScheduler(1.0, 0.1), "weight_decay", "head"),
    ]


@dataclass(frozen=True)
class Case:
    """One run: the callback's entries, whether the Trainer drives the learning rate, and whose optimizer it is."""

    entries: Callable[[], list[Any]]
    optimizer: Any = torch.optim.AdamW
    schedulers: bool = True


CASES = {
    "bindings": Case(bindings, schedulers=False),
    "bindings-optim": Case(bindings, optim.AdamW, schedulers=False),
    "beside": Case(beside),
    "beside-optim": Case(beside, optim.AdamW),
    "closed": Case(closed, schedulers=False),
    "closed-optim": Case(closed, optim.AdamW, schedulers=False),
    "mixed": Case(mixed),
    "torchs": Case(torchs, schedulers=False),
    "mixed-optim": Case(mixed, optim.AdamW),
}


class At(Callback):
    """Does something to the state at the end of a batch."""

    def __init__(self, batch: int, action: Callable[[Any], None]) -> None:
        self.batch, self.action = batch, action

    def batch_end(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch == self.batch:
            self.action(state)


@dataclass(eq=False)
class Record(Callback):
    """The time at which each batch began, and what it ran with: lr, weight decay and betas of every group."""

    times: list[Any] = field(default_factory=list)
    rows: list[list[tuple[float, ...]]] = field(default_factory=list)

    def batch_start(self, state: Any, logger: Any) -> None:
        self.times.append(state.timestamp)
        groups = state.optimizers[0].param_groups
        self.rows.append([tuple(map(float, (g["lr"], g["weight_decay"], *g["betas"]))) for g in groups])

    def of(self, key: int, group: int) -> list[float]:
        """One number of one group over the batches."""
        return [row[group][key] for row in self.rows]


def make_optimizer(kind: Any = torch.optim.AdamW) -> tuple[NextByte, Any]:
    """The small model, and an optimizer of it in three groups."""
    model = NextByte()
    parts = model.embedding.weight, model.head.weight, model.head.bias
    groups = [{"params": [part]} | ({"tags": tags} if tags else {}) for part, tags in zip(parts, TAGS, strict=True)]
    return model, kind(groups, lr=LR, weight_decay=WEIGHT_DECAY, betas=(BETA, 0.999))


def make_trainer(callbacks: list[Any], kind: Any = torch.optim.AdamW, **options: Any) -> tuple[Trainer, Record]:
    """A Trainer of the small model on the CPU, and its record."""
    model, optimizer = make_optimizer(kind)
    settings: dict[str, Any] = {
        "max_duration": f"{BATCHES}ba",
        "seed": 1,
        "device": "cpu",
        "progress_bar": False,
        "model": model,
        "optimizers": optimizer,
    }
    if "train_dataloader" not in options:
        settings["train_dataloader"] = data()
    record = Record()
    return Trainer(callbacks=[record, *callbacks], **(settings | options)), record


def finish(trainer: Trainer, record: Record) -> dict[str, Any]:
    """Train to the end, and say what was done."""
    trainer.fit()
    trainer.close()
    return {"rows": record.rows, "tensors": tensors_of(trainer)}


def run(name: str, *callbacks: Callback, **options: Any) -> dict[str, Any]:
    """A run of one of the cases."""
    case = CASES[name]
    if case.schedulers:
        options["schedulers"] = CosineAnnealingScheduler(alpha_f=0.1)
    return finish(*make_trainer([Schedules(*case.entries()), *callbacks], case.optimizer, run_name=name, **options))


def assert_goes_on(before: dict[str, Any], after: dict[str, Any], batch: int, what: object = "") -> None:
    """Bit for bit: what each batch ran with, and where parameters and optimizer state ended."""
    assert after["rows"] == before["rows"][batch:], what
    assert after["tensors"].keys() == before["tensors"].keys()
    for key, tensor in before["tensors"].items():
        assert torch.equal(after["tensors"][key], tensor), (what, key)


def column(done: dict[str, Any], group: int, key: int) -> list[float]:
    return [row[group][key] for row in done["rows"]]


def saving(folder: Path) -> dict[str, Any]:
    """The options that save a run inside an epoch, at the end of one, and inside a later one."""
    return {
        "save_folder": str(folder),
        "save_filename": "{batch}.pt",
        "save_latest_filename": None,
        "save_interval": lambda state, event: (state.timestamp.batch, event) in MIDDLE,
    }


def main(folder: Path, only: str | None = None) -> None:
    resumed = {}
    if only is None:
        for path in sorted(folder.glob("*/*.pt")):
            resumed[f"{path.parent.name}/{path.stem}"] = run(path.parent.name, load_path=str(path))
    else:
        resumed[only] = run(only, autoresume=True, save_folder=str(folder / only), save_interval="5ba")
    torch.save(resumed, folder / "resumed.pt")


if __name__ == "__main__":
    warnings.simplefilter("error")
    main(Path(sys.argv[1]), *sys.argv[2:])
