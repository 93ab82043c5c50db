"""What the tests of compiled steps share: graphs counted, and hyperparameters that move at every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.nn import Parameter
from torch.optim import Optimizer

from tests.extent import IS_DEEP
from tests.optim.problems import assert_states_close, flat, give_gradients, values
from tests.optim.rows import BY_ID, Row
from tests.optim.signatures import MATRICES, NAMES

# Functionalizes a graph as inductor does, without the minutes of a C++ compiler: two to three times the work of
# "eager", which captures the graph and runs it. `make test-deep` functionalizes every graph, other runs one of a kind.
LOWERED = "aot_eager"
BACKEND = LOWERED if IS_DEEP else "eager"
# One row an optimizer in which all that is scheduled is a tensor, and the same with floats.
HELD = {name: BY_ID[f"{name}-tensors_amsgrad" if name == "Adam" else f"{name}-tensors"] for name in NAMES}
PLAIN = {name: Row(name, row.label, values(row.kwargs, plain=True)) for name, row in HELD.items()}
Step = Callable[[], Any]


@contextmanager
def fresh() -> Iterator[None]:
    """Nothing is compiled at first, and nothing is left behind."""
    torch._dynamo.reset()
    counters.clear()
    try:
        yield
    finally:
        torch._dynamo.reset()
        counters.clear()


def graphs() -> int:
    """How many graphs were captured since `fresh`: each recompilation adds one."""
    assert not counters["graph_break"], dict(counters["graph_break"])
    count: int = counters["stats"]["unique_graphs"]
    return count


def by_hand(function: Step, backend: str = BACKEND) -> Step:
    """The user's own compilation."""
    compiled: Step = torch.compile(function, fullgraph=True, backend=backend)
    return compiled


def small(name: str, seed: int = 0) -> list[Parameter]:
    """A few parameters."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(4, 3), (2, 5)] if name in MATRICES else [(4, 3), (5,), ()]
    return [Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in shapes]


def is_held(value: Any) -> bool:
    """Whether a hyperparameter is in tensors."""
    return any(map(is_held, value)) if isinstance(value, tuple) else isinstance(value, Tensor)


def moved(start: Any, step: int, shift: int) -> Any:
    """The value at a step: not that of the step before, nor in time with the other keys."""
    if isinstance(start, tuple):
        return tuple(moved(x, step, shift + i) for i, x in enumerate(start))
    return start * (1 - 0.01 * ((5 * step + shift) % 7))


def put(old: Any, new: Any) -> Any:
    """Tensors are filled in place, numbers replaced."""
    if isinstance(old, tuple):
        return tuple(map(put, old, new))
    return old.fill_(new) if isinstance(old, Tensor) else new


def race(
    optimizer: Optimizer,
    eager: Optimizer,
    take: Step | None = None,
    *,
    steps: int = 8,
    missing: Mapping[int, Iterable[int]] | None = None,
) -> None:
    """The same steps with both, while all that `optimizer` has in tensors moves: one graph, and equal states."""
    starts = [
        {key: group[key] for key, value in held.items() if key != "params" and is_held(value)}
        for held, group in zip(optimizer.param_groups, eager.param_groups)
    ]
    for step in range(1, steps + 1):
        for one, act in ((optimizer, take or optimizer.step), (eager, eager.step)):
            for group, start in zip(one.param_groups, starts):
                for shift, (key, value) in enumerate(start.items()):
                    group[key] = put(group[key], moved(value, step, 2 * shift))
            give_gradients(flat(one), step, missing=missing or {})
            act()
    assert graphs() == 1
    assert_states_close(optimizer, eager, 1e-12)
