"""configure_lr_scheduler: a number, a dict, a list of dicts, chained or one after the other, scaled per group."""

import numpy
import pytest
import torch

import optim
from optim import lr_scheduler
from optim.config import configure_lr_scheduler
from tests.optim.config.objects import description, network, train, values

WARMUP = {"scheduler": "LinearLR", "initial_learning_rate": 0.0, "end_learning_rate": 0.1, "total_iters": 4}
COSINE = {"scheduler": "CosineDecayLR", "initial_learning_rate": 0.1, "end_learning_rate": 0.0, "total_iters": 8}
STEPS = {"scheduler": "StepLR", "initial_learning_rate": 0.1, "step_size": 2, "gamma": 0.5}


def sgd(*groups, **more):
    groups = [{"params": [torch.nn.Parameter(torch.ones(2))], **group} for group in groups or ({},)]
    return optim.SGD(groups, lr=0.5, **more)


def by_hand(entry, optimizer):
    given = {name: value for name, value in entry.items() if name not in ("scheduler", "main_scheduler")}
    return getattr(lr_scheduler, entry["scheduler"])(optimizer, **given)


@pytest.mark.parametrize("rate", [0.01, 1, 0, 0.0, numpy.float32(0.25), numpy.float64(0.1)])
def test_a_number_is_constant(rate):
    optimizer = sgd()
    scheduler = configure_lr_scheduler(optimizer, rate)
    assert type(scheduler) is lr_scheduler.ConstantLR and scheduler.values(3) == [rate] * 3
    assert values(optimizer) == [rate]


@pytest.mark.parametrize("entry", [WARMUP, COSINE, STEPS])
def test_a_dict_is_one_scheduler(entry):
    before = dict(entry)
    assert description(configure_lr_scheduler(sgd(), entry)) == description(by_hand(entry, sgd()))
    assert entry == before


@pytest.mark.parametrize("written", ["linearlr", "Linear", "linear", "LINEARLR", "optim.lr_scheduler.LinearLR"])
def test_other_ways_to_write_a_name(written):
    scheduler = configure_lr_scheduler(sgd(), {**WARMUP, "scheduler": written})
    assert description(scheduler) == description(by_hand(WARMUP, sgd()))


@pytest.mark.parametrize("last", [8, None])
def test_a_list_is_a_sequence(last):
    optimizer, other = sgd(), sgd()
    entries = [WARMUP, {**STEPS, "total_iters": 6}, {**COSINE, **({"total_iters": last} if last else {})}]
    if last is None:  # the last one needs it for no milestone; a class without this argument goes without
        entries[-1] = STEPS
    scheduler = configure_lr_scheduler(optimizer, entries)
    parts = [by_hand(WARMUP, other), by_hand(STEPS, other), by_hand(entries[-1], other)]
    assert type(scheduler) is lr_scheduler.SequentialLR and scheduler.milestones == [4, 10]
    assert description(scheduler) == description(lr_scheduler.SequentialLR(other, parts, [4, 10]))


@pytest.mark.parametrize("main", ["ChainedLR", "ChainedScheduler", "chainedlr", "Chained"])
@pytest.mark.parametrize("where", [0, 1])
def test_a_list_is_chained_if_one_says_so(main, where):
    other = sgd()
    entries = [COSINE, STEPS]
    entries[where] = {**entries[where], "main_scheduler": main}
    chained = lr_scheduler.ChainedLR([by_hand(COSINE, other), by_hand(STEPS, other)])
    assert description(configure_lr_scheduler(sgd(), entries)) == description(chained)


def test_a_list_that_names_the_sequence():
    entries = [{**WARMUP, "main_scheduler": "SequentialLR"}, COSINE]
    assert type(configure_lr_scheduler(sgd(), entries)) is lr_scheduler.SequentialLR


@pytest.mark.parametrize("name", ["Linear", "linear", "LinearLR"])
def test_names_of_parts(name):
    """As those of the list itself: with and without the `LR`, in each form that an entry has."""
    given = {key: value for key, value in WARMUP.items() if key != "scheduler"}
    whole = configure_lr_scheduler(sgd(), [WARMUP, COSINE])
    for first in ({"scheduler": name, **given}, {name: given}):
        sequence = {"schedulers": [first, COSINE]}
        for entry in ({"scheduler": "Sequential", **sequence}, {"Sequential": sequence}):
            assert description(configure_lr_scheduler(sgd(), entry)) == description(whole)
        scaled = {"ScalePerParam": {"scheduler": {"Chained": {"schedulers": [first]}}}}
        assert configure_lr_scheduler(sgd(), scaled).values(9) == by_hand(WARMUP, sgd()).values(9)


