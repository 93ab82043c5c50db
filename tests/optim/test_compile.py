"""A compiled step is one graph, whatever the hyperparameters do, and does what the eager step does."""

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import optim
from tests.extent import IS_DEEP
from tests.optim.compiling import BACKEND, HELD, LOWERED, PLAIN, by_hand, graphs, is_held, race, small
from tests.optim.problems import assert_close, differences, flat, ours, parameters, snapshot, values
from tests.optim.rows import ROWS
from tests.optim.signatures import MATRICES, NAMES
from tests.optim.test_precision import start, train

ALL = pytest.mark.parametrize("name", NAMES)


pytestmark = pytest.mark.usefixtures("compiles_afresh")


def everything(name):
    """Parameters of every kind: shapes, layouts, and a complex number where that is taken."""
    some = [p for i, p in enumerate(parameters(name)) if i in (0, 2, 3, 4 if name in MATRICES else 5, 6)]
    return some if name in ("Adafactor", *MATRICES) else [*some, parameters(name, torch.complex128)[2]]


def places(optimizer):
    return [(id(v), v.data_ptr()) for p in flat(optimizer) for v in (p, *optimizer.state[p].values())]


@ALL
def test_compile_makes_one_graph(name):
    """Of parameters of all shapes and layouts, real and complex; and what has no gradient is left alone.

    Matrices, norms and branches by sign are functionalized; the tests with inductor have the other kinds of graph.
    """
    optimizer, eager = ours(PLAIN[name], everything(name)), ours(PLAIN[name], everything(name))
    assert optimizer.compile(backend=LOWERED if name in ("Muon", "Lamb", "Rprop") else BACKEND) is None
    group = optimizer.param_groups[0]
    expected = ours(HELD[name], parameters(name)).param_groups[0]
    assert all(is_held(group[key]) for key, value in expected.items() if key != "params" and is_held(value))
    held = {key: value for key, value in group.items() if isinstance(value, Tensor)}
    assert held and all(value.dtype == torch.float64 and value.shape == () for value in held.values())
    before, where = snapshot(optimizer), places(optimizer)
    race(optimizer, eager, missing={2: range(1000)})
    assert places(optimizer) == where and all(group[key] is value for key, value in held.items())
    changed = {key[:2] for key in differences(before, snapshot(optimizer)) if key[0] in ("param", "state")}
    assert changed >= {("param", i) for i in (0, 1, 3, 4)} and not changed & {("param", 2), ("state", 2)}


def switched(name):
    """Rows of an optimizer that have each of its switches on and off. In `make test-deep`, in every combination."""

    def setting(key, value):
        return key, value if isinstance(value, (bool, str, type(None))) else isinstance(value, tuple) or value != 0

    chosen, covered = [], set()
    for row in reversed([row for row in ROWS if row.name == name and row.groups == ({},)]):
        settings = {setting(key, value) for key, value in row.arguments.items()}
        combinations = {frozenset(settings)} if IS_DEEP else settings
        if not combinations <= covered:
            chosen.append(values(row.arguments, plain=True))
            covered |= combinations
    return chosen


@ALL
def test_by_hand_makes_one_graph(name):
    """The whole of `step`, with every switch on in one group and off in another; captured, but not lowered."""

    def build():
        some = slice(0, 2 if name == "Adafactor" else 1)  # to which a vector is another kind than a matrix
        groups = [{"params": small(name, seed)[some], **kind} for seed, kind in enumerate(switched(name))]
        return getattr(optim, name)(groups, **({"lr": 1.0} if name in ("SGD", "Adafactor") else {}))

    optimizer, eager = build(), build()
    assert len(optimizer.param_groups) >= 2
    optimizer.hold_tensors()
    race(
        optimizer, eager, by_hand(optimizer.step, "eager")
    )  # what is captured is looked at here, not how it is lowered


@pytest.mark.parametrize("name", ["NAdam", "ASGD"])
def test_with_inductor(name):
    """The compiler that users have, C++ and all; these two round what they compute as their state does."""
    optimizer, eager = ours(PLAIN[name], small(name)), ours(PLAIN[name], small(name))
    optimizer.compile()
    race(optimizer, eager)


@pytest.mark.parametrize("name", ["AdamW", "Lion", *(["Adafactor"] if IS_DEEP else [])])
def test_what_stands_beside_a_step_in_the_same_graph(name):
    """With inductor: what reads the weights or a count sees what is there at that moment."""

    def update(optimizer, averages):
        counts = [optimizer.state[p]["step"] + 0.0 for p in flat(optimizer)]
        for p, average in zip(flat(optimizer), averages):
            average.view(-1).lerp_(p.view(-1), 0.1)  # torch drops what is done to a 0-dim float64 tensor itself
        optimizer.step()
        between = [p.clone() for p in flat(optimizer)]
        optimizer.step()
        return [*counts, *between]

    results = []
    for take in (torch.compile(update, fullgraph=True), update):
        optimizer = ours(PLAIN[name], small(name), enable_global_step=True)
        optimizer.hold_tensors()
        averages = [p.detach().clone() for p in flat(optimizer)]
        read = []
        with torch.no_grad():
            for step in (1, 2, 3):
                for p in flat(optimizer):
                    p.grad = torch.full_like(p, 0.5 + step)
                read += [x.clone() for x in take(optimizer, averages)]
        state = [x for p in flat(optimizer) for x in optimizer.state[p].values()]
        results.append([*read, *averages, *flat(optimizer), *state])
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
    mine = train(optimizer, torch.bfloat16)
    assert graphs() == 1
    eager = train(ours(row, build()), torch.bfloat16)
    exact = train(ours(row, [Parameter(p.detach().double()) for p in build()]), torch.bfloat16)
    for p, m, q, e in zip(params, mine, eager, exact, strict=True):
        rounding = torch.finfo(p.dtype).eps * max(1.0, float(e.abs().max()))
        assert (m - e).abs().max() <= 2 * (q - e).abs().max() + 4 * rounding
