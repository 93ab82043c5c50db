"""One scheduler step: our binding, our schedules through Composer's compile, and torch's LambdaLR.

What the numbers mean: the time to move the counter by one batch and call `step()`, less the time to move the
counter; for 1, 8 and 64 parameter groups with float learning rates. `ratio` is that time over torch's `LambdaLR`
with the named function: a bare cosine closure for the plain loop, a trivial lambda for Composer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from _timing import interleaved, show
from composer.optim.scheduler import CosineAnnealingWithWarmupScheduler as ComposersCosine
from composer.optim.scheduler import compile_composer_scheduler as composers_compile
from schedule_call import state_of
from torch.optim.lr_scheduler import LambdaLR

from timesched import Clock, CosineAnnealingScheduler, CosineAnnealingWithWarmupScheduler, Timestamp, bind
from timesched import compile_composer_scheduler as our_compile


def optimizer_of(groups: int) -> torch.optim.Optimizer:
    """An optimizer with so many groups."""
    return torch.optim.SGD([{"params": [torch.nn.Parameter(torch.zeros(1))]} for _ in range(groups)], lr=0.1)


def cosine(total: int) -> Callable[[int], float]:
    """The closure that people write by hand."""
    return lambda step: 0.5 * (1.0 + math.cos(math.pi * min(step / total, 1.0)))


def moving(state: Any, stamp: Callable[[int], Any], step: Callable[[], Any]) -> Callable[[], Any]:
    """Move a state to the next of 64 timestamps, then step."""
    stamps = itertools.cycle([stamp(1000 + i) for i in range(64)])

    def call() -> None:
        state.timestamp = next(stamps)
        step()

    return call


def past_first(scheduler: Any) -> Callable[[], Any]:
    """The step of a torch scheduler, past the checks of its first one."""
    scheduler.optimizer.step()
    scheduler.step()
    return scheduler.step  # type: ignore[no-any-return]


def measure(groups: int) -> None:
    """Print the rows for so many groups."""
    clock = Clock("1000000ba")
    ours = bind(CosineAnnealingScheduler(), optimizer_of(groups), clock)
    state = state_of(1000)
    state.optimizers = optimizer_of(groups)
    warm = CosineAnnealingWithWarmupScheduler("10ba")
    through_composer = past_first(composers_compile(warm, state))
    composers_own = past_first(composers_compile(ComposersCosine("10ba"), state))
    stamp = type(state.timestamp)
    loop_ahead = moving(clock, lambda batch: Timestamp(batch=batch), lambda: None)
    t = interleaved(
        f"{groups} groups",
        {
            "loop": loop_ahead,
            "torch's LambdaLR, a cosine closure": past_first(LambdaLR(optimizer_of(groups), cosine(10**6))),
            "torch's LambdaLR, a trivial lambda": past_first(LambdaLR(optimizer_of(groups), lambda step: 1.0)),
            "bind, CosineAnnealing": moving(clock, lambda batch: Timestamp(batch=batch), ours.step),
            "our compile, CosineAnnealingWithWarmup": moving(
                state, lambda batch: stamp(batch=batch), our_compile(warm, state).step
            ),
            "Composer's compile, ours": moving(state, lambda batch: stamp(batch=batch), through_composer),
            "Composer's compile, Composer's": moving(state, lambda batch: stamp(batch=batch), composers_own),
        },
    )
    loop = t.pop("loop")
    closure, trivial = t["torch's LambdaLR, a cosine closure"], t["torch's LambdaLR, a trivial lambda"]
    peers = {
        "bind, CosineAnnealing": closure,
        "our compile, CosineAnnealingWithWarmup": trivial,
        "Composer's compile, ours": trivial,
        "Composer's compile, Composer's": trivial,
    }
    for name, seconds in t.items():
        line = f"{groups:6d}  {name:46s}{show(seconds - (loop if name in peers else 0)):>13s}"
        print(line + (f"{(seconds - loop) / peers[name]:8.2f}" if name in peers else ""))


def main() -> None:
    print(f"torch {torch.__version__}, one step\n")
    print(f"{'groups':>6s}  {'what':46s}{'time':>13s}{'ratio':>8s}")
    for groups in (1, 8, 64):
        measure(groups)


if __name__ == "__main__":
    main()
