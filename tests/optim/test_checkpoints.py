"""Law 13: saved and loaded at any step equals the uninterrupted run, also to and from torch's optimizers."""

import copy

import pytest
import torch

import optim
from tests.optim.problems import (
    assert_states_close,
    differences,
    flat,
    has_twin,
    ours,
    parameters,
    run,
    snapshot,
    theirs,
)
from tests.optim.rows import BY_ID, FULLEST, ROWS
from tests.optim.signatures import state_keys

ALL = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
BY_NAME = pytest.mark.parametrize("row", FULLEST, ids=lambda row: row.name)
TWINS = pytest.mark.parametrize("row", [row for row in ROWS if has_twin(row)], ids=lambda row: row.id)
MORE = 5
BOUND = 1e-12


@torch.no_grad()
def copies(row, params):
    """As a new process builds them, in the same layouts: the order of the additions in a norm depends on it."""
    new = parameters(row.name)
    for p, q in zip(new, params):
        p.copy_(q)
    return new


def on_disk(value, path):
    torch.save(value, path)
    return torch.load(path, weights_only=True)


def numbers_only(taken):
    return {key: value for key, value in taken.items() if key[-1] != "params"}


@ALL
@pytest.mark.parametrize("at", [0, 1, 7])
def test_resumed_equals_uninterrupted(row, at, tmp_path):
    params = parameters(row.name)
    optimizer = ours(row, params)
    run(optimizer, params, 1, at, zeros=row.zeros)
    saved = on_disk({"params": [p.detach() for p in params], "optimizer": optimizer.state_dict()}, tmp_path / "run.pt")

    resumed_params = copies(row, saved["params"])
    resumed = ours(row, resumed_params)
    resumed.load_state_dict(saved["optimizer"])
    assert not differences(numbers_only(snapshot(resumed)), numbers_only({**snapshot(optimizer), **no_grads(params)}))
    for one, ps in ((optimizer, params), (resumed, resumed_params)):
        run(one, ps, at + 1, at + MORE, zeros=row.zeros)
    assert not differences(numbers_only(snapshot(resumed)), numbers_only(snapshot(optimizer)))


def no_grads(params):
    return {("grad", i): None for i in range(len(params))}


@BY_NAME
def test_a_state_dict_that_is_loaded_is_copied(row):
    params = parameters(row.name)
    optimizer = ours(row, params)
    run(optimizer, params, 1, 2)
    saved = optimizer.state_dict()
    kept = copy.deepcopy(saved)
    others = copies(row, params)
    other = ours(row, others)
    other.load_state_dict(saved)
    run(other, others, 3, 4)
    other.param_groups[0]["lr"] = 123.0
    for p, state in kept["state"].items():
        assert all(torch.equal(value, saved["state"][p][key]) for key, value in state.items())
    assert saved["param_groups"][0]["lr"] == kept["param_groups"][0]["lr"]
    assert not {id(t) for s in other.state.values() for t in s.values()} & {
        id(t) for s in saved["state"].values() for t in s.values()
    }


@BY_NAME
def test_loading_into_a_used_optimizer_starts_over(row):
    params = parameters(row.name)
    optimizer = ours(row, params)
    fresh = copy.deepcopy(optimizer.state_dict())
    before = {key: value for key, value in snapshot(optimizer).items() if key[0] in ("state", "group")}
    run(optimizer, params, 1, 4)
    optimizer.load_state_dict(fresh)
    after = {key: value for key, value in snapshot(optimizer).items() if key[0] in ("state", "group")}
    assert not differences(before, after)


@TWINS
@pytest.mark.parametrize("at", [0, MORE])
def test_a_dict_of_torch_loads(row, at, tmp_path):
    """At step 0 torch has no state; and later none where there was no gradient."""
    twins = parameters(row.name)
    other = theirs(row, twins)
    run(other, twins, 1, at, zeros=row.zeros)
    params = copies(row, twins)
    mine = ours(row, params)
    mine.load_state_dict(on_disk(other.state_dict(), tmp_path / "torch.pt"))
    for group in mine.param_groups:
        for p in group["params"]:
            assert set(mine.state[p]) == state_keys(row.name, group, p.ndim)
    for one, ps in ((other, twins), (mine, params)):
        run(one, ps, at + 1, at + MORE, zeros=row.zeros)
    assert_states_close(mine, other, BOUND)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="Muon came with torch 2.9")
@pytest.mark.parametrize("form", [{}, {"adjust_lr_fn": "original"}, {"adjust_lr_fn": "match_rms_adamw"}])
@pytest.mark.parametrize("at", [0, MORE])
def test_a_muon_of_another_form_takes_over_that_of_torch(form, at, tmp_path):
    """The default forms differ; that of the dict counts, as any other value of a group does."""
    twins = parameters("Muon")
    other = torch.optim.Muon(twins, lr=0.05, weight_decay=0.3, **form)
    run(other, twins, 1, at)
    params = copies(BY_ID["Muon-defaults"], twins)
    mine = optim.Muon(params)
    mine.load_state_dict(on_disk(other.state_dict(), tmp_path / "torch.pt"))
    assert mine.param_groups[0]["adjust_lr_fn"] == form.get("adjust_lr_fn")
    for one, ps in ((other, twins), (mine, params)):
        run(one, ps, at + 1, at + MORE)
    assert_states_close(mine, other, BOUND)


