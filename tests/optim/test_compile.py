"""Law 14: a compiled step is one graph, whatever the hyperparameters do, and does what the eager step does."""

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import optim
from tests.optim.compiling import BACKEND, HELD, PLAIN, by_hand, fresh, graphs, race, switched, tensors
from tests.optim.problems import assert_close, assert_states_close, differences, flat, ours, parameters, snapshot
from tests.optim.signatures import NAMES
from tests.optim.test_precision import start, train

ALL = pytest.mark.parametrize("name", NAMES)
NEVER = {2: range(1000)}  # parameter 2 has no gradient at any step
STEPS = range(1, 21)


@pytest.fixture(autouse=True)
def _fresh():
    with fresh():
        yield


def small(name, seed=0):
    """A few parameters."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(4, 3), (2, 5)] if name == "Muon" else [(4, 3), (5,), ()]
    return [Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in shapes]


def everything(name):
    """Parameters of every kind: shapes, layouts, and a complex number where that is taken."""
    some = [p for i, p in enumerate(parameters(name)) if i in (0, 2, 3, 4 if name == "Muon" else 5, 6)]
    return some if name in ("Adafactor", "Muon") else [*some, parameters(name, torch.complex128)[2]]


def places(optimizer):
    return [(id(v), v.data_ptr()) for p in flat(optimizer) for v in (p, *optimizer.state[p].values())]


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
    assert not [key for key in differences(before, after) if key[0] in ("param", "state") and key[1] == 2]
    assert {key[1] for key in differences(before, after) if key[0] == "param"} >= {0, 1, 3, 4}
    assert all(any(value is kept for value in optimizer.param_groups[0].values()) for kept in held)


@ALL
def test_by_hand_makes_one_graph(name):
    """The whole of `step`, with a group for every combination of switches."""

    def build():
        some = slice(0, 2 if name == "Adafactor" else 1)  # to which a vector is another kind than a matrix
        groups = [{"params": small(name, seed)[some], **kind} for seed, kind in enumerate(switched(name))]
        return getattr(optim, name)(groups, **({"lr": 1.0} if name in ("SGD", "Adafactor") else {}))

    optimizer, eager = build(), build()
    assert len(optimizer.param_groups) >= 2
    optimizer.hold_tensors()
    take = by_hand(optimizer.step, "eager")  # what is captured is looked at here, and not how it is lowered
    race(STEPS, tensors(optimizer), (optimizer, take), (eager, eager.step))
    assert graphs() == 1
    assert_states_close(optimizer, eager, 1e-12)


@pytest.mark.parametrize("name", ["AdamW", "NAdam", "ASGD", "Adafactor"])
def test_with_inductor(name):
    """The compiler that users have, C++ and all; two of these round what they compute as their state does."""
    optimizer, eager = ours(PLAIN[name], small(name)), ours(PLAIN[name], small(name))
    optimizer.compile()
    race(STEPS, tensors(optimizer), (optimizer, optimizer.step), (eager, eager.step))
    assert graphs() == 1
    assert_states_close(optimizer, eager, 1e-12)


def average(optimizer, kept):
    for p, mean in zip(flat(optimizer), kept):
        mean.lerp_(p, 0.1)
    optimizer.step()
    return [mean.clone() for mean in kept]


def clone_between(optimizer, kept):
    optimizer.step()
    read = [p.clone() for p in flat(optimizer)]
    optimizer.step()
    return read


def counts(optimizer, kept):
    read = [optimizer.state[p]["step"] + 0.0 for p in flat(optimizer)]
    optimizer.step()
    return read


@pytest.mark.parametrize("name", ["AdamW", "Lion"])
@pytest.mark.parametrize("update", [average, clone_between, counts])
def test_what_stands_beside_a_step_in_the_same_graph(name, update):
    """It reads what is there at that moment: an average of the weights, the weights between two steps, a count."""
    results = []
    for compiled in (True, False):
        optimizer = getattr(optim, name)(small(name)[:2], lr=0.1, enable_global_step=True)
        optimizer.hold_tensors()
        kept = [p.detach().clone() for p in flat(optimizer)]
        take = torch.compile(update, fullgraph=True) if compiled else update
        read = []
        with torch.no_grad():
            for step in (1, 2):
                for p in flat(optimizer):
                    p.grad = torch.full_like(p, 0.5 + step)
                read += [x.clone() for x in take(optimizer, kept)]
        results.append([*read, *kept, *(p.detach() for p in flat(optimizer))])
    for mine, other in zip(*results, strict=True):
        assert_close(mine, other, 1e-12)
    assert graphs() == 1


@pytest.mark.parametrize("name", ["AdamW", "Adafactor", "Lamb", "Muon"])
def test_dtypes_in_one_graph(name):
    """No farther from the exact run than twice the eager run, and four roundings of the dtype."""
    row, dtypes = PLAIN[name], [torch.float32, torch.bfloat16]

    def build():
        return [p for dtype in dtypes for p in (start(row, dtype)[-1], parameters(name, dtype)[2])]

    params = build()
    optimizer = ours(row, params)
    optimizer.compile(backend="eager")
    mine = train(optimizer, row, torch.bfloat16)
    assert graphs() == 1
    eager = train(ours(row, build()), row, torch.bfloat16)
    exact = train(ours(row, [Parameter(p.detach().double()) for p in build()]), row, torch.bfloat16)
    for p, m, q, e in zip(params, mine, eager, exact, strict=True):
        rounding = torch.finfo(p.dtype).eps * max(1.0, float(e.abs().max()))
        assert (m - e).abs().max() <= 2 * (q - e).abs().max() + 4 * rounding
