"""Rules: globs to tags and hyperparameters, the groups they make, and what they refuse."""

import copy
import fnmatch

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import optim
from optim.groups import configure_param_groups
from tests.optim.groups.models import Conv, Tied, by_name, names_of, tree, values

PARTS = ["a", "b", "norm1", "norm10", "layers", "0", "10", "weight", "bias", "Bias"]
NAMES = st.lists(st.lists(st.sampled_from(PARTS), min_size=1, max_size=4).map(".".join), min_size=1, max_size=12)


def free_of_prefixes(names):
    """Without those that would be a module and a parameter at once."""
    return sorted(name for name in set(names) if not any(other.startswith(name + ".") for other in names))


MODELS = NAMES.map(free_of_prefixes).filter(bool)
GLOBS = st.one_of(
    st.sampled_from(
        ["*", "*bias", "bias", "*norm1.*", "*norm1*", "a.*", "*.0.*", "*[ab].weight", "?.*", "*10*", "layers*t"]
    ),
    st.lists(st.sampled_from([*PARTS, "*", ".", "?"]), min_size=1, max_size=4).map("".join),
)
TAGS = st.sampled_from(["t1", "t2", "t3"])
RULES = st.lists(
    st.fixed_dictionaries({"params": st.lists(GLOBS, min_size=1, max_size=3)}, optional={"tags": st.lists(TAGS)}),
    max_size=5,
)


def matches(rule, name):
    return any(fnmatch.fnmatchcase(name, glob) for glob in rule["params"])


@given(MODELS, RULES, st.randoms(use_true_random=False), st.booleans())
def test_every_parameter_has_the_tags_of_the_rules_that_match_it(names, rules, rng, no_decay):
    model = tree(names)
    idle = [glob for rule in rules for glob in rule["params"] if not fnmatch.filter(names, glob)]
    if idle:
        with pytest.raises(ValueError, match=r"rules\[\d\].* matches no parameter"):
            configure_param_groups(model, rules)
        return
    groups = configure_param_groups(model, rules, no_decay=no_decay)
    listed = [pair for group in groups for pair in group["params"]]
    assert len(listed) == len(names)
    assert {name: id(p) for name, p in listed} == {name: id(p) for name, p in model.named_parameters()}
    tags = by_name(groups, "tags", [])
    for name in names:
        assert tags[name] == sorted({tag for rule in rules if matches(rule, name) for tag in rule.get("tags", [])})
    # a group for each combination, in the order of the model
    combinations = [repr(values(group)) for group in groups]
    assert len(set(combinations)) == len(groups)
    order = {name: i for i, (name, _) in enumerate(model.named_parameters())}
    firsts = [order[names_of(group)[0]] for group in groups]
    assert firsts == sorted(firsts)
    assert all([order[n] for n in names_of(group)] == sorted(order[n] for n in names_of(group)) for group in groups)
    # neither the order of the rules nor that of their globs matters
    shuffled = [{**rule, "params": rng.sample(rule["params"], len(rule["params"]))} for rule in rules]
    rng.shuffle(shuffled)
    assert configure_param_groups(model, shuffled, no_decay=no_decay) == groups


def test_the_groups_of_overlapping_globs():
    model = tree(["encoder.weight", "encoder.bias", "head.weight", "head.bias"])
    rules = [{"params": "*bias", "tags": "bias_params"}, {"params": "encoder*", "tags": ["encoder", "early"]}]
    groups = configure_param_groups(model, rules, no_decay=False)
    assert [(names_of(group), values(group)) for group in groups] == [
        (["encoder.weight"], {"tags": ["early", "encoder"]}),
        (["encoder.bias"], {"tags": ["bias_params", "early", "encoder"]}),
        (["head.weight"], {}),
        (["head.bias"], {"tags": ["bias_params"]}),
    ]


def test_hyperparameters_of_rules():
    """They are put into the groups as given; two rules may agree, and each group has objects of its own."""
    rate = torch.tensor(0.5, dtype=torch.float64)
    rules = [
        {"params": "*.weight", "betas": [0.8, 0.9], "lr": rate},
        {"params": "a.*", "tags": "a", "betas": (0.8, 0.9)},
        {"params": "b.bias", "lr": 0.25, "custom": {"deep": [1]}},
    ]
    before = copy.deepcopy(rules)
    groups = configure_param_groups(tree(["a.weight", "b.weight", "b.bias"]), rules, no_decay=False)
    assert [values(group) for group in groups] == [
        {"tags": ["a"], "betas": [0.8, 0.9], "lr": rate},
        {"betas": [0.8, 0.9], "lr": rate},
        {"lr": 0.25, "custom": {"deep": [1]}},
    ]
    groups[0]["lr"].fill_(1.0)
    groups[0]["betas"][0] = 0.0
    groups[2]["custom"]["deep"].append(2)
    assert groups[1]["lr"] == 0.5 and groups[1]["betas"] == [0.8, 0.9] and rules == before


@pytest.mark.parametrize(
    "model", [Tied(), Conv(), nn.LSTM(3, 4, 2, bidirectional=True)], ids=lambda m: type(m).__name__
)
def test_order_and_names_are_those_of_named_parameters(model):
    (group,) = configure_param_groups(model, no_decay=False)
    assert [(name, id(p)) for name, p in group["params"]] == [(name, id(p)) for name, p in model.named_parameters()]
    for pairs in (model.named_parameters(), dict(model.named_parameters())):
        assert configure_param_groups(pairs, no_decay=False) == [group]
    (bare,) = configure_param_groups(model, no_decay=False, names=False)
    assert list(map(id, bare["params"])) == list(map(id, model.parameters()))


def test_frozen_parameters_are_kept_or_left_out():
    model = Tied()
    model.embed.requires_grad_(False)
    kept = configure_param_groups(model, [{"params": "embed*", "tags": "in"}])
    assert by_name(kept, "tags")["embed.weight"] == ["in"]
    less = by_name(configure_param_groups(model, [{"params": "embed*", "tags": "in"}], frozen=False), "tags")
    assert sorted(less) == sorted(name for name, p in model.named_parameters() if p.requires_grad)


def test_an_exclusive_rule():
    model = tree(["a.weight", "a.bias", "b.bias"])
    biases, a = {"params": "*bias", "tags": "bias", "exclusive": True}, {"params": ["b.*", "a.*"], "tags": "a"}
    tags = by_name(configure_param_groups(model, [biases, a]), "tags")  # the other one is not
    assert tags == {"a.weight": ["a"], "a.bias": ["a", "bias"], "b.bias": ["a", "bias"]}
    configure_param_groups(model, [{"params": ["*bias", "a.*", "b.*"], "exclusive": True}])  # globs of one may overlap


# Factors of the learning rate


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


def test_a_module_used_twice_and_one_that_reaches_itself():
    """Every name counts, also of a tensor and among pairs; the first of them stands in the group."""
    layer = nn.Linear(2, 2)
    model = nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(2, 2))
    model[3].bias = layer.bias
    model[1].above = model
    pairs = [(f"{i}.{name}", p) for i in (0, 2, 3) for name, p in model[i].named_parameters()]
    chosen = {"2.*": {"0.weight", "0.bias"}, "3.*": {"0.bias", "3.weight"}, "0.?ias": {"0.bias"}}
    for given_model, no_decay in ((model, True), (pairs, False)):
        for glob, names in chosen.items():
            groups = configure_param_groups(given_model, [{"params": glob, "tags": "a"}], no_decay=no_decay)
            tags = by_name(groups, "tags")
            assert tags.keys() == {"0.weight", "0.bias", "3.weight"} and {n for n in tags if tags[n]} == names
