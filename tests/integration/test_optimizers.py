"""The real Trainer with the optimizers of `optim`, under schedules of `timesched`: saved, resumed, compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from composer import Event

import optim
import timesched
from tests.integration.training import (
    NextByte,
    assert_goes_on,
    column,
    finish,
    in_another_process,
    make_trainer,
    saving,
)
from tests.optim.rows import TRAINING_LR
from tests.optim.signatures import MATRICES, NAMES
from timesched.integrations.composer import Binding, Schedules

BATCHES = 20  # two epochs and a half
MIDDLE = 11  # inside the second epoch
# What makes each keep as much state as it can.
MORE: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "dampening": 0.1},
    "ASGD": {"t0": 5.0},
    "Adafactor": {"beta1": 0.9},
    "Adam": {"amsgrad": True},
    **{name: {"adjust_lr_fn": "original"} for name in MATRICES},  # which suits their learning rates of 0.1
    "RMSprop": {"momentum": 0.5, "centered": True},
}


def run(name: str, **options: Any) -> dict[str, Any]:
    """A run in which the learning rate falls along a cosine, and so does the weight decay, if there is one."""
    model, schedule = NextByte(), timesched.CosineAnnealingScheduler(alpha_f=0.1)
    if name in MATRICES:
        model.head.register_parameter("bias", None)
    decay = {} if name == "Rprop" else {"weight_decay": 0.001}
    optimizer = getattr(optim, name)(model.parameters(), lr=TRAINING_LR[name], **decay, **MORE.get(name, {}))
    callbacks = [Schedules(Binding(schedule, "weight_decay"))] if decay else []
    settings = {"schedulers": schedule, "max_duration": f"{BATCHES}ba"}
    return finish(*make_trainer(callbacks, model, optimizer, **settings, **options))


def test_every_optimizer_trains_is_saved_and_resumed(tmp_path: Path) -> None:
    assert list(TRAINING_LR) == NAMES
    full = {name: run(name, **saving(tmp_path / name, (MIDDLE, Event.BATCH_CHECKPOINT))) for name in NAMES}
    for name, done in full.items():
        losses = done["losses"]
        assert len(losses) == BATCHES and sum(losses[-8:]) < 0.9 * sum(losses[:8]), (name, losses)
        assert len(set(column(done["rows"], "lr"))) > 15
        assert name == "Rprop" or len(set(column(done["rows"], "weight_decay"))) > 10
        assert {key.split(".")[0] for key in done["tensors"]} == {"model", "optimizer"}
    resumed = in_another_process("tests.integration.test_optimizers", tmp_path)
    assert len(resumed) == len(NAMES)
    for name in NAMES:
        assert_goes_on(full[name], resumed[f"{name}/{MIDDLE}"], MIDDLE, name)
