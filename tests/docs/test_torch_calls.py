"""The table of docs/choosing.md on schedulers: the calls of each row give the same learning rates."""

import re

import pytest
import torch

import optim.lr_scheduler
import timesched
from tests.building import run, sgd, values
from tests.docs.tables import rows

HEADER = ["`torch.optim.lr_scheduler`", "`optim.lr_scheduler`", "`timesched`, with `bind`"]
((*TABLE,),) = rows("choosing.md", HEADER)
CALL = re.compile(r"`((?:\w+\(|\[|lambda ).*?)`(?: to step (\d+))?")
STEPS = 20


def calls(cell):
    """The code of a cell, and the last step up to which it counts."""
    found = CALL.match(cell)
    return (found[1], int(found[2] or STEPS)) if found else (None, STEPS)


def rates(optimizer, scheduler, last, clock=None):
    """The learning rates of the steps 0 to `last`."""
    return [*values(optimizer), *run(last, clock, optimizer, scheduler)]


def torchs_rates(code, last):
    o = sgd(lr=0.1)
    return rates(o, eval(code, {**vars(torch.optim.lr_scheduler), "o": o}), last)


# SequentialLR of torch 2.7 calls what torch itself has deprecated.
@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step:UserWarning")
@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0].strip("`").partition("(")[0])
def test_the_calls_of_a_row_agree(row):
    (theirs, one), (values, two), (schedule, three) = map(calls, row)
    for code, last in ((values, min(one, two)), (schedule, min(one, three))):
        if code is None:
            continue
        expected, o, clock = torchs_rates(theirs, last), sgd(lr=0.1), None
        if code is values:
            scheduler = eval(code, {**vars(optim.lr_scheduler), "o": o})
        else:
            clock = timesched.Clock("100ba")
            scheduler = timesched.bind(eval(code, dict(vars(timesched))), o, clock)
        assert rates(o, scheduler, last, clock) == pytest.approx(expected, rel=1e-12, abs=1e-16)


def test_every_scheduler_of_torch_has_a_row():
    """The cells without a call are few, so that one which the pattern does not recognize is noticed."""
    named = [re.match(r"`(\w+)\(", row[0])[1] for row in TABLE]
    assert sorted(named) == sorted(set(torch.optim.lr_scheduler.__all__) - {"LRScheduler"})
    empty = {(name, at) for name, row in zip(named, TABLE) for at in (1, 2) if calls(row[at])[0] is None}
    assert empty == {("LambdaLR", 1), ("OneCycleLR", 2), ("ReduceLROnPlateau", 1), ("ReduceLROnPlateau", 2)}
