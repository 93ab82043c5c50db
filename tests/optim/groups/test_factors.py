"""Factors of the learning rate: put into groups by globs and layer types."""

import numpy
from torch import nn

import optim
from optim.groups import configure_param_groups
from tests.optim.groups.models import Conv, Tied, by_name, values

KEY = "adjust_learning_rate"


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


def test_a_scheduler_multiplies_by_them():
    """Numbers of any kind are floats in the groups, where a rule has them, too."""
    rules = [{"params": "6.*", KEY: numpy.float32(0.5)}]
    groups = configure_param_groups(Conv(), rules, adjust_learning_rate={"Linear": 0.5, "0.*": 2})
    optimizer = optim.SGD(groups, lr=1.0)
    optim.lr_scheduler.ScalePerParamLR(optimizer, optim.lr_scheduler.ConstantLR(optimizer, 0.5))
    found = {name: (group.get(KEY), group["lr"]) for group in optimizer.param_groups for name in group["param_names"]}
    assert found["0.weight"] == (2.0, 1.0) and found["6.weight"] == found["6.bias"] == (0.5, 0.25)
    assert {type(factor) for factor, _ in found.values()} == {float, type(None)} and found["3.weight"] == (None, 0.5)
