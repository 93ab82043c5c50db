"""Parameter groups: how they are given, added later, and tagged."""

import copy

import pytest
from torch.nn import Parameter

import optim
from tests.optim.problems import differences, flat, ours, parameters, run, snapshot
from tests.optim.rows import BY_NAME
from tests.optim.training import equal, network, train


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
    alone_params = [Parameter(p.detach().clone()) for p in params[3:]]
    alone = getattr(optim, row.name)(alone_params, **{**row.kwargs, "lr": 0.02})
    assert [set(optimizer.state[p]) for p in params[3:]] == list(map(set, alone.state.values()))
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
