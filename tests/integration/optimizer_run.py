"""Runs of the Trainer with every optimizer of `optim`; as a program it resumes them in a process of its own.

python -m tests.integration.optimizer_run FOLDER: for each optimizer, goes on from the checkpoint in FOLDER/NAME, and
writes what the runs did to FOLDER/resumed.pt.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from composer import Callback, Event, Trainer

import optim
import timesched
from tests.integration.runs import BindWeightDecay
from tests.integration.training import NextByte, data, tensors_of

BATCHES = 20  # two epochs and a half
MIDDLE = 11  # inside the second epoch
CHECKPOINT = "middle.pt"
RATES = {
    **{"SGD": 0.5, "ASGD": 2.0, "Adadelta": 30.0, "Adafactor": 0.3, "Adagrad": 0.2, "Adam": 0.1, "AdamW": 0.1},
    **{"Adamax": 0.2, "Lamb": 0.2, "Lion": 0.05, "Muon": 0.1, "NAdam": 0.1, "RAdam": 0.6, "RMSprop": 0.02},
    **{"Rprop": 0.1},
}
# What makes each keep as much state as it can.
MORE: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "dampening": 0.1},
    "ASGD": {"t0": 5.0},
    "Adafactor": {"beta1": 0.9},
    "Adam": {"amsgrad": True},
    "RMSprop": {"momentum": 0.5, "centered": True},
}


@dataclass(eq=False)
class Record(Callback):
    """What each batch ran with, and its loss."""

    lr: list[float] = field(default_factory=list)
    weight_decay: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def batch_start(self, state: Any, logger: Any) -> None:
        (group,) = state.optimizers[0].param_groups
        self.lr.append(float(group["lr"]))
        self.weight_decay.append(float(group.get("weight_decay", 0.0)))

    def batch_end(self, state: Any, logger: Any) -> None:
        self.losses.append(float(state.loss))


def make_optimizer(name: str, dtype: torch.dtype = torch.float32) -> tuple[NextByte, Any]:
    """The small model, for Muon without its bias, and an optimizer of its parameters."""
    model = NextByte().to(dtype)
    if name == "Muon":
        model.head.register_parameter("bias", None)
    decay = {} if name == "Rprop" else {"weight_decay": 0.001}
    made = getattr(optim, name)(model.parameters(), lr=RATES[name], **decay, **MORE.get(name, {}))
    return model, made


def make_trainer(model: NextByte, optimizer: Any, **options: Any) -> Trainer:
    """A Trainer whose rate falls along a cosine; the weight decay, where there is one, has a schedule of its own."""
    decays = "weight_decay" in optimizer.param_groups[0]
    return Trainer(
        model=model,
        optimizers=optimizer,
        schedulers=timesched.CosineAnnealingScheduler(alpha_f=0.1),
        max_duration=f"{BATCHES}ba",
        callbacks=[Record(), *([BindWeightDecay(1.0)] if decays else [])],
        train_dataloader=data(),
        seed=1,
        device="cpu",
        progress_bar=False,
        **options,
    )


def finish(trainer: Trainer) -> dict[str, Any]:
    """Train to the end, and say what was done."""
    trainer.fit()
    trainer.close()
    record = next(callback for callback in trainer.state.callbacks if isinstance(callback, Record))
    done = {"lr": record.lr, "weight_decay": record.weight_decay, "losses": record.losses}
    return done | {"tensors": tensors_of(trainer)}


def saving(folder: Path) -> dict[str, Any]:
    """The options that save a run in its middle, once."""
    return {
        "save_folder": str(folder),
        "save_filename": CHECKPOINT,
        "save_latest_filename": None,
        "save_interval": lambda state, event: event is Event.BATCH_CHECKPOINT and state.timestamp.batch == MIDDLE,
    }


def main(folder: Path) -> None:
    resumed = {
        name: finish(make_trainer(*make_optimizer(name), load_path=str(folder / name / CHECKPOINT))) for name in RATES
    }
    torch.save(resumed, folder / "resumed.pt")


if __name__ == "__main__":
    warnings.simplefilter("error")
    main(Path(sys.argv[1]))
