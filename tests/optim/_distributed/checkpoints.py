"""Checkpoints of torch.distributed.checkpoint: written by two processes, read by two and four, sharded and whole."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
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
    Optimizers,
    alone,
    assert_alike,
    assert_parts,
    copies,
    local,
    optimizers_of,
    shard,
    train,
)
from tests.optim._distributed.training import assert_distributed
from tests.optim.problems import differences, flat, snapshot

# How two processes write: each its shards; the same with an entry for each value of a group; everything in one piece.
OPTIONS = {"sharded": StateDictOptions(), "flattened": StateDictOptions(flatten_optimizer_state_dict=True)}
FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)
# The other forms are read for these. (Not for SGD without momentum: set_optimizer_state_dict of torch 2.7 to 2.13 wants
# at least one state that is no scalar, in order to see what device states are on; torch's own SGD fails there as well.)
OTHER_FORMS = ("SGD", "Adafactor", "AdamW-groups", "AdamW-tensors", "Lamb", "Muon")

# torch's own optimizers. (tests/optim/test_initial_state.py has all of them, on one process.)
OF_TORCH: dict[str, dict[str, Any]] = {
    **{"AdamW": {"amsgrad": True}, "Adagrad": {"initial_accumulator_value": 0.5}, "Rprop": {}},
    **{"SGD": {"lr": 0.1, "momentum": 0.9}},
}
if torch.__version__.startswith("2.14"):  # its Rprop cannot step shards: see tests/optim/test_initial_state.py
    del OF_TORCH["Rprop"]
WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {"FSDP2": shard, "DDP": nn.parallel.DistributedDataParallel}

UNINTERRUPTED: dict[str, dict[int, dict[str, Tensor]]] = {}  # what this rank had in the run that saved


def initialised_by_dcp(name: str, folder: Path) -> None:
    """What DCP does to an optimizer before it looks at its state does nothing to ours, sharded or not."""
    for model in (Network(), shard(Network())):
        optimizers = optimizers_of(name, model)
        steps: list[str] = []
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(lambda *_, steps=steps: steps.append("a step"))
        before = list(map(local_snapshot, optimizers))
        for options in OPTIONS.values():
            get_optimizer_state_dict(model, optimizers, options=options)
            assert not any(map(differences, map(local_snapshot, optimizers), before))
        set_optimizer_state_dict(model, optimizers, get_optimizer_state_dict(model, optimizers))
        assert not any(map(differences, map(local_snapshot, optimizers), before))
        assert not steps and all(p.grad is None for p in model.parameters())
        train(model, optimizers, 1, 2)
        assert_parts(model, optimizers, alone(name)[2], CASES[name].bound)


def local_snapshot(optimizer: optim.Optimizer) -> dict[tuple[Any, ...], Any]:
    return {key: local(value) for key, value in snapshot(optimizer).items()}


def content(model: nn.Module, optimizers: Optimizers, form: str) -> dict[str, Any]:
    return dict(zip(("model", "optimizer"), get_state_dict(model, list(optimizers), options=OPTIONS.get(form, FULL))))


def save(name: str, folder: Path) -> None:
    """Two processes train, save on the way, and remember what they had later on."""
    model = shard(Network())
    optimizers = optimizers_of(name, model)
    taken = UNINTERRUPTED[name] = {}

    def after(step: int) -> None:
        taken[step] = copies(model, optimizers)
        for form in ("sharded", *(["flattened", "full"] if name in OTHER_FORMS else [])) if step in SAVED else ():
            there, path = content(model, optimizers, form), folder / f"{name}-{form}-{step}"
            if form != "full":
                dcp.save(there, checkpoint_id=path)
            elif dist.get_rank() == 0:
                torch.save(there, path)
        assert_alike(copies(model, optimizers), taken[step], 0)

    after(0)
    train(model, optimizers, 1, LAST, after)
    assert_parts(model, optimizers, alone(name)[LAST], CASES[name].bound)


def load(name: str, folder: Path, form: str = "sharded", saved: Sequence[int] = SAVED, steps: int = STEPS) -> None:
    """Go on in a fresh model and optimizer, built with another learning rate; on two processes also whole."""
    for at in saved:
        for model in fresh_models(Network):
            fill(model)
            optimizers = optimizers_of(name, model, other_lr=True)
            (read_full if form == "full" else read)(model, optimizers, form, folder / f"{name}-{form}-{at}")
            is_sharded = local(next(model.parameters())) is not next(model.parameters())
            for now, do in ((at, 0), (at + steps, steps)):
                train(model, optimizers, now - do + 1, now)
                assert_parts(model, optimizers, alone(name)[now], CASES[name].bound if now else 0)
                if dist.get_world_size() == 2 and is_sharded:  # the same sums in the same order
                    assert_alike(copies(model, optimizers), UNINTERRUPTED[name][now], 0)


def fresh_models(network: Callable[[], nn.Module]) -> list[nn.Module]:
    """A model in shards, and on one or two processes also a whole one. On four processes it would be the same."""
    return [shard(network()), *([network()] if dist.get_world_size() < 4 else [])]


def fill(model: nn.Module) -> None:
    """With what no checkpoint has."""
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(9.0)


def read(model: nn.Module, optimizers: Optimizers, form: str, path: Path) -> None:
    there = content(model, optimizers, form)
    dcp.load(there, checkpoint_id=path)
    states = {"model_state_dict": there["model"], "optim_state_dict": there["optimizer"]}
    set_state_dict(model, list(optimizers), **states, options=OPTIONS[form])


def read_full(model: nn.Module, optimizers: Optimizers, form: str, path: Path) -> None:
    """Only the first process reads the file, the others get their part from it."""
    there: dict[str, Any] = {"model": {}, "optimizer": {}}
    if dist.get_rank() == 0:
        there = torch.load(path, weights_only=True)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    # In one call, set_state_dict, a rank that passes no model would take no part in handing it round.
    set_model_state_dict(model, there["model"], options=options)
    set_optimizer_state_dict(model, list(optimizers), there["optimizer"], options=options)


def preinitialized(name: str, folder: Path) -> None:
    """torch's optimizer does the same with state before the first step: it trains, saves, and loads a checkpoint."""
    for form, wrap in WRAPPERS.items():
        path = folder / f"preinitialized-{name}-{form}"
        run = partial(run_of_torch, name, wrap)
        trained, early = run(False, save_to=path), run(True)
        for step in range(1, LAST + 1):
            assert_alike(early[step], trained[step], 0)
        resumed = run(True, load_from=path)
        for step in range(STEPS, LAST + 1):
            assert_alike(resumed[step], trained[step], 0)


