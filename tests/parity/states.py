"""Composer's own State, with a run of a given length and any number of moments of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from composer.core import State
from composer.core import Timestamp as ComposerTimestamp
from composer.devices import DeviceCPU
from torch import nn

BATCHES_PER_EPOCH = 8
# One and the same run in each unit, before scaling: 64 batches of 4 samples of 10 tokens.
LENGTHS = {"ep": 8, "ba": 64, "sp": 256, "tok": 2560}
RATIOS = (0.5, 1.0, 2.0)


def state_of(max_duration: str | None, batches_per_epoch: int | None = BATCHES_PER_EPOCH) -> State:
    """A State whose max_duration is as given, already scaled; with None for a dataloader without a length."""
    loader: Any = iter([]) if batches_per_epoch is None else [None] * batches_per_epoch
    return State(
        model=nn.Linear(1, 1),
        rank_zero_seed=0,
        run_name="parity",
        device=DeviceCPU(),
        max_duration=max_duration,
        dataloader=loader,
        dataloader_label="train",
    )


def scaled(unit: str, ratio: float) -> str:
    """The length of the run in `unit` once the ratio is applied."""
    return f"{int(LENGTHS[unit] * ratio)}{unit}"


def moments(ratio: float) -> Iterator[dict[str, int]]:
    """Counts at, right before and right after every place where something can happen, and past the end.

    All times of the table fall on batches that are a multiple of 4; there the finer counters are also one off.
    """
    for batch in range(int(64 * ratio) + 12):
        for off in (-1, 0, 1) if batch % 4 == 0 else (0,):
            yield {
                "epoch": batch // BATCHES_PER_EPOCH,
                "batch": batch,
                "sample": max(4 * batch + off, 0),
                "token": max(40 * batch + off, 0),
            }


def timestamps(ratio: float) -> list[ComposerTimestamp]:
    return [ComposerTimestamp(**counts) for counts in moments(ratio)]


def at(state: State, **counts: int) -> State:
    """The state, moved to these counts."""
    state.timestamp = ComposerTimestamp(**counts)
    return state
