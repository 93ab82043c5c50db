"""Learning rates of other kinds, and under torch's schedulers; changes by hand: test_parity.py."""

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

import optim
from tests.optim.problems import assert_close, assert_same_steps, flat, ours, parameters, run, theirs
from tests.optim.rows import FULLEST, Row

BY_NAME = pytest.mark.parametrize("row", FULLEST, ids=lambda row: row.name)
STEPS = 6


@BY_NAME
def test_numbers_of_other_kinds(row):
    """torch.tensor(0.02) is good to single precision, also for float64 parameters; numpy's are what floats are."""
    for lr, bound in ((torch.tensor(0.02), 1e-6), (np.float64(0.02), 0.0)):
        cls = getattr(optim, row.name)
        mine, plain = (cls(parameters(row.name), **{**row.kwargs, "lr": each}) for each in (lr, 0.02))
        for each in (mine, plain):
            run(each, flat(each), 1, STEPS)
        for p, q in zip(flat(mine), flat(plain)):
            assert_close(p, q, bound)
            assert p.dtype == torch.float64


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
            for each, schedule in zip(both, schedulers):
                run(each, flat(each), step, step)
                schedule.step(*metric)
            assert both[0].param_groups[0]["lr"] == both[1].param_groups[0]["lr"]
        assert_same_steps(row, *both)
