"""One step of a closed-form scheduler of `optim`, against torch's class of the same name and Composer's.

What the numbers mean: the time of one `step()` for 1, 8 and 64 parameter groups of torch's SGD. `ratio` is ours over
torch's, with float learning rates. `Composer` is Composer's own schedule through its own compile, less the time to move
its counter, over torch's: what its users pay today. The last rows have 0-dim float64 tensors as learning rates: ours
over torch's `LambdaLR` with a trivial lambda.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from _timing import interleaved, show
from composer.optim import scheduler as composers
from schedule_call import state_of
from scheduler_step import moving, past_first
from torch.optim import lr_scheduler as torchs

from optim import lr_scheduler as ours

LONG = 10**7
# For each class: its arguments here and in torch, and Composer's class of the same formula with its arguments.
ROWS: dict[str, tuple[tuple[Any, ...], dict[str, Any], tuple[str, tuple[Any, ...]] | None]] = {
    "ConstantLR": ((0.1,), {}, ("ConstantScheduler", ())),
    "PolynomialLR": ((0.1, 0.0, LONG, 2.0), {"total_iters": LONG, "power": 2.0}, ("PolynomialScheduler", (2.0,))),
    "LinearLR": ((0.1, 0.05, LONG), {"total_iters": LONG}, ("LinearScheduler", ())),
    "ExponentialLR": ((0.1, 10, 0.999), {"gamma": 0.9999}, ("ExponentialScheduler", (0.9999, "10ba"))),
    "MultiStepLR": ((0.1, 0.5, [10, 20]), {"milestones": [10, 20]}, ("MultiStepScheduler", (["10ba", "20ba"],))),
    "StepLR": ((0.1, LONG, 0.5), {"step_size": LONG}, ("StepScheduler", ("10000000ba",))),
    "CosineAnnealingLR": ((0.1, LONG), {"T_max": LONG}, ("CosineAnnealingScheduler", ())),
    "CosineAnnealingWarmRestarts": (
        (0.1, 1000, 2),
        {"T_0": 1000, "T_mult": 2},
        ("CosineAnnealingWarmRestartsScheduler", ("1000ba", 2.0)),
    ),
    "CyclicLR": ((0.1, 0.2), {"base_lr": 0.1, "max_lr": 0.2, "cycle_momentum": False}, None),
    "OneCycleLR": ((0.01, 0.1, LONG), {"max_lr": 0.1, "total_steps": LONG, "cycle_momentum": False}, None),
    "MultiplicativeLR": ((0.1, 0.999999), {"lr_lambda": lambda step: 0.999999}, None),
}


def optimizer_of(groups: int, tensor: bool = False) -> torch.optim.Optimizer:
    """An optimizer with so many groups, each with a rate of its own."""
    rates = [torch.tensor(0.1, dtype=torch.float64) if tensor else 0.1 for _ in range(groups)]
    return torch.optim.SGD([{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates])


def sequences(groups: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The steps of a warmup, then a cosine: ours and torch's."""
    mine, theirs = optimizer_of(groups), optimizer_of(groups)
    parts = [ours.LinearLR(mine, 0.0, 0.1, 10), ours.CosineAnnealingLR(mine, 0.1, LONG)]
    others = [torchs.LinearLR(theirs, total_iters=10), torchs.CosineAnnealingLR(theirs, LONG)]
    return ours.SequentialLR(mine, parts, [10]).step, past_first(torchs.SequentialLR(theirs, others, [10]))


def stamps(state: Any) -> Callable[[int], Any]:
    """Timestamps of the kind that a state has, by the batch."""
    kind = type(state.timestamp)
    return lambda batch: kind(batch=batch)


def measure(groups: int) -> None:
    """Print the rows for so many groups."""
    for name, (args, torch_args, other) in ROWS.items():
        calls = {
            "torch": past_first(getattr(torchs, name)(optimizer_of(groups), **torch_args)),
            "ours": getattr(ours, name)(optimizer_of(groups), *args).step,
        }
        state = state_of(1000)
        if other:
            state.optimizers = optimizer_of(groups)
            compiled = composers.compile_composer_scheduler(getattr(composers, other[0])(*other[1]), state)
            calls["counter"] = moving(state, stamps(state), lambda: None)
            calls["composer"] = moving(state, stamps(state), past_first(compiled))
        t = interleaved(f"{name}, {groups} groups", calls, rounds=21)
        composer = f"{(t['composer'] - t['counter']) / t['torch']:9.1f}" if other else ""
        report(groups, name, t["ours"], t["ours"] / t["torch"], composer)
    mine, theirs = sequences(groups)
    t = interleaved(f"SequentialLR, {groups} groups", {"torch": theirs, "ours": mine}, rounds=21)
    report(groups, "SequentialLR", t["ours"], t["ours"] / t["torch"])
    calls = {
        "torch": past_first(torchs.LambdaLR(optimizer_of(groups, tensor=True), lambda step: 1.0)),
        "ours": ours.CosineAnnealingLR(optimizer_of(groups, tensor=True), 0.1, LONG).step,
    }
    t = interleaved(f"tensors, {groups} groups", calls, rounds=21)
    report(groups, "CosineAnnealingLR, tensors", t["ours"], t["ours"] / t["torch"])


def report(groups: int, name: str, seconds: float, ratio: float, composer: str = "") -> None:
    """Print one row."""
    print(f"{groups:6d}  {name:28s}{show(seconds):>13s}{ratio:8.2f}{composer}")


def main() -> None:
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one step\n")
    print(f"{'groups':>6s}  {'what':28s}{'time':>13s}{'ratio':>8s}{'Composer':>9s}")
    for groups in (1, 8, 64):
        measure(groups)


if __name__ == "__main__":
    main()
