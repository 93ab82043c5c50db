"""Factors of the learning rate: put into groups, and into those of an optimizer that exists."""

import copy
from fractions import Fraction

import numpy
import pytest
import torch
from torch import nn

import optim
import timesched
from optim.groups import configure_param_groups, split_groups
from tests.optim.groups.models import Conv, Tied, by_name, loss_of, values

KEY = "adjust_learning_rate"
OPTIMIZERS = pytest.mark.parametrize("kind", [torch.optim.AdamW, optim.AdamW], ids=["torch", "optim"])


def factors(optimizer):
    """The factor of every parameter by its name."""
    return {name: group.get(KEY) for group in optimizer.param_groups for name in group["param_names"]}


def test_globs_and_layer_types():
    given = {"Embedding": 0.1, "*norm*": 0.5, nn.MultiheadAttention: 3, "LayerNorm": 0.5}
    of = by_name(configure_param_groups(Tied(), adjust_learning_rate=given), KEY)
    for name, factor in of.items():
        expected = 0.5 if "norm" in name else 3 if "in_proj" in name else 0.1 if name == "embed.weight" else None
        assert factor == expected, name  # out_proj is owned by a Linear inside the attention


def test_subclasses_are_of_the_type():
    of = by_name(configure_param_groups(nn.MultiheadAttention(4, 2), adjust_learning_rate={"Linear": 0.1}), KEY)
    assert [name for name, factor in of.items() if factor] == ["out_proj.weight", "out_proj.bias"]


def test_groups_are_split_by_factor_and_keep_their_tags():
    rules = [{"params": "*weight", "tags": "w"}]
    groups = configure_param_groups(Conv(), rules, weight_decay=0.1, adjust_learning_rate={"Conv2d": 0.5})
    assert [values(group) for group in groups] == [
        {"tags": ["w"], KEY: 0.5, "weight_decay": 0.1},
        {"tags": ["w"], "weight_decay": 0.0},
        {"weight_decay": 0.0},
        {KEY: 0.5, "weight_decay": 0.0},
        {"tags": ["w"], "weight_decay": 0.1},
    ]


def test_a_rule_may_hold_the_factor():
    groups = configure_param_groups(Conv(), [{"params": "6.*", KEY: 0.5}], adjust_learning_rate={"Linear": 0.5})
    assert {name: f for name, f in by_name(groups, KEY).items() if f} == {"6.weight": 0.5, "6.bias": 0.5}
    with pytest.raises(ValueError, match=rf"'6.weight' gets {KEY}=0.5 from rules\[0\].*=0.25 from {KEY}\['Linear'\]"):
        configure_param_groups(Conv(), [{"params": "6.*", KEY: 0.5}], adjust_learning_rate={"Linear": 0.25})


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"Embedding": 0.1, nn.Linear: 2.0}, ValueError, rf"'embed.weight' gets {KEY}=0.1 from {KEY}\['Embedding'\]"),
        ({"Embeding": 0.1}, ValueError, rf"{KEY}\['Embeding'\].* no layer type; the nearest there are 'Embedding'"),
        ({"embedding": 0.1}, ValueError, "nearest there are 'Embedding'"),
        ({"Module": 0.1}, ValueError, "'Module' matches no parameter's name and no layer type"),
        ({nn.Conv2d: 0.1}, ValueError, "'Conv2d' matches no parameter's name and no layer type"),
        ({"*": -0.1}, ValueError, rf"{KEY}\['\*'\]=-0.1: it must be a finite number at least 0"),
        ({"*": float("inf")}, ValueError, "=inf"),
        ({"*": "0.1"}, TypeError, rf"{KEY}\['\*'\]='0.1' is of type str"),
        ({"*": True}, TypeError, "=True is of type bool"),
        ({"*": torch.tensor(0.5)}, TypeError, "is a tensor, and nothing schedules a factor: pass a number"),
        ({3: 0.1}, TypeError, f"{KEY} holds 3: pass globs"),
        ({int: 0.1}, TypeError, f"{KEY} holds <class 'int'>"),
        ([("*", 0.1)], TypeError, "pass a dict from globs or layer types to factors"),
        (0.1, TypeError, "pass a dict"),
    ],
)
def test_factors_that_are_none(given, error, message):
    model = Tied()
    with pytest.raises(error, match=message):
        configure_param_groups(model, adjust_learning_rate=given)
    optimizer = optim.SGD(configure_param_groups(model), lr=0.1)
    before = [dict(group) for group in optimizer.param_groups]
    with pytest.raises(error, match=message):
        split_groups(optimizer, given, model)
    assert optimizer.param_groups == before


