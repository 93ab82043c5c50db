"""Steps of bfloat16 parameters with master weights and with stochastic rounding, as ratios to the float32 step.

All fifteen optimizers, on one tensor of 16.8 million elements with one thread (Muon: a matrix of 1024 x 1024, as its
products take all the time), eager and compiled. The ways are measured in turn, and the median of each is divided by
that of the same optimizer's step of float32 parameters. For AdamW the goals are 2.5 with master weights and 4 with
stochastic rounding, eager.

    python benchmarks/low_precision.py [--compiled] [--rounds 21] [--elements 16777216] [NAME ...]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from _timing import interleaved

import optim

WAYS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {},
    "master weights": {"master_weights": True},
    "stochastic rounding": {"stochastic_rounding": True},
    "stochastic, bfloat16 states": {"stochastic_rounding": True, "state_dtype": torch.bfloat16},
}
GOALS = {"master weights": 2.5, "stochastic rounding": 4.0}  # of AdamW, eager
NAMES = ["SGD", "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Lamb", "Lion", "Muon", "NAdam"]
NAMES += ["RAdam", "RMSprop", "Rprop"]


def step(name: str, way: str, elements: int, compiled: bool) -> Callable[[], Any]:
    """What makes a step of one optimizer."""
    dtype = torch.float32 if way == "float32" else torch.bfloat16
    shape = {"Muon": (1024, 1024), "Adafactor": (4096, elements // 4096)}.get(name, (elements,))
    weight = torch.nn.Parameter(torch.randn(shape).to(dtype))
    weight.grad = torch.randn(shape).to(dtype)
    more = {"SGD": {"momentum": 0.9}}.get(name, {})
    optimizer = getattr(optim, name)([weight], lr=1e-4, **more, **WAYS[way])
    if compiled:
        optimizer.compile()
        optimizer.step()
    return optimizer.step  # type: ignore[no-any-return]  # torch's wrapper is untyped


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--elements", type=int, default=1 << 24)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    kind = "compiled" if options.compiled else "eager"
    print(f"torch {torch.__version__}, CPU, one thread, {options.elements:,} elements, {kind} steps")
    print(f"{'optimizer':10s}{'float32 ms':>11s}" + "".join(f"{way:>29s}" for way in list(WAYS)[1:]))
    missed = []
    for name in options.names:
        torch.compiler.reset()
        steps = {way: step(name, way, options.elements, options.compiled) for way in WAYS}
        times = interleaved(name, steps, options.rounds)
        ratios = {way: times[way] / times["float32"] for way in list(WAYS)[1:]}
        print(f"{name:10s}{times['float32'] * 1e3:11.2f}" + "".join(f"{x:29.2f}" for x in ratios.values()), flush=True)
        if name == "AdamW" and not options.compiled:
            missed += [f"{way} {ratios[way]:.2f} > {goal}" for way, goal in GOALS.items() if ratios[way] > goal]
    print("goals missed: " + ("; ".join(missed) or "none"))


if __name__ == "__main__":
    main()
