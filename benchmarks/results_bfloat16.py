"""Parameters stored in bfloat16, with and without what keeps small updates, against float32. AdamW, two learning rates.

The results are in benchmarks/results/bfloat16.json: the script measures the runs that are not there, which takes a few
minutes on one core, and prints the table. To measure all anew, delete that file. It may be stopped at any time.

    python benchmarks/results_bfloat16.py [--page]
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from _results import SEEDS, STORED, Result, Run, main, markdown

RATES = (0.001, 0.01)
RUNS = [Run("AdamW", lr, seed, stored=stored) for seed in SEEDS for stored in STORED for lr in RATES]


def table(found: Mapping[Run, Result]) -> str:
    """The losses of float32, and how far the others are above, as the mean of the seeds."""
    lines = []
    for stored in STORED:
        cells, apart = [], []
        for lr in RATES:
            losses = [found[Run("AdamW", lr, seed, stored=stored)]["bits"] for seed in SEEDS]
            first = [found[Run("AdamW", lr, seed)]["bits"] for seed in SEEDS]
            above = losses if stored == "float32" else [loss - of for loss, of in zip(losses, first)]
            cells.append(f"{round(statistics.fmean(above), 3) + 0.0:{'.3f' if stored == 'float32' else '+.3f'}}")
            apart.append(max(above) - min(above))
        lines.append([stored, *cells, f"{max(apart):.3f}"])
    return markdown(["stored", *[f"learning rate {lr:g}" for lr in RATES], "seeds differ by"], lines)


if __name__ == "__main__":
    main("bfloat16", RUNS, table, __doc__)
