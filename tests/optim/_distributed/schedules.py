"""Closed-form schedulers of sharded parameters equal those of whole ones."""

from __future__ import annotations

from pathlib import Path

from torch import nn

import optim
from optim.lr_scheduler import CosineDecayLR, LinearLR, SequentialLR
from optim.weight_decay_scheduler import CosineDecayWD
from tests.optim._distributed.common import CASES, STEPS, Network, assert_parts, copies, optimizers_of, train
from tests.optim._distributed.training import shard

SCHEDULED = ("AdamW", "SGD", "Muon", "Rprop")


def scheduled(name: str, folder: Path) -> None:
    whole, sharded = Network(), shard(Network())
    optimizers, rates = run(name, whole)
    expected = copies(whole, optimizers)
    optimizers, ours = run(name, sharded)
    assert ours == rates and len(set(rates)) == STEPS
    assert_parts(sharded, optimizers, expected, CASES[name].bound)


def run(name: str, model: nn.Module) -> tuple[list[optim.Optimizer], list[tuple[float, float]]]:
    """Train with schedules of the learning rate and the weight decay; returns the optimizers and the values."""
    optimizers = optimizers_of(name, model)
    schedulers: list[optim.scheduler.Scheduler] = []
    for optimizer in optimizers:
        parts = [LinearLR(optimizer, 0.0, 0.01, 2), CosineDecayLR(optimizer, 0.01, 0.001, STEPS)]
        schedulers.append(SequentialLR(optimizer, parts, [2]))
        if "weight_decay" in optimizer.defaults:
            schedulers.append(CosineDecayWD(optimizer, 0.1, 0.0, STEPS))
        optimizer.state.clear()  # and made afresh from a rate that is a tensor
    values = []

    def after(step: int) -> None:
        for each in schedulers:
            each.step()
        group = optimizers[0].param_groups[0]
        values.append((float(group["lr"]), float(group.get("weight_decay", 0.0))))

    train(model, optimizers, 1, STEPS, after)
    return optimizers, values
