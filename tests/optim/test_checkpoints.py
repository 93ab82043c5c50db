"""Saved and loaded at any step equals the uninterrupted run, also to and from torch's optimizers. A dict that
does not fit is refused, and the optimizer is left as it was, bit for bit."""

import copy
import re

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

import optim
from optim.base.hyperparameters import HYPERPARAMETERS, Number
from tests.optim._distributed.checkpoints import with_keys_of
from tests.optim.problems import (
    assert_states_close,
    differences,
    flat,
    is_in_torch,
    ours,
    parameters,
    run,
    snapshot,
    theirs,
    trained,
    values,
)
from tests.optim.rows import BY_ID, BY_NAME, FULLEST
from tests.optim.signatures import NAMES

# One of each optimizer, and those whose groups differ in their state, or hold tensors.
MORE_STATES = """
    SGD-lr SGD-momentum SGD-tensors SGD-groups_momentum_or_not ASGD-tensors Adafactor-group_beta1_or_not
    Adagrad-initial_accumulator Adam-groups Adam-tensors_amsgrad AdamW-defaults Muon-torch_groups NAdam-defaults
    RMSprop-groups Rprop-tensors
"""
STATES = [*FULLEST, *(BY_ID[id] for id in MORE_STATES.split())]
IN_TORCH = pytest.mark.parametrize("row", [row for row in STATES if is_in_torch(row)], ids=lambda row: row.id)
MORE = 5
BOUND = 1e-12


def differ(mine, other, *kinds):
    """The places where the state or the groups differ, or what is given: gradients are not saved."""
    found = differences(snapshot(mine), snapshot(other))
    return [key for key in found if key[0] in (kinds or ("state", "group")) and key[-1] != "params"]


def continued(row, at, source, target, path):
    """An optimizer that goes on from step `at`, and another, which has run before, that goes on from its dict."""
    params, others = parameters(row.name), parameters(row.name)
    one, other = source(row, params), target(row, others)
    run(one, params, 1, at)
    run(other, others, 1, 3)
    with torch.no_grad():
        torch._foreach_copy_(others, params)
    torch.save(one.state_dict(), path)
    saved, keys = torch.load(path, weights_only=True), {p: set(state) for p, state in other.state.items()}
    for group in saved["param_groups"] if target is theirs else ():
        group.update(values(group, plain=True))  # torch takes tensors for some hyperparameters only
    other.load_state_dict(saved)
    assert target is theirs or {p: set(state) for p, state in other.state.items()} == keys
    run(one, params, at + 1, at + MORE)
    run(other, others, at + 1, at + MORE)
    return one, other


@pytest.mark.parametrize("row", STATES, ids=lambda row: row.id)
@pytest.mark.parametrize("at", [0, 1, 7])
def test_resumed_equals_uninterrupted(row, at, tmp_path):
    """Saved before the first step, when some have had no gradient yet, and when all have had one that ever get one."""
    assert not differ(*continued(row, at, ours, ours, tmp_path / "run.pt"), "param", "state", "group")


@BY_NAME
def test_a_load_shares_nothing_with_the_dict(row):
    saved, optimizer = ours(row, parameters(row.name)).state_dict(), ours(row, parameters(row.name))
    kept = copy.deepcopy(saved)
    optimizer.load_state_dict(saved)
    run(optimizer, flat(optimizer), 1, 2)
    optimizer.param_groups[0]["lr"] = 123.0
    assert saved["param_groups"] == kept["param_groups"]
    for p, state in kept["state"].items():
        assert all(torch.equal(value, saved["state"][p][key]) for key, value in state.items())


@IN_TORCH
@pytest.mark.parametrize("at", [0, MORE])
def test_a_dict_of_torch_loads(row, at, tmp_path):
    """At step 0 torch has no state; and later none where there was no gradient."""
    other, mine = continued(row, at, theirs, ours, tmp_path / "torch.pt")
    assert not {"foreach", "capturable"} & mine.param_groups[0].keys()  # how torch runs a step is no hyperparameter
    assert_states_close(mine, other, BOUND)


