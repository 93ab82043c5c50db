"""The tables of docs/coming_from/torch.md on schedulers: the calls of each row give the same learning rates.

Also what a call of torch's means here, and which arguments only one of the two has.
"""

import inspect
import re
import warnings

import pytest
import torch

import optim.lr_scheduler
import timesched
from tests.building import run, sgd, values
from tests.docs.tables import rows

PAGE = "coming_from/torch.md"
HEADER = ["`torch.optim.lr_scheduler`", "`optim.lr_scheduler`", "`timesched`, with `bind`"]
((*TABLE,),) = rows(PAGE, HEADER)
SAME = ["the same call, `o` with `lr=0.1`", "torch: learning rates at steps 0, 4 and 8", "`optim.lr_scheduler`"]
((*SAME_CALLS,),) = rows(PAGE, SAME)
DIFFERING = ["scheduler", "`torch.optim.lr_scheduler`", "`optim.lr_scheduler`"]
((*ARGUMENTS,),) = rows(PAGE, DIFFERING)
ERRORS = (  # calls of torch's that are an error here: the classes that have no row of SAME_CALLS
    "LambdaLR(o, lambda t: 0.9 ** t)",
    "MultiplicativeLR(o, lambda t: 0.9)",
    "StepLR(o, 3, 0.5)",
    "MultiStepLR(o, [2, 5], 0.5)",
    "ExponentialLR(o, 0.9)",
    "PolynomialLR(o, 8, 2.0)",
    "CosineAnnealingLR(o, 8, 0.01)",
)
CALL = re.compile(r"`((?:\w+\(|\[|lambda ).*?)`(?: to step (\d+))?")
STEPS = 20
OF_ALL = {"optimizer", "last_epoch", "param_group_tags", "clock", "on_change"}  # arguments that no row lists


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


def outcome(module, code):
    """What a cell says of a call: the rates of the steps 0, 4 and 8, or the error, or also a warning."""
    o = sgd(lr=0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            scheduler = eval(code, {**vars(module), "o": o})
        except (TypeError, ValueError):
            return "an error"
    warned = ", with a warning" * any("in a different order from torch's" in str(each.message) for each in caught)
    return f"`{', '.join(str(round(rate, 4)) for rate in rates(o, scheduler, 8)[::4])}`{warned}"


@pytest.mark.parametrize("row", SAME_CALLS, ids=lambda row: row[0].strip("`").partition("(")[0])
def test_what_the_same_call_means(row):
    code = row[0].strip("`")
    assert row == [row[0], outcome(torch.optim.lr_scheduler, code), outcome(optim.lr_scheduler, code)]


@pytest.mark.parametrize("code", ERRORS)
def test_the_calls_without_a_row_are_errors(code):
    assert outcome(torch.optim.lr_scheduler, code) != "an error" == outcome(optim.lr_scheduler, code)


def test_the_arguments_of_schedulers_that_differ_are_listed():
    """Of each class that both have, but for those made of other schedulers; with a default, where both have one."""
    both = {name for name in torch.optim.lr_scheduler.__all__ if hasattr(optim.lr_scheduler, name)}
    both -= {"LRScheduler", "SequentialLR", "ChainedScheduler"}
    assert {name.strip("`") for name, *_ in ARGUMENTS} == both
    assert {re.match(r"`?(\w+)", call)[1] for call in (*(row[0] for row in SAME_CALLS), *ERRORS)} == both
    for name, torchs, ours in ARGUMENTS:
        of_torch = arguments(getattr(torch.optim.lr_scheduler, name.strip("`")))
        of_ours = arguments(getattr(optim.lr_scheduler, name.strip("`")))
        assert (torchs, ours) == (differing(of_torch, of_ours), differing(of_ours, of_torch))


def arguments(cls):
    found = inspect.signature(cls).parameters
    return {key: found[key].default for key in found if key not in OF_ALL}


def differing(of_one, of_other):
    """The cell of one of the two: its arguments that the other lacks, or of which it has another default."""
    cells = []
    for key, default in of_one.items():
        if key not in of_other or (default is inspect.Parameter.empty and of_other[key] is not default):
            cells.append(f"`{key}`")
        elif default != of_other[key]:
            cells.append(f"`{key}={default!r}`")
    return ", ".join(cells)
