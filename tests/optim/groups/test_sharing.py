"""Modules that share modules: every name counts, and the work grows with the modules, not with the names."""

import fnmatch
import itertools

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from optim.groups import configure_param_groups, split_groups
from optim.groups.parameters import Glob, named_like, of_model, of_pairs
from tests.optim.groups.models import by_name

DEPTH = 60  # 2**60 names


class Counted(dict):
    """The children of a module, which count how often somebody goes through them."""

    rounds = 0

    def items(self):
        Counted.rounds += 1
        return super().items()


def nested(depth):
    """Two modules on each level, of which both hold both of the next, and a bias on each."""
    below = None
    for _ in range(depth):
        module = nn.Module()
        module.register_parameter("bias", nn.Parameter(torch.zeros(1)))
        if below is not None:
            module.left = module.right = below
        below = module
    below.norm = nn.LayerNorm(1)
    return below


def test_deep_sharing_is_walked_once():
    model = nested(DEPTH)
    for module in model.modules():
        module._modules = Counted(module._modules)
    Counted.rounds = 0
    deepest = ".".join(["left", "right"] * (DEPTH // 2 - 1) + ["right", "bias"])
    rules = [
        {"params": deepest, "tags": "deepest"},
        {"params": "right.*", "tags": "below"},
        {"params": "*.left.*.right.*", "tags": "both"},
        {"params": "r????.r????.bias", "tags": "third"},
    ]
    tags = by_name(configure_param_groups(model, rules, adjust_learning_rate={"LayerNorm": 0.5}), "tags")
    assert Counted.rounds == DEPTH + 1
    names = ["left." * level + "bias" for level in range(DEPTH)]
    assert set(tags) == {*names, "norm.weight", "norm.bias"}
    assert [tags.pop(name) for name in names] == [
        None,
        ["below"],
        ["below", "third"],  # `*.left.*.right.*` needs a level before, between and after
        ["below"],
        *[["below", "both"]] * (DEPTH - 5),
        ["below", "both", "deepest"],
    ]
    assert tags == {"norm.weight": None, "norm.bias": None}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    split_groups(optimizer, {deepest: 0.5}, model)
    assert [len(group["params"]) for group in optimizer.param_groups] == [DEPTH + 1, 1]


def test_what_matches_nothing_in_deep_sharing():
    with pytest.raises(ValueError, match="'right.lefft.bias' matches no parameter's name; the nearest there are"):
        configure_param_groups(nested(DEPTH), [{"params": "right.lefft.bias", "tags": "a"}])
    with pytest.raises(ValueError, match="'rihgt' matches no parameter's name; the nearest there are 'right'"):
        configure_param_groups(nested(DEPTH), [{"params": "rihgt", "tags": "a"}])


TEXT = st.text("ab.[]!-*?\n", max_size=6)


@given(glob=st.text("aab..*?[]!-\n", max_size=10), pieces=st.lists(TEXT, max_size=4))
@example("[]", ["["])
@example("[]", ["[]"])
@example("[!]", ["[!]"])
@example("[!]", ["a"])
@example("[]]", ["]"])
@example("[!]]", ["a"])
@example("[!]]", ["]"])
@example("[]-a]", ["^"])
@example("[a", ["[", "a"])
@example("**", [])
@example("*a*", ["ba", "b"])
def test_a_glob_in_pieces_is_that_of_fnmatch(glob, pieces):
    reader = Glob(glob)
    state = reader.start
    for piece in pieces:
        state = reader[state][piece]
    assert bool(state & reader.end) == fnmatch.fnmatchcase("".join(pieces), glob)


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
    expected = {id(parameter) for name, parameter in names if fnmatch.fnmatchcase(name, glob)}
    for listed in (of_model(model), of_pairs(names)):
        assert {id(listed.tensors[i]) for i in named_like(glob, listed)} == expected
        assert list(map(id, listed.tensors)) == list(dict.fromkeys(id(parameter) for _, parameter in names))


def test_a_ring_of_modules():
    """Names that go round are names, too."""
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    model[1].above = model
    listed = of_model(model)
    assert listed.names == ["0.weight", "0.bias"]
    for rounds, glob in itertools.product(range(3), ("0.weight", "*.0.weight")):
        assert named_like("1.above." * rounds + glob, listed) == [0]
    assert named_like("1.0.weight", listed) == []
