"""Bad inputs are refused before anything is changed, by an error that names the argument and shows the value."""

import copy

import pytest
import torch
from torch.nn import Parameter

import optim
from tests.optim.bad_rows import BAD, bad
from tests.optim.problems import differences, flat, give_gradients, ours, parameters, run, snapshot
from tests.optim.rows import FULLEST
from tests.optim.signatures import NAMES, REQUIRED, SIGNATURES

ALL = pytest.mark.parametrize("row", BAD, ids=lambda row: row.id)
BY_NAME = pytest.mark.parametrize("row", FULLEST, ids=lambda row: row.name)
NAMED = pytest.mark.parametrize("name", NAMES)


def matrices(n=2):
    generator = torch.Generator().manual_seed(0)
    return [Parameter(torch.randn(3, 2, generator=generator)) for _ in range(n)]


def good(name, params, **kwargs):
    if SIGNATURES[name]["lr"] is REQUIRED:
        kwargs.setdefault("lr", 0.05)
    return getattr(optim, name)(params, **kwargs)


def assert_says(row, caught):
    text = str(caught.value)
    assert row.argument in text and row.shown in text, text
    assert caught.value.__cause__ is None  # one error, not a chain of them


def test_the_table_is_large_enough():
    assert len(BAD) >= 100 and {row.name for row in BAD} == set(NAMES)
    assert len({row.id for row in BAD}) == len(BAD)


@ALL
def test_as_an_argument(row):
    with pytest.raises((ValueError, TypeError)) as caught:
        getattr(optim, row.name)(matrices(), **{**row.base, **row.kwargs})
    assert_says(row, caught)


@ALL
def test_in_a_group(row):
    first, second = matrices()
    with pytest.raises((ValueError, TypeError)) as caught:
        good(row.name, [{"params": [first]}, {"params": [second], **row.kwargs}])
    assert_says(row, caught)


@ALL
def test_in_a_group_added_later(row):
    first, second = matrices()
    optimizer = good(row.name, [first])
    before = snapshot(optimizer)
    with pytest.raises((ValueError, TypeError)) as caught:
        optimizer.add_param_group({"params": [second], **row.kwargs})
    assert_says(row, caught)
    assert len(optimizer.param_groups) == 1 and second not in optimizer.state
    assert not differences(before, snapshot(optimizer))
    optimizer.add_param_group({"params": [second]})


@ALL
def test_in_a_state_dict(row):
    optimizer = good(row.name, matrices())
    saved = copy.deepcopy(optimizer.state_dict())
    saved["param_groups"][0].update(row.kwargs)
    before = snapshot(optimizer)
    with pytest.raises((ValueError, TypeError)) as caught:
        optimizer.load_state_dict(saved)
    assert row.argument in str(caught.value)
    assert not differences(before, snapshot(optimizer))


@NAMED
@pytest.mark.parametrize("switch", ["foreach", "fused", "capturable", "differentiable", "momentumm"])
def test_there_are_no_execution_switches(name, switch):
    with pytest.raises(TypeError, match=switch):
        good(name, matrices(), **{switch: True})


@pytest.mark.parametrize("name", [name for name in NAMES if SIGNATURES[name]["lr"] is REQUIRED])
def test_lr_is_required(name):
    with pytest.raises(TypeError, match="lr"):
        getattr(optim, name)(matrices())


