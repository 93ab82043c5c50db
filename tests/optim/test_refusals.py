"""Law 13, the other half: a dict that does not fit is refused, and the optimizer is left as it was, bit for bit."""

import copy
import itertools

import pytest
import torch

import optim
from tests.optim.problems import differences, flat, has_twin, ours, parameters, run, snapshot, theirs
from tests.optim.rows import BY_ID, FULLEST
from tests.optim.signatures import NAMES, REQUIRED, SIGNATURES, state_keys

BY_NAME = pytest.mark.parametrize("row", FULLEST, ids=lambda row: row.name)
REFUSED = (ValueError, TypeError)
ADAM = BY_ID["Adam-amsgrad_all"]


def trained(row, steps=2):
    optimizer = ours(row, parameters(row.name))
    run(optimizer, flat(optimizer), 1, steps)
    return optimizer


def assert_refused(optimizer, saved, match=None):
    before, objects = snapshot(optimizer), [id(t) for s in optimizer.state.values() for t in s.values()]
    defaults = copy.deepcopy(optimizer.defaults)
    with pytest.raises(REFUSED, match=match):
        optimizer.load_state_dict(saved)
    assert not differences(before, snapshot(optimizer))
    assert objects == [id(t) for s in optimizer.state.values() for t in s.values()]
    assert defaults == optimizer.defaults
    run(optimizer, flat(optimizer), 5, 5)  # and it still works


def first_with_state(saved):
    return next(state for state in saved["state"].values() if state)


# A parameter set that all fifteen take, so that nothing but the optimizer differs.
def small(name, steps):
    kwargs = dict(next(row for row in FULLEST if row.name == name).kwargs)
    params = parameters("Muon")[:2]
    optimizer = getattr(optim, name)(params, **kwargs)
    run(optimizer, params, 1, steps)
    return optimizer


# torch saves AdamW as an Adam with decoupled weight decay: their dicts have the same form, and load into each other.
PAIRS = [pair for pair in itertools.permutations(NAMES, 2) if set(pair) != {"Adam", "AdamW"}]


@pytest.mark.parametrize(("mine", "other"), PAIRS, ids=["-".join(pair) for pair in PAIRS])
def test_the_dict_of_another_optimizer(mine, other):
    assert_refused(small(mine, 1), small(other, 1).state_dict())


@pytest.mark.parametrize(("mine", "other"), PAIRS, ids=["-".join(pair) for pair in PAIRS])
def test_the_dict_of_another_optimizer_of_torch_before_its_first_step(mine, other):
    """No state tells them apart then, only the hyperparameters."""
    if not hasattr(torch.optim, other):
        pytest.skip("torch has no such optimizer")
    if (mine, other) in (("RAdam", "Adamax"), ("AdamW", "Adamax")):
        pytest.skip("it could be a dict of an older release, or of transformers' AdamW: the same arguments, no state")
    params = parameters("Muon")[:2]
    kwargs = {"lr": 0.1} if other == "SGD" else {}
    assert_refused(small(mine, 1), getattr(torch.optim, other)(params, **kwargs).state_dict())


@BY_NAME
def test_wrong_shapes(row):
    optimizer = trained(row)
    for p in range(len(flat(optimizer))):
        for key, value in optimizer.state_dict()["state"][p].items():
            saved = copy.deepcopy(optimizer.state_dict())
            saved["state"][p][key] = torch.zeros([*value.shape, 2])
            assert_refused(optimizer, saved, match=key)


@BY_NAME
def test_a_model_of_another_width(row):
    optimizer = trained(row)
    others = [torch.nn.Parameter(torch.zeros([n + 1 for n in p.shape] or [2])) for p in parameters(row.name)]
    assert_refused(optimizer, ours(row, others).state_dict())


@BY_NAME
def test_partial_state(row):
    optimizer = trained(row)
    keys = state_keys(row.name, optimizer.param_groups[0], 2)
    if len(keys) < 2:
        pytest.skip("one key is all the state there is: without it, the parameter never had a gradient")
    for key in keys:
        saved = copy.deepcopy(optimizer.state_dict())
        del saved["state"][0][key]
        if row.name == "SGD" and key == "step":  # torch keeps no step for it: this is its dict
            continue
        assert_refused(optimizer, saved, match=key)


