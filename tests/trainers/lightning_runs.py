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
from tests.trainers.batches import BATCHES, COSINE, DECAY, LR, TOKENS, WEIGHT_DECAY, batch, expected
from timesched.integrations.lightning import Binding, schedule


class Loader:
    """A data loader that can be resumed within an epoch."""

    def __init__(self, rank: int = 0) -> None:
        self.rank, self.at = rank, 0

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Any:
        start, self.at = self.at, 0
        for k in range(start, BATCHES):
            self.at = (k + 1) % BATCHES
            yield {"weight": torch.tensor(0.5), "input_ids": batch(k, self.rank)}

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Model(LightningModule):
    """A small model that notes the learning rate and the weight decay of each step."""

    def __init__(self, *entries: Any, lr: float = LR, **options: Any) -> None:
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
        optimizer = optim.AdamW(self.parameters(), lr=self.lr, weight_decay=WEIGHT_DECAY)
        made = schedule(self, optimizer, *self.entries, **self.options)
        self.clock = made["lr_scheduler"]["scheduler"].clock
        return made


def trainer(folder: Path, **options: Any) -> Trainer:
    quiet = {"logger": False, "enable_checkpointing": False}
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
        run = trainer(folder, devices=2, strategy="ddp", accumulate_grad_batches=5, use_distributed_sampler=False)
        run.fit(model, Loader(run.global_rank))
        assert model.used == expected(5, epochs=2, ranks=2)

    dist.init_process_group("gloo")
    report = Report(folder)
    report.check("values", values_are_those_of_the_sum)


if __name__ == "__main__":
    warnings.filterwarnings("error", module="timesched")
    resume(Path(sys.argv[2])) if sys.argv[1] == "resume" else ranks(Path(sys.argv[1]))
