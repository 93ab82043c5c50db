"""One batch of a plain loop: a step of `ScheduleLR`, and a tick and a step of `bind`, over torch's `LambdaLR`.

What the numbers mean: `ratio` is the time over a step of torch's `LambdaLR` with the cosine that people write by hand,
for parameter groups with float learning rates. `LambdaLR` counts by itself, as `ScheduleLR` does. The goals: 0.9 for
`ScheduleLR` with one group and 0.6 with eight; 2.5 and 1 for `clock.tick(); scheduler.step()`. A step with its counts,
or of an epoch, takes at most as long as the tick and the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from _timing import interleaved, show, verdict
from torch.optim.lr_scheduler import LambdaLR

from timesched import Clock, CosineAnnealingScheduler, ScheduleLR, bind

FACTORS: dict[str, Any] = {"batches_per_epoch": 1000, "samples_per_batch": 32, "tokens_per_sample": 2048}
CLOSURE = "torch's LambdaLR, a cosine closure"
KNOWN, UNKNOWN = "ScheduleLR, all factors known", "ScheduleLR, no factors"
TICK_AND_STEP = "tick(); step()"


def optimizer_of(groups: int) -> torch.optim.Optimizer:
    """An optimizer with so many groups."""
    return torch.optim.SGD([{"params": [torch.nn.Parameter(torch.zeros(1))]} for _ in range(groups)], lr=0.1)


def cosine(total: int) -> Callable[[int], float]:
    """The closure that people write by hand."""
    return lambda step: 0.5 * (1.0 + math.cos(math.pi * min(step / total, 1.0)))


def past_first(scheduler: Any) -> Callable[[], Any]:
    """The step of a scheduler, past the checks of its first ones."""
    scheduler.optimizer.step()
    for _ in range(4):
        scheduler.step()
    step: Callable[[], Any] = scheduler.step
    return step


def schedule_lr(groups: int, **arguments: Any) -> Any:
    """A `ScheduleLR` on a run that the benchmark does not end."""
    return ScheduleLR(optimizer_of(groups), CosineAnnealingScheduler(), 10**9, **arguments)


def ticking(clock: Clock, then: Callable[[], Any], **counts: Any) -> Callable[[], Any]:
    """Count a batch, then do something."""

    def call() -> None:
        clock.tick(**counts)
        then()

    return call


def bound_loop(groups: int, **counts: int) -> Callable[[], Any]:
    """All that a plain loop with `bind` adds to a batch."""
    clock = Clock("1e9ba", **FACTORS)
    return ticking(clock, bind(CosineAnnealingScheduler(), optimizer_of(groups), clock).step, **counts)


def bound_epochs(groups: int) -> Callable[[], Any]:
    """The same in epochs of one batch."""
    clock = Clock("1e9ep")
    step = bind(CosineAnnealingScheduler(), optimizer_of(groups), clock).step

    def end_epoch() -> None:
        clock.next_epoch()
        step()

    return ticking(clock, end_epoch)


def measure(groups: int, goals: dict[str, float]) -> None:
    """Print the rows for so many groups."""
    explicit = schedule_lr(groups, **FACTORS)
    done = Clock("1e9ba", **FACTORS)
    times = interleaved(
        f"{groups} groups",
        {
            CLOSURE: past_first(LambdaLR(optimizer_of(groups), cosine(10**9))),
            KNOWN: past_first(schedule_lr(groups, **FACTORS)),
            UNKNOWN: past_first(schedule_lr(groups)),
            "ScheduleLR, step(samples=32, tokens=65536)": lambda: explicit.step(samples=32, tokens=65536),
            "ScheduleLR, unit='ep'": past_first(schedule_lr(groups, unit="ep")),
            TICK_AND_STEP: bound_loop(groups),
            "tick(); next_epoch(); step()": bound_epochs(groups),
            "tick(samples=32, tokens=65536); step()": bound_loop(groups, samples=32, tokens=65536),
            "tick(), all factors known": Clock("1e9ba", **FACTORS).tick,
            "tick(), no factors": Clock("1e9ba").tick,
            "tick(); done": ticking(done, lambda: done.done),
        },
    )
    for name, seconds in times.items():
        ratio = seconds / times[CLOSURE]
        goal = goals.get(name)
        grade = f"  <= {goal}: {verdict(ratio, goal, False)}" if goal else ""
        print(f"{groups:6d}  {name:46s}{show(seconds):>13s}{ratio:8.2f}{grade}")


def main() -> None:
    print(f"torch {torch.__version__}, one batch\n")
    print(f"{'groups':>6s}  {'what':46s}{'time':>13s}{'ratio':>8s}  goal")
    measure(1, {KNOWN: 0.9, UNKNOWN: 0.9, TICK_AND_STEP: 2.5})
    measure(8, {KNOWN: 0.6, UNKNOWN: 0.6, TICK_AND_STEP: 1.0})


if __name__ == "__main__":
    main()
