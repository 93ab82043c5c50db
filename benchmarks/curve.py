"""A million times at once through `curve`, against torch.cos of the same tensor, and the cost of the import.

What the numbers mean: one float64 tensor of a million counts in, one of multipliers out, eager; `ratio` is the time
over that of `torch.cos`. Goal for the cosine schedules: at most 4. The import is measured in fresh processes, in turn:
`import torch` alone, and with every public name of timesched; the goal is at most 5 % more.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from functools import partial

import torch
from _timing import interleaved, measuring, show, verdict

from timesched import (
    CosineAnnealingScheduler,
    CosineAnnealingWarmRestartsScheduler,
    CosineAnnealingWithWarmupScheduler,
    Horizon,
    LinearScheduler,
    MultiStepScheduler,
    PolynomialWithWarmupScheduler,
)

COUNTS = 1_000_000
SCHEDULES = [
    LinearScheduler(),
    MultiStepScheduler(["0.3dur", "0.6dur", "0.9dur"]),
    CosineAnnealingScheduler(),
    CosineAnnealingScheduler(alpha_f=0.1),
    CosineAnnealingWithWarmupScheduler("0.05dur"),
    CosineAnnealingWithWarmupScheduler("0.05dur", alpha_f=0.1),
    PolynomialWithWarmupScheduler("0.05dur"),
    CosineAnnealingWarmRestartsScheduler("0.1dur"),
]


def imports(rounds: int = 15) -> None:
    both = {"import torch": "import torch", "and timesched": "import torch\nfrom timesched import *"}
    times: dict[str, list[float]] = {name: [] for name in both}
    for round_number in range(1, rounds + 1):
        with measuring(f"imports, round {round_number} of {rounds}"):
            for name, code in both.items():
                start = time.perf_counter()
                subprocess.run([sys.executable, "-c", code], check=True)
                times[name].append(time.perf_counter() - start)
    alone, together = (statistics.median(times[name]) for name in both)
    more = together / alone - 1
    print(f"\nimport torch {alone:.3f} s, with all of timesched {together:.3f} s: {more:+.1%}", end="  ")
    print(f"goal <= 5 %: {verdict(more, 0.05, False)}")


def main() -> None:
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {COUNTS:,} float64 counts at once, eager\n")
    counts = torch.arange(COUNTS, dtype=torch.float64)
    horizon = Horizon(f"{COUNTS}ba")
    for schedule in SCHEDULES:
        curve = schedule.curve(horizon, "ba")
        candidates = {
            "cos": partial(torch.cos, counts),
            "curve": partial(curve, counts),
        }
        t = interleaved(type(schedule).__name__, candidates, rounds=31)
        ratio = t["curve"] / t["cos"]
        grade = f"  <= 4: {verdict(ratio, 4.0, False)}" if "Cosine" in repr(schedule) else ""
        print(f"{repr(schedule)[:82]:84s}{show(t['cos'])}{show(t['curve'])}{ratio:7.2f}{grade}")
    imports()


if __name__ == "__main__":
    main()
