"""What the tests of compiled steps share: graphs counted, and hyperparameters that move at every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.optim import Optimizer

from tests.optim.problems import flat, give_gradients, values
from tests.optim.rows import BY_ID, ROWS, Row
from tests.optim.signatures import NAMES

# Traces and functionalizes as inductor does, and leaves out the minutes of a C++ compiler.
BACKEND = "aot_eager"
# One row an optimizer in which all that is scheduled is a tensor, and the same with floats.
HELD = {name: BY_ID[f"{name}-tensors_amsgrad" if name == "Adam" else f"{name}-tensors"] for name in NAMES}
PLAIN = {name: Row(name, row.label, values(row.kwargs, plain=True)) for name, row in HELD.items()}
Start = list[dict[str, Any]]
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


def tensors(optimizer: Optimizer) -> Start:
    """What each group holds in tensors, as numbers."""

    def held(value: Any) -> bool:
        return any(map(held, value)) if isinstance(value, tuple) else isinstance(value, Tensor)

    def number(value: Any) -> Any:
        return tuple(map(number, value)) if isinstance(value, tuple) else float(value)

    return [
        {key: number(value) for key, value in group.items() if key != "params" and held(value)}
        for group in optimizer.param_groups
    ]


def moved(start: Any, step: int, shift: int) -> Any:
    """The value at a step: not that of the step before, nor in time with the other keys."""
    if isinstance(start, tuple):
        return tuple(moved(x, step, shift + i) for i, x in enumerate(start))
    return start * (1 - 0.01 * ((5 * step + shift) % 7))


def move(optimizer: Optimizer, starts: Start, step: int) -> None:
    """Schedule everything in `starts`: tensors are filled in place, numbers replaced."""

    def put(old: Any, new: Any) -> Any:
        if isinstance(old, tuple):
            return tuple(map(put, old, new))
        return old.fill_(new) if isinstance(old, Tensor) else new

    for group, start in zip(optimizer.param_groups, starts, strict=True):
        for shift, (key, value) in enumerate(start.items()):
            group[key] = put(group[key], moved(value, step, 2 * shift))


def race(
    steps: Iterable[int], starts: Start, *runners: tuple[Optimizer, Step], missing: Mapping[int, Any] | None = None
) -> None:
    """Take steps with each optimizer, with the same gradients and the same moving hyperparameters."""
    for step in steps:
        for optimizer, take in runners:
            move(optimizer, starts, step)
            give_gradients(flat(optimizer), step, missing=missing or {})
            take()


def switched(name: str) -> list[dict[str, Any]]:
    """The rows of an optimizer that differ in what is on, not only in numbers: one of each kind."""

    def kind(value: Any) -> Any:
        return value if isinstance(value, (bool, str, type(None))) else isinstance(value, tuple) or value != 0

    chosen: dict[Any, Row] = {}
    for row in ROWS:
        if row.name == name and row.groups == ({},) and row.zeros:
            chosen.setdefault(tuple(kind(value) for value in row.arguments.values()), row)
    return [values(row.arguments, plain=True) for row in chosen.values()]
