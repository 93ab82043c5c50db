"""What users change under an optimizer's hands in a run: memory, layouts, groups, switches. Nothing may be cached."""

import pytest
import torch
from torch.nn import Parameter

import optim
from tests.optim.problems import (
    assert_close,
    assert_states_close,
    differences,
    flat,
    give_gradients,
    is_rough,
    ours,
    parameters,
    run,
    snapshot,
    theirs,
)
from tests.optim.rows import FULLEST, tensor

BY_NAME = pytest.mark.parametrize("row", FULLEST, ids=lambda row: row.name)


def numbers(optimizer):
    return {key: value for key, value in snapshot(optimizer).items() if key[0] in ("param", "state")}


@pytest.fixture(params=FULLEST, ids=lambda row: row.name)
def pair(request):
    """Two equal optimizers after two steps: one to be tampered with, one to compare with."""
    row = request.param
    optimizers = [ours(row, parameters(row.name)) for _ in range(2)]
    for optimizer in optimizers:
        run(optimizer, flat(optimizer), 1, 2)
    return optimizers


def both_go_on(pair, first=3, last=5):
    for optimizer in pair:
        run(optimizer, flat(optimizer), first, last)
    assert not differences(numbers(pair[0]), numbers(pair[1]))


def test_parameters_get_other_memory(pair):
    for p in flat(pair[0]):
        if p.is_contiguous():  # another order in memory may mean another kernel, which rounds otherwise
            p.data = p.data.clone()
    both_go_on(pair)


def test_state_is_replaced(pair):
    for state in pair[0].state.values():
        for key, value in state.items():
            state[key] = value.clone(memory_format=torch.preserve_format)
    both_go_on(pair)


def test_gradients_get_other_memory_at_each_step(pair):
    for step in (3, 4):
        for optimizer in pair:
            give_gradients(flat(optimizer), step)
        for p in flat(pair[0]):
            p.grad = None if p.grad is None else p.grad.clone()
        for optimizer in pair:
            optimizer.step()
    assert not differences(numbers(pair[0]), numbers(pair[1]))


def test_a_parameter_is_taken_out(pair):
    out = pair[0].param_groups[0]["params"].pop(0)
    kept = out.detach().clone()
    for step in (3, 4):
        for optimizer, params in ((pair[0], [out, *flat(pair[0])]), (pair[1], flat(pair[1]))):
            give_gradients(params, step)
            optimizer.step()
    assert torch.equal(out, kept)
    for p, q in zip(flat(pair[0]), flat(pair[1])[1:]):
        assert torch.equal(p, q)


def test_hyperparameters_become_tensors(pair):
    for group in pair[0].param_groups:
        group["lr"] = tensor(group["lr"])
    for optimizer in pair:
        run(optimizer, flat(optimizer), 3, 5)
    for p, q in zip(flat(pair[0]), flat(pair[1])):
        assert_close(p, q, 1e-12)


@pytest.mark.parametrize("row", [row for row in FULLEST if "maximize" in row.arguments], ids=lambda row: row.name)
def test_maximize_is_toggled(row):
    mine, other = ours(row, parameters(row.name)), theirs(row, parameters(row.name))
    for step in range(1, 7):
        for optimizer in (mine, other):
            optimizer.param_groups[0]["maximize"] = step % 3 == 0
            run(optimizer, flat(optimizer), step, step)
    assert_states_close(mine, other, 1e-12)


@BY_NAME
def test_parameters_and_gradients_that_are_views_of_one_buffer(row):
    """As flattened by trainers: each parameter a slice, none aligned."""
    shapes = [(3, 5), (7, 3), (2, 4)] if row.name == "Muon" else [(3, 5), (7,), (), (130,), (2, 3, 2)]
    sizes = [torch.Size(shape).numel() for shape in shapes]
    buffers = [
        torch.randn(1 + sum(sizes), generator=torch.Generator().manual_seed(s), dtype=torch.float64) for s in (0, 1)
    ]

    def sliced(buffer):
        return [part.view(shape) for part, shape in zip(buffer[1:].split(sizes), shapes)]

    params = [Parameter(part) for part in sliced(buffers[0].clone())]
    alone = [Parameter(part.clone()) for part in sliced(buffers[0])]
    mine, plain = ours(row, params), ours(row, alone)
    for _ in range(3):
        for ps, copied in ((params, False), (alone, True)):
            for p, part in zip(ps, sliced(buffers[1])):
                p.grad = part.clone() if copied else part
        kept = buffers[1].clone()
        mine.step()
        plain.step()
        assert torch.equal(buffers[1], kept)
        buffers[1].mul_(-0.7)
    for p, q in zip(params, alone):
        assert_close(p, q, 1e-14)
    assert params[0].untyped_storage().data_ptr() == params[1].untyped_storage().data_ptr()


@BY_NAME
def test_gradients_of_any_layout(row):
    """Expanded from one number, transposed, with gaps: the same numbers, so the same step."""
    shape = (6, 4)
    start = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    base = torch.randn(12, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    layouts = [torch.tensor(0.5, dtype=torch.float64).expand(shape), base[::2, ::2], base[:4, :6].t(), base[:6, 4:]]
    if row.name != "Muon":  # a matrix of rank one, which a rounding away from rank one changes entirely
        layouts.append(base[:6, :1].expand(shape))
    for layout in layouts:
        results = []
        for grad in (layout, layout.contiguous()):
            p = Parameter(start.clone())
            optimizer = ours(row, [p])
            for _ in range(2):
                p.grad = grad
                optimizer.step()
            results.append(p)
        assert_close(*results, 1e-13)


@BY_NAME
def test_many_small_tensors(row):
    """More than one call of a multi-tensor kernel takes, each as if it were alone."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 3) if row.name == "Muon" else (i % 5, 3) for i in range(300)]
    params = [Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in shapes]
    some = {i: Parameter(params[i].detach().clone()) for i in (1, 123, 299)}
    together, alone = ours(row, params), {i: ours(row, [p]) for i, p in some.items()}
    for step in (1, 2):
        give_gradients(params, step, missing={})
        for i, p in some.items():
            p.grad = params[i].grad
            alone[i].step()
        together.step()
    for i, p in some.items():
        assert_close(params[i], p, 1e-14)


@BY_NAME
def test_float64_as_the_default_dtype(row):
    """Whoever works in float64 sets it: torch then keeps its counters in it, and so do we."""
    torch.set_default_dtype(torch.float64)
    try:
        mine, other = ours(row, parameters(row.name)), theirs(row, parameters(row.name))
        for optimizer in (mine, other):
            run(optimizer, flat(optimizer), 1, 6)
        if not is_rough(row):
            assert_states_close(mine, other, 1e-12, empty=row.name != "Adafactor")
    finally:
        torch.set_default_dtype(torch.float32)


def test_two_optimizers_share_a_model():
    """As with Muon for matrices and AdamW for the rest: neither touches what the other has."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    matrices = [p for p in model.parameters() if p.ndim == 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    optimizers = [optim.Muon(matrices), optim.AdamW(rest)]
    model(torch.ones(5, 3)).square().sum().backward()
    before = snapshot(optimizers[1])
    optimizers[0].step()
    assert not differences(before, snapshot(optimizers[1]))
    optimizers[1].step()
    assert differences(before, snapshot(optimizers[1]))
