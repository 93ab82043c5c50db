"""Hyperparameters that change in a run: by hand, as tensors, by torch's schedulers and by timesched's."""

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

import optim
import timesched
from tests.optim.problems import (
    assert_close,
    differences,
    flat,
    give_gradients,
    is_rough,
    ours,
    parameters,
    run,
    snapshot,
    theirs,
)
from tests.optim.rows import FULLEST, Row, tensor

BY_NAME = pytest.mark.parametrize("row", FULLEST, ids=lambda row: row.name)
STEPS = 6


def rates(step):
    return 0.05 * (1 + step % 3)


def with_lr(row, lr):
    """The row with another learning rate (and without relative steps)."""
    return Row(row.name, row.label, {**row.kwargs, "lr": lr})


@BY_NAME
def test_a_tensor_lr_updated_in_place_equals_a_float(row):
    """In float64 the numbers are the same, wherever they are stored."""
    lr = tensor(0.01)
    params, twins = parameters(row.name), parameters(row.name)
    kwargs = {**row.kwargs, "lr": lr}
    mine, plain = getattr(optim, row.name)(params, **kwargs), ours(with_lr(row, 0.01), twins)
    assert mine.param_groups[0]["lr"] is lr  # whoever holds the tensor schedules it
    for step in range(1, STEPS + 1):
        lr.fill_(rates(step))
        plain.param_groups[0]["lr"] = rates(step)
        for one in (mine, plain):
            run(one, flat(one), step, step)
    for p, q in zip(params, twins):
        assert_close(p, q, 1e-12)
    assert mine.param_groups[0]["lr"] is lr and lr == rates(STEPS)


@BY_NAME
def test_a_float32_tensor_lr(row):
    """What a user writes as torch.tensor(0.01): good to single precision, also for float64 parameters."""
    params, twins = parameters(row.name), parameters(row.name)
    mine = getattr(optim, row.name)(params, **{**row.kwargs, "lr": torch.tensor(0.01)})
    plain = ours(with_lr(row, 0.01), twins)
    for one in (mine, plain):
        run(one, flat(one), 1, STEPS)
    for p, q in zip(params, twins):
        assert_close(p, q, 1e-6)
        assert p.dtype == torch.float64


SCHEDULED = {
    **{row.name: ["lr", "weight_decay"] for row in FULLEST},
    "Rprop": ["lr"],
    "Adagrad": ["lr", "weight_decay", "lr_decay"],
    "RMSprop": ["lr", "weight_decay", "alpha", "momentum"],
    "SGD": ["lr", "weight_decay", "momentum"],
    "ASGD": ["lr", "weight_decay", "lambd"],
    "NAdam": ["lr", "weight_decay", "betas"],
    "Adam": ["lr", "weight_decay", "betas", "eps"],
    "AdamW": ["lr", "weight_decay", "betas"],
    "Lion": ["lr", "weight_decay", "betas"],
    "Lamb": ["lr", "weight_decay", "betas"],
    "Adamax": ["lr", "weight_decay", "betas"],
    "RAdam": ["lr", "weight_decay", "betas"],
}


@BY_NAME
@pytest.mark.parametrize("kind", ["floats", "tensors"])
def test_changing_hyperparameters_equals_torch(row, kind):
    """All that may be scheduled, changed at every step, against the twin with the same changes."""
    start = {key: row.arguments[key] for key in SCHEDULED[row.name]}
    if kind == "tensors":
        start = {key: tuple(map(tensor, v)) if isinstance(v, tuple) else tensor(v) for key, v in start.items()}
    params, twins = parameters(row.name), parameters(row.name)
    mine = getattr(optim, row.name)(params, **{**row.kwargs, **start})
    other = theirs(row, twins)
    for step in range(1, STEPS + 1):
        factor = 1 - 0.1 * (step % 4)
        for key in start:
            new = row.arguments[key]
            new = tuple(x * factor for x in new) if isinstance(new, tuple) else new * factor
            other.param_groups[0][key] = new
            put(mine.param_groups[0], key, new)
        for one in (mine, other):
            run(one, flat(one), step, step)
    if is_rough(row):
        return
    for p, q in zip(params, twins):
        assert_close(p, q, 1e-12)