@IN_TORCH
def test_torch_loads_our_dict(row, tmp_path):
    """And goes on from it as from its own dict: loading, it casts the scalars that it keeps in float32."""
    # A buffer of zeros means another thing in torch's SGD, which keeps no step to tell when to damp.
    damps = row.name == "SGD" and any("step" in state for state in trained(row).state.values())
    for at in (MORE,) if damps else (0, MORE):
        ends = [continued(row, at, make, theirs, tmp_path / "saved.pt")[1] for make in (ours, theirs)]
        # Before the first step torch has no mu_product to load, and makes one in float32; ours it casts to float64.
        assert_states_close(*ends, 1e-6 if row.name == "NAdam" and at == 0 else BOUND)


def test_a_muon_of_another_form_takes_over_that_of_torch():
    """The default forms differ; that of the dict counts, as any other value of a group does."""
    mine = optim.Muon(parameters("Muon"), ns_dtype="bfloat16")
    other = torch.optim.Muon(parameters("Muon"), lr=0.05, weight_decay=0.3)
    mine.load_state_dict(other.state_dict())
    for one in (mine, other):
        run(one, flat(one), 1, MORE)
    assert_states_close(mine, other, BOUND)


@BY_NAME
def test_what_a_dict_may_hold_otherwise(row):
    """Counts as other versions keep them, moments of another dtype, groups from before an argument was there."""
    optimizer = trained(row, steps=4)
    for count in (int, torch.tensor, lambda n: torch.tensor(n, dtype=torch.int32), lambda n: torch.tensor([n])):
        saved = copy.deepcopy(optimizer.state_dict())
        for state in saved["state"].values():
            state.update({key: count(int(value)) for key, value in state.items() if key == "step"})
        resumed = ours(row, parameters(row.name))
        for key in resumed.may_be_missing - {"amsgrad"}:
            saved["param_groups"][0].pop(key, None)
        resumed.load_state_dict(saved)
        assert not differ(resumed, optimizer)
    half, fresh = (ours(row, [torch.nn.Parameter(p.detach().bfloat16()) for p in flat(optimizer)]) for _ in range(2))
    half.load_state_dict(optimizer.state_dict())
    for p, q in zip(flat(half), flat(fresh)):  # as in torch, a step counter stays in float32
        assert {key: x.dtype for key, x in half.state[p].items()} == {k: x.dtype for k, x in fresh.state[q].items()}


def test_tags_and_other_group_entries_survive(tmp_path):
    weight, bias = parameters("Adam")[:2]
    groups = [{"params": [weight], "tags": ["decay", "wide"], "note": "first"}, {"params": [bias], "tags": "bias"}]
    optimizer = optim.AdamW(groups, lr=0.1)
    torch.save(optimizer.state_dict(), tmp_path / "tags.pt")
    other = optim.AdamW([{"params": [p]} for p in parameters("Adam", seed=1)[:2]], lr=0.2)
    other.load_state_dict(torch.load(tmp_path / "tags.pt", weights_only=True))
    assert [group["tags"] for group in other.param_groups] == [{"decay", "wide"}, {"bias"}]
    assert other.param_groups[0]["note"] == "first" and other.param_groups[0]["lr"] == 0.1


def named_adam(*groups):
    layers = {name: torch.nn.Linear(3, 3, bias=False) for name in "".join(groups)}
    return optim.Adam(
        [{"params": [pair for name in group for pair in layers[name].named_parameters(name)]} for group in groups]
    )


def test_named_parameters_in_another_order_are_refused():
    """The state would go to another parameter; names that are new, as with a prefix, say nothing."""
    saved = named_adam("ab", "cd").state_dict()
    for groups, here, there in ((("cd", "ab"), "c", "a"), (("ad", "cb"), "d", "b"), (("be", "fg"), "e", "b")):
        assert_refused(named_adam(*groups), saved, f"'{here}.weight' here, but '{there}.weight'")
    for groups in (("ab", "cd"), ("ef", "gh"), ("ae", "cd")):
        (other := named_adam(*groups)).load_state_dict(saved)
        assert [f"{name}.weight" for name in groups[0]] == other.param_groups[0]["param_names"]


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


