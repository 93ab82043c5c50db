"""How every benchmark here measures: all candidates in one process, in turn, many short rounds, medians.

Interleaving lets a slow moment of the machine hit every candidate alike; ratios between them are what the README
quotes, the microseconds only tell the size.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any


def interleaved(candidates: dict[str, Callable[[], Any]], rounds: int = 41, least: float = 2e-3) -> dict[str, float]:
    """Seconds per call of each candidate: the median over the rounds; a round lasts at least `least` seconds."""
    calls = {}
    for name, call in candidates.items():
        call()
        n = 1
        while _lasted(call, n) < least:
            n *= 2
        calls[name] = n
    gc.disable()
    try:
        times: dict[str, list[float]] = {name: [] for name in candidates}
        for _ in range(rounds):
            for name, call in candidates.items():
                times[name].append(_lasted(call, calls[name]) / calls[name])
    finally:
        gc.enable()
    return {name: statistics.median(each) for name, each in times.items()}


def _lasted(call: Callable[[], Any], n: int) -> float:
    start = time.perf_counter()
    for _ in range(n):
        call()
    return time.perf_counter() - start


def show(seconds: float) -> str:
    """A duration with three digits: µs below a millisecond."""
    return f"{seconds * 1e6:9.2f} µs" if seconds < 1e-3 else f"{seconds * 1e3:9.2f} ms"


def verdict(ratio: float, bound: float, at_least: bool) -> str:
    """Whether a ratio reaches its goal."""
    return "reached" if (ratio >= bound if at_least else ratio <= bound) else "MISSED"
