"""Muon for the matrices with AdamW for the rest, against AdamW for all: three budgets of tokens, three rates each.

The results are in benchmarks/results/muon.json: the script measures the runs that are not there, which takes five
minutes on one core, and prints the table. To measure all anew, delete that file. It may be stopped at any time.

    python benchmarks/results_muon.py [--page]
"""

from __future__ import annotations

from collections.abc import Mapping

from _results import SEEDS, TOKENS, Best, Result, Run, main, markdown

BUDGETS = (TOKENS // 2, TOKENS, TOKENS * 2)
RATES = {"AdamW": (0.003, 0.01, 0.03), "Muon": (0.01, 0.03, 0.1)}
RUNS = [
    Run(name, lr, seed, tokens=tokens)
    for tokens in BUDGETS
    for seed in SEEDS
    for name, rates in RATES.items()
    for lr in rates
]


def table(found: Mapping[Run, Result]) -> str:
    lines = []
    for tokens in BUDGETS:
        adamw, muon = (
            Best.of(found, [run for run in RUNS if run.tokens == tokens and run.optimizer == name]) for name in RATES
        )
        lines.append(
            [
                f"{tokens:,}",
                f"{adamw.mean:.3f} at {adamw.rate}",
                f"{muon.mean:.3f} at {muon.rate}",
                f"{muon.mean - adamw.mean:+.3f}",
                f"{max(adamw.apart, muon.apart):.3f}",
            ]
        )
    return markdown(["tokens", "AdamW", "Muon with AdamW", "difference", "seeds differ by"], lines)


if __name__ == "__main__":
    main("muon", RUNS, table, __doc__)
