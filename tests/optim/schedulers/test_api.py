"""Names, signatures, docstrings, and the methods that the reference and torch have."""

import inspect
import math
import re
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import LRScheduler as TorchScheduler

from optim import lr_scheduler, scheduler, weight_decay_scheduler
from tests.optim.schedulers.building import (
    KEYS,
    KIND,
    RATES,
    class_of,
    count,
    floats,
    make,
    name_of,
    optimizer,
    rates,
    stepped,
    value,
)
from tests.optim.schedulers.rows import BY_STEM, CASES, COSINE, IDS, WARMUP
from tests.optim.schedulers.signatures import LR, WD

FAMILY = {"lr": LR, "wd": WD, "generic": WD}
CLASSES = [(stem, family) for family in FAMILY for stem in WD]
EACH = pytest.mark.parametrize(("stem", "family"), CLASSES, ids=[name_of(*each) for each in CLASSES])
MODULES = {"lr": lr_scheduler, "wd": weight_decay_scheduler, "generic": scheduler}
BASES = {
    "lr": lr_scheduler.LRScheduler,
    "wd": weight_decay_scheduler.WeightDecayScheduler,
    "generic": scheduler.Scheduler,
}


def public(stem, family):
    """The class under its public name, not a subclass with a key."""
    cls = class_of(stem, family)
    return cls.__mro__[1] if family == "generic" else cls


@EACH
def test_signatures(stem, family):
    cls = public(stem, family)
    parameters = inspect.signature(cls).parameters
    expected = {**FAMILY[family][stem], "param_group_tags": "None", "clock": "None", "on_change": "'same'"}
    if stem != "Chained":
        expected = {"optimizer": "", **expected}
    assert list(parameters) == list(expected)
    for name, default in expected.items():
        own = parameters[name]
        assert own.kind in (own.POSITIONAL_OR_KEYWORD, own.KEYWORD_ONLY)
        if name not in ("param_group_tags", "clock", "on_change"):
            assert own.kind is own.POSITIONAL_OR_KEYWORD  # so that calls by position work
        assert (own.default is own.empty) == (default == ""), name
        if default:
            assert own.default == eval(default), name
            assert isinstance(own.default, bool) == isinstance(eval(default), bool), name


COMPUTED = set(WD) - {"Sequential", "Chained", "ScalePerParam"}  # by a formula, which a decorator names


@EACH
def test_names_and_bases(stem, family):
    cls = public(stem, family)
    module = MODULES[family]
    assert cls.__name__ == name_of(stem, family) and getattr(module, cls.__name__) is cls
    assert cls.__module__ == module.__name__ and cls.__qualname__ == cls.__name__
    assert issubclass(cls, BASES[family]) and issubclass(cls, scheduler.Scheduler) and issubclass(cls, TorchScheduler)
    if family == "wd":
        assert issubclass(cls, public(stem, "generic"))
    assert f"class {cls.__name__}(" in inspect.getsource(cls).splitlines()[stem in COMPUTED and family != "wd"]


@pytest.mark.parametrize("stem", LR)
def test_docstrings_of_learning_rates(stem):
    """The same headings in the same order, and every argument, as the signature has them."""
    cls = class_of(stem)
    doc = inspect.getdoc(cls)
    assert doc.splitlines()[0].endswith(".") or doc.split("\n\n")[0].endswith(".")
    headings = re.findall(r"^(Formula:|Args:|Raises:|>>> import torch|Source: )", doc, re.M)
    assert headings[:4] == ["Formula:", "Args:", "Raises:", ">>> import torch"]
    assert headings[4:] == ([] if stem in ("Constant", "Sequential", "ScalePerParam") else ["Source: "])
    listed = re.findall(r"^    (\w+): ", doc[doc.index("Args:") : doc.index("Raises:")], re.M)
    assert listed == list(inspect.signature(cls).parameters)
    for other in set(RATES) - {"val"}:
        assert not re.search(rf"\b{other}\b", doc), other  # in the words of its family


@pytest.mark.parametrize("stem", WD)
@pytest.mark.parametrize("family", ["wd", "generic"])
def test_docstrings_of_other_values_lead_to_those_of_learning_rates(stem, family):
    cls = public(stem, family)
    assert f"`{name_of(stem, 'lr')}`" in cls.__doc__ and cls.__doc__.rstrip().endswith(".")
    assert inspect.getdoc(MODULES[family]).count(">>>") > 1