def test_layer_types_need_the_modules():
    pairs = list(Tied().named_parameters())
    with pytest.raises(ValueError, match="'Embedding' matches no.*layer types are known only where the model is given"):
        configure_param_groups(pairs, no_decay=False, adjust_learning_rate={"Embedding": 0.1})
    with pytest.raises(ValueError, match="layer types are known only where the model is given"):
        split_groups(torch.optim.SGD(pairs), {"Embedding": 0.1})


@pytest.mark.parametrize(
    "factor, number",
    [
        (numpy.float32(0.5), 0.5),
        (numpy.float32(0.1), 0.1),
        (numpy.float16(0.1), 0.1),
        (numpy.int64(2), 2.0),
        (Fraction(1, 4), 0.25),
        (3, 3.0),
    ],
)
def test_factors_are_floats_in_the_groups(factor, number):
    """The number whose shortest decimal it is; and as such a scheduler takes it."""
    for rules, given in (
        ([], {"6.*": factor}),
        ([{"params": "6.*", KEY: factor}], {}),
        ([], {"6.*": factor, "Linear": number}),
    ):
        optimizer = optim.SGD(configure_param_groups(Conv(), rules, adjust_learning_rate=given), lr=1.0)
        found = [group[KEY] for group in optimizer.param_groups if KEY in group]
        assert found and all(type(each) is float and each == number for each in found)
        optim.lr_scheduler.ScalePerParamLR(optimizer, optim.lr_scheduler.ConstantLR(optimizer, 0.5))
        assert {float(group["lr"]) for group in optimizer.param_groups} == {0.5, 0.5 * number}
    split = optim.SGD(Conv().named_parameters(), lr=1.0)
    split_groups(split, {"6.*": factor})
    assert [type(group[KEY]) for group in split.param_groups if KEY in group] == [float]


# split_groups


@OPTIMIZERS
def test_a_split_changes_nothing_but_the_groups(kind):
    """State stays, and training goes on bit for bit as without the split."""
    torch.manual_seed(0)
    model = Tied()
    reference = copy.deepcopy(model)
    rules = [{"params": "body.*", "tags": "body", "lr": torch.tensor(0.01, dtype=torch.float64)}]
    optimizer, alone = (kind(configure_param_groups(m, rules, weight_decay=0.1), lr=0.02) for m in (model, reference))
    listed, old = optimizer.param_groups, list(optimizer.param_groups)

    def train(seeds):
        for m, o in ((model, optimizer), (reference, alone)):
            for seed in seeds:
                o.zero_grad()
                loss_of(m, seed).backward()
                o.step()

    train(range(2))
    states = {p: dict(state) for p, state in optimizer.state.items()}
    split_groups(optimizer, {"*norm*": 0.5, "*.0.*": 0.5, "head*": 0.25})
    assert optimizer.param_groups is listed and {id(g) for g in old} <= {id(g) for g in listed}
    assert all(state[key] is value for p, state in optimizer.state.items() for key, value in states[p].items())
    for group in listed:
        names = dict(zip(group["param_names"], group["params"]))
        assert all(dict(model.named_parameters())[name] is p for name, p in names.items())
    assert factors(optimizer) == {
        name: 0.5 if "norm" in name or ".0." in name else 0.25 if name == "head.bias" else None
        for name, _ in model.named_parameters()
    }
    assert len({id(group["lr"]) for group in listed if group.get("tags")}) == sum(1 for g in listed if g.get("tags"))
    train(range(2, 4))
    assert all(map(torch.equal, model.parameters(), reference.parameters()))
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert factors(optimizer)["head.bias"] == 0.25


@OPTIMIZERS
def test_parts_follow_each_other_in_the_order_of_the_model(kind):
    pairs = list(Conv().named_parameters())
    optimizer = kind([{"params": pairs[:5]}, {"params": pairs[7:]}])
    split_groups(optimizer, {"*.bias": 0.5, "*weight": 1.0})
    assert [(group["param_names"], group[KEY]) for group in optimizer.param_groups] == [
        (["0.weight", "1.weight", "3.weight"], 1.0),
        (["1.bias", "3.bias"], 0.5),
        (["6.weight"], 1.0),
        (["6.bias"], 0.5),
    ]
    again = copy.deepcopy([values(group) for group in optimizer.param_groups])
    split_groups(optimizer, {"3.weight": 1.0})  # as it is
    split_groups(optimizer, {})
    assert [values(group) for group in optimizer.param_groups] == again


