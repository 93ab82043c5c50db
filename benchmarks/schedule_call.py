"""One call of a schedule on Composer's own State, against Composer's class of the same name.

What the numbers mean: the time of `scheduler(state, ssr)` for a new timestamp, as a Trainer calls it once a batch
(each call of a round gets the next timestamp, so nothing can be remembered from the call before). `times` is
Composer's time over ours; the goal is 4. The cost is to be the same with 3 and with 300 milestones, and at batch 100
and at batch 1,000,000. Schedules that Composer does not have are put over our `LinearWithWarmupScheduler`: at most
twice its cost.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from _timing import interleaved, show, verdict
from composer.core import State, Timestamp
from composer.devices import DeviceCPU
from composer.optim import scheduler as composers

import timesched

CASES: list[tuple[str, tuple[Any, ...]]] = [
    ("StepScheduler", ("10ba",)),
    ("MultiStepScheduler", (["0.3dur", "0.6dur", "0.9dur"],)),
    ("ConstantScheduler", ()),
    ("LinearScheduler", ()),
    ("ExponentialScheduler", (0.99,)),
    ("CosineAnnealingScheduler", ()),
    ("CosineAnnealingWarmRestartsScheduler", ("10ba",)),
    ("CosineAnnealingWarmRestartsScheduler", ("10ba", 2.0)),
    ("PolynomialScheduler", (2.0,)),
    ("MultiStepWithWarmupScheduler", ("10ba", ["0.3dur", "0.6dur", "0.9dur"])),
    ("ConstantWithWarmupScheduler", ("10ba",)),
    ("LinearWithWarmupScheduler", ("10ba",)),
    ("CosineAnnealingWithWarmupScheduler", ("10ba",)),
    ("PolynomialWithWarmupScheduler", ("10ba",)),
]

GOAL = 4  # times as quick as Composer's class

NEW = {
    "warmup, stable, decay, 1-sqrt": timesched.WarmupStableDecayScheduler("10ba", "0.99dur", decay="1-sqrt"),
    "warmup, stable, decay, exponential": timesched.WarmupStableDecayScheduler("10ba", "0.99dur", decay="exponential"),
    "inverse square root": timesched.InverseSquareRootWithWarmupScheduler("10ba", "20ba", "0ba"),
    "power": timesched.PowerScheduler("10ba"),
    "8 points": timesched.PiecewiseScheduler([[f"{i}0ba", i / 8] for i in range(7)] + [["1dur", 0.1]]),
    "Rex": timesched.RexScheduler(),
    "one cycle": timesched.OneCycleScheduler(),
    "cycles": timesched.CyclicScheduler("30ba"),
    "power with a warmup": timesched.WarmupScheduler(timesched.PowerScheduler("10ba"), "10ba"),
    "cosine with a cooldown": timesched.CooldownScheduler(timesched.CosineAnnealingScheduler(), "0.99dur", "10ba"),
}


def state_of(batches: int) -> State:
    """Composer's State of a run of so many epochs of 1,000 batches."""
    state = State(model=torch.nn.Linear(1, 1), rank_zero_seed=0, run_name="", device=DeviceCPU(), max_duration="2000ep")
    state.set_dataloader([None] * 1000, "train")
    state.timestamp = Timestamp(batch=batches, epoch=batches // 1000)
    return state


def calling(schedule: Any, batch: int) -> Callable[[], Any]:
    """A call with the next of 64 timestamps around a batch."""
    state = state_of(batch)
    stamps = itertools.cycle([Timestamp(batch=batch + i, epoch=(batch + i) // 1000) for i in range(64)])

    def call() -> Any:
        state.timestamp = next(stamps)
        return schedule(state, 1.0)

    return call


def overhead(batch: int) -> Callable[[], Any]:
    """The same with a schedule that does nothing, to be subtracted from both."""
    return calling(lambda state, ssr: 1.0, batch)


def main() -> None:
    print(f"torch {torch.__version__}, one call on Composer's State, at batch 100\n")
    print(f"{'schedule':40s}{'Composer':>13s}{'timesched':>13s}{'times':>8s}  goal")
    for name, arguments in CASES:
        candidates = {
            "none": overhead(100),
            "ours": calling(getattr(timesched, name)(*arguments), 100),
            "theirs": calling(getattr(composers, name)(*arguments), 100),
        }
        t = interleaved(name, candidates)
        ours, theirs = t["ours"] - t["none"], t["theirs"] - t["none"]
        grade = f">= {GOAL}: {verdict(theirs / ours, GOAL, True)}"
        print(f"{name:40s}{show(theirs):>13s}{show(ours):>13s}{theirs / ours:8.1f}  {grade}")

    print("\nOver LinearWithWarmupScheduler (goal: at most 2)")
    for what, schedule in NEW.items():
        line = calling(timesched.LinearWithWarmupScheduler("10ba"), 100)
        t = interleaved(what, {"none": overhead(100), "new": calling(schedule, 100), "line": line})
        ours, ratio = t["new"] - t["none"], (t["new"] - t["none"]) / (t["line"] - t["none"])
        print(f"{what:53s}{show(ours):>13s}{ratio:8.2f}  {verdict(ratio, 2.0, False)}")

    print("\nIndependent of what has passed (ratio of the second time to the first, goal: at most 1.25)")
    few, many = ([f"{i / n:.6f}dur" for i in range(n)] for n in (3, 300))
    restarts, growing = (timesched.CosineAnnealingWarmRestartsScheduler("10ba", m) for m in (1.0, 2.0))
    pairs: dict[str, list[tuple[Any, int]]] = {
        "MultiStep, 3 and 300 milestones": [(timesched.MultiStepScheduler(m), 10**6) for m in (few, many)],
        "warm restarts, batch 100 and 1,000,000": [(restarts, 100), (restarts, 10**6)],
        "growing restarts, batch 100 and 1,000,000": [(growing, 100), (growing, 10**6)],
    }
    for what, cases in pairs.items():
        t = interleaved(what, {str(i): calling(schedule, batch) for i, (schedule, batch) in enumerate(cases)})
        ratio = t["1"] / t["0"]
        print(f"{what:44s}{show(t['0'])}{show(t['1'])}{ratio:8.2f}  {verdict(ratio, 1.25, False)}")


if __name__ == "__main__":
    main()