def put(group, key, new):
    """As a scheduler does it: into the tensor that is there, or in the place of the number."""
    if isinstance(new, tuple) and isinstance(group[key][0], torch.Tensor):
        for old, value in zip(group[key], new):
            old.fill_(value)
    elif isinstance(group[key], torch.Tensor):
        group[key].fill_(new)
    else:
        group[key] = new


TORCH_SCHEDULERS = {
    "StepLR": lambda one: lr_scheduler.StepLR(one, step_size=2, gamma=0.5),
    "LambdaLR": lambda one: lr_scheduler.LambdaLR(one, lambda step: 1 / (1 + step)),
    "CosineAnnealingLR": lambda one: lr_scheduler.CosineAnnealingLR(one, T_max=10),
    "LinearLR": lambda one: lr_scheduler.LinearLR(one, total_iters=4),
    "OneCycleLR": lambda one: lr_scheduler.OneCycleLR(one, max_lr=0.1, total_steps=20, cycle_momentum=False),
    "ReduceLROnPlateau": lambda one: lr_scheduler.ReduceLROnPlateau(one, patience=0),
}


@BY_NAME
@pytest.mark.parametrize("scheduler", TORCH_SCHEDULERS)
def test_torch_schedulers(row, scheduler):
    params, twins = parameters(row.name), parameters(row.name)
    row = with_lr(row, 0.04)
    mine, other = ours(row, params), theirs(row, twins)
    schedulers = [TORCH_SCHEDULERS[scheduler](one) for one in (mine, other)]
    for step in range(1, STEPS + 1):
        for one, schedule in zip((mine, other), schedulers):
            run(one, flat(one), step, step)
            schedule.step(*([1.0] if scheduler == "ReduceLROnPlateau" else []))
        assert mine.param_groups[0]["lr"] == other.param_groups[0]["lr"]
    if not is_rough(row):
        for p, q in zip(params, twins):
            assert_close(p, q, 1e-12)


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_one_cycle_moves_the_momentum_too(name):
    row = next(row for row in FULLEST if row.name == name)
    params, twins = parameters(name), parameters(name)
    for one in (mine := ours(row, params), other := theirs(row, twins)):
        schedule = lr_scheduler.OneCycleLR(one, max_lr=0.1, total_steps=20)
        for step in range(1, STEPS + 1):
            run(one, flat(one), step, step)
            schedule.step()
    for p, q in zip(flat(mine), flat(other)):
        assert_close(p, q, 1e-12)


@BY_NAME
@pytest.mark.parametrize("kind", ["float", "tensor"])
def test_timesched_drives_it(row, kind):
    params = parameters(row.name)
    optimizer = getattr(optim, row.name)(params, **{**row.kwargs, "lr": 0.04 if kind == "float" else tensor(0.04)})
    clock = timesched.Clock("8ba")
    schedulers = [timesched.bind(timesched.LinearScheduler(), optimizer, clock)]
    if "weight_decay" in optimizer.param_groups[0]:
        decay = timesched.ConstantScheduler(0.5)
        schedulers.append(timesched.bind(decay, optimizer, clock, key="weight_decay"))
    used = []
    while not clock.done:
        used.append(float(optimizer.param_groups[0]["lr"]))
        give_gradients(params, clock.timestamp.batch.value + 1)
        optimizer.step()
        clock.tick()
        for scheduler in schedulers:
            scheduler.step()
    assert used == pytest.approx([0.04 * (1 - k / 8) for k in range(8)], rel=1e-15)


@BY_NAME
def test_numpy_numbers(row):
    """As a configuration or an array of schedules has them."""
    kwargs = {key: np.float64(v) if isinstance(v, float) else v for key, v in {**row.kwargs, "lr": 0.02}.items()}
    params, twins = parameters(row.name), parameters(row.name)
    mine, plain = getattr(optim, row.name)(params, **kwargs), ours(with_lr(row, 0.02), twins)
    for one in (mine, plain):
        run(one, flat(one), 1, 3)
    kept = {key: value for key, value in snapshot(plain).items() if key[0] in ("param", "state")}
    assert not differences(kept, {k: v for k, v in snapshot(mine).items() if k in kept})
