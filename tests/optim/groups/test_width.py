"""Learning rates by width: the factors of matrices and vectors, and what is refused."""

import pytest
import torch
from torch import nn

import optim
from optim.groups import configure_param_groups
from tests.optim.groups.models import by_name
from timesched import findings


def network(width, outputs=3, count=2):
    layers = [nn.Linear(width, 2 * width), nn.Linear(2 * width, outputs)]
    return nn.Sequential(nn.Linear(4, width), *layers[:count])


OPTIONS = {"lr": 0.5, "weight_decay": 0.25, "no_decay": False}


@pytest.mark.parametrize(("rule", "factors"), [("adam", (1.0, 0.25, 1.0)), ("sgd", (4.0, 1.0, 4.0))])
def test_the_factors_multiply_the_rate_and_divide_the_decay(rule, factors):
    base = network(2).to("meta")
    groups = configure_param_groups(network(8), base_model=base, base_rule=rule, **OPTIONS)
    expected = {f"{i}.weight": factor for i, factor in enumerate(factors)}
    for key, values in (
        ("lr_factor", expected),
        ("lr", {name: 0.5 * factor for name, factor in expected.items()}),
        ("weight_decay", {name: 0.25 / factor for name, factor in expected.items()}),
    ):
        assert {name: by_name(groups, key)[name] for name in values} == values


def test_width_times_depth_or_the_factor_of_an_argument():
    options = OPTIONS | {"base_model": network(2), "layer_decay": 0.5, "layers": "*"}
    groups = configure_param_groups(network(8), adjust_learning_rate={"2.*": 2.0}, **options)
    factors = by_name(groups, "lr_factor")
    assert [factors[f"{i}.weight"] for i in range(3)] == [0.125, 0.0625, 2.0]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"lr": None}, ValueError, "base_model: it needs 'lr'"),
        ({"weight_decay": None}, ValueError, "base_model: it needs 'weight_decay'"),
        ({"base_model": network(2, count=1)}, ValueError, "base_model: only one of the models has .*'2.bias'"),
        ({"base_model": 2}, TypeError, "base_model=2"),
        ({"base_rule": "lamb"}, ValueError, "base_rule='lamb'"),
        ({"base_rule": "sgd", "base_model": None}, ValueError, "base_rule='sgd': only base_model uses it"),
        ({"matrices": "muon"}, ValueError, "matrices='muon': base_model .*spectral_unclamped"),
    ],
)
def test_errors_name_the_argument(options, error, message):
    with pytest.raises(error, match=message):
        configure_param_groups(network(8), **OPTIONS | {"base_model": network(2)} | options)


def test_three_wide_dimensions():
    model, base = nn.Conv2d(4, 4, 3), nn.Conv2d(2, 2, 5)
    with pytest.raises(ValueError, match="base_model: the parameter 'weight' has the shape"):
        configure_param_groups(model, base_model=base, **OPTIONS)


def test_weight_decay_of_a_rule_is_divided_too():
    rules = [{"params": "1.weight", "weight_decay": torch.tensor(1.0)}]
    groups = configure_param_groups(network(8), rules, base_model=network(2), **OPTIONS)
    assert by_name(groups, "weight_decay")["1.weight"] == 4.0


def test_the_base_model_knows_transposed_weights_where_the_model_is_given_as_names():
    class LinearExperts(nn.Module):
        is_transposed = True

        def __init__(self, inputs, outputs):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3, inputs, outputs))

    model, base = LinearExperts(8, 6), LinearExperts(2, 3)
    by_module, by_names = (
        configure_param_groups(parameters, base_model=base, **OPTIONS)[0]["lr_factor"]
        for parameters in (model, model.named_parameters())
    )
    assert by_module == by_names == 2 / 8


L2 = ["Adam", "NAdam", "RAdam", "Adamax", "Adagrad", "RMSprop"]


@pytest.mark.parametrize("name", [*L2, "AdamW", "Lion", "SGD"])
def test_an_l2_penalty(name, monkeypatch, recwarn):
    """Its share of the gradient grows with the square of the width, so it warns, once; decoupled weight decay does not.

    With base_rule="sgd" the penalty is right, and without a penalty there is nothing to warn of.
    """
    monkeypatch.setattr(findings, "_given", {})

    def make(options, **arguments):
        groups = configure_param_groups(network(8), base_model=network(2), **OPTIONS | options)
        return getattr(optim, name)(groups, lr=0.1, **arguments)

    make({"weight_decay": 0.0})
    if "decoupled_weight_decay" in getattr(optim, name).hyper and name != "AdamW":
        make({}, decoupled_weight_decay=True)
    if name == "SGD":
        make({"base_rule": "sgd"})
    assert not recwarn
    if name in ("AdamW", "Lion"):
        make({})
        assert not recwarn
    elif name in L2:
        with pytest.warns(UserWarning, match=rf"^{name}.weight_decay=0.25: .* L2 penalty grows .* Use AdamW"):
            make({})
        make({})
        assert not recwarn