SAME_STATE = [row for row in FULLEST if is_in_torch(row) and row.name != "SGD"] + [BY_ID["SGD-momentum"]]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("full", [False, True], ids=["sharded", "full"])
@pytest.mark.parametrize("row", SAME_STATE, ids=lambda row: row.name)
@pytest.mark.parametrize(("source", "target"), [(theirs, ours), (ours, theirs)], ids=["from torch", "to torch"])
def test_a_distributed_checkpoint_of_torchs_class(row, source, target, full, tmp_path):
    """From a file and from a dict. Their groups have different keys, which both ways leave out."""
    options, planner = StateDictOptions(full_state_dict=full), dcp.DefaultLoadPlanner(allow_partial_load=True)
    models = [torch.nn.Linear(3, 4, dtype=torch.float64) for _ in range(3)]
    with torch.no_grad():
        for p in torch.nn.ModuleList(models).parameters():
            p.fill_(0.5)
    (model, one), *others = [
        (model, make(row, list(model.parameters()))) for model, make in zip(models, (source, target, target))
    ]
    run(one, flat(one), 1, 3)
    saved = copy.deepcopy(get_optimizer_state_dict(model, one, options=options))
    dcp.save(saved, checkpoint_id=tmp_path)
    (model, from_file), (last, from_dict) = others
    there = get_optimizer_state_dict(model, from_file, options=options)
    dcp.load(there, checkpoint_id=tmp_path, planner=planner)
    set_optimizer_state_dict(model, from_file, there, options=options)
    own = get_optimizer_state_dict(last, from_dict)
    set_optimizer_state_dict(last, from_dict, with_keys_of(own, saved), options=options)
    for other in (from_file, from_dict):
        with torch.no_grad():
            torch._foreach_copy_(flat(other), flat(one))
    for optimizer in (one, from_file, from_dict):
        run(optimizer, flat(optimizer), 4, 8)
    # A load casts torch's mu_product, which it made in float32, to float64.
    bound = 1e-6 if row.name == "NAdam" and target is theirs else BOUND
    for other in (from_file, from_dict):
        assert_states_close(*((other, one) if target is ours else (one, other)), bound)
        assert set(other.param_groups[0]) == set(target(row, parameters(row.name)).param_groups[0])


def test_what_torchs_checkpoints_leave_out():
    """Of a flattened dict a parameter that it lacks, and of another the values of a group without parameters."""
    flattened = StateDictOptions(flatten_optimizer_state_dict=True)
    model = torch.nn.Linear(3, 2)
    saved = get_optimizer_state_dict(model, optim.AdamW([model.weight]), options=flattened)
    other = optim.AdamW(model.parameters())
    before = snapshot(other)
    words = "AdamW: state of parameter 1, of shape (2,): step: it is {}, but this optimizer has"
    with pytest.raises(ValueError, match=f"^{re.escape(words)}"):
        set_optimizer_state_dict(model, other, saved, options=flattened)
    assert not differences(before, snapshot(other))
    full, empty = {"params": list(model.parameters())}, {"params": [], "lr": 0.3}
    made = [optim.AdamW([dict(group) for group in groups]) for groups in ((full, empty), (empty, full))]
    saved, first = (get_optimizer_state_dict(model, optimizer) for optimizer in made)
    set_optimizer_state_dict(model, made[0], saved)
    assert made[0].param_groups[1]["lr"] == 0.3
    words = "group 0 of the state dict: it lacks 'betas', 'eps', 'lr', 'weight_decay'. "
    with pytest.raises(ValueError, match=re.escape(words)):
        set_optimizer_state_dict(model, made[1], first)


def test_groups_that_share_a_tensor_load_different_values():
    a, b = parameters("Adam")[:2]
    optimizer = optim.SGD([{"params": [a]}, {"params": [b]}], lr=(shared := torch.tensor(1.0)))
    saved = copy.deepcopy(optimizer.state_dict())
    for group, lr in zip(saved["param_groups"], (0.1, 0.01)):
        group["lr"] = lr
    optimizer.load_state_dict(saved)
    assert [round(float(group["lr"]), 6) for group in optimizer.param_groups] == [0.1, 0.01]
    assert optimizer.param_groups[0]["lr"] is shared  # a graph may hold it


