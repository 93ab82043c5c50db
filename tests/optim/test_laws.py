"""Laws 11 and 15: all state is there from the start, and what has no gradient is untouched."""

import gc
import weakref

import pytest
import torch
from torch.nn import Parameter

import optim
from tests.optim.problems import differences, flat, give_gradients, ours, parameters, run, same, snapshot
from tests.optim.rows import FULLEST, ROWS
from tests.optim.signatures import NAMES, state_keys

ALL = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
BY_NAME = pytest.mark.parametrize("row", FULLEST, ids=lambda row: row.name)


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
    assert set(optimizer.state) == set(params)
    for group in optimizer.param_groups:
        for p in group["params"]:
            state = optimizer.state[p]
            assert set(state) == state_keys(row.name, group, p.ndim)
            for key, value in state.items():
                assert isinstance(value, torch.Tensor) and value.device == p.device and not value.requires_grad
                if key == "step":
                    assert value.shape == () and value.dtype == torch.float32 and value == 0
    assert all(torch.equal(p, q) for p, q in zip(params, parameters(row.name)))  # nothing has moved


@ALL
def test_a_step_makes_no_state(row):
    """No key, no tensor, no memory, whichever parameters have gradients."""
    params = parameters(row.name)
    optimizer = ours(row, params)
    before = places(optimizer)
    for step in (1, 2, 8):
        run(optimizer, params, step, step, zeros=row.zeros)
        assert places(optimizer) == before
    optimizer.zero_grad()
    optimizer.step()
    assert places(optimizer) == before
    # Two parameters share no memory, and none shares it with a parameter or a gradient.
    give_gradients(params, 8)
    tensors = [t for p in params for t in (p, p.grad, *optimizer.state[p].values()) if t is not None and t.numel()]
    assert len({t.data_ptr() for t in tensors}) == len(tensors)


@BY_NAME
def test_the_keys_depend_on_the_parameters_only(row):
    """Two ranks with gradients for other experts have the same keys after a step as before it."""
    optimizers = [ours(row, parameters(row.name)) for _ in range(3)]
    for step in (1, 2):
        for kept, optimizer in enumerate(optimizers):
            give_gradients(flat(optimizer), step, missing={})
            for i, p in enumerate(flat(optimizer)):
                p.grad = p.grad if kept == 2 or i % 2 == kept else None
            optimizer.step()
    keys = [{p: list(s) for p, s in optimizer.state_dict()["state"].items()} for optimizer in optimizers]
    assert keys[0] == keys[1] == keys[2] and list(keys[0]) == list(range(len(flat(optimizers[0]))))


@BY_NAME
def test_frozen_parameters_have_state_and_stay(row):
    params = parameters(row.name)
    frozen = params[::2]
    for p in frozen:
        p.requires_grad_(False)
    optimizer = ours(row, params)
    assert set(optimizer.state) == set(params)
    give_gradients(params[1::2], 1, missing={})
    before = snapshot(optimizer)
    optimizer.step()
    changed = {key[1] for key in differences(before, snapshot(optimizer))}
    assert changed and not changed & set(range(0, len(params), 2))


@ALL
def test_no_gradient_no_change(row):
    """Law 15, bit for bit, at the first step and at a later one."""
    params = parameters(row.name)
    optimizer = ours(row, params)
    order = flat(optimizer)
    for step in (1, 2, 7):
        give_gradients(order, step, zeros=row.zeros)
        before = snapshot(optimizer)
        optimizer.step()
        after = snapshot(optimizer)
        untouched = [i for i, p in enumerate(order) if p.grad is None]
        assert untouched
        for key in before:
            if key[0] in ("param", "state") and key[1] in untouched:
                assert same(before[key], after[key]), key
        assert not [key for key in differences(before, after) if key[0] in ("grad", "group")]


@ALL
def test_gradients_are_never_written_to(row):
    params = parameters(row.name)
    optimizer = ours(row, params)
    for step in (1, 2, 3):
        give_gradients(params, step, zeros=row.zeros)
        kept = [(p.grad, None if p.grad is None else p.grad.clone()) for p in params]
        optimizer.step()
        for p, (grad, copied) in zip(params, kept):
            assert p.grad is grad and (grad is None or torch.equal(grad, copied))


@BY_NAME
def test_a_step_without_any_gradient(row):
    optimizer = ours(row, parameters(row.name))
    before = snapshot(optimizer)
    optimizer.step()
    assert not differences(before, snapshot(optimizer))
    assert optimizer.step(lambda: 3.0) == 3.0


@BY_NAME
def test_a_zero_gradient_is_a_gradient(row):
    """It decays moments and counts the step, unlike no gradient."""
    params = parameters(row.name)
    optimizer = ours(row, params)
    run(optimizer, params, 8, 8, zeros=False)
    before = snapshot(optimizer)
    for p in params:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert [key for key in differences(before, snapshot(optimizer)) if key[0] == "state"]


@BY_NAME
def test_a_step_never_reads_a_tensor_on_the_host(row):
    """On the meta device there are no numbers, so that any read of one raises."""
    params = [Parameter(p.to("meta")) for p in parameters(row.name)]
    optimizer = ours(row, params)
    for _ in range(2):
        for p in params:
            p.grad = torch.empty_like(p)
        params[1].grad = None
        optimizer.step()
    for state in optimizer.state.values():
        assert all(value.is_meta for value in state.values())


@BY_NAME
def test_tensor_hyperparameters_on_the_meta_device(row):
    """The same for hyperparameters that live on the device, as the compiled step has them."""
    params = [Parameter(p.to("meta")) for p in parameters(row.name)]
    optimizer = ours(row, params)
    for group in optimizer.param_groups:
        group["lr"] = torch.tensor(0.1, dtype=torch.float64, device="meta")
    for p in params:
        p.grad = torch.empty_like(p)
    optimizer.step()


@BY_NAME
def test_nothing_keeps_an_optimizer_alive(row):
    params = [Parameter(torch.randn(3, 2))]
    params[0].grad = torch.ones(3, 2)
    optimizer = ours(row, params)
    optimizer.step()
    state = [weakref.ref(value) for value in optimizer.state[params[0]].values()]
    assert state
    del optimizer
    gc.collect()
    assert all(gone() is None for gone in state)


@pytest.mark.parametrize("name", NAMES)
def test_preinitialize_makes_what_the_constructor_made(name):
    row = next(row for row in FULLEST if row.name == name)
    optimizer = ours(row, parameters(name))
    fresh = snapshot(optimizer)
    run(optimizer, flat(optimizer), 1, 3)
    optimizer.preinitialize()
    after = snapshot(optimizer)
    assert not [key for key in fresh if key[0] == "state" and not same(fresh[key], after[key])]
    assert isinstance(optimizer, optim.Optimizer) and isinstance(optimizer, torch.optim.Optimizer)