@TWINS
@pytest.mark.parametrize("at", [0, MORE])
def test_torch_loads_our_dict(row, at, tmp_path):
    """And goes on from it as from its own dict: loading, it casts the scalars that it keeps in float32."""
    if at == 0 and any("step" in state_keys("SGD", {**row.arguments, **g}, 1) for g in row.groups if row.name == "SGD"):
        pytest.skip("a buffer of zeros means another thing there: torch would damp the first gradient too")
    params, twins = parameters(row.name), parameters(row.name)
    mine, twin = ours(row, params), theirs(row, twins)
    ends = []
    for one, ps in ((mine, params), (twin, twins)):
        run(one, ps, 1, at, zeros=row.zeros)
        saved = on_disk(one.state_dict(), tmp_path / "saved.pt")
        for group in saved["param_groups"]:  # torch takes tensors for some hyperparameters only
            group.update({key: plain(value) for key, value in group.items()})
        resumed_params = copies(row, ps)
        resumed = theirs(row, resumed_params)
        resumed.load_state_dict(saved)
        run(resumed, resumed_params, at + 1, at + MORE, zeros=row.zeros)
        ends.append(resumed)
    # Before the first step torch has no mu_product to load, and makes one in float32; ours it casts to float64.
    assert_states_close(*ends, 1e-6 if row.name == "NAdam" and at == 0 else BOUND)


def plain(value):
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return float(value) if isinstance(value, torch.Tensor) else value


@BY_NAME
def test_float32_state_survives_other_dtypes(row):
    """As in torch: a moment follows the dtype of its parameter, a step counter stays in float32."""
    params = parameters(row.name)
    optimizer = ours(row, params)
    run(optimizer, params, 1, 3)
    halves = [torch.nn.Parameter(p.detach().bfloat16()) for p in params]
    half = ours(row, halves)
    half.load_state_dict(optimizer.state_dict())
    fresh = ours(row, halves)
    for p in halves:
        for key, value in half.state[p].items():
            assert value.dtype == fresh.state[p][key].dtype, key
    run(half, halves, 4, 5)


def test_tags_and_other_group_entries_survive(tmp_path):
    weight, bias = parameters("Adam")[:2]
    groups = [{"params": [weight], "tags": ["decay", "wide"], "note": "first"}, {"params": [bias], "tags": "bias"}]
    optimizer = optim.AdamW(groups, lr=0.1)
    saved = on_disk(optimizer.state_dict(), tmp_path / "tags.pt")
    other = optim.AdamW([{"params": [p]} for p in parameters("Adam", seed=1)[:2]], lr=0.2)
    other.load_state_dict(saved)
    assert [group["tags"] for group in other.param_groups] == [{"decay", "wide"}, {"bias"}]
    assert other.param_groups[0]["note"] == "first" and other.param_groups[0]["lr"] == 0.1


def test_named_parameters_keep_their_names(tmp_path):
    model = torch.nn.Linear(3, 2)
    optimizer = optim.Adam(model.named_parameters())
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]
    other = optim.Adam(torch.nn.Linear(3, 2).named_parameters())
    other.load_state_dict(on_disk(optimizer.state_dict(), tmp_path / "named.pt"))
    assert other.param_groups[0]["param_names"] == ["weight", "bias"]


@pytest.mark.parametrize("id", ["SGD-lr", "Adam-weight_decay", "Lion-lr"])
def test_load_hooks_run(id):
    row = BY_ID[id]
    optimizer = ours(row, parameters(row.name))
    calls = []
    optimizer.register_state_dict_pre_hook(lambda one: calls.append("before saving"))
    optimizer.register_state_dict_post_hook(lambda one, saved: calls.append("saved"))
    optimizer.register_load_state_dict_pre_hook(lambda one, saved: calls.append("before loading"))
    optimizer.register_load_state_dict_post_hook(lambda one: calls.append("loaded"))
    optimizer.load_state_dict(optimizer.state_dict())
    assert calls == ["before saving", "saved", "before loading", "loaded"]
    assert flat(optimizer)


# How versions of torch, and others, have kept a count.
WHOLE = {
    "int64": torch.tensor,
    "int32": lambda n: torch.tensor(n, dtype=torch.int32),
    "one element": lambda n: torch.tensor([n]),
    "number": int,
}


@pytest.mark.parametrize("count", WHOLE.values(), ids=WHOLE)
@BY_NAME
def test_whole_step_counts_are_taken(row, count):
    params = parameters(row.name)
    optimizer = ours(row, params)
    run(optimizer, params, 1, 3, zeros=row.zeros)
    saved = copy.deepcopy(optimizer.state_dict())
    for state in saved["state"].values():
        if "step" in state:
            state["step"] = count(int(state["step"]))
    resumed_params = copies(row, params)
    resumed = ours(row, resumed_params)
    resumed.load_state_dict(saved)
    assert not differences(numbers_only(snapshot(resumed)), numbers_only({**snapshot(optimizer), **no_grads(params)}))
    for one, ps in ((optimizer, params), (resumed, resumed_params)):
        run(one, ps, 4, 6, zeros=row.zeros)
    assert not differences(numbers_only(snapshot(resumed)), numbers_only(snapshot(optimizer)))
