"""Where parameters, gradients and state lie in memory, how many there are, how large: the same numbers come out."""

import pytest
import torch
from torch.nn import Parameter

from tests.optim.problems import (
    assert_close,
    assert_same_steps,
    differences,
    flat,
    give_gradients,
    ours,
    parameters,
    snapshot,
    theirs,
)
from tests.optim.rows import BY_NAME, FULLEST
from tests.optim.signatures import MATRICES


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@BY_NAME
def test_other_memory_at_each_step(row):
    """Of parameters, gradients and state: nothing may be cached."""
    changed, plain = (ours(row, parameters(row.name)) for _ in range(2))
    for step in range(1, 6):
        for optimizer in (changed, plain):
            give_gradients(flat(optimizer), step)
        for p in flat(changed):
            if p.is_contiguous():  # another order in memory may mean another kernel, which rounds otherwise
                p.data = p.data.clone()
            p.grad = None if p.grad is None else p.grad.clone()
            if step > 2:
                state = changed.state[p]
                state.update({key: x.clone(memory_format=torch.preserve_format) for key, x in state.items()})
        for optimizer in (changed, plain):
            optimizer.step()
    assert not [key for key in differences(snapshot(changed), snapshot(plain)) if key[0] != "group"]


@BY_NAME
def test_views_of_one_buffer(row):
    """Parameters and gradients as flattened by trainers: each a slice, none aligned."""
    shapes = [(3, 5), (7, 3), (2, 4)] if row.name in MATRICES else [(3, 5), (7,), (), (130,), (2, 3, 2)]
    sizes = [torch.Size(shape).numel() for shape in shapes]
    values, gradients = (random(1 + sum(sizes), seed=seed) for seed in (0, 1))

    def sliced(buffer):
        return [part.view(shape) for part, shape in zip(buffer[1:].split(sizes), shapes)]

    params = [Parameter(part) for part in sliced(values.clone())]
    alone = [Parameter(part.clone()) for part in sliced(values)]
    mine, plain = ours(row, params), ours(row, alone)
    for _ in range(3):
        for p, q, part in zip(params, alone, sliced(gradients)):
            p.grad, q.grad = part, part.clone()
        kept = gradients.clone()
        mine.step()
        plain.step()
        assert torch.equal(gradients, kept)
        gradients.mul_(-0.7)
    for p, q in zip(params, alone):
        assert_close(p, q, 1e-14)
    assert params[0].untyped_storage().data_ptr() == params[1].untyped_storage().data_ptr()


def layouts(row):
    """A parameter, and gradients of the same shape: expanded from one number, transposed, with gaps."""
    start, base = random(6, 4), random(12, 8, seed=1)
    yield start, torch.tensor(0.5, dtype=torch.float64).expand(start.shape)
    yield from ((start, layout) for layout in (base[::2, ::2], base[:4, :6].t(), base[:6, 4:]))
    if row.name not in MATRICES:  # a matrix of rank one, which a rounding away from rank one changes entirely
        yield start, base[:6, :1].expand(start.shape)
    images = random(4, 3, 5, 5).to(memory_format=torch.channels_last)
    yield images, random(4, 3, 5, 5, seed=1)
    yield images, random(5, 5, 3, 4, seed=1).permute(3, 2, 1, 0)


@BY_NAME
def test_gradients_of_any_layout(row):
    for start, gradient in layouts(row):
        results = []
        for grad in (gradient, gradient.contiguous()):
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
    shapes = [(2, 3) if row.name in MATRICES else (i % 5, 3) for i in range(300)]
    params = [Parameter(random(*shape, seed=i)) for i, shape in enumerate(shapes)]
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


# Muon works on whole matrices: the small ones of the other tests are transposed too.
LARGE = [(row, False) for row in FULLEST] + [(row, True) for row in FULLEST if row.name not in MATRICES]


@pytest.mark.parametrize(("row", "transposed"), LARGE, ids=lambda value: getattr(value, "name", value))
def test_large_tensors(row, transposed):
    """More than 2**20 elements: what does not fit into a cache may be worked through in pieces."""

    def build():
        if transposed:
            wide = random(1030, 1030, seed=4)
            return [Parameter(wide.t()), Parameter(wide[:, ::2].clone(memory_format=torch.preserve_format)[::2])]
        shapes = [(3, 4), (64, 16500), (5, 2)] if row.name in MATRICES else [(7,), (1024 * 1024 + 12345,), (3, 4)]
        return [Parameter(random(*shape, seed=3)) for shape in shapes]

    mine, other = ours(row, build()), theirs(row, build())
    for step in (1, 2):
        give_gradients(flat(mine), step, missing={})
        for p, q in zip(flat(mine), flat(other)):
            q.grad = p.grad.t().contiguous().t() if transposed else p.grad.clone()
        mine.step()
        other.step()
    assert_same_steps(row, mine, other)