def test_nested_lists():
    inner = {"scheduler": "SequentialLR", "schedulers": [WARMUP, COSINE]}
    last = {"scheduler": "ConstantLR", "learning_rate": 0.3}
    with pytest.raises(ValueError, match=r"learning_rate\[0\] has no 'total_iters'.*: give it or 'milestones'"):
        configure_lr_scheduler(sgd(), [inner, last])
    scheduler = configure_lr_scheduler(sgd(), [{**inner, "total_iters": 12}, last])
    assert scheduler.milestones == [12] and scheduler.schedulers[0].milestones == [4]
    expected = configure_lr_scheduler(sgd(), [WARMUP, COSINE]).values(12)
    assert scheduler.values(14) == [*expected, 0.3, 0.3]


def test_factors_of_groups():
    optimizer = sgd({"adjust_learning_rate": 0.5}, {})
    scheduler = configure_lr_scheduler(optimizer, [WARMUP, COSINE], adjust_learning_rate={"decoder": 0.5})
    assert type(scheduler) is lr_scheduler.ScalePerParamLR
    scheduler.step()
    assert values(optimizer) == [0.0125, 0.025]
    assert type(configure_lr_scheduler(sgd(), 0.1, adjust_learning_rate={})) is lr_scheduler.ConstantLR


def test_factors_by_names():
    """Globs by the names that the optimizer has, layer types by the model; nothing is passed over."""
    model = network()
    for kind in (optim.AdamW, torch.optim.AdamW):
        optimizer = kind(model.named_parameters(), lr=1.0)
        scheduler = configure_lr_scheduler(optimizer, 0.1, {"0.*": 0.5})
        assert type(scheduler) is lr_scheduler.ScalePerParamLR and values(optimizer) == [0.05, 0.1]
        for given, message in (
            ({"Linear": 0.25}, r"the parameter groups have 0\.5: pass model="),
            ({"0.*": 0.25}, "0.5 from param"),
        ):
            before = [dict(group) for group in optimizer.param_groups]
            with pytest.raises(ValueError, match=message):
                configure_lr_scheduler(optimizer, 0.1, given)
            assert optimizer.param_groups == before
        optimizer = kind(model.parameters(), lr=1.0)
        scheduler = configure_lr_scheduler(optimizer, 0.1, {"Linear": 0.5, torch.nn.LayerNorm: 2}, model)
        assert values(optimizer) == [0.05, 0.2]


GIVEN = [
    {"Linear": 0.5},
    {torch.nn.Linear: 0.5, "LayerNorm": 0.25},
    {"*.weight": 0.5, "LayerNorm": 0.5},
    {"Linear": 0.5, "1.*": 2.0},
    {"0.*": 0.5, "1.*": 0.25},
    {"LayerNorm": numpy.float32(0.1), "3.*": 0.7},
    {"*": 1.0},
]


@pytest.mark.parametrize("names", [True, False])
@pytest.mark.parametrize("kind", [optim.AdamW, torch.optim.AdamW])
@pytest.mark.parametrize("given", GIVEN, ids=range(len(GIVEN)))
def test_factors_that_the_groups_have_already(given, kind, names):
    """The same dict makes the groups and the scheduler, once and again."""
    groups = optim.configure_param_groups(network(), adjust_learning_rate=given, names=names)
    optimizer = kind(groups, lr=1.0)
    factors = [group.get("adjust_learning_rate", 1.0) for group in optimizer.param_groups]
    for _ in range(2):
        scheduler = configure_lr_scheduler(optimizer, 0.5, given)
        assert type(scheduler) is lr_scheduler.ScalePerParamLR and values(optimizer) == [0.5 * f for f in factors]
        scheduler.unbind()
    assert len(optimizer.param_groups) == len(factors)


