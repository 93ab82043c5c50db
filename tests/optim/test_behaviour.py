"""What users of torch.optim do with an optimizer besides step(): closures, hooks, copies, groups, frozen parameters."""

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
def test_it_trains(row):
    model, loss_of = network()
    lr = {"ASGD": 0.05, "Adadelta": 1.0, "Adafactor": 0.02, "Muon": 0.02, "SGD": 0.05}.get(row.name, 0.01)
    optimizer = getattr(optim, row.name)(model.parameters(), lr=lr)
    losses = train(model, optimizer, loss_of, steps=40)
    assert losses[-1] < 0.9 * losses[0]


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


@BY_NAME
def test_zero_grad(row):
    params = parameters(row.name)
    optimizer = ours(row, params)
    give_gradients(params, 8)
    grads = [p.grad for p in params]
    optimizer.zero_grad(set_to_none=False)
    for p, grad in zip(params, grads):
        assert p.grad is grad and (grad is None or not grad.any())
    optimizer.zero_grad()
    assert all(p.grad is None for p in params)
    assert optimizer.zero_grad(set_to_none=True) is None


def test_zero_grad_hooks():
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
    optimizer.zero_grad()
    assert calls == [("pre", True, False), ("second", True, False), ("post", True, True)]
    for handle in handles:
        handle.remove()
    optimizer.zero_grad(set_to_none=False)
    assert [name for name, *_ in calls] == ["pre", "second", "post", "second"]


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


@BY_NAME
def test_deepcopy_of_model_and_optimizer(row):
    model, loss_of = network()
    optimizer = ours(row, list(model.parameters()))
    train(model, optimizer, loss_of)
    other_model, other = copy.deepcopy((model, optimizer))
    assert flat(other) == list(other_model.parameters()) and set(other.state) == set(flat(other))
    before = snapshot(other)
    train(model, optimizer, loss_of)
    assert not differences(before, snapshot(other))  # independent
    other.zero_grad()
    train(other_model, other, loss_of)
    assert equal(bits(model), bits(other_model))


@BY_NAME
def test_pickle(row):
    model, loss_of = network()
    optimizer = ours(row, list(model.parameters()))
    train(model, optimizer, loss_of)
    other_model, other = pickle.loads(pickle.dumps((model, optimizer)))
    buffer = io.BytesIO()
    torch.save((model, optimizer), buffer)
    buffer.seek(0)
    third_model, third = torch.load(buffer, weights_only=False)
    runs = [train(*pair, loss_of) for pair in [(model, optimizer), (other_model, other), (third_model, third)]]
    assert runs[0] == runs[1] == runs[2]
    assert equal(bits(model), bits(other_model)) and equal(bits(model), bits(third_model))
    assert type(other) is type(optimizer) and "lr" in repr(other)


@BY_NAME
def test_copies_still_refuse_make_state_and_hook(row):
    optimizer = copy.deepcopy(ours(row, parameters(row.name)))
    new = Parameter(torch.ones(3, 2, dtype=torch.float64))
    optimizer.add_param_group({"params": [new]})
    assert new in optimizer.state
    with pytest.raises((ValueError, TypeError), match="lr"):
        optimizer.add_param_group({"params": [Parameter(torch.ones(3, 2))], "lr": -1.0})
    calls = []
    optimizer.register_zero_grad_pre_hook(lambda *args: calls.append(1))
    optimizer.register_step_pre_hook(lambda *args: calls.append(2))
    optimizer.step()
    optimizer.zero_grad()
    assert calls == [2, 1]
    optimizer.load_state_dict(optimizer.state_dict())


@BY_NAME
def test_requires_grad_toggled_in_a_run(row):
    """Frozen for two steps, a parameter and its state wait; nobody else notices."""
    model, loss_of = network()
    optimizer = ours(row, list(model.parameters()))
    train(model, optimizer, loss_of, 2)
    first = flat(optimizer)[0]
    first.requires_grad_(False)
    optimizer.zero_grad()
    before = snapshot(optimizer)
    train(model, optimizer, loss_of, 2)
    changed = differences(before, snapshot(optimizer))
    assert changed and not [key for key in changed if key[0] in ("param", "state") and key[1] == 0]
    first.requires_grad_(True)
    train(model, optimizer, loss_of, 1)
    assert not torch.equal(first, before["param", 0])


def test_adam_base():
    assert issubclass(optim.Adam, optim.AdamBase) and issubclass(optim.AdamW, optim.AdamBase)
    rows = [BY_ID["Adam-lr"], BY_ID["AdamW-weight_decay"]]
    assert all(isinstance(ours(row, parameters("Adam")), optim.AdamBase) for row in rows)
