"""The counts of a batch on the ranks of torch.distributed, and their sums."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from timesched.time.timestamp import read_duration, read_field
from timesched.time.units import TimeError


def sum_over_ranks(process_group: Any, samples: Any, tokens: Any, duration: Any, elapsed: int) -> tuple[Any, Any, int]:
    """The samples, tokens and microseconds of a batch on all ranks. Samples or tokens that no rank passes are None.

    `process_group`: as for a `Clock`. The batch took the time `duration`, or `elapsed` microseconds if it is None. If
    counts are summed, all ranks get the time of rank 0. Raises `ValueError` on all ranks if a count is wrong, or if
    only some ranks pass it.
    """
    if process_group in (None, False):
        return samples, tokens, elapsed if duration is None else read_duration("duration", duration)
    group = None if process_group is True else process_group
    arguments = {"samples": samples, "tokens": tokens}
    own_error: Exception | None = None
    try:
        numbers = _read_own_counts(arguments, duration, elapsed, is_first=dist.get_rank(group) == 0)
    except (TypeError, ValueError, RuntimeError) as error:  # the other ranks wait for this one, and must raise, too
        numbers, own_error = torch.tensor([0, 0, 0, 0, 0, 1]), error
    numbers = numbers.to(collective_device(group))
    dist.all_reduce(numbers, group=group)
    all_samples, all_tokens, ranks_with_samples, ranks_with_tokens, microseconds, failed = numbers.tolist()
    size = dist.get_world_size(group)
    if failed:
        raise own_error or TimeError(
            f"Clock.tick: {failed} of {size} ranks passed a wrong count. See the errors of these ranks."
        )
    for name, count in zip(arguments, (ranks_with_samples, ranks_with_tokens)):
        if count not in (0, size):
            raise ValueError(f"Clock.tick.{name}: {count} of {size} ranks passed it. Pass it on all ranks, or on none.")
    return all_samples if ranks_with_samples else None, all_tokens if ranks_with_tokens else None, microseconds


def _read_own_counts(arguments: dict[str, Any], duration: Any, elapsed: int, is_first: bool) -> Tensor:
    """The six numbers that a rank adds to the sums: its counts, which of them it passes, its time, and no error."""
    counts = [0 if value is None else read_count(name, value) for name, value in arguments.items()]
    are_passed = [value is not None for value in arguments.values()]
    microseconds = elapsed if duration is None else read_duration("duration", duration)
    return torch.tensor([*counts, *are_passed, microseconds if is_first else 0, 0], dtype=torch.int64)


def collective_device(group: Any) -> str:
    """The type of device on which a group can sum: the CPU if the group has a backend for it, otherwise its first."""
    devices = [pair.partition(":")[0] for pair in dist.get_backend_config(group).split(",")]  # "cpu:gloo,cuda:nccl"
    return "cpu" if "cpu" in devices else devices[0]


def check_initialized(process_group: Any) -> None:
    """Raise `ValueError` for a process group of a clock before torch.distributed is initialized."""
    if process_group not in (None, False) and not (dist.is_available() and dist.is_initialized()):
        raise ValueError(
            f"Clock.process_group={process_group!r}: torch.distributed is not initialized. Call "
            f"init_process_group() before you create the clock."
        )


def has_several_ranks() -> bool:
    """Whether torch.distributed runs on more than one rank."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def read_count(name: str, value: object) -> int:
    """The count of `samples` or `tokens` that a user passed. The fields have these names in the singular."""
    return read_field(name[:-1], value.item() if isinstance(value, Tensor) and value.numel() == 1 else value)
