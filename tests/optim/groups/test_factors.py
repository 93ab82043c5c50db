"""Factors of the learning rate: put into groups, and into those of an optimizer that exists."""

import copy

import pytest
import torch
from torch import nn

import optim
from optim.param_groups import configure_param_groups, split_groups
from tests.optim.groups.models import Conv, Tied, by_name, loss_of, tree

KEY = "adjust_learning_rate"


def factors(optimizer):
    """The factor of every parameter by its name."""
    return {name: group.get(KEY) for group in optimizer.param_groups for name in group["param_names"]}


def test_globs_and_layer_types():
    groups = configure_param_groups(Tied(), adjust_learning_rate={"Embedding": 0.1, "*norm*": 0.5, nn.Linear: 2.0})
    with pytest.raises(ValueError):  # the embedding is the weight of a Linear as well
        assert groups


def test_a_tied_layer_gets_one_factor():
    with pytest.raises(ValueError) as error:
        configure_param_groups(Tied(), adjust_learning_rate={"Embedding": 0.1, nn.Linear: 2.0})
    for part in ("'embed.weight'", f"{KEY}=0.1 from {KEY}['Embedding']", f"{KEY}=2.0 from {KEY}[<class"):
        assert part in str(error.value)
