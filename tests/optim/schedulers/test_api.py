"""Names, signatures, docstrings, and the methods that the reference and torch have."""

import inspect

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import LRScheduler as TorchScheduler

from optim import lr_scheduler, scheduler, weight_decay_scheduler
from tests.docs.tables import extension
from tests.optim.schedulers.building import (
    KIND,
    RATES,
    class_of,
    count,
    floats,
    make,
    name_of,
    optimizer,
    rates,
    value,
)
from tests.optim.schedulers.rows import COSINE, EXAMPLES, SIGNATURES, WARMUP

MODULES = {"lr": lr_scheduler, "wd": weight_decay_scheduler}
BASES = {"lr": lr_scheduler.LRScheduler, "wd": weight_decay_scheduler.WeightDecayScheduler}
joined, entries = extension("common_arguments").joined, extension("common_arguments").entries
BASE_DOC = inspect.getdoc(scheduler.Scheduler).splitlines()
FAMILY = pytest.mark.parametrize("family", MODULES)


@FAMILY
@pytest.mark.parametrize("signature", SIGNATURES)
def test_signatures_names_and_bases(signature, family):
    stem, rest = signature.rstrip(")").split("(")
    expected = [each.partition("=")[::2] for each in rest.split(", ")]
    if family == "lr":
        expected = [(RATES.get(name, name), default) for name, default in expected]
    cls = class_of(stem, family)
    *shown, tags, clock, on_change = inspect.signature(cls).parameters.values()
    if stem != "Chained":
        assert shown.pop(0).name == "optimizer"
    # before the three that all have, which are keyword-only, so that calls by position work
    assert [each.kind for each in shown] == [inspect.Parameter.POSITIONAL_OR_KEYWORD] * len(shown)
    found = [(each.name, "" if each.default is each.empty else repr(each.default)) for each in shown]
    assert found == [(name, default) for name, default in expected]
    common = {each.name: each.default for each in (tags, clock, on_change) if each.kind is each.KEYWORD_ONLY}
    assert common == {"param_group_tags": None, "clock": None, "on_change": "same"}
    assert cls.__name__ == name_of(stem, family) and cls.__module__ == MODULES[family].__name__
    assert issubclass(cls, BASES[family]) and issubclass(cls, (scheduler.Scheduler, TorchScheduler))
    assert stem in EXAMPLES and len(SIGNATURES) == len(EXAMPLES)


@pytest.mark.parametrize("stem", EXAMPLES)
def test_docstrings(stem):
    """The site shows every argument; the common ones it takes from the base, as the docstring of the class says."""
    parameters, own = list(inspect.signature(class_of(stem)).parameters), inspect.getdoc(class_of(stem)).splitlines()
    shown, example = joined(own, BASE_DOC, parameters), ">>> import torch"
    assert list(entries(shown, "Args:")) == parameters and "clock" not in entries(own, "Args:")
    assert list(entries(shown, "Raises:")) == ["ValueError", "TypeError"]
    for error, conditions in entries(own, "Raises:").items():  # its own stand first
        assert " ".join(entries(shown, "Raises:")[error]).startswith(" ".join(conditions).rstrip(".") + "; ")
    assert shown[shown.index(example) :] == own[own.index(example) :]
    assert f"`{name_of(stem, 'lr')}`" in class_of(stem, "wd").__doc__


@KIND
def test_the_methods_of_the_reference(kind):
    """get_lr: what is to be written at this step; get_last_lr: what is written; both one entry a group."""
    on = optimizer(kind, {"tags": "a"}, {"tags": "b"})
    one = make(*COSINE, on, param_group_tags="a")
    values = one.values(5)
    assert floats(one.get_lr()) == [values[0], 0.5] == floats(one.get_last_lr()) == floats(one._last_lr)
    last, now = one.get_last_lr(), one.last_epoch
    one.increment_last_epoch()
    assert count(one) == 1 and floats(one.get_lr()) == [values[1], 0.5]
    assert value(one) == values[0] and floats(one.get_last_lr()) == [values[0], 0.5]  # nothing written yet
    one.update_groups(one.get_lr())
    one.update_last_lr()
    assert value(one) == values[1] and floats(one.get_last_lr()) == [values[1], 0.5] == floats(one.get_last_value())
    one.step()
    one.update_last_value()
    now += 100  # what was returned is not what is held
    assert count(one) == 2 and rates(on) == [values[2], 0.5] and value(one) == float(one._get_closed_form_lr())
    assert floats(last) == [values[0], 0.5] and one.values(5) == values
    one = make(*COSINE, optimizer(kind), "wd")
    for held in (one.get_wd(), one.get(), one.get_last_wd(), one.get_last_value(), [one._get_closed_form_wd()]):
        assert floats(held) == [value(one)] == one.values(1)


@KIND
def test_last_epoch_can_be_set(kind):
    """As an argument it is the index of the last step, as with torch: the first value is that of the one after it."""
    on = optimizer(kind)
    for last in (-1, 0, np.int64(9)):
        one = lr_scheduler.SequentialLR(on, [make(*COSINE, on)], [], last)
        assert count(one) == last + 1 and value(one) == one.values(11)[last + 1]
    for t in (7, torch.tensor(3), 0, np.int32(2), torch.tensor(2, dtype=torch.int32)):
        one.last_epoch = t
        assert count(one) == int(t)
        one.step()
        assert value(one) == one.values(9)[int(t) + 1]


NO_COUNTS = [-5, 2.0, np.float64(1), 2**63 - 1, "3", True, None]
NO_COUNTS += map(torch.tensor, (2.5, True, -3, 2**63 - 1, 1j, [1, 2]))


@pytest.mark.parametrize("wrong", NO_COUNTS, ids=repr)
def test_what_is_no_count(wrong):
    on = optimizer()
    one = make(*WARMUP, on)
    with pytest.raises(ValueError, match=r"last_epoch=.*a whole number from 0 to"):
        one.last_epoch = wrong
    with pytest.raises(ValueError, match=r"last_epoch=.*a whole number from -1 to"):
        lr_scheduler.SequentialLR(on, [one], [], last_epoch=wrong)
    assert count(one) == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda one: one.step(3), "last_epoch"),
        (lambda one: one.update_groups([0.1]), r"values=\[0\.1\]: there are 2 parameter groups"),
        (lambda one: one.update_groups([0.1, float("nan")]), "nan"),
        (lambda one: one.update_groups([0.1, "x"]), "'x'"),
        (lambda one: one.update_groups([0.1, None]), "None"),
    ],
)
@KIND
def test_calls_that_change_nothing(kind, call, words):
    one = make(*COSINE, optimizer(kind, {}, {}))
    with pytest.raises(ValueError, match=words):
        call(one)
    assert count(one) == 0 and value(one) == value(one, 1) == one.values(1)[0]
