"""Rules: globs to tags and hyperparameters, the groups they make, and what they refuse."""

import copy
import fnmatch
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

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
    given_names = [name for name, _ in model.named_parameters()]
    rng.shuffle(given_names)
    idle = [glob for rule in rules for glob in rule["params"] if not fnmatch.filter(names, glob)]
    if idle:
        with pytest.raises(ValueError, match=r"rules\[\d\].* matches no parameter's name"):
            configure_param_groups(model, rules)
        return
    groups = configure_param_groups(model, rules, no_decay=no_decay)
    listed = [pair for group in groups for pair in group["params"]]
    assert len(listed) == len(names) and {name: id(p) for name, p in listed} == {
        name: id(p) for name, p in model.named_parameters()
    }
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
    """Two filters that overlap in part: a group for each one alone, for both, and for none."""
    model = tree(["encoder.weight", "encoder.bias", "head.weight", "head.bias"])
    rules = [{"params": "*bias", "tags": "bias_params"}, {"params": "encoder*", "tags": ["encoder", "early"]}]
    groups = configure_param_groups(model, rules, no_decay=False)
    assert [(names_of(group), values(group)) for group in groups] == [
        (["encoder.weight"], {"tags": ["early", "encoder"]}),
        (["encoder.bias"], {"tags": ["bias_params", "early", "encoder"]}),
        (["head.weight"], {}),
        (["head.bias"], {"tags": ["bias_params"]}),
    ]


def test_rules_of_the_same_tags_share_a_group():
    groups = configure_param_groups(
        tree(["a", "b", "c"]), [{"params": "a", "tags": "t"}, {"params": "c", "tags": ["t", "t"]}], no_decay=False
    )
    assert [names_of(group) for group in groups] == [["a", "c"], ["b"]]


def test_a_star_crosses_dots_and_case_counts():
    model = tree(["a.b.weight", "a.Weight", "weight.x", "norm1.w", "norm10.w"])
    tags = by_name(
        configure_param_groups(
            model, [{"params": "*weight", "tags": "end"}, {"params": "norm1.*", "tags": "one"}], no_decay=False
        ),
        "tags",
    )
    assert tags == {"a.b.weight": ["end"], "a.Weight": None, "weight.x": None, "norm1.w": ["one"], "norm10.w": None}


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


def test_a_tied_parameter_is_listed_once_and_has_all_its_names():
    rules = [{"params": "embed.*", "tags": "in"}, {"params": "head.weight", "tags": "out"}]
    groups = configure_param_groups(Tied(), rules)
    tags = by_name(groups, "tags")
    assert tags["embed.weight"] == ["in", "out"] and "head.weight" not in tags and tags["head.bias"] is None


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


def test_pairs_of_a_tied_parameter():
    pairs = Tied().named_parameters(remove_duplicate=False)
    tags = by_name(configure_param_groups(pairs, [{"params": "head.weight", "tags": "out"}], no_decay=False), "tags")
    assert tags["embed.weight"] == ["out"] and "head.weight" not in tags


def test_a_module_used_twice_and_one_that_reaches_itself():
    layer = nn.Linear(2, 2)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    model[1].above = model
    groups = configure_param_groups(model, [{"params": "2.*", "tags": "again"}])
    assert by_name(groups, "tags") == {"0.weight": ["again"], "0.bias": ["again"]}


def test_frozen_parameters_are_kept_or_left_out():
    model = Tied()
    model.embed.requires_grad_(False)
    kept = configure_param_groups(model, [{"params": "embed*", "tags": "in"}])
    assert by_name(kept, "tags")["embed.weight"] == ["in"]
    less = by_name(configure_param_groups(model, [{"params": "embed*", "tags": "in"}], frozen=False), "tags")
    assert sorted(less) == sorted(name for name, p in model.named_parameters() if p.requires_grad)
    with pytest.raises(ValueError, match=r"no parameters that require a gradient.*frozen=False"):
        configure_param_groups(model.requires_grad_(False), frozen=False)


def test_an_exclusive_rule():
    model = tree(["a.weight", "a.bias", "b.bias"])
    biases, a = {"params": "*bias", "tags": "bias", "exclusive": True}, {"params": ["b.*", "a.*"], "tags": "a"}
    tags = by_name(configure_param_groups(model, [biases, a]), "tags")  # the other one is not
    assert tags == {"a.weight": ["a"], "a.bias": ["a", "bias"], "b.bias": ["a", "bias"]}
    configure_param_groups(model, [{"params": ["*bias", "a.*", "b.*"], "exclusive": True}])  # globs of one may overlap
    with pytest.raises(ValueError) as error:
        configure_param_groups(model, [biases, {"params": "a.weight", "tags": "x"}, {**a, "exclusive": True}])
    for part in ("rules[0] ('*bias')", "rules[2] ('b.*', 'a.*')", "'a.bias'", "exclusive"):
        assert part in str(error.value)