def formula_of(cls, names, t):
    """The value at step `t` by the formula in a docstring, whose symbols are `names`."""
    lines = inspect.getdoc(cls).split("Formula:\n")[1].split("\n\n")[0]
    known = {"max": max, "min": min, "sum": sum, "range": range, "next": next, "pairwise": pairwise}
    known |= {name: getattr(math, name) for name in ("ceil", "cos", "floor", "pi", "prod", "sqrt")}
    symbols = {"__builtins__": {}, **known, **names, "t": t}
    exec(inspect.cleandoc("\n" + lines), symbols)
    return symbols["lr"]


@pytest.mark.parametrize(("row", "arguments"), CASES, ids=IDS)
def test_the_formula_in_the_docstring(row, arguments):
    """Evaluated as it is printed, it gives the values."""
    one = make(row.stem, arguments, optimizer())
    names = {name: getattr(one, name) for name in one.arguments}
    values = one.values(70)
    if row.stem in ("Sequential", "Chained"):
        names["schedulers"] = [each.values(70).__getitem__ for each in one.schedulers]
    if row.stem == "ScalePerParam":
        names |= {"scheduler": one.scheduler.values(70).__getitem__, "factor": 1.0}
    if row.stem == "Lambda":
        names["functions"] = arguments.get("functions", (lambda t: t / 30, lambda t: 0.95**t))
    first = 0
    if row.stem == "OneCycle" and one.pct_start * one.total_steps == 1:
        first = 1  # step 0 is all of the way up: the docstring says what there is
        assert values[0] == one.initial_learning_rate
    for t in range(first, 70):
        expected = pytest.approx(values[t], rel=1e-13, abs=1e-17)
        assert formula_of(class_of(row.stem), names, t) == expected, t


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)
def test_what_is_public(module):
    """All classes that the module defines, sorted; and nothing else."""
    own = {name for name, cls in vars(module).items() if inspect.isclass(cls) and cls.__module__ == module.__name__}
    also = {lr_scheduler: {"ChainedScheduler"}, scheduler: {"Scheduler"}}.get(module, set())
    assert module.__all__ == sorted(own | also)
    assert lr_scheduler.ChainedScheduler is lr_scheduler.ChainedLR


def test_the_base_classes_have_docstrings_and_the_methods_too():
    for cls in BASES.values():
        assert inspect.getdoc(cls)
        for name, member in vars(cls).items():
            if not name.startswith("_") and callable(member):
                assert inspect.getdoc(member), (cls, name)


@EACH
def test_torch_and_its_users_take_it_for_theirs(stem, family):
    one = make(stem, BY_STEM[stem].examples[0], optimizer(), family)
    assert isinstance(one, TorchScheduler) and isinstance(one, torch.optim.lr_scheduler._LRScheduler | TorchScheduler)
    assert one.get_last_lr() == [value(one)] == one._last_lr and one.param_group_key == KEYS[family]


@KIND
def test_the_methods_of_the_reference(kind):
    """get_lr: what is to be written at this step; get_last_lr: what is written; both one entry a group."""
    on = optimizer(kind, {"tags": "a"}, {"tags": "b"})
    one = make(*COSINE, on, param_group_tags="a")
    values = one.values(5)
    assert floats(one.get_lr()) == [values[0], 0.5] == floats(one.get_last_lr())
    one.increment_last_epoch()
    assert count(one) == 1 and floats(one.get_lr()) == [values[1], 0.5]
    assert value(one) == values[0] and floats(one.get_last_lr()) == [values[0], 0.5]  # nothing written yet
    one.update_groups(one.get_lr())
    one.update_last_lr()
    assert value(one) == values[1] and floats(one.get_last_lr()) == [values[1], 0.5] == floats(one.get_last_value())
    assert value(one, 1) == 0.5
    assert floats(one.get()) == floats(one.get_lr())
    one.step()
    assert count(one) == 2 and value(one) == values[2] == float(one._get_closed_form_lr())
    one.update_last_value()
    assert one.values(5) == values


def test_the_methods_of_weight_decay():
    one = make(*COSINE, optimizer(), "wd")
    assert one.get_wd() == one.get() == [value(one)] == one.get_last_wd() == one.get_last_value()
    assert float(one._get_closed_form_wd()) == one.values(1)[0]
    one.step()
    assert one.get_last_wd() == one.values(2)[1:]