@BY_NAME
def test_state_that_is_no_tensor_or_not_known(row):
    optimizer = trained(row)
    key = next(iter(first_with_state(optimizer.state_dict())))
    for wrong in ("text", None, [1.0], object()):
        saved = copy.deepcopy(optimizer.state_dict())
        saved["state"][0][key] = wrong
        assert_refused(optimizer, saved, match=key)
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"][0]["mystery"] = torch.zeros(4, 3)
    assert_refused(optimizer, saved, match="mystery")


@BY_NAME
def test_groups_and_parameters_that_do_not_match(row):
    optimizer = trained(row)
    good = optimizer.state_dict()

    def changed(change):
        saved = copy.deepcopy(good)
        change(saved)
        return saved

    def split(saved):
        group = saved["param_groups"][0]
        saved["param_groups"] = [{**group, "params": [0]}, {**group, "params": group["params"][1:]}]

    assert_refused(optimizer, changed(split), match="group")
    assert_refused(optimizer, changed(lambda saved: saved["param_groups"].clear()), match="group")
    assert_refused(optimizer, changed(lambda saved: saved["param_groups"][0]["params"].pop()), match="parameters")
    assert_refused(optimizer, changed(lambda saved: saved["param_groups"][0]["params"].append(99)), match="parameters")
    assert_refused(optimizer, changed(lambda saved: saved["state"].update({99: saved["state"][0]})))
    assert_refused(optimizer, changed(lambda saved: saved.pop("state")), match="state")
    assert_refused(optimizer, changed(lambda saved: saved.pop("param_groups")), match="param_groups")
    assert_refused(optimizer, changed(lambda saved: saved["param_groups"][0].pop("params")), match="params")
    for nonsense in (None, [], "dict", {}, {"state": [], "param_groups": {}}):
        assert_refused(optimizer, nonsense)


@BY_NAME
def test_the_last_parameter_is_checked_before_the_first_is_changed(row):
    optimizer = trained(row)
    saved = copy.deepcopy(trained(row, steps=4).state_dict())
    last = max(p for p, state in saved["state"].items() if state)
    key = list(saved["state"][last])[-1]
    saved["state"][last][key] = torch.zeros(2, 2, 2, 2, 2)
    assert_refused(optimizer, saved, match=key)
    saved = copy.deepcopy(trained(row, steps=4).state_dict())
    saved["param_groups"][-1]["lr"] = float("nan")
    assert_refused(optimizer, saved, match="lr")


@BY_NAME
def test_a_hyperparameter_is_missing(row):
    """An argument that has a default may be absent from an old dict; the learning rate may not."""
    optimizer = trained(row)
    saved = copy.deepcopy(optimizer.state_dict())
    del saved["param_groups"][0]["lr"]
    assert_refused(optimizer, saved, match="lr")


@BY_NAME
def test_moments_may_hold_what_they_hold(row):
    optimizer = trained(row)
    saved = copy.deepcopy(optimizer.state_dict())
    for state in saved["state"].values():
        for key, value in state.items():
            if value.dim():
                value.fill_(float("nan" if key == "exp_avg" else "inf"))
    optimizer.load_state_dict(saved)


def test_switches_that_need_other_state():
    """The dict decides the hyperparameters, and its state must be the state that they need."""
    optimizer = trained(ADAM)
    saved = copy.deepcopy(optimizer.state_dict())
    saved["param_groups"][0]["amsgrad"] = False
    assert_refused(optimizer, saved, match="amsgrad")
    plain = trained(BY_ID["Adam-lr"])
    saved = copy.deepcopy(plain.state_dict())
    saved["param_groups"][0]["amsgrad"] = True
    assert_refused(plain, saved, match="amsgrad")


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


@pytest.mark.parametrize("row", [row for row in FULLEST if has_twin(row)], ids=lambda row: row.name)
def test_a_dict_of_torch_with_partial_state(row):
    """Law 13: absent because there was no gradient is one thing, half there is another."""
    twin = theirs(row, parameters(row.name))
    run(twin, flat(twin), 1, 5)
    saved = copy.deepcopy(twin.state_dict())
    state = saved["state"][0]
    if len(state) < 2:
        pytest.skip("one key is all the state there is")
    state.popitem()
    assert_refused(ours(row, parameters(row.name)), saved)
