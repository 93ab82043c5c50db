"""to_config writes what the schedulers and groups have, and not what became of the objects that they were given."""

import numpy
import pytest
import torch

from optim import lr_scheduler
from optim.building.describing import to_config
from optim.configure import build, configure_lr_scheduler
from tests.optim.configure.objects import description, dumped, network, outline, values
from timesched import Clock, Time


def tagged():
    """A model, what is built for it without schedulers, and its optimizer."""
    model = torch.nn.ParameterDict({"w": torch.zeros(2)})
    built = build(model, {"optimizer": {"SGD": {"lr": 0.5, "params": {"params": "w", "tags": "a"}}}})
    return model, built, built.optimizer


def written(make, clock=None):
    """The entry of a scheduler, which makes one whose state fits that of the first, and the other way round."""
    model, built, optimizer = tagged()
    scheduler = make(optimizer)
    config = to_config(built, [scheduler])
    again = build(model, dumped(config), clock)
    (made,) = again.schedulers
    assert description(made) == description(scheduler) and made.clock is clock
    made.load_state_dict(scheduler.state_dict()), scheduler.load_state_dict(made.state_dict())
    assert outline(again.optimizer) == outline(optimizer) and to_config(again) == config
    ((_, arguments),) = config["schedulers"][0].items()
    return arguments


LISTS = [
    (lambda: range(1, 4), [1, 2, 3]),
    (lambda: numpy.array([1, 2]), [1, 2]),
    (lambda: (step for step in (1, 4)), [1, 4]),
    (lambda: [numpy.int64(2), "3ba", 5.0], [2, 3, 5]),
]


@pytest.mark.parametrize("make, plain", LISTS, ids=["range", "array", "generator", "mixed"])
def test_lists_of_any_kind(make, plain):
    entry = written(lambda o: lr_scheduler.MultiStepLR(o, 0.1, 0.5, make()))
    assert entry == {"initial_learning_rate": 0.1, "gamma": 0.5, "milestones": plain}
    rates = numpy.linspace(0.1, 0.5, len(plain) + 1, dtype=numpy.float32)
    entry = written(lambda o: lr_scheduler.PiecewiseConstantLR(o, rates, make()))
    assert entry["milestones"] == plain and entry["learning_rates"] == [float(str(rate)) for rate in rates]

    def sequence(o):
        parts = [lr_scheduler.ConstantLR(o, 0.1) for _ in range(len(plain) + 1)]
        return lr_scheduler.SequentialLR(o, parts, list(make()))

    assert written(sequence)["milestones"] == plain


@pytest.mark.parametrize("number", [numpy.float32(0.1), numpy.float16(0.1), numpy.float64(0.1), 0.1])
def test_numbers_of_any_precision(number):
    entry = written(lambda o: lr_scheduler.LinearLR(o, number, 0.0, numpy.int32(3)))
    assert entry == {"initial_learning_rate": 0.1, "end_learning_rate": 0.0, "total_iters": 3}
    assert written(lambda o: configure_lr_scheduler(o, number)) == {"learning_rate": 0.1}
    assert configure_lr_scheduler(tagged()[2], number).values(2) == [0.1, 0.1]


def test_what_is_changed_later():
    _, built, optimizer = tagged()
    milestones, tags, parts, begins = [1, 3], ["a"], [lr_scheduler.ConstantLR(optimizer, 0.1) for _ in range(2)], [2]
    scheduler = lr_scheduler.MultiStepLR(optimizer, 0.1, 0.5, milestones, param_group_tags=tags)
    milestones.append(5), tags.append("b")
    (entry,) = to_config(built, [scheduler, *parts])["schedulers"][0].values()
    assert entry["milestones"] == [1, 3] and entry["param_group_tags"] == ["a"]
    scheduler.unbind()
    whole = lr_scheduler.SequentialLR(optimizer, parts, begins)
    parts.pop(), begins.append(3)
    (entry,) = to_config(built, [whole])["schedulers"][0].values()
    assert len(entry["schedulers"]) == 2 and entry["milestones"] == [2]


@pytest.mark.parametrize("tags", [{"a"}, ("a",), "a", ["a"]])
def test_tags_of_any_kind(tags):
    found = ["a"] if tags != "a" else "a"
    assert written(lambda o: lr_scheduler.ConstantLR(o, 0.1, param_group_tags=tags))["param_group_tags"] == found
    entry = written(lambda o: lr_scheduler.ConstantLR(o, 0.1, param_group_tags=iter(tags)))
    assert entry["param_group_tags"] == ["a"]


@pytest.mark.parametrize("own", [{}, {"param_group_tags": None}, {"param_group_tags": "a"}])
def test_tags_that_the_parts_alone_have(own):
    def sequence(o):
        parts = [lr_scheduler.ConstantLR(o, rate, param_group_tags="a") for rate in (0.1, 0.2)]
        inner = lr_scheduler.SequentialLR(o, parts, [2], **own)
        return lr_scheduler.ScalePerParamLR(o, inner)

    _, built, optimizer = tagged()
    scheduler = sequence(optimizer)
    again = build(network(), {**to_config(built, [scheduler]), "optimizer": two_groups()})
    assert values(again.optimizer) == [0.1, 0.5] and written(sequence)


def two_groups():
    return {"SGD": {"lr": 0.5, "params": {"params": "*weight", "tags": "a"}}}


