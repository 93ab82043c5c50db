"""Law 14: a compiled step is one graph, whatever the hyperparameters do, and does what the eager step does."""

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import optim
from tests.optim.compiling import BACKEND, HELD, PLAIN, by_hand, fresh, graphs, race, switched, tensors
from tests.optim.problems import (
    assert_states_close,
    differences,
    flat,
    ours,
    parameters,
    snapshot,
    values,
)
from tests.optim.reference import Reference
from tests.optim.signatures import NAMES
from tests.optim.test_precision import start, train

ALL = pytest.mark.parametrize("name", NAMES)
NEVER = {3: range(1000)}  # parameter 3 has no gradient at any step
STEPS = range(1, 101)
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(autouse=True)
def _fresh():
    with fresh():
        yield


def small(name, seed=0):
    """A few parameters, of which the third never has a gradient."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(4, 3), (2, 5)] if name == "Muon" else [(4, 3), (5,), ()]
    return [Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in shapes]


def everything(name):
    """Parameters of every kind: shapes, layouts, and a complex number where that is taken."""
    if name == "Muon":
        return parameters(name)
    some = [p for i, p in enumerate(parameters(name)) if i not in (4, 9)]  # which are like others
    return some if name == "Adafactor" else [*some, parameters(name, torch.complex128)[2]]


def places(optimizer):
    return [(id(v), v.data_ptr()) for p in flat(optimizer) for v in (p, *optimizer.state[p].values())]


def assert_as_near(mine, eager, exact, dtype):
    """No farther from the exact run than twice the eager one is, and four roundings of the dtype."""
    rounding = torch.finfo(dtype).eps * max(1.0, float(exact.abs().max()))
    assert (mine - exact).abs().max() <= 2 * (eager - exact).abs().max() + 4 * rounding


@ALL
def test_compile_makes_one_graph(name):
    """Of parameters of all shapes and layouts, real and complex; and what has no gradient is left alone."""
    optimizer, eager = ours(PLAIN[name], everything(name)), ours(PLAIN[name], everything(name))
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


@pytest.mark.parametrize("name", ["AdamW", "SGD", "NAdam", "ASGD", "Adafactor", "Lamb"])
def test_with_inductor(name):
    """The compiler that users have, C++ and all."""
    optimizer, eager = ours(PLAIN[name], small(name)), ours(PLAIN[name], small(name))
    optimizer.compile()
    race(STEPS, tensors(optimizer), (optimizer, optimizer.step), (eager, eager.step))
    assert graphs() == 1
    assert_states_close(optimizer, eager, 1e-12)


def test_muon_with_inductor():
    """It works in bfloat16, whose roundings inductor leaves out between operations that it fuses."""
    optimizer, eager, params = ours(PLAIN["Muon"], small("Muon")), ours(PLAIN["Muon"], small("Muon")), small("Muon")
    exact = Reference("Muon", params, values(PLAIN["Muon"].arguments))
    optimizer.compile()
    starts = tensors(optimizer)
    race(STEPS, starts, (optimizer, optimizer.step), (eager, eager.step), (exact, exact.step))
    assert graphs() == 1
    for p, q, e in zip(flat(optimizer), flat(eager), params, strict=True):
        assert_as_near(p.detach(), q.detach(), e.detach(), torch.bfloat16)


@ALL
def test_groups_of_every_kind_in_one_graph(name):
    """One group for every combination of switches in the table."""

    def build():
        kinds = switched(name)
        some = slice(0, 2 if name == "Adafactor" else 1)  # to which a vector is another kind than a matrix
        groups = [{"params": small(name, seed)[some], **kind} for seed, kind in enumerate(kinds)]
        return getattr(optim, name)(groups, **({"lr": 1.0} if name in ("SGD", "Adafactor") else {}))

    optimizer, eager = build(), build()
    assert len(optimizer.param_groups) >= 2
    optimizer.compile(backend="eager")  # what is captured is looked at here, and not how it is lowered
    race(range(1, 31), tensors(optimizer), (optimizer, optimizer.step), (eager, eager.step))
    assert graphs() == 1
    assert_states_close(optimizer, eager, 1e-12)


@ALL
def test_dtypes_in_one_graph(name):
    """In single and half precision as near to the exact run as the eager step is: see test_precision.py."""
    row = PLAIN[name]

    def build():
        return [p for dtype in DTYPES for p in (start(row, dtype)[-1], parameters(name, dtype)[2])]

    params = build()
    optimizer = ours(row, params)
    optimizer.compile(backend="eager")
    mine = train(optimizer, row, torch.bfloat16)
    assert graphs() == 1
    eager = train(ours(row, build()), row, torch.bfloat16)
    exact = train(ours(row, [Parameter(p.detach().double()) for p in build()]), row, torch.bfloat16)
    for p, m, q, e in zip(params, mine, eager, exact, strict=True):
        assert_as_near(m, q, e, p.dtype)
