"""The sixteen optimizers on one budget of tokens, each at five learning rates with two seeds.

The results are in benchmarks/results/optimizers.json: the script measures the runs that are not there, which takes
twenty minutes on one core, and prints the table. To measure all anew, delete that file. It may be stopped at any time.

    python benchmarks/results_optimizers.py [--page]
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from _results import POINTS, SEEDS, TOKENS, Best, Result, Run, main, markdown

TARGET = 3.5  # bits per byte

# Five for each, a factor of three apart.
RATES: dict[str, tuple[float, ...]] = {
    "SGD": (0.01, 0.03, 0.1, 0.3, 1.0),
    "ASGD": (0.03, 0.1, 0.3, 1.0, 3.0),
    "Adadelta": (1.0, 3.0, 10.0, 30.0, 100.0),
    "Adafactor": (0.003, 0.01, 0.03, 0.1, 0.3),
    "Adagrad": (0.003, 0.01, 0.03, 0.1, 0.3),
    "Adam": (0.0003, 0.001, 0.003, 0.01, 0.03),
    "AdamW": (0.0003, 0.001, 0.003, 0.01, 0.03),
    "Adamax": (0.001, 0.003, 0.01, 0.03, 0.1),
    "Lamb": (0.001, 0.003, 0.01, 0.03, 0.1),
    "Lion": (0.0001, 0.0003, 0.001, 0.003, 0.01),
    "Muon": (0.001, 0.003, 0.01, 0.03, 0.1),
    "NAdam": (0.0003, 0.001, 0.003, 0.01, 0.03),
    "NorMuon": (0.001, 0.003, 0.01, 0.03, 0.1),
    "RAdam": (0.001, 0.003, 0.01, 0.03, 0.1),
    "RMSprop": (0.0003, 0.001, 0.003, 0.01, 0.03),
    "Rprop": (0.00001, 0.00003, 0.0001, 0.0003, 0.001),
}
NAMES = {
    "Muon": "Muon, with AdamW",
    "NorMuon": "NorMuon, with AdamW",
    "Rprop": "Rprop, which is not for minibatches",
}
# A warmup from 0 would leave nothing of the rate of Rprop, which is the length of its first step alone.
SCHEDULE = {"Rprop": "none"}
RUNS = [
    Run(name, lr, seed, SCHEDULE.get(name, "linear to zero"))
    for seed in SEEDS
    for name, rates in RATES.items()
    for lr in rates
]


def tokens_to(losses: Sequence[float | None]) -> float:
    """When the curve of a run first gets to the target, by a straight line between its points."""
    before = math.inf
    for count, loss in enumerate(losses, 1):
        here = math.inf if loss is None else loss
        if here <= TARGET:
            missing = 0.0 if math.isinf(before) else (here - TARGET) / (here - before)
            return (count - missing) * TOKENS / POINTS
        before = here
    return math.inf


def table(found: Mapping[Run, Result]) -> str:
    rows = {name: Best.of(found, [run for run in RUNS if run.optimizer == name]) for name in RATES}
    lines = []
    for name, best in sorted(rows.items(), key=lambda row: row[1].mean):
        tokens = statistics.fmean([tokens_to(each["curve"]) for each in best.results])
        lines.append(
            [
                NAMES.get(name, name),
                best.rate,
                f"{best.mean:.3f}",
                f"{best.apart:.3f}",
                f"{tokens / 1000:.0f}K" if math.isfinite(tokens) else "not reached",
            ]
        )
    return markdown(
        ["optimizer", "best learning rate", "bits per byte", "seeds differ by", f"tokens to {TARGET}"], lines
    )


if __name__ == "__main__":
    main("optimizers", RUNS, table, __doc__)
