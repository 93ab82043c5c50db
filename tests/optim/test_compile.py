"""Law 14: a compiled step is one graph, whatever the hyperparameters do, and does what the eager step does."""

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import optim
from tests.optim.compiling import BACKEND, HELD, PLAIN, by_hand, fresh, graphs, move, race, tensors
from tests.optim.problems import (
    assert_close,
    assert_states_close,
    differences,
    flat,
    give_gradients,
    ours,
    parameters,
    run,
    snapshot,
    theirs,
)
from tests.optim.rows import FULLEST, ROWS, Row
from tests.optim.signatures import NAMES

ALL = pytest.mark.parametrize("name", NAMES)
NEVER = {3: range(1000)}  # parameter 3 has no gradient at any step
STEPS = range(1, 101)


@pytest.fixture(autouse=True)
def _fresh():
    with fresh():
        yield


def small(name, seed=0):
    """A few parameters, of which the third never has a gradient."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(4, 3), (2, 5)] if name == "Muon" else [(4, 3), (5,), ()]
    return [Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in shapes]


def places(optimizer):
    return [(id(v), v.data_ptr()) for p in flat(optimizer) for v in (p, *optimizer.state[p].values())]


@ALL
def test_compile_makes_one_graph(name):
    """Of parameters of all shapes and layouts; and what has no gradient is left alone."""
    optimizer, eager = ours(PLAIN[name], parameters(name)), ours(PLAIN[name], parameters(name))
    assert optimizer.compile(backend=BACKEND) is None
    starts = tensors(optimizer)
    assert starts[0].keys() >= {key for start in tensors(ours(HELD[name], parameters(name))) for key in start}
    held = [value for value in optimizer.param_groups[0].values() if isinstance(value, Tensor)]
    assert held and all(value.dtype == torch.float64 and value.shape == () for value in held)
    before, where = snapshot(optimizer), places(optimizer)
    race(STEPS, starts, (optimizer, optimizer.step), (eager, eager.step), missing=NEVER)
    assert graphs() == 1
    assert_states_close(optimizer, eager, 1e-12)
    assert places(optimizer) == where
    after = snapshot(optimizer)
    assert not [key for key in differences(before, after) if key[0] in ("param", "state") and key[1] == 3]
    assert {key[1] for key in differences(before, after) if key[0] == "param"} >= {0, 1, 2}
    assert all(any(value is kept for value in optimizer.param_groups[0].values()) for kept in held)


@ALL
def test_by_hand_makes_one_graph(name):
    """The whole of `step`, with what the user made tensors."""
    optimizer, eager = ours(HELD[name], small(name)), ours(PLAIN[name], small(name))
    where = places(optimizer)
    take = by_hand(optimizer.step)
    race(STEPS, tensors(optimizer), (optimizer, take), (eager, eager.step))
    assert graphs() == 1
    assert_states_close(optimizer, eager, 1e-12)
    assert places(optimizer) == where
