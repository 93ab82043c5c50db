"""Checkpoints of torch.distributed.checkpoint: written by two processes, read by one, two and four."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)

import optim
from tests.optim._distributed.common import (
    CASES,
    LAST,
    SAVED,
    STEPS,
    Network,
    alone,
    assert_alike,
    assert_parts,
    copies,
    local,
    optimizers_of,
    train,
)
from tests.optim._distributed.training import shard
from tests.optim.problems import differences, snapshot

# How two processes write: each its shards; the same with an entry for each value of a group; everything in one piece.
OPTIONS = {"sharded": StateDictOptions(), "flattened": StateDictOptions(flatten_optimizer_state_dict=True)}
FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)
# The other forms are read for these. (Not for SGD without momentum: set_optimizer_state_dict of torch 2.7 to 2.13 wants
# at least one state that is no scalar, in order to see what device states are on; torch's own SGD fails there as well.)
OTHER_FORMS = ("SGD", "Adafactor", "AdamW-groups", "AdamW-tensors", "Lamb", "Muon")

UNINTERRUPTED: dict[str, dict[int, dict[str, Tensor]]] = {}  # what this rank had in the run that saved


def initialised_by_dcp(name: str, folder: Path) -> None:
    """What DCP does to an optimizer before it looks at its state does nothing to ours."""
    model = shard(Network())
    optimizers = optimizers_of(name, model)
    steps = []
    for optimizer in optimizers:
        optimizer.register_step_pre_hook(lambda *_: steps.append("a step"))
    before = [local_snapshot(optimizer) for optimizer in optimizers]
    for options in (None, OPTIONS["flattened"]):
        get_optimizer_state_dict(model, optimizers, options=options)
        assert not any(map(differences, map(local_snapshot, optimizers), before))
    set_optimizer_state_dict(model, optimizers, get_optimizer_state_dict(model, optimizers))
    assert not any(map(differences, map(local_snapshot, optimizers), before))
    assert not steps
    assert all(p.grad is None for p in model.parameters())
    train(model, optimizers, 1, 2)
    assert_parts(model, optimizers, alone(name)[2], CASES[name].bound)


def local_snapshot(optimizer: optim.Optimizer) -> dict[tuple[Any, ...], Any]:
    return {key: local(value) for key, value in snapshot(optimizer).items()}


def content(model: nn.Module, optimizers: list[optim.Optimizer], form: str) -> dict[str, Any]:
    model_state, optimizer_state = get_state_dict(model, optimizers, options=OPTIONS[form])
    return {"model": model_state, "optimizer": optimizer_state}


def save(name: str, folder: Path) -> None:
    """Two processes train, save on the way, and remember what they had later on."""
    model = shard(Network())
    optimizers = optimizers_of(name, model)
    taken = UNINTERRUPTED[name] = {}

    def after(step: int) -> None:
        taken[step] = copies(model, optimizers)
        if step not in SAVED:
            return
        dcp.save(content(model, optimizers, "sharded"), checkpoint_id=folder / f"{name}-sharded-{step}")
        if name in OTHER_FORMS:
            dcp.save(content(model, optimizers, "flattened"), checkpoint_id=folder / f"{name}-flattened-{step}")
            full = dict(zip(("model", "optimizer"), get_state_dict(model, optimizers, options=FULL)))
            if dist.get_rank() == 0:
                torch.save(full, folder / f"{name}-full-{step}")
        assert_alike(copies(model, optimizers), taken[step], 0)

    after(0)
    train(model, optimizers, 1, LAST, after)
    assert_parts(model, optimizers, alone(name)[LAST], CASES[name].bound)


def load(name: str, folder: Path, form: str = "sharded", saved: Sequence[int] = SAVED, steps: int = STEPS) -> None:
    """Go on in a fresh model and optimizer, built with another learning rate; on one process also without FSDP."""
    world = dist.get_world_size()
    for at in saved:
        for is_sharded in (True, False) if world == 1 else (True,):
            model = Network()
            with torch.no_grad():
                for p in model.parameters():
                    p.fill_(9.0)
            if is_sharded:
                shard(model)
            optimizers = optimizers_of(name, model, other_lr=True)
            (read_full if form == "full" else read)(model, optimizers, form, folder / f"{name}-{form}-{at}")
            for now, do in ((at, 0), (at + steps, steps)):
                train(model, optimizers, now - do + 1, now)
                assert_parts(model, optimizers, alone(name)[now], CASES[name].bound if now else 0)
                if world == 2:  # the same processes add up the same numbers in the same order
                    assert_alike(copies(model, optimizers), UNINTERRUPTED[name][now], 0)


def read(model: nn.Module, optimizers: list[optim.Optimizer], form: str, path: Path) -> None:
    there = content(model, optimizers, form)
    dcp.load(there, checkpoint_id=path)
    set_state_dict(
        model,
        optimizers,
        model_state_dict=there["model"],
        optim_state_dict=there["optimizer"],
        options=OPTIONS[form],
    )


def read_full(model: nn.Module, optimizers: list[optim.Optimizer], form: str, path: Path) -> None:
    """Only the first process reads the file, the others get their part from it."""
    there: dict[str, Any] = {"model": {}, "optimizer": {}}
    if dist.get_rank() == 0:
        there = torch.load(path, weights_only=True)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    # In one call, set_state_dict, a rank that passes no model would take no part in handing it round.
    set_model_state_dict(model, there["model"], options=options)
    set_optimizer_state_dict(model, optimizers, there["optimizer"], options=options)