@pytest.mark.parametrize("length", ["3ba", Time(3, "ba"), 3, "0.5dur"])
def test_lengths_by_a_clock(length):
    """What follows a clock goes on to follow one."""
    clock = Clock("8ba")
    text = "0.5dur" if str(length) == "0.5dur" else "3ba"
    entry = written(lambda o: lr_scheduler.LinearLR(o, 0.1, 0.0, length, clock=clock), clock)
    assert entry["total_iters"] == text
    entry = written(lambda o: lr_scheduler.MultiStepLR(o, 0.1, 0.5, [1, length], clock=clock), clock)
    assert entry["milestones"] == ["1ba", text]

    def sequence(o):
        parts = [lr_scheduler.LinearLR(o, 0.0, 0.1, 2), lr_scheduler.LinearLR(o, 0.1, 0.0, length, clock=clock)]
        return lr_scheduler.ScalePerParamLR(o, lr_scheduler.SequentialLR(o, parts, [2]), clock=clock)

    _, built, optimizer = tagged()
    ((_, whole),) = to_config(built, [sequence(optimizer)])["schedulers"][0]["ScalePerParamLR"]["scheduler"].items()
    assert [part["LinearLR"]["total_iters"] for part in whole["schedulers"]] == ["2ba", text]
    assert whole["milestones"] == ["2ba"]
    if text == "3ba":
        assert written(lambda o: lr_scheduler.LinearLR(o, 0.1, 0.0, length))["total_iters"] == 3


@pytest.mark.parametrize(
    "make, length",
    [
        (lambda o, c: lr_scheduler.InverseSquareRootDecayLR(o, 0.1, clock=c), {"warmup_steps": "1ba"}),
        (lambda o, c: lr_scheduler.OneCycleLR(o, 0.1, 0.5, clock=c), {"total_steps": "1000ba"}),
        (lambda o, c: lr_scheduler.CyclicLR(o, 0.1, 0.5, clock=c), {"step_size_up": "2000ba"}),
    ],
    ids=["root", "one-cycle", "cyclic"],
)
def test_lengths_by_default_by_a_clock(make, length):
    clock = Clock("20ba", ssr=0.5)
    assert written(lambda o: make(o, clock), clock).items() >= length.items()
    _, built, optimizer = tagged()
    (entry,) = to_config(built, [lr_scheduler.ConstantLR(optimizer, 0.1, clock=clock)])["schedulers"]
    assert entry == {"ConstantLR": {"learning_rate": 0.1}}  # for which a clock makes no difference


def test_a_clock_that_no_time_tells_of():
    """`build` would make a scheduler that counts its own steps."""
    clock = Clock("20ba", ssr=0.5)

    def scaled(o):
        return lr_scheduler.ScalePerParamLR(o, lr_scheduler.MultiplicativeLR(o, 0.1, 0.9), clock=clock)

    for make in (
        lambda o: lr_scheduler.MultiplicativeLR(o, 0.1, 0.9, clock=clock),
        lambda o: lr_scheduler.LambdaLR(o, 0.1, param_group_tags="a", clock=clock),
        scaled,
        lambda o: Clocked(o, 4, clock=clock),
    ):
        _, built, optimizer = tagged()
        with pytest.raises(ValueError, match=r"schedulers\[0\]: this \w+ follows a clock, and has no argument"):
            to_config(built, [make(optimizer)])
    assert written(lambda o: Clocked(o, "4ba", clock=clock), clock) == {"total": "4ba"}


class Clocked(lr_scheduler.LinearLR):
    def __init__(self, optimizer, total, clock=None):
        super().__init__(optimizer, 0.1, 0.5, total, clock=clock)


class Halved(lr_scheduler.CosineDecayLR):
    """Says something else to its parent than it is told, under the same name and under others."""

    def __init__(self, optimizer, peak, total_iters, marks=()):
        self.marks = list(marks)
        super().__init__(optimizer, peak, 0.0, total_iters * 2)


class Renamed(lr_scheduler.MultiStepLR):
    """With the constructor of its parent."""


class Mixed:
    def __init__(self, optimizer, gamma):
        super().__init__(optimizer, 0.1, gamma / 2, [1])


class MixedLR(Mixed, lr_scheduler.MultiStepLR):
    """The constructor comes from a class beside its parent."""


def test_constructors_of_ones_own():
    """Their arguments are written as they were given: nobody knows what they say to their parents."""
    for marks in ([2, 3], range(2, 4), numpy.array([2, 3])):
        entry = written(lambda o, marks=marks: Halved(o, 0.1, total_iters=4, marks=marks))
        assert entry == {"peak": 0.1, "total_iters": 4, "marks": [2, 3]}
    entry = written(lambda o: Renamed(o, numpy.float32(0.1), 0.5, range(3)))
    assert entry == {"initial_learning_rate": 0.1, "gamma": 0.5, "milestones": [0, 1, 2]}
    _, built, optimizer = tagged()
    assert to_config(built, [MixedLR(optimizer, 0.5)])["schedulers"] == [{"MixedLR": {"gamma": 0.5}}]


@pytest.mark.parametrize(
    "factor", [numpy.float32(0.1), torch.tensor(0.1), torch.tensor(0.1, dtype=torch.bfloat16), 0.1]
)
def test_factors_of_any_precision(factor):
    rule = {"params": "3.*", "adjust_val": factor}
    entry = {"lr": 1.0, "adjust_learning_rate": {"LayerNorm": factor}, "params": [rule]}
    scaled = {"ScalePerParamLR": {"scheduler": {"ConstantLR": {"learning_rate": 0.5}}}}
    built = build(network(), {"optimizer": {"SGD": entry}, "schedulers": [scaled]})
    again = build(network(), dumped(to_config(built)))
    assert values(built.optimizer) == [0.5, 0.05, 0.05] and outline(again.optimizer) == outline(built.optimizer)
    assert to_config(built)["optimizer"]["SGD"]["adjust_learning_rate"] == {"LayerNorm": 0.1}
    assert to_config(built)["optimizer"]["SGD"]["params"] == [{"params": "3.*", "adjust_val": 0.1}]
