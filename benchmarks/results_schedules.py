"""Five schedules, each at three rates with two seeds: the last weights, their average, and merged checkpoints.

The results are in benchmarks/results/schedules.json: the script measures the runs that are not there, which takes a few
minutes on one core, and prints the table. To measure all anew, delete that file. It may be stopped at any time.

    python benchmarks/results_schedules.py [--page]
"""

from __future__ import annotations

from collections.abc import Mapping

from _results import SCHEDULES, SEEDS, Best, Result, Run, main, markdown

RATES = (0.003, 0.01, 0.03)
NAMES = [name for name in SCHEDULES if name not in ("none", "in steps")]
RUNS = [Run("AdamW", lr, seed, name, averaged=True) for seed in SEEDS for name in NAMES for lr in RATES]


def table(found: Mapping[Run, Result]) -> str:
    lines = []
    for name in NAMES:
        runs = [run for run in RUNS if run.schedule == name]
        cells = [Best.of(found, runs, which) for which in ("bits", "average", "merge")]
        shown = [f"{best.mean:.3f} at {best.rate}" for best in cells]
        lines.append([name, *shown, f"{max(best.apart for best in cells):.3f}"])
    return markdown(["schedule", "last weights", "average", "merge", "seeds differ by"], lines)


if __name__ == "__main__":
    main("schedules", RUNS, table, __doc__)
