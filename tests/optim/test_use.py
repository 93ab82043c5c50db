"""What users of torch.optim do with an optimizer besides a plain step: groups, closures, hooks, copies."""

import copy
import pickle

import pytest
import torch
from torch.nn import Parameter
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import optim
from tests.building import bits, equal, network, save_and_load, train
from tests.optim.problems import differences, flat, give_gradients, ours, parameters, run, snapshot, trained
from tests.optim.rows import BY_NAME


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


def test_tags_become_a_set():
    first, second, third = parameters("Adam")[:3]
    for given, kept in (("a", {"a"}), (["a", "b"], {"a", "b"}), ({"c"}, {"c"}), (("d",), {"d"}), ([], set())):
        optimizer = optim.Adam([{"params": [first], "tags": given}, {"params": [second]}])
        optimizer.add_param_group({"params": [third], "tags": given})
        for one in (optimizer, copy.deepcopy(optimizer)):
            assert [group.get("tags") for group in one.param_groups] == [kept, None, kept]


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
    before = snapshot(optimizer)
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)
    assert not differences(before, snapshot(optimizer)) and torch.is_grad_enabled()
    assert optimizer.step() is None and optimizer.step(closure=lambda: 5) == 5


def noted(calls, name, params):
    """A hook that notes who called it, and whether there are gradients."""
    return lambda one, args, kwargs: calls.append((name, type(one).__name__, params[0].grad is not None))


def test_zero_grad_and_its_hooks():
    optimizer, calls = optim.Adam(params := parameters("Adam")), []
    handles = [
        optimizer.register_zero_grad_pre_hook(noted(calls, "pre", params)),
        optimizer.register_zero_grad_post_hook(noted(calls, "post", params)),
    ]
    give_gradients(params, 8)
    assert optimizer.zero_grad() is None
    assert calls == [("pre", "Adam", True), ("post", "Adam", False)] and all(p.grad is None for p in params)
    for handle in handles:
        handle.remove()
    give_gradients(params, 8)
    grads = [p.grad for p in params]
    optimizer.zero_grad(set_to_none=False)
    assert len(calls) == 2
    assert all(p.grad is grad and (grad is None or not grad.any()) for p, grad in zip(params, grads))


def test_step_hooks():
    optimizer, calls = optim.Adam(params := parameters("Adam")), []
    register = {
        "pre": optimizer.register_step_pre_hook,
        "post": optimizer.register_step_post_hook,
        "global pre": register_optimizer_step_pre_hook,
        "global post": register_optimizer_step_post_hook,
    }
    handles = [function(noted(calls, name, params)) for name, function in register.items()]
    try:
        run(optimizer, params, 8, 8)
        assert calls == [(name, "Adam", True) for name in ("global pre", "pre", "post", "global post")]
    finally:
        for handle in handles:
            handle.remove()
    run(optimizer, params, 8, 8)
    assert len(calls) == 4
    # They may change gradients and arguments, and return nothing else.
    optimizer.register_step_pre_hook(lambda one, args, kwargs: one.zero_grad())
    optimizer.register_step_pre_hook(lambda one, args, kwargs: ((*args, lambda: 7), kwargs))
    before = [p.detach().clone() for p in params]
    assert optimizer.step() == 7 and equal(before, params)
    optimizer.register_step_pre_hook(lambda one, args, kwargs: 3)
    with pytest.raises(RuntimeError, match="step pre-hook returned 3"):
        optimizer.step()


@BY_NAME
def test_grad_scaler(row):
    """By torch's generic path: a step with gradients that are not finite is left out, others are divided before."""
    scaler, scaled, plain = torch.amp.GradScaler("cpu", init_scale=4.0), *(trained(row) for _ in range(2))
    for step, factor in ((3, 1.0), (4, float("inf")), (5, 1.0)):
        for optimizer in (scaled, plain):
            give_gradients(flat(optimizer), step)
        torch._foreach_mul_([p.grad for p in flat(scaled) if p.grad is not None], scaler.scale(torch.tensor(factor)))
        before = snapshot(scaled)
        scaler.step(scaled)
        scaler.update()
        if factor == 1.0:
            plain.step()
        else:
            assert not [key for key in differences(before, snapshot(scaled)) if key[0] != "grad"]
    assert scaler.get_scale() == 2.0
    assert not [key for key in differences(snapshot(scaled), snapshot(plain)) if key[0] in ("param", "state")]


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda value: pickle.loads(pickle.dumps(value)), "file": save_and_load}


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
    before, calls = snapshot(other), []
    losses = train(model, optimizer, loss_of)
    assert not differences(before, snapshot(other))
    assert train(other_model, other, loss_of) == losses
    assert equal(bits(model), bits(other_model))
    other.add_param_group({"params": [new := Parameter(torch.ones(3, 2))]})
    assert other.state[new].keys() == other.state[flat(other)[0]].keys()
    with pytest.raises((ValueError, TypeError), match="lr"):
        other.add_param_group({"params": [Parameter(torch.ones(3, 2))], "lr": -1.0})
    other.register_zero_grad_pre_hook(lambda *args: calls.append("zero_grad"))
    other.register_step_pre_hook(lambda *args: calls.append("step"))
    other.step()
    other.zero_grad()
    assert calls == ["step", "zero_grad"]
    other.load_state_dict(other.state_dict())


def test_load_hooks():
    optimizer, calls = optim.Adam(parameters("Adam")), []
    names = ["state_dict_pre", "state_dict_post", "load_state_dict_pre", "load_state_dict_post"]
    for name in names:
        getattr(optimizer, f"register_{name}_hook")(lambda *args, name=name: calls.append(name))
    optimizer.load_state_dict(optimizer.state_dict())
    assert calls == names
    optimizer.register_load_state_dict_pre_hook(lambda one, saved: {**saved, "state": {}})
    run(optimizer, flat(optimizer), 1, 1)
    optimizer.load_state_dict(optimizer.state_dict())
    assert not any(state["step"] for state in optimizer.state.values())
    optimizer.register_state_dict_post_hook(lambda optimizer, state: {"wrapped": state})  # may return anything
    assert optimizer.state_dict()["wrapped"].keys() == {"state", "param_groups"}
