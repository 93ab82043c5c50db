"""Small runs of Lightning's Trainer that note what each step of the optimizer was run with.

As a program: `resume FOLDER` goes on from a checkpoint, and under torchrun `FOLDER` checks two ranks.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer

import optim
from tests.torchrun import Report
from timesched import CosineAnnealingWithWarmupScheduler, Horizon, LinearScheduler
from timesched.integrations.lightning import Binding, schedule

BATCHES = 11  # of which the last is short
TOKENS = "400tok"  # the run goes on past it
COSINE = CosineAnnealingWithWarmupScheduler("90tok", alpha_f=0.1)
DECAY = LinearScheduler(alpha_f=0.2, t_max="15ba")


class Loader:
    """Batches of different lengths; it can be resumed within an epoch. Ranks have batches of different lengths."""

    def __init__(self, rank: int = 0) -> None:
        self.rank, self.at = rank, 0

    def __len__(self) -> int:
        return BATCHES

    def batch(self, k: int) -> dict[str, torch.Tensor]:
        shape = (3 if k < BATCHES - 1 else 1, 4 + 3 * k % 7 + self.rank)
        return {"weights": torch.tensor(0.5), "input_ids": torch.arange(shape[0] * shape[1]).reshape(shape) % 10}

    def __iter__(self) -> Any:
        start, self.at = self.at, 0
        for k in range(start, BATCHES):
            self.at = (k + 1) % BATCHES
            yield self.batch(k)

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def tokens_before(epochs: int, accumulate: int, ranks: int = 1) -> list[int]:
    """The tokens of all ranks before each step of the optimizer, counted here."""
    numbers = [sum(Loader(rank).batch(k)["input_ids"].numel() for rank in range(ranks)) for k in range(BATCHES)]
    steps = [sum(numbers[k : k + accumulate]) for k in range(0, BATCHES, accumulate)] * epochs
    return [sum(steps[:k]) for k in range(len(steps))]


def expected(epochs: int, accumulate: int, ranks: int = 1) -> list[tuple[float, float]]:
    """The learning rate and the weight decay of each step."""
    tokens = tokens_before(epochs, accumulate, ranks)
    run = Horizon(TOKENS)
    return [(0.1 * COSINE.at(f"{n}tok", run), 0.3 * DECAY.at(f"{k}ba", run)) for k, n in enumerate(tokens)]


class Model(LightningModule):
    """A small model that notes the learning rate and the weight decay of each step."""

    def __init__(self, *entries: Any, lr: float = 0.1, **options: Any) -> None:
        super().__init__()
        self.entries = entries or (COSINE, Binding(DECAY, "weight_decay"))
        self.options = options if entries else {"max_duration": TOKENS}
        self.lr = lr
        torch.manual_seed(1)
        self.net = torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 1))
        self.used: list[tuple[float, float]] = []

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        return self.net(batch["input_ids"]).square().mean()

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        (group,) = optimizer.param_groups
        self.used.append((group["lr"], group["weight_decay"]))
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)

    def configure_optimizers(self) -> Any:
        optimizer = optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.3)
        made = schedule(self, optimizer, *self.entries, **self.options)
        self.clock = made["lr_scheduler"]["scheduler"].clock
        return made


def trainer(folder: Path, **options: Any) -> Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "barebones": False}
    quiet |= {"enable_progress_bar": False, "enable_model_summary": False}
    return Trainer(
        **{"accelerator": "cpu", "devices": 1, "max_epochs": 2, "default_root_dir": folder, **quiet, **options}
    )


def outcome(model: Model) -> dict[str, Any]:
    """What two runs that are the same have in common."""
    state = model.optimizers().optimizer.state_dict()["state"]
    counts = {name: count for name, count in model.clock.state_dict().items() if not name.endswith("wct")}
    return {"used": model.used, "parameters": model.state_dict(), "state": state, "counts": counts}


def resume(folder: Path) -> None:
    model = Model()
    trainer(folder, accumulate_grad_batches=2).fit(model, Loader(), ckpt_path=folder / "middle.ckpt")
    torch.save(outcome(model), folder / "resumed.pt")


def ranks(folder: Path) -> None:
    model = Model()

    def values_are_those_of_the_sum() -> None:
        run = trainer(folder, devices=2, strategy="ddp", accumulate_grad_batches=4, use_distributed_sampler=False)
        run.fit(model, Loader(run.global_rank))
        assert model.used == expected(2, 4, ranks=2)

    dist.init_process_group("gloo")
    report = Report(folder)
    report.check("values", values_are_those_of_the_sum)


if __name__ == "__main__":
    warnings.filterwarnings("error", module="timesched")
    resume(Path(sys.argv[2])) if sys.argv[1] == "resume" else ranks(Path(sys.argv[1]))
