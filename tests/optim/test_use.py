"""What users of torch.optim do with an optimizer besides a plain step: closures, zero_grad, hooks, copies."""

import copy
import io
import pickle

import pytest
import torch
from torch.nn import Parameter
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import optim
from tests.optim.problems import differences, flat, give_gradients, ours, parameters, run, snapshot
from tests.optim.rows import BY_ID, FULLEST
from tests.optim.training import bits, equal, network, train

BY_NAME = pytest.mark.parametrize("row", FULLEST, ids=lambda row: row.name)


@BY_NAME
def test_closure(row):
    model, loss_of = network()
    optimizer = ours(row, list(model.parameters()))
    plain_model, _ = network()
    plain = ours(row, list(plain_model.parameters()))
    calls = []

    def closure():
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        calls.append(loss)
        return loss

    for _ in range(3):
        with torch.no_grad():  # the closure sees gradients enabled all the same
            returned = optimizer.step(closure)
        assert returned is calls[-1] and returned.requires_grad
    train(plain_model, plain, loss_of, 3)
    assert len(calls) == 3 and equal(bits(model), bits(plain_model))
    assert optimizer.step() is None and optimizer.step(closure=lambda: 5) == 5


@BY_NAME
def test_a_closure_that_raises_changes_nothing(row):
    optimizer = ours(row, parameters(row.name))
    give_gradients(flat(optimizer), 1)
    before = snapshot(optimizer)
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)
    assert not differences(before, snapshot(optimizer))
    assert torch.is_grad_enabled()
    optimizer.step()


def test_zero_grad_and_its_hooks():
    params = parameters("Adam")
    optimizer = optim.Adam(params)
    calls = []

    def note(name):
        def hook(one, args, kwargs):
            calls.append((name, one is optimizer, params[0].grad is None))

        return hook

    handles = [optimizer.register_zero_grad_pre_hook(note("pre")), optimizer.register_zero_grad_post_hook(note("post"))]
    optimizer.register_zero_grad_pre_hook(note("second"))
    give_gradients(params, 8)
    assert optimizer.zero_grad() is None
    assert calls == [("pre", True, False), ("second", True, False), ("post", True, True)]
    assert all(p.grad is None for p in params)
    for handle in handles:
        handle.remove()
    give_gradients(params, 8)
    grads = [p.grad for p in params]
    optimizer.zero_grad(set_to_none=False)
    assert [name for name, *_ in calls] == ["pre", "second", "post", "second"]
    for p, grad in zip(params, grads):
        assert p.grad is grad and (grad is None or not grad.any())


@BY_NAME
def test_step_hooks(row):
    params = parameters(row.name)
    optimizer = ours(row, params)
    calls = []
    handles = [
        optimizer.register_step_pre_hook(lambda one, args, kwargs: calls.append(("pre", one is optimizer))),
        optimizer.register_step_post_hook(lambda one, args, kwargs: calls.append(("post", one is optimizer))),
        register_optimizer_step_pre_hook(lambda one, args, kwargs: calls.append(("global pre", one is optimizer))),
        register_optimizer_step_post_hook(lambda one, args, kwargs: calls.append(("global post", one is optimizer))),
    ]
    try:
        run(optimizer, params, 1, 1)
        assert sorted(calls) == [("global post", True), ("global pre", True), ("post", True), ("pre", True)]
        assert [name.split()[-1] for name, _ in calls] == ["pre", "pre", "post", "post"]
    finally:
        for handle in handles:
            handle.remove()
    run(optimizer, params, 2, 2)
    assert len(calls) == 4


@BY_NAME
def test_a_step_hook_may_change_gradients_and_arguments(row):
    params = parameters(row.name)
    optimizer = ours(row, params)
    optimizer.register_step_pre_hook(lambda one, args, kwargs: one.zero_grad())
    optimizer.register_step_pre_hook(lambda one, args, kwargs: ((*args, lambda: 7), kwargs))
    give_gradients(params, 8)
    before = [p.detach().clone() for p in params]
    assert optimizer.step() == 7 and equal(before, params)


def in_a_file(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda value: pickle.loads(pickle.dumps(value)), "file": in_a_file}


@BY_NAME
@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_copies_of_model_and_optimizer(row, copied):
    """They are independent, train alike, and do all that the original does."""
    model, loss_of = network()
    optimizer = ours(row, list(model.parameters()))
    train(model, optimizer, loss_of)
    other_model, other = copied((model, optimizer))
    assert type(other) is type(optimizer) and repr(other) == repr(optimizer)
    assert flat(other) == list(other_model.parameters()) and set(other.state) == set(flat(other))
    before = snapshot(other)
    losses = train(model, optimizer, loss_of)
    assert not differences(before, snapshot(other))
    other.zero_grad()
    assert train(other_model, other, loss_of) == losses
    assert equal(bits(model), bits(other_model))
    new = Parameter(torch.ones(3, 2))
    other.add_param_group({"params": [new]})
    assert other.state[new].keys() == other.state[flat(other)[0]].keys()
    with pytest.raises((ValueError, TypeError), match="lr"):
        other.add_param_group({"params": [Parameter(torch.ones(3, 2))], "lr": -1.0})
    calls = []
    other.register_zero_grad_pre_hook(lambda *args: calls.append(1))
    other.register_step_pre_hook(lambda *args: calls.append(2))
    other.step()
    other.zero_grad()
    assert calls == [2, 1]
    other.load_state_dict(other.state_dict())


@pytest.mark.parametrize("id", ["SGD-lr", "Adam-weight_decay", "Lion-lr"])
def test_load_hooks(id):
    row = BY_ID[id]
    optimizer = ours(row, parameters(row.name))
    calls = []
    optimizer.register_state_dict_pre_hook(lambda one: calls.append("before saving"))
    optimizer.register_state_dict_post_hook(lambda one, saved: calls.append("saved"))
    optimizer.register_load_state_dict_pre_hook(lambda one, saved: calls.append("before loading"))
    optimizer.register_load_state_dict_post_hook(lambda one: calls.append("loaded"))
    optimizer.load_state_dict(optimizer.state_dict())
    assert calls == ["before saving", "saved", "before loading", "loaded"]
