"""Law 13: saved and loaded at any step equals the uninterrupted run, also to and from torch's optimizers. A dict that
does not fit is refused, and the optimizer is left as it was, bit for bit."""

import copy
import itertools

import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

import optim
from tests.optim.problems import (
    assert_states_close,
    differences,
    flat,
    ours,
    parameters,
    run,
    snapshot,
    theirs,
    torch_has,
)
from tests.optim.rows import BY_ID, FULLEST, ROWS
from tests.optim.signatures import NAMES, REQUIRED, SIGNATURES, state_keys

ALL = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
BY_NAME = pytest.mark.parametrize("row", FULLEST, ids=lambda row: row.name)
IN_TORCH = [row for row in ROWS if torch_has(row)]
SAVED = (0, 1, 7)
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
def test_resumed_equals_uninterrupted(row, tmp_path):
    """Saved before the first step, when some have had no gradient yet, and when all have had one that ever get one."""
    params = parameters(row.name)
    optimizer = ours(row, params)
    saved, expected = {}, {}
    for step in range(max(SAVED) + MORE + 1):
        if step:
            run(optimizer, params, step, step, zeros=row.zeros)
        if step in SAVED:
            now = {"params": [p.detach() for p in params], "optimizer": optimizer.state_dict()}
            saved[step] = on_disk(now, tmp_path / "run.pt")
        if step in SAVED or step - MORE in SAVED:
            expected[step] = snapshot(optimizer)
    for at in SAVED:
        resumed_params = copies(row, saved[at]["params"])
        resumed = ours(row, resumed_params)
        resumed.load_state_dict(saved[at]["optimizer"])
        assert not differences(numbers_only(snapshot(resumed)), numbers_only({**expected[at], **no_grads(params)})), at
        run(resumed, resumed_params, at + 1, at + MORE, zeros=row.zeros)
        assert not differences(numbers_only(snapshot(resumed)), numbers_only(expected[at + MORE])), at


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


@pytest.mark.parametrize("row", IN_TORCH, ids=lambda row: row.id)
@pytest.mark.parametrize("at", [0, MORE])
def test_a_dict_of_torch_loads(row, at, tmp_path):
    """At step 0 torch has no state; and later none where there was no gradient."""
    theirs_params = parameters(row.name)
    other = theirs(row, theirs_params)
    run(other, theirs_params, 1, at, zeros=row.zeros)
    params = copies(row, theirs_params)
    mine = ours(row, params)
    mine.load_state_dict(on_disk(other.state_dict(), tmp_path / "torch.pt"))
    for group in mine.param_groups:
        for p in group["params"]:
            assert set(mine.state[p]) == state_keys(row.name, group, p.ndim)
    for one, ps in ((other, theirs_params), (mine, params)):
        run(one, ps, at + 1, at + MORE, zeros=row.zeros)
    assert_states_close(mine, other, BOUND)


FORMS = [{}, {"adjust_lr_fn": "original"}, {"adjust_lr_fn": "match_rms_adamw"}] if hasattr(torch.optim, "Muon") else []


@pytest.mark.parametrize(("form", "at"), list(itertools.product(FORMS, [0, MORE])))
def test_a_muon_of_another_form_takes_over_that_of_torch(form, at, tmp_path):
    """The default forms differ; that of the dict counts, as any other value of a group does."""
    theirs_params = parameters("Muon")
    other = torch.optim.Muon(theirs_params, lr=0.05, weight_decay=0.3, **form)
    run(other, theirs_params, 1, at)
    params = copies(BY_ID["Muon-defaults"], theirs_params)
    mine = optim.Muon(params)
    mine.load_state_dict(on_disk(other.state_dict(), tmp_path / "torch.pt"))
    assert mine.param_groups[0]["adjust_lr_fn"] == form.get("adjust_lr_fn")
    for one, ps in ((other, theirs_params), (mine, params)):
        run(one, ps, at + 1, at + MORE)
    assert_states_close(mine, other, BOUND)


def damps_the_first_gradient(row):
    """A buffer of zeros means that in torch's SGD, which keeps no step to tell."""
    return row.name == "SGD" and any("step" in state_keys("SGD", {**row.arguments, **g}, 1) for g in row.groups)


@pytest.mark.parametrize(
    ("row", "at"),
    [(row, at) for row in IN_TORCH for at in (0, MORE) if at or not damps_the_first_gradient(row)],
    ids=lambda value: getattr(value, "id", None),
)
def test_torch_loads_our_dict(row, at, tmp_path):
    """And goes on from it as from its own dict: loading, it casts the scalars that it keeps in float32."""
    ends = []
    for make in (ours, theirs):
        params = parameters(row.name)
        one = make(row, params)
        run(one, params, 1, at, zeros=row.zeros)
        saved = on_disk(one.state_dict(), tmp_path / "saved.pt")
        for group in saved["param_groups"]:  # torch takes tensors for some hyperparameters only
            group.update({key: plain(value) for key, value in group.items()})
        resumed_params = copies(row, params)
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


