"""A step of `optim.WeightAverage`, over what it cannot do without.

Float32 parameters: over `torch._foreach_lerp_` on the same tensors. bfloat16 ones: over a cast and a `lerp_` of each.
Timed in turn, medians, one thread. Goal: at most 1.3.

    python benchmarks/weight_average.py
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from _timing import interleaved, show, verdict

import optim
from timesched import Clock

SETS = {"300 of 64x64": [(64, 64)] * 300, "40 of 512x512": [(512, 512)] * 40, "1 of 4096x4096": [(4096, 4096)]}
GOAL = 1.3


def least_work(params: list[torch.nn.Parameter]) -> Callable[[], object]:
    averages = [p.detach().float().clone() for p in params]
    weights = [p.detach() for p in params]
    if params[0].dtype is torch.float32:
        return lambda: torch._foreach_lerp_(averages, weights, 0.01)

    def cast_and_lerp() -> None:
        for average, x in zip(averages, weights):
            average.lerp_(x.float(), 0.01)

    return cast_and_lerp


def step_of(average: optim.WeightAverage, clock: Clock) -> Callable[[], None]:
    def step() -> None:
        clock.tick()
        average.step()

    return step


def main() -> None:
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}\n\n{'parameters':16s}{'dtype':>10s}{'step':>13s}{'least':>13s}{'ratio':>8s}")
    for name, shapes in SETS.items():
        for dtype in (torch.float32, torch.bfloat16):
            params = [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]
            clock = Clock("1000000000ba")
            average = optim.WeightAverage(params, clock, half_life="1000ba")
            t = interleaved(f"{name}, {dtype}", {"step": step_of(average, clock), "least": least_work(params)})
            ratio = t["step"] / t["least"]
            kind = str(dtype).removeprefix("torch.")
            row = f"{name:16s}{kind:>10s}{show(t['step']):>13s}{show(t['least']):>13s}{ratio:8.2f}"
            print(f"{row}  {verdict(ratio, GOAL, False)}")


if __name__ == "__main__":
    main()
