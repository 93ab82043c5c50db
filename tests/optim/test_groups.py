"""Parameter groups: how they are given, added later, and tagged."""

import copy

import pytest
from torch.nn import Parameter

import optim
from tests.optim.problems import differences, flat, give_gradients, ours, parameters, run, snapshot
from tests.optim.rows import FULLEST, ROWS
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
    optimizer.zero_grad()
    for one, late in ((alone, alone_params), (optimizer, params[3:])):
        run(one, late, 1, 4)
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


def test_construction_forms():
    """Generators, groups of single tensors, named parameters: all the same; what is given stays as it is."""
    model, loss_of = network()
    another, _ = network()
    forms = [
        (p for p in model.parameters()),
        [{"params": p, "tags": "a"} for p in model.parameters()],
        model.named_parameters(),
        [{"params": model.named_parameters()}],
    ]
    given = list(forms[1])
    for form in forms:
        optimizer = optim.AdamW(form, lr=0.1)
        assert flat(optimizer) == list(model.parameters()) == list(optimizer.state)
    assert train(model, optimizer, loss_of) == train(another, optim.AdamW(another.parameters(), lr=0.1), loss_of)
    assert given == [{"params": p, "tags": "a"} for p in model.parameters()]


@pytest.mark.parametrize("name", NAMES)
def test_a_step_per_group_equals_an_optimizer_per_group(name):
    """Groups share nothing: parameters in one group of two move as if they were alone."""
    row = next(row for row in ROWS if row.name == name and len(row.groups) > 1)
    together, alone, n = parameters(name), parameters(name), len(row.groups)
    optimizers = [getattr(optim, name)(alone[i::n], **{**row.kwargs, **group}) for i, group in enumerate(row.groups)]
    one = ours(row, together)
    for step in range(1, 7):
        give_gradients(together, step)
        give_gradients(alone, step)
        for optimizer in (one, *optimizers):
            optimizer.step()
    assert equal(together, alone)