def test_globs_beside_layer_types_that_are_there():
    groups = optim.configure_param_groups(network(), no_decay=False, adjust_learning_rate={"LayerNorm": 0.5})
    optimizer = optim.AdamW(groups, lr=1.0)
    configure_lr_scheduler(optimizer, 0.1, {"LayerNorm": 0.5, "3.*": 2.0})
    assert {group["param_names"][0]: float(group["lr"]) for group in optimizer.param_groups} == {
        "0.weight": 0.1,
        "3.weight": 0.2,
        "1.weight": 0.05,
    }


@pytest.mark.parametrize(
    "given, message",
    [
        ({"LayerNorm": 0.25}, "have 0.5: pass model="),
        ({"LayerNorm": 0.5, "Linear": 2.0}, "have 0.5: pass model="),
        ({"LayerNorm": 0.5, "1.*": 2.0}, "'1.weight' gets adjust_learning_rate=0.5 from parameter group"),
        ({"LayerNorm": 2.0, "0.*": 2.0}, "have 0.5: pass model="),
        ({"Layer*": 0.5}, "'Layer*' matches no parameter's name"),
        ({"1.gain": 0.5}, "'1.gain' matches no parameter's name"),
        ({"LayerNorm": 0.5, "4.*": 0.5}, "'4.*' matches no parameter's name"),
    ],
)
def test_factors_that_contradict_the_groups(given, message):
    optimizer = optim.AdamW(optim.configure_param_groups(network(), adjust_learning_rate={"LayerNorm": 0.5}))
    before = [dict(group) for group in optimizer.param_groups]
    with pytest.raises(ValueError) as raised:
        configure_lr_scheduler(optimizer, 0.1, given)
    assert message in str(raised.value) and optimizer.param_groups == before
    two = optim.AdamW(optim.configure_param_groups(network(), adjust_learning_rate={"LayerNorm": 0.5, "0.*": 2.0}))
    with pytest.raises(ValueError, match="LayerNorm"):  # and what has the other factor?
        configure_lr_scheduler(two, 0.1, {"LayerNorm": 0.5})


@pytest.mark.parametrize("given", [{"decoder": 0.25}, {"decoder": 0.5, "encoder": 2.0}])
def test_factors_that_the_groups_do_not_have(given):
    for groups, there in (([{"adjust_learning_rate": 0.5}, {}], "0.5"), ([{}], "no factors")):
        optimizer = sgd(*groups)
        with pytest.raises(ValueError, match=f"the parameter groups have {there}: pass model="):
            configure_lr_scheduler(optimizer, 0.1, given)
        assert values(optimizer) == [0.5] * len(groups)


def test_a_split_is_undone_with_the_rest():
    optimizer = optim.SGD(network().named_parameters(), lr=0.5)
    rate = lr_scheduler.ConstantLR(optimizer, 0.25)
    before = [dict(group) for group in optimizer.param_groups]
    with pytest.raises(ValueError, match="is to be split, but schedulers go by the numbers"):
        configure_lr_scheduler(optimizer, 0.1, {"0.*": 0.5})
    rate.unbind()
    with pytest.raises(ValueError, match="No parameter group carries the tag"):
        configure_lr_scheduler(optimizer, {**WARMUP, "param_group_tags": "a"}, {"0.*": 0.5})
    assert optimizer.param_groups == before


def test_training_as_with_the_classes():
    model, reference = network(), network()
    optimizer, other = optim.AdamW(model.parameters(), lr=1.0), optim.AdamW(reference.parameters(), lr=1.0)
    scheduler = configure_lr_scheduler(optimizer, [WARMUP, COSINE])
    parts = [by_hand(WARMUP, other), by_hand(COSINE, other)]
    same = lr_scheduler.SequentialLR(other, parts, [4])
    assert train(model, optimizer, [scheduler], steps=8) == train(reference, other, [same], steps=8)


def missing(entry, name):
    return {key: value for key, value in entry.items() if key != name}