@KIND
def test_what_is_returned_is_not_what_is_held(kind):
    """A list of last values does not move with later steps, nor do the counts."""
    one = make(*COSINE, optimizer(kind))
    last, now = one.get_last_lr(), one.last_epoch
    stepped(one, 5)
    assert floats(last) == one.values(1) and int(now) == 0 and count(one) == 4
    now += 100
    assert count(one) == 4


@KIND
def test_last_epoch_can_be_set(kind):
    one = make(*COSINE, optimizer(kind))
    for t in (7, torch.tensor(3), 0, np.int32(2), torch.tensor(2, dtype=torch.int32)):
        one.last_epoch = t
        assert count(one) == int(t)
        one.step()
        assert value(one) == one.values(9)[int(t) + 1]


NO_COUNTS = [-5, 2.7, 2.0, np.float64(1), 2**63 - 1, 2**70, "3", True]
NO_COUNTS += map(torch.tensor, (2.5, True, -3, 2**63 - 1, 1j, [1, 2]))


@KIND
@pytest.mark.parametrize("wrong", NO_COUNTS, ids=repr)
def test_what_is_no_count(wrong, kind):
    one = make(*WARMUP, optimizer(kind))
    with pytest.raises(ValueError, match=r"last_epoch=.*a whole number, from 0"):
        one.last_epoch = wrong
    assert count(one) == 0


@KIND
@pytest.mark.parametrize("last_epoch", [-1, 0, np.int64(9)])
def test_the_argument_last_epoch(kind, last_epoch):
    """As with torch: the index of the last step, so the first value is that of the one after it."""
    on = optimizer(kind)
    children = [make(*nested, on) for nested in (WARMUP, COSINE)]
    one = lr_scheduler.SequentialLR(on, children, [5], last_epoch)
    assert count(one) == last_epoch + 1 and value(one) == one.values(11)[last_epoch + 1]


@pytest.mark.parametrize("last_epoch", [-2, 1.5, None, float("nan"), *NO_COUNTS], ids=repr)
def test_what_is_no_last_epoch(last_epoch):
    on = optimizer()
    with pytest.raises(ValueError, match=r"last_epoch=.*or -1, to start at 0"):
        lr_scheduler.SequentialLR(on, [make(*WARMUP, on)], [], last_epoch=last_epoch)


def test_the_arguments_are_kept():
    """By public name and in plain values, for those who write a configuration."""
    on = optimizer()
    one = lr_scheduler.PolynomialLR(on, 0.1, end_learning_rate=0.0, total_iters=40.0)
    ends = {"initial_learning_rate": 0.1, "end_learning_rate": 0.0}
    assert one.arguments == {**ends, "total_iters": 40, "power": 1.0, "cycle": False}
    first, second = make(*WARMUP, on), make(*COSINE, on)
    both = lr_scheduler.SequentialLR(on, [first, second], milestones=[5])
    children = [{"class": type(each).__name__, "arguments": each.arguments} for each in (first, second)]
    assert both.arguments == {"schedulers": children, "milestones": [5]}
    assert both.schedulers == [first, second] and both.milestones == [5]


def test_steps_with_an_epoch_are_refused():
    one = make(*COSINE, optimizer())
    with pytest.raises(ValueError, match="last_epoch"):
        one.step(3)
    assert count(one) == 0 and value(one) == one.values(1)[0]


@pytest.mark.parametrize("values", [[], [0.1], [0.1, 0.2, 0.3], 0.1])
def test_update_groups_wants_one_value_for_each(values):
    one = make(*COSINE, optimizer("numbers", {}, {}))
    with pytest.raises((ValueError, TypeError)):
        one.update_groups(values)
    assert value(one) == value(one, 1) == one.values(1)[0]


@KIND
@pytest.mark.parametrize("wrong", [None, "x", float("nan"), float("inf"), torch.tensor(float("nan")), torch.ones(2)])
def test_update_groups_wants_numbers(wrong, kind):
    on = optimizer(kind, {"tags": "a"}, {"tags": "b"}, {"tags": "a"})
    one = lr_scheduler.LinearLR(on, 0.25, 0.0, 4, param_group_tags="a")
    with pytest.raises(ValueError, match="LinearLR: the value for parameter group 2 is"):
        one.update_groups([0.75, None, wrong])
    assert rates(on) == [0.25, 0.5, 0.25]
