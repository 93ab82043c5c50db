"""All state is there from the start, and what has no gradient is untouched."""

import gc
import weakref

import pytest
import torch
from torch.nn import Parameter

from tests.optim.problems import differences, flat, give_gradients, ours, parameters, run, same, snapshot
from tests.optim.rows import BY_ID, BY_NAME, FULLEST

# One of each optimizer, and groups whose states differ.
MORE = [BY_ID[id] for id in ("SGD-lr", "SGD-groups_momentum_or_not", "Adafactor-group_beta1_or_not", "RMSprop-groups")]
ALL = pytest.mark.parametrize("row", FULLEST + MORE, ids=lambda row: row.id)


def places(optimizer):
    """Which objects hold the state, and where in memory."""
    return {
        (i, key): (id(value), value.data_ptr(), value.dtype, value.shape, value.stride())
        for i, p in enumerate(flat(optimizer))
        for key, value in optimizer.state[p].items()
    }


@ALL
def test_all_state_exists_after_construction(row):
    params = parameters(row.name)
    optimizer = ours(row, params)
    assert not any(value.requires_grad for state in optimizer.state.values() for value in state.values())
    assert set(optimizer.state) == set(params)
    assert all(torch.equal(p, q) for p, q in zip(params, parameters(row.name)))  # nothing has moved
    fresh = snapshot(optimizer)
    run(optimizer, flat(optimizer), 1, 3)
    optimizer.preinitialize()
    after = snapshot(optimizer)
    assert not [key for key in fresh if key[0] == "state" and not same(fresh[key], after[key])]


@ALL
def test_a_step_writes_to_parameters_with_gradients_and_their_state(row):
    """To nothing else, bit for bit; it makes no key, no tensor and takes no memory. (Some get a gradient late.)"""
    params = parameters(row.name)
    optimizer = ours(row, params)
    order, before = flat(optimizer), places(optimizer)
    for step in (1, 2, 7, 8, None):
        for p in order:
            p.grad = None
        if step is not None:
            give_gradients(order, step)
        gradients, old = [p.grad for p in order], snapshot(optimizer)
        optimizer.step()
        assert places(optimizer) == before
        assert all(p.grad is gradient for p, gradient in zip(order, gradients))
        untouched = [i for i, gradient in enumerate(gradients) if gradient is None]
        assert untouched
        changed = differences(old, snapshot(optimizer))
        assert not [key for key in changed if key[0] in ("grad", "group") or key[1] in untouched]
    assert optimizer.step(lambda: 3.0) == 3.0
    # Two parameters share no memory, and none shares it with a parameter or a gradient.
    give_gradients(params, 8)
    tensors = [t for p in params for t in (p, p.grad, *optimizer.state[p].values()) if t is not None and t.numel()]
    assert len({t.data_ptr() for t in tensors}) == len(tensors)


@BY_NAME
def test_frozen_parameters_have_state_and_wait(row):
    """Nobody else notices, and they go on when they are frozen no longer; a gradient of zeros, though, is one."""
    params = parameters(row.name)
    frozen = range(0, len(params), 2)
    for i in frozen:
        params[i].requires_grad_(False)
    optimizer = ours(row, params)
    assert set(optimizer.state) == set(params)
    give_gradients(params, 1, missing=dict.fromkeys(frozen, (1,)))
    before = snapshot(optimizer)
    optimizer.step()
    changed = {key[1] for key in differences(before, snapshot(optimizer))}
    assert changed and not changed & set(frozen)
    for i in frozen:
        params[i].requires_grad_(True)
    run(optimizer, params, 8, 8)
    assert 0 in {key[1] for key in differences(before, snapshot(optimizer)) if key[0] == "param"}
    before = snapshot(optimizer)
    for p in params:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert [key for key in differences(before, snapshot(optimizer)) if key[0] == "state"]


@BY_NAME
@pytest.mark.parametrize("tensor", [False, True])
def test_a_step_never_reads_a_tensor_on_the_host(row, tensor):
    """On the meta device there are no numbers, so any read of one raises; also with a rate that lives on the device."""
    params = [Parameter(p.to("meta")) for p in parameters(row.name)]
    optimizer = ours(row, params)
    for group in optimizer.param_groups:
        group["lr"] = torch.tensor(0.1, dtype=torch.float64, device="meta") if tensor else group["lr"]
    for _ in range(2):
        for p in params:
            p.grad = torch.empty_like(p)
        params[1].grad = None
        optimizer.step()
    for state in optimizer.state.values():
        assert all(value.is_meta for value in state.values())


@BY_NAME
@pytest.mark.parametrize("with_closure", [False, True])
def test_made_on_meta_before_to_empty(row, with_closure):
    """The model has other parameters then, and nothing would train. One gradient or one value is enough to go on."""
    model = torch.nn.Linear(3, 2, bias=False, device="meta")
    optimizer = ours(row, [Parameter(torch.empty(2, 2, device="meta")), model.weight])
    model.to_empty(device="cpu").reset_parameters()
    closure = (lambda: model(torch.ones(1, 3)).sum().backward()) if with_closure else None
    with pytest.raises(RuntimeError, match=rf"^{row.name}: all parameters are on the meta.*Make the {row.name} after"):
        optimizer.step(closure)
    flat(optimizer)[0].grad = torch.empty(2, 2, device="meta")
    optimizer.step(closure)
    other = ours(row, [Parameter(torch.empty(2, 2, device="meta")), model.weight])
    model.weight.grad = None
    other.step()


def test_nothing_keeps_an_optimizer_alive():
    """All at once, as a collection takes a second in the process of a whole test run."""
    optimizers = [ours(row, [Parameter(torch.ones(3, 2))]) for row in FULLEST]
    for optimizer in optimizers:
        flat(optimizer)[0].grad = torch.ones(3, 2)
        optimizer.step()
    kept = [weakref.ref(value) for one in optimizers for state in one.state.values() for value in state.values()]
    assert len(kept) > len(FULLEST)
    del optimizer, optimizers
    gc.collect()
    assert not any(value() is not None for value in kept)
