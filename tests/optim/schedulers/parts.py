"""What the rows of the table are made of: nested schedules, promises, and strategies for arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from hypothesis import settings
from hypothesis import strategies as st

from tests.optim.schedulers.formulas import FORMULAS
from tests.optim.schedulers.twins import nothing

Arguments = Mapping[str, Any]
SOME = settings.default.max_examples // 7  # as each property is tried for every row


class Nested(NamedTuple):
    """A scheduler inside another one."""

    stem: str
    arguments: Arguments


@dataclass(frozen=True)
class Promise:
    """The value at step 0, the value from the step `until` on, and the range; None and infinity: no promise."""

    start: float | None = None
    end: float | None = None
    until: int = 0
    low: float = -math.inf
    high: float = math.inf


@dataclass(frozen=True)
class Row:
    """`stem`: the name without family; `examples`: sets of arguments; `drawn`: a strategy for more.

    `counts`: which arguments count steps, so may be times; `twin`: see twins.py.
    """

    stem: str
    examples: tuple[Arguments, ...]
    drawn: st.SearchStrategy[dict[str, Any]]
    promise: Callable[[Arguments], Promise]
    counts: tuple[str, ...] = ()
    twin: Callable[[Arguments], Any] = nothing

    def formula(self, arguments: Arguments, t: int) -> float:
        """The value at a step, from the formula in plain Python."""
        return FORMULAS[self.stem](arguments, t)

    def values(self, arguments: Arguments, steps: int) -> list[float]:
        return [self.formula(arguments, t) for t in range(steps)]


VALUES = st.sampled_from([0.0, 0.1, 0.3, 1.0]) | st.floats(1e-4, 2.0)
COUNTS = st.integers(1, 40)
SHARES = st.floats(0.125, 1.0) | st.sampled_from([0.5, 1.0])
FLAGS = st.booleans()
ENDS = {"initial_val": VALUES, "end_val": VALUES, "total_iters": st.integers(0, 40)}


def drawn(**strategies: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(strategies)


def double(t: Any) -> Any:
    """A step, or a tensor of it, in double precision."""
    return t.double() if isinstance(t, torch.Tensor) else float(t)


def milestones(least: int = 0) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 60), min_size=least, max_size=5).map(sorted)


def has_cycles(a: Arguments) -> bool:
    """Whether the cycles have a length, where there are any."""
    return a["total_iters"] > 0 or not a["cycle"]


def from_to(a: Arguments) -> Promise:
    """From one value to another, without end where it cycles."""
    both = a["initial_val"], a["end_val"]
    end = None if a.get("cycle") else a["end_val"]
    return Promise(a["initial_val"] if a["total_iters"] else end, end, a["total_iters"], min(both), max(both))


def falling(a: Arguments) -> Promise:
    """From the initial value towards 0, where a factor is at most 1."""
    factor = a.get("gamma", a.get("coefficient", a.get("decay_rate")))
    start = None if 0 in a.get("milestones", ()) else a["initial_val"]
    return Promise(start, low=0.0, high=a["initial_val"] if factor <= 1 else math.inf)


def wavy(a: Arguments) -> Promise:
    both = a["initial_val"], a.get("eta_min", 0.0)
    return Promise(a["initial_val"], low=min(both), high=max(both))


def one_cycle(a: Arguments) -> Promise:
    low, total = a["initial_val"] / a.get("final_div_factor", 1e4), a["total_steps"]
    three = (a["initial_val"], a["max_val"], low)
    starts = a["pct_start"] * total >= 1 < total
    return Promise(a["initial_val"] if starts else None, low, total - 1, min(three), max(three))


def warmed(a: Arguments) -> Promise:
    """A ramp if it has a length, the highest value, and the last one."""
    levels = (a["val"], a.get("end_val", 0.0), *([a.get("initial_val", 0.0)] if a["warmup_iters"] else []))
    return Promise(levels[2] if a["warmup_iters"] else a["val"], levels[1], a["total_iters"], min(levels), max(levels))


def no_promise(a: Arguments) -> Promise:
    return Promise()