@pytest.mark.parametrize(
    "given, error, message",
    [
        (True, TypeError, "learning_rate=True: pass a number, a dict"),
        ("0.1", TypeError, "learning_rate='0.1': pass a number"),
        (None, TypeError, "learning_rate=None"),
        ([], ValueError, "learning_rate is an empty list"),
        ([0.1], TypeError, "learning_rate[0]=0.1: write the name of a class"),
        ({**WARMUP, "scheduler": "LinaerLR"}, ValueError, "no lr scheduler 'LinaerLR': did you mean 'LinearLR'"),
        ({**WARMUP, "scheduler": "LinearWD"}, ValueError, "no lr scheduler 'LinearWD': did you mean 'LinearLR'"),
        ({**WARMUP, "total_iter": 3}, ValueError, "has no argument 'total_iter': did you mean 'total_iters'?"),
        ({**WARMUP, "optimizer": None}, ValueError, "has no argument 'optimizer'"),
        (missing(WARMUP, "end_learning_rate"), ValueError, "LinearLR needs 'end_learning_rate'"),
        ([missing(WARMUP, "total_iters"), COSINE], ValueError, "learning_rate[0]: LinearLR needs 'total_iters'"),
        ([STEPS, COSINE], ValueError, "learning_rate[0] has no 'total_iters', after which the next one begins"),
        ([{**STEPS, "total_iters": 2.5}, COSINE], ValueError, "learning_rate[0]: total_iters=2.5"),
        ([WARMUP, {**COSINE, "scheduler": "CosinDecayLR"}], ValueError, "learning_rate[1]: there is no lr scheduler"),
        ([{**WARMUP, "main_scheduler": "Chaned"}, COSINE], ValueError, "learning_rate[0].main_scheduler"),
        ([{**COSINE, "main_scheduler": "ChainedLR"}, {**STEPS, "total_iters": 5}], ValueError, "learning_rate[1]"),
        (
            [WARMUP, missing(COSINE, "scheduler")],
            ValueError,
            "write one name, its arguments under it, or the name as 'scheduler'.",
        ),
        ({"scheduler": None}, TypeError, "learning_rate: None is of type NoneType: write the name of the lr scheduler"),
        ({**WARMUP, "scheduler": None}, TypeError, "learning_rate: None is of type NoneType"),
        ([{**WARMUP, "scheduler": 3}], TypeError, "learning_rate[0]: 3 is of type int: write the name"),
        ({"scheduler": {"LinearLR": {}}}, TypeError, "learning_rate: {'LinearLR': {}} is of type dict"),
        ({"scheduler": "SequentialLR", "schedulers": None}, TypeError, "learning_rate.schedulers=None: write a list"),
        (
            {"scheduler": "Sequential", "schedulers": [{"scheduler": "Linaer"}]},
            ValueError,
            "schedulers[0]: there is no",
        ),
        ({"learning_rate": 0.1}, TypeError, "learning_rate.learning_rate=0.1: write the arguments under the name"),
        ([{**WARMUP, "total_iters": "2ba"}, {**WARMUP, "total_iters": "1ep"}, COSINE], ValueError, "on a clock alone"),
    ],
)
def test_errors_leave_the_optimizer_as_it_was(given, error, message):
    optimizer = sgd()
    before = dict(optimizer.param_groups[0])
    with pytest.raises(error) as raised:
        configure_lr_scheduler(optimizer, given)
    assert message in str(raised.value)
    assert optimizer.param_groups[0] == before and type(before["lr"]) is float


def test_a_late_error_undoes_what_was_written():
    optimizer = sgd({"adjust_learning_rate": float("nan")}, {})
    tensor = torch.tensor(0.5, dtype=torch.float64)
    optimizer.param_groups[1]["lr"] = tensor
    before = [dict(group) for group in optimizer.param_groups]
    with pytest.raises(ValueError, match="adjust_learning_rate"):
        configure_lr_scheduler(optimizer, 0.25, adjust_learning_rate={"decoder": 0.5})
    assert [{**group, "adjust_learning_rate": 0} for group in optimizer.param_groups] == [
        {**group, "adjust_learning_rate": 0} for group in before
    ]
    assert optimizer.param_groups[1]["lr"] is tensor and tensor.item() == 0.5
    optimizer.param_groups[0]["adjust_learning_rate"] = 2.0
    configure_lr_scheduler(optimizer, 0.25, adjust_learning_rate={"decoder": 2}).step()
    assert values(optimizer) == [0.5, 0.25]


@pytest.mark.parametrize("what", ["nothing", None, 3])
def test_other_arguments(what):
    with pytest.raises(TypeError, match=r"is not a torch\.optim\.Optimizer"):
        configure_lr_scheduler(what, 0.1)
    if what is not None:
        with pytest.raises(TypeError, match="adjust_learning_rate="):
            configure_lr_scheduler(sgd(), 0.1, what)