# Checkpoints of the other class: of torch's optimizer into ours of the same name, and back.
CLASSES = {"torch": torch.optim, "optim": optim}


def made_by(package: str, name: str, model: nn.Module) -> torch.optim.Optimizer:
    optimizer: torch.optim.Optimizer = getattr(CLASSES[package], name)(model.parameters(), **OF_TORCH[name])
    return optimizer


def save_for_other_class(name: str, folder: Path) -> None:
    for package in CLASSES:
        model = shard(Network())
        optimizer = made_by(package, name, model)
        train(model, [optimizer], 1, STEPS)
        for form in ("sharded", "full"):
            there, path = content(model, [optimizer], form), folder / f"{package}-{name}-{form}"
            if form != "full":
                dcp.save(there, checkpoint_id=path)
            elif dist.get_rank() == 0:
                torch.save(there, path)


def load_of_other_class(name: str, folder: Path) -> None:
    """Sharded and full, with the hyperparameters of the class that saved. It trains on as that class does."""
    for package, form in itertools.product(CLASSES, ("sharded", "full")):
        whole = Network()
        optimizer = made_by(package, name, whole)
        train(whole, [optimizer], 1, LAST)
        expected = copies(whole, [optimizer])
        model = shard(Network())
        fill(model)
        other = made_by("optim" if package == "torch" else "torch", name, model)
        path = folder / f"{package}-{name}-{form}"
        if form == "sharded":
            there = content(model, [other], form)
            dcp.load(there, checkpoint_id=path, planner=dcp.DefaultLoadPlanner(allow_partial_load=True))
            set_model_state_dict(model, there["model"])
            set_optimizer_state_dict(model, other, there["optimizer"])
        else:
            own = get_optimizer_state_dict(model, other)
            there = {"model": {}, "optimizer": {}}
            if dist.get_rank() == 0:
                there = torch.load(path, weights_only=True)
                there["optimizer"] = with_keys_of(own, there["optimizer"])
            options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
            set_model_state_dict(model, there["model"], options=options)
            set_optimizer_state_dict(model, other, there["optimizer"], options=options)
        train(model, [other], STEPS + 1, LAST)
        assert_parts(model, [other], expected, 1e-10)


def with_keys_of(own: dict[str, Any], saved: dict[str, Any]) -> dict[str, Any]:
    """A saved state with the keys that the groups of an optimizer have: the recipe of docs/distributed.md."""
    groups = []
    for here, there in zip(own["param_groups"], saved["param_groups"]):
        groups.append({**here, **{key: value for key, value in there.items() if key in here}})
    return {**saved, "param_groups": groups}


def run_of_torch(
    name: str,
    wrap: Callable[[nn.Module], nn.Module],
    is_early: bool,
    save_to: Path | None = None,
    load_from: Path | None = None,
) -> dict[int, dict[str, Tensor]]:
    """What this rank has after each step. A run is saved after `STEPS` steps, or continues from there."""
    model = wrap(Network())
    optimizer = getattr(torch.optim, name)(model.parameters(), **OF_TORCH[name])
    if is_early:
        optim.preinitialize(optimizer)
        assert len(optimizer.state) == len(flat(optimizer))
        if wrap is shard:
            assert_distributed([optimizer])
    first, taken = 1, {}
    if load_from:
        fill(model)
        read(model, [optimizer], "sharded", load_from)
        first, taken[STEPS] = STEPS + 1, copies(model, [optimizer])
    for step in range(first, LAST + 1):
        train(model, [optimizer], step, step)
        taken[step] = copies(model, [optimizer])
        if save_to and step == STEPS:
            dcp.save(content(model, [optimizer], "sharded"), checkpoint_id=save_to)
    return taken
