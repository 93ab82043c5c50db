"""The table of the parity tests: all thirteen classes with several arguments, in every unit, on Composer's own State.

A time is written as a fraction of the run and given in one unit after the other. Every fraction is whole in every
unit at every ratio, since where it is not Composer truncates and we do not (test_schedules.py).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import composer.optim
from composer.core import State
from composer.core import Timestamp as ComposerTimestamp
from composer.devices import DeviceCPU
from torch import nn

import timesched

BATCHES_PER_EPOCH = 8
# One and the same run in each unit, before scaling: 64 batches of 4 samples of 10 tokens.
LENGTHS = {"ep": 8, "ba": 64, "sp": 256, "tok": 2560}
RATIOS = (0.5, 1.0, 2.0)
UNITS = (*LENGTHS, "dur")


ZERO, EIGHTH, QUARTER, HALF, MOST, ALL, MORE = (Fraction(n, 8) for n in (0, 1, 2, 4, 6, 8, 10))  # of the run
QUARTERS, HALVES = ["2ep", "16ba", "64sp", "640tok", "0.25dur"], ["4ep", "32ba", "128sp", "1280tok", "0.5dur"]

# The arguments by their name, for each class.
TABLE: dict[str, list[dict[str, Any]]] = {
    "StepScheduler": [{"step_size": EIGHTH}, {"step_size": QUARTER, "gamma": 0.7}],
    "MultiStepScheduler": [
        {"milestones": []},
        {"milestones": [MOST, ZERO, HALF, HALF], "gamma": 0.3},
        {"milestones": [*QUARTERS, HALF], "gamma": 0.5},
    ],
    "ConstantScheduler": [{}, {"alpha": 0.25, "t_max": HALF}, {"alpha": 3.0, "t_max": MORE}],
    "LinearScheduler": [{}, {"alpha_i": 0.2, "alpha_f": 1.3, "t_max": HALF}, {"alpha_f": 0.1, "t_max": MORE}],
    "ExponentialScheduler": [{"gamma": 0.9}, {"gamma": 0.5, "decay_period": QUARTER}],
    "CosineAnnealingScheduler": [{}, {"t_max": MOST, "alpha_f": 0.1}, {"t_max": MORE, "alpha_f": 1.5}],
    "CosineAnnealingWarmRestartsScheduler": [
        {"t_0": EIGHTH},
        {"t_0": EIGHTH, "t_mult": 2.0, "alpha_f": 0.1},
        {"t_0": QUARTER, "t_mult": 1.5},
        {"t_0": MORE, "t_mult": 3.0},
    ],
    "PolynomialScheduler": [
        {"power": 2.0},
        {"power": 0.5, "t_max": HALF, "alpha_f": 0.2},
        {"power": 1.0, "t_max": MORE},
        {"power": 0.0, "t_max": HALF},
    ],
    "MultiStepWithWarmupScheduler": [
        {"t_warmup": QUARTER, "milestones": [HALF, MOST]},
        {"t_warmup": HALF, "milestones": [QUARTER, MOST], "gamma": 0.4},
        {"t_warmup": ZERO, "milestones": HALVES},
    ],
    "ConstantWithWarmupScheduler": [
        {"t_warmup": QUARTER, "t_max": ALL},
        {"t_warmup": ALL, "alpha": 2.0, "t_max": MORE},
    ],
    "LinearWithWarmupScheduler": [
        {"t_warmup": EIGHTH, "alpha_i": 0.8, "alpha_f": 0.2, "t_max": MORE},
        {"t_warmup": ALL, "alpha_i": 0.8, "alpha_f": 0.2, "t_max": ALL},
        {"t_warmup": MORE, "alpha_f": 0.5, "t_max": ALL},
        {"t_warmup": ZERO, "t_max": ALL},
    ],
    "CosineAnnealingWithWarmupScheduler": [
        {"t_warmup": QUARTER, "t_max": ALL},
        {"t_warmup": HALF, "t_max": MORE, "alpha_f": 0.1},
    ],
    "PolynomialWithWarmupScheduler": [
        {"t_warmup": QUARTER, "t_max": ALL},
        {"t_warmup": EIGHTH, "power": 0.5, "t_max": MORE, "alpha_f": 0.3},
    ],
}


def written(value: Any, unit: str) -> Any:
    """An argument with every time in `unit`."""
    if isinstance(value, list):
        return [written(item, unit) for item in value]
    if not isinstance(value, Fraction):
        return value
    count = float(value) if unit == "dur" else value * LENGTHS[unit]
    assert unit == "dur" or count.denominator == 1, (value, unit)
    return f"{count}{unit}"


def variants(name: str) -> Iterator[dict[str, Any]]:
    """Every set of arguments for one class."""
    for given in TABLE[name]:
        for unit in UNITS:
            arguments = {key: written(value, unit) for key, value in given.items()}
            yield arguments
            if "t_warmup" in given:
                yield arguments | {"scale_warmup": True}


def pair(name: str, given: dict[str, Any]) -> tuple[Any, Any]:
    """Our schedule and Composer's of the same name and arguments."""
    return getattr(timesched, name)(**given), getattr(composer.optim, name)(**given)


def moves_boundary(given: dict[str, Any], ratio: float) -> bool:
    """Whether a scaled warmup makes a difference: ours ends where its ramp does."""
    absolute = not given.get("t_warmup", "0dur").endswith("dur") and given.get("t_warmup", "0")[0] != "0"
    return bool(given.get("scale_warmup", False) and absolute and ratio != 1.0)


def state_of(max_duration: str | None, batches_per_epoch: int | None = BATCHES_PER_EPOCH) -> State:
    """A State whose max_duration is as given, already scaled; with None for a dataloader without a length."""
    loader: Any = iter([]) if batches_per_epoch is None else [None] * batches_per_epoch
    run: Any = {"run_name": "parity", "max_duration": max_duration, "dataloader": loader, "dataloader_label": "train"}
    return State(model=nn.Linear(1, 1), rank_zero_seed=0, device=DeviceCPU(), **run)


def scaled(unit: str, ratio: float) -> str:
    """The length of the run in `unit` once the ratio is applied."""
    return f"{int(LENGTHS[unit] * ratio)}{unit}"


def moments(ratio: float) -> Iterator[dict[str, int]]:
    """Counts at, right before and right after every place where something can happen, and past the end.

    All times of the table fall on batches that are a multiple of 4; there the finer counters are also one off.
    """
    for batch in range(int(64 * ratio) + 12):
        for off in (-1, 0, 1) if batch % 4 == 0 else (0,):
            fine = {"sample": max(4 * batch + off, 0), "token": max(40 * batch + off, 0)}
            epoch, batch_in_epoch = divmod(batch, BATCHES_PER_EPOCH)
            yield {"epoch": epoch, "batch": batch, "batch_in_epoch": batch_in_epoch, **fine}


@functools.cache
def timestamps(ratio: float) -> list[tuple[dict[str, int], ComposerTimestamp]]:
    """The moments, each with Composer's timestamp, which takes longer to make than a schedule to evaluate."""
    return [(counts, ComposerTimestamp(**counts)) for counts in moments(ratio)]


def at(state: State, **counts: int) -> State:
    """The state, moved to these counts."""
    state.timestamp = ComposerTimestamp(**counts)
    return state