BAD_PARAMETERS = {
    "a_tensor": lambda: torch.zeros(3, 2),
    "a_parameter": lambda: matrices()[0],
    "nothing": lambda: [],
    "none": lambda: None,
    "a_number": lambda: 3,
    "numbers": lambda: [0.1, 0.2],
    "text": lambda: "weights",
    "strings": lambda: ["weight"],
    "not_a_leaf": lambda: [matrices()[0] * 2],
    "whole_numbers": lambda: [torch.zeros(3, 2, dtype=torch.int64)],
    "truth_values": lambda: [torch.zeros(3, 2, dtype=torch.bool)],
    "sparse": lambda: [torch.zeros(3, 2).to_sparse()],
    "twice": lambda: [matrices()[0]] * 2,
    "twice_in_groups": lambda: [{"params": p} for p in [matrices()[0]] * 2],
    "group_without_params": lambda: [{"lr": 0.1}],
    "group_of_text": lambda: [{"params": "weights"}],
    "group_with_a_set": lambda: [{"params": set(matrices())}],
    "group_and_tensor": lambda: [{"params": matrices()}, matrices()[0]],
    "some_names": lambda: [("weight", matrices()[0]), matrices()[1]],
    "names_in_some_groups": lambda: [{"params": [("weight", matrices()[0])]}, {"params": [matrices()[1]]}],
    "tags_of_a_number": lambda: [{"params": matrices(), "tags": 3}],
    "tags_of_numbers": lambda: [{"params": matrices(), "tags": [1, 2]}],
}


@NAMED
@pytest.mark.parametrize("params", BAD_PARAMETERS)
def test_bad_parameters(name, params):
    with pytest.raises((ValueError, TypeError)):
        good(name, BAD_PARAMETERS[params]())


@NAMED
@pytest.mark.parametrize("params", [key for key in BAD_PARAMETERS if "group" not in key and key[:4] != "tags"])
def test_bad_parameters_added_later(name, params):
    if params in ("nothing", "a_tensor", "a_parameter"):
        pytest.skip("a group may hold a single tensor, or none")
    optimizer = good(name, matrices())
    before = snapshot(optimizer)
    with pytest.raises((ValueError, TypeError)):
        optimizer.add_param_group({"params": BAD_PARAMETERS[params]()})
    assert not differences(before, snapshot(optimizer)) and len(optimizer.param_groups) == 1
    assert set(optimizer.state) == set(flat(optimizer))


@NAMED
def test_a_parameter_of_another_group_added_later(name):
    params = matrices()
    optimizer = good(name, params)
    before = snapshot(optimizer)
    for again in ({"params": params[1:]}, {"params": [*matrices(1), params[0]]}, [params[0]], None):
        with pytest.raises((ValueError, TypeError)):
            optimizer.add_param_group(again)
    assert not differences(before, snapshot(optimizer)) and set(optimizer.state) == set(params)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_muon_takes_matrices(shape):
    with pytest.raises(ValueError, match=r"(?s)Muon.*matri"):
        optim.Muon([torch.zeros(shape, requires_grad=True)])
    optimizer = optim.Muon(matrices())
    with pytest.raises(ValueError, match=r"(?s)Muon.*matri"):
        optimizer.add_param_group({"params": [torch.zeros(shape, requires_grad=True)]})
    assert len(optimizer.param_groups) == 1


@BY_NAME
def test_sparse_gradients_are_refused_and_nothing_is_changed(row):
    params = [p for p in parameters(row.name, torch.float32) if p.ndim == 2 and p.numel()]
    optimizer = ours(row, params)
    run(optimizer, params, 1, 2)
    give_gradients(params, 3, missing={})
    params[-1].grad = params[-1].grad.to_sparse()
    before = snapshot(optimizer)
    with pytest.raises((RuntimeError, ValueError, TypeError), match="sparse"):
        optimizer.step()
    after = snapshot(optimizer)
    for key in list(before):
        if key[0] == "grad" and before[key] is not None and before[key].is_sparse:
            assert torch.equal(before.pop(key).to_dense(), after.pop(key).to_dense())
    assert not differences(before, after)


def test_an_embedding_with_sparse_gradients():
    embedding = torch.nn.Embedding(5, 3, sparse=True)
    optimizer = optim.SGD(embedding.parameters(), lr=0.1)
    embedding(torch.tensor([1, 2])).sum().backward()
    with pytest.raises((RuntimeError, ValueError, TypeError), match="sparse"):
        optimizer.step()


def test_the_first_error_is_the_first_group():
    row = bad("Adam", "lr", -1.0)
    with pytest.raises(ValueError, match=r"(?s)group 1.*lr"):
        good("Adam", [{"params": matrices(1)}, {"params": matrices(1), **row.kwargs}])
