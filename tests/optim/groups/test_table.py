"""The table of parameter groups."""

import pytest
import torch
from torch import nn

import optim
from optim.groups import configure_param_groups, param_group_table
from tests.optim.groups.models import Tied

RULES = [{"params": "*bias", "tags": "bias"}, {"params": "body.*", "tags": ["body", "all"], "betas": [0.8, 0.9]}]


def test_the_table_of_a_list_of_groups():
    groups = configure_param_groups(Tied(), RULES, weight_decay=0.1, adjust_learning_rate={"Embedding": 0.125})
    assert param_group_table(groups, names=2).splitlines() == [
        "group  tags             tensors  elements  adjust_learning_rate       betas  weight_decay  names",
        "0      -                      1        88                 0.125           -           0.1  embed.weight",
        "1      all, body              8       896                     -  (0.8, 0.9)           0.1  "
        "body.layers.0.self_attn.in_proj_weight, body.layers.0.self_attn.out_proj.weight and 6 more",
        "2      all, bias, body       13       144                     -  (0.8, 0.9)             0  "
        "body.layers.0.self_attn.in_proj_bias, body.layers.0.self_attn.out_proj.bias and 11 more",
        "3      all, body              5        40                     -  (0.8, 0.9)             0  "
        "body.layers.0.norm1.weight, body.layers.0.norm2.weight and 3 more",
        "4      bias                   1        11                     -           -             0  head.bias",
        "total                        28      1179",
    ]


@pytest.mark.parametrize("kind", [torch.optim.AdamW, optim.AdamW], ids=["torch", "optim"])
def test_the_table_of_an_optimizer(kind):
    """What all groups share is left out but for the learning rate and weight decay; tensors are shown as numbers."""
    groups = configure_param_groups(nn.Linear(2, 3), [{"params": "bias", "tags": {"b", "a"}}], weight_decay=0.5)
    optimizer = kind(groups, lr=torch.tensor(0.25))
    assert param_group_table(optimizer).splitlines() == [
        "group  tags  tensors  elements    lr  weight_decay  names",
        "0      -           1         6  0.25           0.5  weight",
        "1      a, b        1         3  0.25             0  bias",
        "total              2         9",
    ]
    assert param_group_table(optimizer) == param_group_table(optimizer.param_groups)


def test_groups_without_names_and_with_other_values():
    """Values that look alike when they are rounded are shown, too."""
    weight = nn.Parameter(torch.zeros(3))
    groups = [{"params": [weight], "tags": "a", "lr": 1e-5, "hook": None}, {"params": [], "hook": {"a": [1]}}]
    assert param_group_table(groups).splitlines() == [
        "group  tags  tensors  elements        hook     lr  names",
        "0      a           1         3        None  1e-05  -",
        "1      -           0         0  {'a': [1]}      -  -",
        "total              1         3",
    ]
    assert "momentum" in param_group_table([{"params": [], "momentum": m} for m in (0.5, 0.5 + 1e-9)])