@pytest.mark.parametrize(
    ("mine", "saved", "loaded"),
    [
        ((1, 2), [3, 4], (3, 4)),
        ([1, 2], (3, 4), [3, 4]),
        ((1, 2), [3, 4, 5], (3, 4, 5)),
        ([[1, 2]], ((3, 4),), [[3, 4]]),
        ((), [3, 4], (3, 4)),
        (None, [3, 4], [3, 4]),
        (None, (3, 4), (3, 4)),
    ],
)
def test_a_list_stays_a_list(mine, saved, loaded):
    """And a tuple a tuple; where a group has no value, that of the dict is taken as it is."""
    optimizer, other = (optim.SGD([{"params": parameters("SGD"), "note": x}], lr=0.1) for x in (mine, saved))
    if mine is None:
        del optimizer.param_groups[0]["note"]
    optimizer.load_state_dict(copy.deepcopy(other.state_dict()))
    assert optimizer.param_groups[0]["note"] == loaded


# What does not fit


def assert_refused(optimizer, saved, match=None):
    before, objects = snapshot(optimizer), [id(t) for s in optimizer.state.values() for t in s.values()]
    defaults = copy.deepcopy(optimizer.defaults)
    with pytest.raises((ValueError, TypeError), match=match):
        optimizer.load_state_dict(saved)
    assert not differences(before, snapshot(optimizer)) and defaults == optimizer.defaults
    assert objects == [id(t) for s in optimizer.state.values() for t in s.values()]
    run(optimizer, flat(optimizer), 5, 5)  # and it still works


# torch saves AdamW as an Adam with decoupled weight decay: their dicts have the same form, and load into each other.
ONE_FORM = {"Adam", "AdamW"}
# Without a state these could be dicts of an older release, or of transformers' AdamW: the same arguments.
ALIKE = [("RAdam", "Adamax"), ("AdamW", "Adamax")]


@BY_NAME
def test_the_dict_of_another_optimizer(row):
    """Also of torch's before its first step, where only the hyperparameters tell them apart."""

    def small(row):  # parameters that all take, so that nothing but the optimizer differs
        optimizer = ours(row, params := parameters("Muon")[:2])
        run(optimizer, params, 1, 1)
        return optimizer

    for other in FULLEST:
        if other is not row and {row.name, other.name} != ONE_FORM:
            assert_refused(small(row), small(other).state_dict())
            if hasattr(torch.optim, other.name) and (row.name, other.name) not in ALIKE:
                torchs = getattr(torch.optim, other.name)(parameters("Muon")[:2], lr=0.1)
                assert_refused(small(row), torchs.state_dict())


@BY_NAME
def test_a_load_on_the_meta_device(row):
    """Its values are not known there, so none is checked."""
    optimizer = ours(row, [torch.nn.Parameter(p.to("meta")) for p in parameters(row.name)])
    optimizer.load_state_dict(optimizer.state_dict())
    assert all(value.is_meta for state in optimizer.state.values() for value in state.values())


@BY_NAME
def test_state_that_does_not_fit(row):
    """At any parameter and key; the others, which do fit, are not taken over either."""
    optimizer, good = trained(row), trained(row, steps=4).state_dict()
    for p, state in good["state"].items():
        for key, value in state.items():
            wrong = [torch.zeros([*value.shape, 2])]
            if p == 0:  # torch's SGD writes None for a buffer that has had no gradient
                wrong += ["text", [1.0], value.to("meta"), *([None] if key != "momentum_buffer" else [])]
                wrong += [value.to_sparse()] if value.dim() else []
            for other in wrong:
                assert_refused(optimizer, {**good, "state": {**good["state"], p: {**state, key: other}}}, match=key)
    state = good["state"][0]
    assert_refused(optimizer, {**good, "state": {0: {**state, "mystery": torch.zeros(4, 3)}}}, match="mystery")
    # Where one key is all the state there is, without it the parameter never had a gradient.
    for key in state if len(state) > 1 else ():
        if (row.name, key) != ("SGD", "step"):  # torch keeps no step for it: this would be its dict
            lacking = {name: value for name, value in state.items() if name != key}
            assert_refused(optimizer, {**good, "state": {**good["state"], 0: lacking}}, match=key)


def split(saved):
    group = saved["param_groups"][0]
    saved["param_groups"] = [{**group, "params": [0]}, {**group, "params": group["params"][1:]}]


