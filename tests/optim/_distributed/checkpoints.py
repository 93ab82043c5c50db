"""Checkpoints of torch.distributed.checkpoint: written by two processes, read by one, two and four."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
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
    SAVED,
    STEPS,
    Network,
    assert_alike,
    bound,
    optimizers_of,
    train,
    whole,
)
from tests.optim._distributed.training import alone, shard
from tests.optim.problems import differences, snapshot

# What the two processes write: each its shards; the same with one entry for each value of a group; and, in the file of
# one process, everything in one piece.
FORMS = ("sharded", "flattened", "full")
OPTIONS = {"sharded": StateDictOptions(), "flattened": StateDictOptions(flatten_optimizer_state_dict=True)}
FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


def initialised_by_dcp(case: str) -> None:
    """What DCP does to an optimizer before it looks at its state does nothing to ours."""
    model = shard(Network())
    optimizers = optimizers_of(case, model)
    steps = []
    for optimizer in optimizers:
        optimizer.register_step_pre_hook(lambda *_: steps.append("a step"))
    before = [snapshot(optimizer) for optimizer in optimizers]
    for options in (None, OPTIONS["flattened"], FULL):
        saved = get_optimizer_state_dict(model, optimizers, options=options)
        assert [snapshot_differs(optimizer, b) for optimizer, b in zip(optimizers, before)] == [[]] * len(before)
    set_optimizer_state_dict(model, optimizers, get_optimizer_state_dict(model, optimizers))
    assert [snapshot_differs(optimizer, b) for optimizer, b in zip(optimizers, before)] == [[]] * len(before)
    assert not steps and (saved or dist.get_rank() > 0)
    assert all(p.grad is None for p in model.parameters())
    train(model, optimizers, 1, 1)
    assert_alike(whole(model, optimizers), alone(case)[1], bound(case))


def snapshot_differs(optimizer: optim.Optimizer, before: Any) -> list[Any]:
    return differences(local_parts(snapshot(optimizer)), local_parts(before))


def local_parts(taken: Any) -> Any:
    return {key: value.to_local() if hasattr(value, "to_local") else value for key, value in taken.items()}


def content(model: nn.Module, optimizers: list[optim.Optimizer], form: str) -> dict[str, Any]:
    model_state, optimizer_state = get_state_dict(model, optimizers, options=OPTIONS[form])
    return {"model": model_state, "optimizer": optimizer_state}


def save(case: str, folder: Path) -> None:
    """Two processes train, save on the way, and tell what they had at the end of `STEPS` more steps."""
    model = shard(Network())
    optimizers = optimizers_of(case, model)
    truth = {}

    def after(step: int) -> None:
        if step in SAVED or step - STEPS in SAVED:
            truth[step] = whole(model, optimizers)
        if step in SAVED:
            for form in OPTIONS:
                dcp.save(content(model, optimizers, form), checkpoint_id=folder / f"{case}-{form}-{step}")
            full = dict(zip(("model", "optimizer"), get_state_dict(model, optimizers, options=FULL)))
            if dist.get_rank() == 0:
                torch.save(full, folder / f"{case}-full-{step}.pt")

    after(0)
    train(model, optimizers, 1, max(SAVED) + STEPS, after)
    assert_alike(truth[STEPS], alone(case)[STEPS], bound(case))
    if dist.get_rank() == 0:
        torch.save(truth, folder / f"{case}-truth.pt")
    dist.barrier()


def load(case: str, form: str, folder: Path) -> None:
    """In fresh models and optimizers, which were built with another learning rate; also without FSDP on one process."""
    world = dist.get_world_size()
    truth = torch.load(folder / f"{case}-truth.pt", weights_only=True)
    for at in SAVED:
        for is_sharded in (True, False) if world == 1 else (True,):
            model = Network()
            with torch.no_grad():
                for p in model.parameters():
                    p.fill_(9.0)
            if is_sharded:
                shard(model)
            optimizers = optimizers_of(case, model, other_lr=True)
            if form == "full":
                read_full(model, optimizers, folder / f"{case}-full-{at}.pt")
            else:
                read(model, optimizers, form, folder / f"{case}-{form}-{at}")
            assert_alike(whole(model, optimizers), truth[at], 0)
            train(model, optimizers, at + 1, at + STEPS)
            # The same processes add up the same numbers in the same order.
            assert_alike(whole(model, optimizers), truth[at + STEPS], 0 if world == 2 else bound(case))


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


def read_full(model: nn.Module, optimizers: list[optim.Optimizer], path: Path) -> None:
    """Only the first process reads the file, the others get their part from it."""
    there: dict[str, Any] = {"model": {}, "optimizer": {}}
    if dist.get_rank() == 0:
        there = torch.load(path, weights_only=True)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    # In one call, set_state_dict, a rank that passes no model would take no part in handing it round.
    set_model_state_dict(model, there["model"], options=options)
    set_optimizer_state_dict(model, optimizers, there["optimizer"], options=options)
