"""Modules that share modules: every name counts, and a model with more than a million names is refused."""

import fnmatch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from optim.groups import configure_param_groups
from tests.optim.groups.models import by_name


def nested(depth):
    """Two modules on each level, of which both hold both of the next, and a bias on each: 2**depth names and more."""
    below = None
    for _ in range(depth):
        module = nn.Module()
        module.register_parameter("bias", nn.Parameter(torch.zeros(1)))
        if below is not None:
            module.left = module.right = below
        below = module
    return below


def test_shared_modules_have_all_their_names():
    rules = [{"params": "right.left.*", "tags": "deep"}, {"params": "*.right.bias", "tags": "right"}]
    tags = by_name(configure_param_groups(nested(4), rules), "tags")
    assert tags == {
        "bias": None,
        "left.bias": None,
        "left.left.bias": ["deep", "right"],
        "left.left.left.bias": ["deep", "right"],
    }


def test_too_many_names():
    with pytest.raises(ValueError, match="more than 1000000 names of parameters: share fewer modules"):
        configure_param_groups(nested(60))


@st.composite
def graphs(draw):
    """Some modules, each with children among those after it, and parameters among three."""
    parameters = [nn.Parameter(torch.zeros(1)) for _ in range(3)]
    modules = [nn.Module() for _ in range(draw(st.integers(1, 5)))]
    for number, module in enumerate(modules):
        for name in "ab":
            if number + 1 < len(modules) and draw(st.booleans()):
                module.add_module(name, modules[draw(st.integers(number + 1, len(modules) - 1))])
        for name in "wb":
            if name not in module._modules and draw(st.booleans()):
                module.register_parameter(name, parameters[draw(st.integers(0, 2))])
    return modules[0]


def all_names(module, prefix=""):
    """Every name of every parameter, one path after the other."""
    for name, parameter in module._parameters.items():
        yield prefix + name, parameter
    for name, child in module._modules.items():
        yield from all_names(child, f"{prefix}{name}.")


@given(model=graphs(), glob=st.text("ab.w*?", min_size=1, max_size=6))
def test_a_glob_selects_what_any_name_matches(model, glob):
    names = list(all_names(model))
    if not names:
        return
    expected = {id(parameter) for name, parameter in names if fnmatch.fnmatchcase(name, glob)}
    for given_model in (model, names):
        rules = [{"params": glob, "tags": "a"}]
        if not expected:
            with pytest.raises(ValueError, match="matches no parameter's name"):
                configure_param_groups(given_model, rules, no_decay=False)
            continue
        groups = configure_param_groups(given_model, rules, no_decay=False)
        assert {id(p) for group in groups if "tags" in group for _, p in group["params"]} == expected
        order = [name for name, _ in configure_param_groups(given_model, no_decay=False)[0]["params"]]
        firsts = {id(p): name for name, p in reversed(names)}
        assert order == list(dict.fromkeys(firsts[id(p)] for _, p in names))


def test_a_ring_of_modules():
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    model[1].above = model
    assert list(by_name(configure_param_groups(model), "tags")) == ["0.weight", "0.bias"]
