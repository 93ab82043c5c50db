"""Hyperparameters that change in a run: by hand, as tensors, by torch's schedulers and by timesched's."""

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

import optim
from tests.optim.problems import assert_close, flat, ours, parameters, run, theirs
from tests.optim.rows import FULLEST, Row, tensor

BY_NAME = pytest.mark.parametrize("row", FULLEST, ids=lambda row: row.name)
STEPS = 6


def made(row, **changes):
    """The optimizer of a row with exactly these objects as hyperparameters."""
    return getattr(optim, row.name)(parameters(row.name), **{**row.kwargs, **changes})


def step_all(optimizers, first, last):
    for each in optimizers:
        run(each, flat(each), first, last)


def assert_equal(one, other, bound):
    for p, q in zip(flat(one), flat(other)):
        assert_close(p, q, bound)


@BY_NAME
def test_numbers_of_other_kinds(row):
    """torch.tensor(0.02) is good to single precision, also for float64 parameters; numpy's are what floats are."""
    for lr, bound in ((torch.tensor(0.02), 1e-6), (np.float64(0.02), 0.0)):
        mine, plain = made(row, lr=lr), made(row, lr=0.02)
        step_all((mine, plain), 1, STEPS)
        assert_equal(mine, plain, bound)
        assert {p.dtype for p in flat(mine)} == {torch.float64}


# What else may be scheduled, besides the learning rate.
SCHEDULED = {
    **dict.fromkeys([row.name for row in FULLEST], ("weight_decay",)),
    **dict.fromkeys(["NAdam", "AdamW", "Lion", "Lamb", "Adamax", "RAdam"], ("weight_decay", "betas")),
    "Adam": ("weight_decay", "betas", "eps"),
    "Rprop": (),
    "Adagrad": ("weight_decay", "lr_decay"),
    "RMSprop": ("weight_decay", "alpha", "momentum"),
    "SGD": ("weight_decay", "momentum"),
    "ASGD": ("weight_decay", "lambd"),
}


def as_tensors(value):
    return tuple(map(tensor, value)) if isinstance(value, tuple) else tensor(value)


def put(group, key, new):
    """As a scheduler does it: into the tensor that is there, or in the place of the number."""
    old = group[key]
    if isinstance(old, tuple) and isinstance(old[0], torch.Tensor):
        for each, value in zip(old, new):
            each.fill_(value)
    elif isinstance(old, torch.Tensor):
        old.fill_(new)
    else:
        group[key] = new


@BY_NAME
@pytest.mark.parametrize("kind", ["floats", "tensors"])
def test_changing_hyperparameters_equals_torch(row, kind):
    """All that may be scheduled, changed at every step, against torch's optimizer with the same changes."""
    start = {key: row.arguments[key] for key in ("lr", *SCHEDULED[row.name])}
    given = start if kind == "floats" else {key: as_tensors(value) for key, value in start.items()}
    mine, other = made(row, **given), theirs(row, parameters(row.name))
    assert mine.param_groups[0]["lr"] is given["lr"]  # whoever holds the tensor schedules it
    for step in range(1, STEPS + 1):
        factor = 1 - 0.1 * (step % 4)
        for key, first in start.items():
            new = tuple(x * factor for x in first) if isinstance(first, tuple) else first * factor
            other.param_groups[0][key] = new
            put(mine.param_groups[0], key, new)
        step_all((mine, other), step, step)
    assert_equal(mine, other, 1e-12)


CYCLED = ("SGD", "Adam")  # have a momentum that OneCycleLR moves


@BY_NAME
def test_torch_schedulers(row):
    row = Row(row.name, row.label, {**row.kwargs, "lr": 0.04})  # and without relative steps
    for new, metric in (
        (lambda one: lr_scheduler.LambdaLR(one, lambda epoch: 1 / (1 + epoch)), []),
        (lambda one: lr_scheduler.ReduceLROnPlateau(one, patience=0), [1.0]),
        *([(lambda one: lr_scheduler.OneCycleLR(one, max_lr=0.1, total_steps=20), [])] if row.name in CYCLED else []),
    ):
        both = ours(row, parameters(row.name)), theirs(row, parameters(row.name))
        schedulers = [new(one) for one in both]
        for step in range(1, STEPS + 1):
            step_all(both, step, step)
            for schedule in schedulers:
                schedule.step(*metric)
            assert both[0].param_groups[0]["lr"] == both[1].param_groups[0]["lr"]
        assert_equal(*both, 1e-12)
