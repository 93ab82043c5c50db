"""How every benchmark here measures: all candidates in one process, in turn, many short rounds, medians.

Interleaving lets a slow moment of the machine hit every candidate alike; ratios between them are what the README
quotes, the microseconds only tell the size.
"""

from __future__ import annotations

import gc
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_START = time.monotonic()
_last_line = {"at": _START}


@contextmanager
def measuring(row: str) -> Iterator[None]:
    """Say on standard error which row is measured, and how long the script has run.

    Nothing is written while it is measured. On a terminal the line goes when the row is done; in a log there is one in
    ten seconds at most.
    """
    now, on_terminal = time.monotonic(), sys.stderr.isatty()
    text = f"{now - _START:.0f} s, measuring {row} ..."
    if on_terminal:
        print(text[: shutil.get_terminal_size().columns - 1], end="", file=sys.stderr, flush=True)
    elif now - _last_line["at"] >= 10:
        _last_line["at"] = now
        print(text, file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if on_terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def interleaved(
    row: str, candidates: Mapping[str, Callable[[], Any]], rounds: int = 41, least: float = 2e-3
) -> dict[str, float]:
    """Seconds per call of each candidate: the median over the rounds; a round lasts at least `least` seconds."""
    with measuring(row):
        return in_turn(candidates, rounds, least)


def in_turn(candidates: Mapping[str, Callable[[], Any]], rounds: int, least: float) -> dict[str, float]:
    """The same, without a word about it."""
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
