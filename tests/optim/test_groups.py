"""Parameter groups: how they are given, added later, and tagged."""

import copy

import pytest
import torch
from torch.nn import Parameter

import optim
from tests.optim.problems import assert_close, differences, flat, give_gradients, ours, parameters, run, snapshot
from tests.optim.rows import BY_ID, FULLEST, ROWS
from tests.optim.signatures import NAMES, state_keys
from tests.optim.training import equal, network, train

BY_NAME = pytest.mark.parametrize("row", FULLEST, ids=lambda row: row.name)


@BY_NAME
def test_add_param_group(row):
    """A group added later moves as one that was there from the start, from then on."""
    params = parameters(row.name)
    optimizer = ours(row, params[:3])
    run(optimizer, params[:3], 1, 3)
    before = snapshot(optimizer)
    optimizer.add_param_group({"params": params[3:], "lr": 0.02, "tags": ["late"]})
    after = snapshot(optimizer)
    assert not [key for key in before if key in differences(before, after) and key[0] != "grad"]
    group = optimizer.param_groups[1]
    assert group["tags"] == {"late"} and group["lr"] == 0.02
    for p in params[3:]:
        assert set(optimizer.state[p]) == state_keys(row.name, group, p.ndim)
    alone_params = [Parameter(p.detach().clone()) for p in params[3:]]
    alone = getattr(optim, row.name)(alone_params, **{**row.kwargs, "lr": 0.02})
    run(alone, alone_params, 1, 4)
    for step in range(1, 5):
        give_gradients(params[3:], step)
        for p in params[:3]:
            p.grad = None
        optimizer.step()
    assert equal(params[3:], alone_params)


@pytest.mark.parametrize(
    ("given", "kept"), [("a", {"a"}), (["a", "b"], {"a", "b"}), ({"c"}, {"c"}), (("d",), {"d"}), ([], set())]
)
def test_tags_become_a_set(given, kept):
    first, second, third = parameters("Adam")[:3]
    optimizer = optim.Adam([{"params": [first], "tags": given}, {"params": [second]}])
    optimizer.add_param_group({"params": [third], "tags": given})
    assert optimizer.param_groups[0]["tags"] == optimizer.param_groups[2]["tags"] == kept
    assert isinstance(optimizer.param_groups[0]["tags"], set)
    assert not optimizer.param_groups[1].get("tags")
    assert copy.deepcopy(optimizer).param_groups[0]["tags"] == kept


def test_the_groups_of_the_caller_are_left_alone():
    weight = Parameter(torch.ones(2))
    group = {"params": [weight], "tags": "a"}
    optim.Adam([group])
    assert group == {"params": [weight], "tags": "a"}


@BY_NAME
def test_construction_forms(row):
    """A generator, groups of single tensors, named parameters: all the same parameters."""
    model, loss_of = network()
    another, _ = network()
    kwargs = dict(row.kwargs)
    forms = [
        (p for p in model.parameters()),
        [{"params": p} for p in model.parameters()],
        model.named_parameters(),
        [{"params": model.named_parameters()}],
    ]
    for form in forms:
        optimizer = getattr(optim, row.name)(form, **kwargs)
        assert flat(optimizer) == list(model.parameters()) == list(optimizer.state)
    plain = ours(row, list(another.parameters()))
    assert train(model, optimizer, loss_of) == train(another, plain, loss_of)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_per_group_equals_an_optimizer_per_group(name):
    """Groups share nothing: parameters in one group of two move as if they were alone."""
    row = next(r for r in ROWS if r.name == name and len(r.groups) > 1) if name != "NAdam" else BY_ID["NAdam-groups"]
    together = ours(row, parameters(name))
    run(together, parameters_in_order(together, row), 1, 6)
    alone = parameters(name)
    n = len(row.groups)
    optimizers = [getattr(optim, name)(alone[i::n], **{**row.kwargs, **group}) for i, group in enumerate(row.groups)]
    for step in range(1, 7):
        give_gradients(alone, step)
        for optimizer in optimizers:
            optimizer.step()
    for p, q in zip(parameters_in_order(together, row), alone):
        assert_close(p, q, 0.0)


def parameters_in_order(optimizer, row):
    """The parameters as they were dealt out."""
    groups, n = [group["params"] for group in optimizer.param_groups], len(row.groups)
    return [groups[i % n][i // n] for i in range(sum(map(len, groups)))]
