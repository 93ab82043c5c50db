"""Modules that share modules: every name counts."""

import fnmatch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from optim.groups import configure_param_groups
from tests.optim.groups.models import by_name


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


def test_a_module_used_twice_and_one_that_reaches_itself():
    layer = nn.Linear(2, 2)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    model[1].above = model
    groups = configure_param_groups(model, [{"params": "2.*", "tags": "again"}])
    assert by_name(groups, "tags") == {"0.weight": ["again"], "0.bias": ["again"]}