BAD_DICTS = [
    (split, "Adam: the state dict has 2 parameter groups"),
    (lambda saved: saved["param_groups"].clear(), "Adam: the state dict has 0 parameter groups"),
    (lambda saved: saved["param_groups"][0]["params"].pop(), "Adam, group 0 of the state dict: it has 9 parameters"),
    (lambda saved: saved["param_groups"][0]["params"].append(99), "group 0 of the state dict: it has 11 parameters"),
    (lambda saved: saved["state"].update({99: saved["state"][0]}), "99"),
    (lambda saved: saved.pop("state"), "Adam: the state dict has no 'state'"),
    (lambda saved: saved.pop("param_groups"), "Adam: the state dict has no 'param_groups'"),
    (lambda saved: saved["param_groups"][0].pop("params"), "it has 0 parameters in 'params'"),
    (lambda saved: saved["param_groups"][0].pop("lr"), "'lr'"),  # others may be absent from an old dict
]


def test_groups_and_parameters_that_do_not_match():
    optimizer, good = trained(BY_ID["Adam-amsgrad"]), trained(BY_ID["Adam-amsgrad"], steps=4).state_dict()
    for change, said in BAD_DICTS:
        change(saved := copy.deepcopy(good))
        assert_refused(optimizer, saved, match=said)


def test_whose_hyperparameters_a_dict_may_not_have():
    """Those of our optimizers, of which none may be forgotten; a class of somebody's own changes nothing."""
    assert set().union(*(getattr(optim, name).hyper for name in NAMES)) == HYPERPARAMETERS

    class Own(optim.Lion):
        hyper = dict(optim.Lion.hyper, sharpness=Number())

    optimizer, saved = trained(BY_ID["Adam-amsgrad"]), trained(BY_ID["Adam-amsgrad"]).state_dict()
    saved["param_groups"][0]["sharpness"] = 1.0
    optimizer.load_state_dict(saved)
    saved["param_groups"][0]["centered"] = False
    assert_refused(optimizer, saved, match="it has 'centered'")


# The switches and numbers that decide about the state: one and another value.
DECISIVE = [
    *(("SGD", "momentum", 0.9, 0.0), ("RMSprop", "momentum", 0.9, 0.0), ("RMSprop", "centered", True, False)),
    *(("Adam", "amsgrad", True, False), ("AdamW", "amsgrad", True, False), ("Adafactor", "beta1", 0.9, None)),
]


@pytest.mark.parametrize(("name", "argument", "one", "another"), DECISIVE)
def test_arguments_that_need_other_state_than_the_constructors(name, argument, one, another):
    """All state is there since construction, so a dict cannot ask for more, nor leave some over."""
    for pair in ((one, another), (another, one)):
        optimizer, other = (getattr(optim, name)(parameters(name), lr=0.1, **{argument: value}) for value in pair)
        saved, words = other.state_dict(), rf"^{name}\b.*\b{argument}={pair[1]}\b.* {argument}={pair[0]}\b"
        assert_refused(optimizer, saved, match=words)
        run(other, flat(other), 1, 2)
        assert_refused(optimizer, other.state_dict(), match=words)


@pytest.mark.parametrize(
    ("built", "saved", "words"),
    [
        ({}, {"split_sizes": (6, 3)}, r"split_sizes=\(6, 3\): the blocks do not"),
        ({}, {"num_heads": 5}, "num_heads=5"),
        ({"split_sizes": (10, 2)}, {"adjust_lr_fn": "cerebras"}, r"split_sizes=\(10, 2\)"),
    ],
)
def test_blocks_that_the_parameters_do_not_have(built, saved, words):
    p = torch.nn.Parameter(torch.ones(12, 5))
    optimizer = optim.Muon([p], adjust_lr_fn="match_rms_adamw", **built)
    state = copy.deepcopy(optimizer.state_dict())
    state["param_groups"][0].update(saved)
    assert_refused(optimizer, state, match=words)


def test_a_momentum_scheduled_to_zero_resumes():
    optimizer, fresh = trained(BY_ID["SGD-momentum"]), ours(BY_ID["SGD-momentum"], parameters("SGD"))
    optimizer.param_groups[0]["momentum"] = 0.0
    fresh.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert not differ(fresh, optimizer)