@OPTIMIZERS
def test_a_model_gives_names_and_layer_types(kind):
    model = Tied()
    optimizer = kind(p for p in model.parameters() if p.dim() == 1)
    names = {id(p): name for name, p in model.named_parameters()}
    split_groups(optimizer, {"LayerNorm": 0.5, "head.*": 2.0}, model)
    assert {names[id(p)]: group.get(KEY) for group in optimizer.param_groups for p in group["params"]} == {
        name: 0.5 if "norm" in name else 2.0 if "head" in name else None
        for name, p in model.named_parameters()
        if p.dim() == 1
    }
    rest = kind(p for p in model.parameters() if p.dim() > 1)
    split_groups(rest, {"LayerNorm": 0.5, "*.1.linear1.weight": 2.0}, model)  # keys go by the model, not by its part
    assert [[names[id(p)] for p in group["params"]] for group in rest.param_groups if KEY in group] == [
        ["body.layers.1.linear1.weight"]
    ]
    with pytest.raises(ValueError, match="Parameter group 0 has a parameter that is not of this model"):
        split_groups(optimizer, {"*": 0.5}, Tied())


def test_names_of_compiled_models_and_groups_without_parameters():
    model = torch.compile(Conv())
    for given in ({"0.*": 0.5}, {"_orig_mod.0.*": 0.5}):
        optimizer = optim.SGD(model.named_parameters(), lr=0.1)
        split_groups(optimizer, given)
        assert {name for name, factor in factors(optimizer).items() if factor} == {"_orig_mod.0.weight"}
        optimizer = optim.SGD([{"params": []}, {"params": list(model.parameters())}], lr=0.1)
        split_groups(optimizer, given, model)
        assert [group.get(KEY) for group in optimizer.param_groups] == [None, 0.5, None]


def refused(optimizer, given, message, model=None):
    before = [dict(group) for group in optimizer.param_groups]
    with pytest.raises(ValueError, match=message):
        split_groups(optimizer, given, model)
    assert optimizer.param_groups == before


def test_splits_that_are_refused():
    model = Conv()
    unnamed = torch.optim.SGD(model.parameters())
    refused(unnamed, {"*": 0.5}, r"Parameter group 0 has no param_names.*configure_param_groups\(model\)")
    named = torch.optim.SGD(configure_param_groups(model, adjust_learning_rate={"0.*": 0.5}))
    refused(named, {"*": 0.25}, f"'0.weight' gets {KEY}=0.5 from parameter group 0 and {KEY}=0.25")
    scheduled = torch.optim.SGD(model.named_parameters())
    torch.optim.lr_scheduler.LambdaLR(scheduled, lambda step: 1.0)
    words = "Parameter group 0 is to be split.*: make the optimizer again, split it, and then make torch's schedulers"
    refused(scheduled, {"0.*": 0.5}, words)  # torch's leave their mark on the optimizer
    split_groups(scheduled, {"*": 0.5})  # no split is needed
    assert scheduled.param_groups[0][KEY] == 0.5
    for wrong, call in (("optimizer", (model, {})), ("model", (named, {}, model.named_parameters()))):
        with pytest.raises(TypeError, match=f"{wrong}="):
            split_groups(*call)


@OPTIMIZERS
def test_a_split_after_unbind(kind):
    """It leaves the initial rate behind, which is no sign of a scheduler."""
    optimizer = kind(Conv().named_parameters(), lr=0.1)
    scheduler = timesched.bind(timesched.LinearScheduler(), optimizer, timesched.Clock("4ba"))
    refused(optimizer, {"0.*": 0.5}, "Parameter group 0 is to be split")
    scheduler.unbind()
    split_groups(optimizer, {"0.*": 0.5})
    assert [group.get(KEY) for group in optimizer.param_groups] == [0.5, None]


@OPTIMIZERS
def test_a_split_under_a_scheduler_is_refused(kind):
    """The scheduler would go on with the numbers of the groups before."""
    model = Conv()
    optimizer = kind(configure_param_groups(model, [{"params": "6.*", "tags": "top"}], no_decay=False), lr=0.1)
    scheduler = optim.lr_scheduler.ConstantLR(optimizer, 0.7, param_group_tags="top")
    refused(optimizer, {"0.weight": 0.5}, r"Parameter group 0 is to be split.* or call unbind\(\)")
    split_groups(optimizer, {"*": 0.5})  # no split is needed
    scheduler.unbind()
    split_groups(optimizer, {"6.weight": 0.5, "0.weight": 0.5})
    del scheduler
    optim.lr_scheduler.ConstantLR(optimizer, 0.7)  # nobody holds it
    refused(optimizer, {"0.weight": 0.25}, "'0.weight' gets")


def test_adjust_val_counts_as_the_factor_of_a_group():
    weight, bias = nn.Linear(2, 2).parameters()
    optimizer = optim.SGD([{"params": [("w", weight), ("b", bias)], "adjust_val": 0.5}], lr=0.1)
    refused(optimizer, {"w": 0.25}, "parameter group 0")
    split_groups(optimizer, {"w": 0.5})
    assert len(optimizer.param_groups) == 1