def named_adam(*groups):
    """Of layers of one shape, by their names."""
    layers = {name: torch.nn.Linear(3, 3, bias=False) for name in "".join(groups)}
    return optim.Adam(
        [{"params": [pair for name in group for pair in layers[name].named_parameters(name)]} for group in groups]
    )


def test_named_parameters_in_another_order_are_refused():
    """The state would go to another parameter; names that are new, as with a prefix, say nothing."""
    saved = named_adam("ab", "cd").state_dict()
    for groups, here, there in (
        (("cd", "ab"), "c", "a"),
        (("ba", "cd"), "b", "a"),
        (("ad", "cb"), "d", "b"),
        (("be", "fg"), "e", "b"),
    ):
        optimizer = named_adam(*groups)
        before = snapshot(optimizer)
        with pytest.raises(ValueError, match=f"is '{here}.weight' here and '{there}.weight' in the state dict"):
            optimizer.load_state_dict(saved)
        assert not differences(before, snapshot(optimizer))
    for groups in (("ab", "cd"), ("ef", "gh"), ("ae", "cd")):
        named_adam(*groups).load_state_dict(saved)


def test_the_distributed_checkpoint_finds_parameters_by_their_names():
    """It loads into another order, too; and the names stay those of the parameters."""

    def made(turned):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False))
        return model, optim.Adam(list(model.named_parameters())[:: -1 if turned else 1])

    model, optimizer = made(False)
    for i, p in enumerate(model.parameters()):
        p.grad = torch.full_like(p, i + 1.0)
    optimizer.step()
    saved = get_optimizer_state_dict(model, optimizer)
    model, other = made(True)
    set_optimizer_state_dict(model, other, saved)
    assert other.param_groups[0]["param_names"] == ["1.weight", "0.weight"]
    for i, p in enumerate(model.parameters()):
        torch.testing.assert_close(other.state[p]["exp_avg"], torch.full((3, 3), 0.1 * (i + 1)))


def test_a_hook_may_return_any_state_dict():
    optimizer = optim.Adam([torch.nn.Parameter(torch.ones(1))])
    optimizer.register_state_dict_post_hook(lambda optimizer, state: {"wrapped": state})
    assert optimizer.state_dict()["wrapped"].keys() == {"state", "param_groups"}


# How versions of torch, and others, have kept a count.
COUNTS = {
    "int64": torch.tensor,
    "int32": lambda n: torch.tensor(n, dtype=torch.int32),
    "one element": lambda n: torch.tensor([n]),
    "number": int,
}


@pytest.mark.parametrize("count", COUNTS.values(), ids=COUNTS)
@BY_NAME
def test_step_counts_of_other_types_are_taken(row, count):
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


def test_groups_that_share_a_tensor_load_different_values():
    a, b = parameters("Adam")[:2]
    optimizer = optim.SGD([{"params": [a]}, {"params": [b]}], lr=torch.tensor(1.0))
    saved = copy.deepcopy(optimizer.state_dict())
    for group, lr in zip(saved["param_groups"], (0.1, 0.01)):
        group["lr"] = lr
    optimizer.load_state_dict(saved)
    assert [round(float(group["lr"]), 6) for group in optimizer.param_groups] == [0.1, 0.01]


def test_a_momentum_scheduled_to_zero_resumes():
    optimizer = trained(BY_ID["SGD-momentum"])
    optimizer.param_groups[0]["momentum"] = 0.0
    fresh = ours(BY_ID["SGD-momentum"], parameters("SGD"))
    fresh.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert fresh.param_groups[0]["momentum"] == 0.0


@BY_NAME
def test_moments_may_hold_what_they_hold(row):
    optimizer = trained(row)
    saved = copy.deepcopy(optimizer.state_dict())
    for state in saved["state"].values():
        for key, value in state.items():
            if value.dim():
                value.fill_(float("nan" if key == "exp_avg" else "inf"))
    optimizer.load_state_dict(saved)


# What does not fit


def trained(row, steps=2):
    optimizer = ours(row, parameters(row.name))
    run(optimizer, flat(optimizer), 1, steps)
    return optimizer


def assert_refused(optimizer, saved, match=None):
    before, objects = snapshot(optimizer), [id(t) for s in optimizer.state.values() for t in s.values()]
    defaults = copy.deepcopy(optimizer.defaults)
    with pytest.raises((ValueError, TypeError), match=match):
        optimizer.load_state_dict(saved)
    assert not differences(before, snapshot(optimizer))
    assert objects == [id(t) for s in optimizer.state.values() for t in s.values()]
    assert defaults == optimizer.defaults
    run(optimizer, flat(optimizer), 5, 5)  # and it still works


# A parameter set that all fifteen take, so that nothing but the optimizer differs.
def small(name, steps):
    params = parameters("Muon")[:2]
    optimizer = getattr(optim, name)(params, **next(row for row in FULLEST if row.name == name).kwargs)
    run(optimizer, params, 1, steps)
    return optimizer


