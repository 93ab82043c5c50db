"""configure_optimizer: a name and keyword arguments, as the classes themselves take them."""

import pytest
import torch

import optim
from optim.config import configure_optimizer
from tests.optim.config.objects import network, outline, train
from tests.optim.rows import ROWS

CLASSES = sorted({row.name for row in ROWS})


@pytest.mark.parametrize("row", [row for row in ROWS if row.groups == ({},)], ids=lambda row: row.id)
def test_the_same_as_the_class(row):
    model, other = (torch.nn.Linear(3, 2, bias=False) for _ in range(2))
    made = configure_optimizer(row.name, model.parameters(), **row.kwargs)
    assert outline(made) == outline(getattr(optim, row.name)(other.parameters(), **row.kwargs))


def test_the_example_of_the_reference():
    model, reference = network(), network()
    optimizer_params = {"optimizer_type": "SGD", "lr": 0.001, "momentum": 0.5}
    optimizer = configure_optimizer(
        optimizer_type=optimizer_params.pop("optimizer_type"), params=model.parameters(), **optimizer_params
    )
    train(model, optimizer)
    train(reference, torch.optim.SGD(reference.parameters(), lr=0.001, momentum=0.5))
    for p, q in zip(model.parameters(), reference.parameters()):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)  # single precision; the kernels are the same


def test_groups_names_and_lists():
    model = network()
    groups = [{"params": [("0.weight", model[0].weight)], "betas": (0.5, 0.6), "tags": "first"}]
    optimizer = configure_optimizer("adamw", groups, lr=0.1, betas=[0.8, 0.9])
    assert type(optimizer) is optim.AdamW and optimizer.defaults["betas"] == (0.8, 0.9)
    assert optimizer.param_groups[0]["betas"] == (0.5, 0.6) and optimizer.param_groups[0]["param_names"] == ["0.weight"]


@pytest.mark.parametrize("name", CLASSES)
def test_every_name_in_any_letter_case(name):
    more = {"lr": 0.1} if name in ("SGD", "Adafactor") else {}
    for written in (name, name.lower(), name.upper()):
        assert type(configure_optimizer(written, [torch.zeros(2, 2)], **more)) is getattr(optim, name)


@pytest.mark.parametrize(
    "name, given, error, message",
    [
        ("AdmW", {}, ValueError, "optimizer_type: there is no optimizer 'AdmW': did you mean 'AdamW'"),
        ("Adamm", {}, ValueError, "did you mean 'Adam'"),
        ("LBFGS", {}, ValueError, "There are ASGD, Ada"),
        ("Optimizer", {}, ValueError, "there is no optimizer 'Optimizer'"),
        ("RuleOptimizer", {}, ValueError, "there is no optimizer 'RuleOptimizer'"),
        (torch.optim.SGD, {}, TypeError, "write the name of the optimizer"),
        ("SGD", {}, ValueError, "SGD needs 'lr'"),
        ("SGD", {"lr": 0.1, "momentom": 0.9}, ValueError, "SGD has no argument 'momentom': did you mean 'momentum'?"),
        ("SGD", {"lr": 0.1, "weight_decay_rate": 0.9}, ValueError, "did you mean 'weight_decay'?"),
        ("Lion", {"fused": True}, ValueError, "has no argument 'fused'. It takes lr, betas, weight_decay"),
        ("AdamW", {"lr": "1e-3"}, TypeError, "lr='1e-3' is of type str: it must be a finite number"),
        ("AdamW", {"betas": [0.9, "0.95"]}, TypeError, "betas[1]='0.95' is of type str"),
        ("AdamW", {"lr": -1.0}, ValueError, "lr=-1.0"),
        ("AdamW", {"lr": "fast"}, TypeError, "lr='fast'"),
        ("AdamW", {"defaults": {}}, ValueError, "has no argument 'defaults'"),
    ],
)
def test_errors(name, given, error, message):
    with pytest.raises(error) as raised:
        configure_optimizer(name, [torch.zeros(2)], **given)
    assert message in str(raised.value)
