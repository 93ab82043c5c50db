"""One recipe at five batch sizes: AdamW with a schedule that was tuned at a batch size of 16.

Every run has the same number of tokens. A recipe says what changes with the batch size: nothing, since all is written
in optimizer steps; the schedule; the betas too; and the learning rate too. Tuning tries four learning rates.

The results are in benchmarks/results/batch_sizes.json: the script measures the runs that are missing, at most 40
seconds each on one core, and prints the table. To measure all again, delete that file. It may be stopped at any time.

    python benchmarks/results_batch_sizes.py [--page]
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import NamedTuple

from _results import SEEDS, Best, Result, Run, main, markdown

TUNED, BATCH_SIZES = 16, (4, 8, 16, 32, 64)
TOKENS = 800 * TUNED * 64  # 800 steps of the tuned batch size; a window has 64 tokens
LEARNING_RATES = (0.003, 0.006, 0.012, 0.024)
LEARNING_RATE = 0.006  # the best of them: `table` compares


class Recipe(NamedTuple):
    """The parts of a recipe that follow the batch size."""

    schedule: str = "warmup-stable-decay"
    has_half_lives: bool = False
    power: float = 0.0  # of the batch size, for the learning rate


RECIPES = {
    "nothing (all in steps)": Recipe("in steps"),
    "the schedule (in tokens)": Recipe(),
    "also the betas (half-lives)": Recipe(has_half_lives=True),
    "also the learning rate (square root)": Recipe(has_half_lives=True, power=0.5),
}


def tuning_run(seed: int, lr: float) -> Run:
    """A run at the tuned batch size, where all recipes are the same."""
    return Run("AdamW", lr, seed, "warmup-stable-decay", tokens=TOKENS, batch_size=TUNED)


def run_of(name: str, batch_size: int, seed: int) -> Run:
    """The run of a recipe at a batch size."""
    if batch_size == TUNED:
        return tuning_run(seed, LEARNING_RATE)
    recipe = RECIPES[name]
    lr = LEARNING_RATE * (batch_size / TUNED) ** recipe.power
    betas_tuned_at = TUNED if recipe.has_half_lives else None
    return Run("AdamW", lr, seed, recipe.schedule, tokens=TOKENS, batch_size=batch_size, betas_tuned_at=betas_tuned_at)


TUNING = [tuning_run(seed, lr) for seed in SEEDS for lr in LEARNING_RATES]
OTHERS = [
    run_of(recipe, batch_size, seed)
    for seed in SEEDS
    for recipe in RECIPES
    for batch_size in BATCH_SIZES
    if batch_size != TUNED
]
RUNS = TUNING + OTHERS


def table(found: Mapping[Run, Result]) -> str:
    best = Best.of(found, TUNING)
    if best.lr != LEARNING_RATE:
        raise SystemExit(f"The best learning rate at {TUNED} is {best.lr}: set LEARNING_RATE to it.")
    rows, largest = [], 0.0
    for recipe in RECIPES:
        cells = []
        for batch_size in BATCH_SIZES:
            losses = [found[run_of(recipe, batch_size, seed)]["bits"] for seed in SEEDS]
            cells.append(f"{statistics.fmean(losses):.3f}")
            largest = max(largest, max(losses) - min(losses))
        rows.append([recipe, *cells])
    header = ["what follows the batch size", *(f"batch {batch_size}" for batch_size in BATCH_SIZES)]
    return markdown(header, rows) + f"\n\nThe seeds of a cell differ by {largest:.3f} at most."


if __name__ == "__main__":
    main("batch_sizes", RUNS, table, __doc__)
