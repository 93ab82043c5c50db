"""The sixteen optimizers on one budget of tokens, each at five learning rates with two seeds.

The results are in benchmarks/results/optimizers.json: the script measures the runs that are not there, which takes half
an hour on one core, and prints the table. To measure all anew, delete that file. It may be stopped at any time.

    python benchmarks/results_optimizers.py [--page]
"""

from __future__ import annotations

from _results import SEEDS, Run, main

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
    "RMSprop": (0.0001, 0.0003, 0.001, 0.003, 0.01),
    "Rprop": (0.00001, 0.00003, 0.0001, 0.0003, 0.001),
}
RUNS = [Run(name, lr, seed) for seed in SEEDS for name, rates in RATES.items() for lr in rates]

def table(results):
    return ""

if __name__ == "__main__":
    assert __doc__ is not None
    main("optimizers", RUNS, table, __doc__)