# torch saves AdamW as an Adam with decoupled weight decay: their dicts have the same form, and load into each other.
PAIRS = [pair for pair in itertools.permutations(NAMES, 2) if set(pair) != {"Adam", "AdamW"}]
# Without a state these could be dicts of an older release, or of transformers' AdamW: the same arguments.
ALIKE = [("RAdam", "Adamax"), ("AdamW", "Adamax")]


@pytest.mark.parametrize(("mine", "other"), PAIRS, ids=map("-".join, PAIRS))
def test_the_dict_of_another_optimizer(mine, other):
    """Also of torch's before its first step, where only the hyperparameters tell them apart."""
    assert_refused(small(mine, 1), small(other, 1).state_dict())
    if hasattr(torch.optim, other) and (mine, other) not in ALIKE:
        theirs = getattr(torch.optim, other)(parameters("Muon")[:2], **({"lr": 0.1} if other == "SGD" else {}))
        assert_refused(small(mine, 1), theirs.state_dict())


@BY_NAME
def test_state_that_does_not_fit(row):
    """At any parameter and key; the others, which do fit, are not taken over either."""
    optimizer, good = trained(row), trained(row, steps=4).state_dict()
    for p, state in good["state"].items():
        for key, value in state.items():
            wrong = [torch.zeros([*value.shape, 2])]
            if p == 0:
                wrong += ["text", [1.0], object()]
                # torch's SGD writes None for a buffer that has had no gradient.
                wrong += [] if key == "momentum_buffer" else [None]
                wrong += [value.to("meta"), value.to_sparse(), value.bool()] if value.dim() else []
            for other in wrong:
                saved = {**good, "state": {**good["state"], p: {**state, key: other}}}
                assert_refused(optimizer, saved, match=key)
    saved = {**good, "state": {**good["state"], 0: {**good["state"][0], "mystery": torch.zeros(4, 3)}}}
    assert_refused(optimizer, saved, match="mystery")


@BY_NAME
def test_partial_state(row):
    """Where one key is all the state there is, without it the parameter never had a gradient."""
    optimizer = trained(row)
    keys = state_keys(row.name, optimizer.param_groups[0], 2)
    for key in keys if len(keys) > 1 else ():
        if row.name == "SGD" and key == "step":  # torch keeps no step for it: this is its dict
            continue
        saved = copy.deepcopy(optimizer.state_dict())
        del saved["state"][0][key]
        assert_refused(optimizer, saved, match=key)


@BY_NAME
def test_groups_and_parameters_that_do_not_match(row):
    optimizer = trained(row)
    good = trained(row, steps=4).state_dict()

    def split(saved):
        group = saved["param_groups"][0]
        saved["param_groups"] = [{**group, "params": [0]}, {**group, "params": group["params"][1:]}]

    for change, said in (
        (split, "group"),
        (lambda saved: saved["param_groups"].clear(), "group"),
        (lambda saved: saved["param_groups"][0]["params"].pop(), "parameters"),
        (lambda saved: saved["param_groups"][0]["params"].append(99), "parameters"),
        (lambda saved: saved["state"].update({99: saved["state"][0]}), None),
        (lambda saved: saved.pop("state"), "state"),
        (lambda saved: saved.pop("param_groups"), "param_groups"),
        (lambda saved: saved["param_groups"][0].pop("params"), "params"),
        # An argument that has a default may be absent from an old dict; the learning rate may not.
        (lambda saved: saved["param_groups"][0].pop("lr"), "lr"),
        (lambda saved: saved["param_groups"][-1].update(lr=float("nan")), "lr"),
    ):
        saved = copy.deepcopy(good)
        change(saved)
        assert_refused(optimizer, saved, match=said)
    for nonsense in (None, [], "dict", {}, {"state": [], "param_groups": {}}):
        assert_refused(optimizer, nonsense)


@pytest.mark.parametrize(("label", "amsgrad"), [("amsgrad_all", False), ("lr", True)])
def test_a_switch_that_needs_other_state(label, amsgrad):
    """The dict decides the hyperparameters, and its state must be the state that they need."""
    optimizer = trained(BY_ID[f"Adam-{label}"])
    saved = copy.deepcopy(optimizer.state_dict())
    saved["param_groups"][0]["amsgrad"] = amsgrad
    assert_refused(optimizer, saved, match="amsgrad")


DECISIVE = {
    "SGD-momentum": "momentum",
    "RMSprop-momentum": "momentum",
    "RMSprop-centered": "centered",
    "Adam-amsgrad": "amsgrad",
    "AdamW-amsgrad": "amsgrad",
    "Adafactor-beta1": "beta1",
}


@pytest.mark.parametrize(("id", "argument"), DECISIVE.items())
def test_arguments_that_need_other_state_than_the_constructors(id, argument):
    """All state is there since construction, so a dict cannot ask for more, nor leave some over."""
    row = BY_ID[id]
    full = trained(row)
    base = {"lr": 0.1} if SIGNATURES[row.name]["lr"] is REQUIRED else {}
    plain = getattr(optim, row.name)(parameters(row.name), **base)
    run(plain, flat(plain), 1, 2)
    assert_refused(plain, full.state_dict(), match=argument)
    assert_refused(full, plain.state_dict(), match=argument)