def test_two_values_for_one_parameter():
    rules = [{"params": "*bias", "lr": 0.1}, {"params": "*", "betas": (0.9, 0.99)}, {"params": "b.*", "lr": 0.2}]
    with pytest.raises(ValueError) as error:
        configure_param_groups(tree(["a.bias", "b.bias"]), rules)
    for part in ("'b.bias'", "lr=0.1 from rules[0] ('*bias')", "lr=0.2 from rules[2] ('b.*')"):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("glob", "near"),
    [
        ("*biass", "'bias'"),
        ("body.layer.0.*", "'body.layers.0'"),
        ("Embed.weight", "'embed.weight'"),
        ("*.self_atn.*", "'self_attn'"),
        ("%%%", "'embed.weight'"),
        ("Embedding", "'embed.weight'"),  # rules have no layer types
        ("", "'embed.weight'"),
    ],
)
def test_a_glob_that_matches_nothing(glob, near):
    with pytest.raises(ValueError) as error:
        configure_param_groups(Tied(), [{"params": "*", "tags": "all"}, {"params": ["*bias", glob], "tags": "x"}])
    for part in ("rules[1]", repr(glob), "matches no parameter's name", near):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("rules", "error", "message"),
    [
        ({"params": "*"}, TypeError, "pass a list of dicts"),
        ("*bias", TypeError, "pass a list of dicts"),
        (None, TypeError, "pass a list of dicts"),
        (["*bias"], TypeError, r"rules\[0\]='\*bias': pass a dict"),
        ([{1: 2}], TypeError, r"rules\[0\].*pass a dict"),
        ([{"tags": "x"}], ValueError, r"rules\[0\] has params=\[\].*give it a glob"),
        ([{"params": []}], ValueError, "give it a glob"),
        ([{"params": {"a": 1}}], TypeError, r"rules\[0\]: params=.*pass a glob"),
        ([{"params": torch.ones(2)}], TypeError, r"rules\[0\]: params=.*pass a glob"),
        ([{"params": [torch.ones(2)]}], TypeError, r"rules\[0\]: params holds tensor.*pass globs"),
        ([{"params": 3}], TypeError, "params=3: pass a glob"),
        ([{"params": [nn.LayerNorm]}], ValueError, "give it a glob"),
        ([{"params": "*", "tags": 3}], TypeError, r"rules\[0\]: tags=3"),
        ([{"params": "*", "tags": [None]}], TypeError, "every tag is a string"),
        ([{"params": "*", "tag": "x"}], ValueError, r"rules\[0\] has 'tag', which is no hyperparameter: write 'tags'"),
        ([{"params": "*", "Tags": "x"}], ValueError, "write 'tags'"),
        ([{"params": "*", "parameters": "x"}], ValueError, "write 'params'"),
        ([{"params": "*", "exclude": True}], ValueError, "write 'exclusive'"),
        ([{"params": "*", "weight_dcay": 0.1}], ValueError, "which is no hyperparameter: write 'weight_decay'"),
        ([{"params": "*", "adjust_learning_rat": 0.1}], ValueError, "write 'adjust_learning_rate'"),
        ([{"params": "*", "exclusive": "yes"}], TypeError, "exclusive='yes': it is True or False"),
        ([{"params": "*", "lr": -1.0}], ValueError, r"rules\[0\]: lr=-1.0: it must be a finite number at least 0"),
        ([{"params": "*", "weight_decay": "1e-3"}], TypeError, r"rules\[0\]: weight_decay='1e-3'"),
        ([{"params": "*", "adjust_learning_rate": float("nan")}], ValueError, "adjust_learning_rate=nan"),
    ],
)
def test_rules_that_are_none(rules, error, message):
    with pytest.raises(error, match=message):
        configure_param_groups(Tied(), rules)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"model": list(Conv().parameters())}, TypeError, r"no pair \(name, tensor\)"),
        ({"model": torch.ones(2)}, TypeError, "pass a torch.nn.Module, or its named_parameters"),
        ({"model": 3}, TypeError, "pass a torch.nn.Module"),
        ({"model": "model"}, TypeError, "pass a torch.nn.Module"),
        ({"model": nn.ReLU()}, ValueError, "ReLU has no parameters: pass a model that has some"),
        ({"model": []}, ValueError, "has no parameters"),
        ({"model": nn.Linear(1, 1), "weight_decay": -0.1}, ValueError, "weight_decay=-0.1"),
        ({"model": nn.Linear(1, 1), "weight_decay": "0.1"}, TypeError, "weight_decay='0.1'"),
        ({"model": nn.Linear(1, 1), "decay_tag": 3}, TypeError, "decay_tag: tags=3"),
        ({"model": nn.Linear(1, 1), "frozen": "no"}, TypeError, "frozen='no' is of type str: it is True or False"),
        ({"model": nn.Linear(1, 1), "names": 0}, TypeError, "names=0 is of type int"),
    ],
)
def test_arguments_that_are_none(arguments, error, message):
    with pytest.raises(error, match=message):
        configure_param_groups(**{"no_decay": False, **arguments})


def test_many_rules_in_any_order():
    """Sixty-four combinations of six tags, each a group of its own."""
    names = [f"m{i:06b}.weight" for i in range(64)]
    rules = [{"params": f"m{'?' * bit}1{'?' * (5 - bit)}.*", "tags": f"bit{bit}"} for bit in range(6)]
    expected = {name: [f"bit{bit}" for bit in range(6) if name[1 + bit] == "1"] for name in names}
    random.Random(0).shuffle(rules)
    groups = configure_param_groups(tree(names), rules)
    assert len(groups) == 64 and by_name(groups, "tags", []) == expected
