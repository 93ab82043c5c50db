"""BatchSizeSampler: the batches of a data loader, with the sizes of a batch-size schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from itertools import islice
from types import SimpleNamespace
from typing import Protocol

import torch.distributed as dist
from torch.utils.data import DistributedSampler

from timesched.batch_size.schedule import BatchSizeSchedule, check_divisor, check_positive_int
from timesched.run.horizon import Horizon, State
from timesched.time.timestamp import Timestamp
from timesched.time.units import TimeUnit, unit_of

_COUNTERS = ("iteration", "epoch", "batch", "sample", "token", "batch_in_epoch", "sample_in_epoch", "token_in_epoch")


class Indices(Iterable[int], Sized, Protocol):
    """The indices of the samples of an epoch, and how many they are: a sampler, or a `range`."""


class BatchSizeSampler(DistributedSampler[list[int]]):
    """The batches of a `DataLoader`, with the sizes of a schedule, from the present time of a clock.

    Pass it as `DataLoader(batch_sampler=...)`. A batch is one step of the optimizer, and has the size at its first
    sample. No batch crosses an epoch: the last batch of an epoch is cut to the samples that are left. Its size is
    rounded down to a multiple of `world_size`, and the samples that ranks cannot share are left out. Each rank gets a
    contiguous part of a batch, and all parts have one size.

    Iteration reads the clock once. It skips the samples that the clock has counted in its epoch, and then counts the
    samples that it hands out, so workers may read ahead. In a loop, call `clock.tick(samples=...)` with the samples of
    all ranks, and `clock.next_epoch()` at the end of an epoch.

    At the beginning of an iteration, `sampler.set_epoch` gets the clock's epoch, if the sampler has this method. A
    shuffled order continues exactly with `DistributedSampler(data, num_replicas=1, rank=0)`. It does not continue with
    a `RandomSampler`, which draws another order.

    Args:
        sampler: a sampler, or another iterable with a length, with the indices of all ranks.
        sizes: the sizes of the batches, over all ranks.
        clock: a `Clock`, another state with counters, or a function without arguments that returns one of them.
        rank: the rank of this process, from 0. Default: None, the rank of torch.distributed when iteration begins.
        world_size: the number of ranks. Default: None, as for `rank`.
        drop_last: whether to leave out a batch that is cut. Default: False.
        from_epoch_start: whether iteration begins where the clock's epoch began, for a trainer that discards the
            batches that are done. Default: False.

    Raises:
        ValueError: `rank` is not below `world_size`. `world_size` does not divide a size. `sampler` has the indices of
            one rank of several. When iteration begins: a threshold is in tokens and the clock has no
            `tokens_per_sample`, a threshold is in seconds, or there are several sizes and the clock knows
            `batches_per_epoch`, which differ.
        TypeError: `sizes` is not a `BatchSizeSchedule`. `len()` raises it, since the epochs differ in batches.

    >>> from timesched import Clock
    >>> clock, sizes = Clock("20sp"), BatchSizeSchedule("0sp:2 6sp:4")
    >>> batches = BatchSizeSampler(range(12), sizes, clock)  # one epoch has 12 samples
    >>> while not clock.done:
    ...     for batch in batches:  # or: for batch in DataLoader(data, batch_sampler=batches)
    ...         print(clock.timestamp.sample, batch)
    ...         clock.tick(samples=len(batch))
    ...         if clock.done:
    ...             break
    ...     else:
    ...         clock.next_epoch()
    0sp [0, 1]
    2sp [2, 3]
    4sp [4, 5]
    6sp [6, 7, 8, 9]
    10sp [10, 11]
    12sp [0, 1, 2, 3]
    16sp [4, 5, 6, 7]
    """

    # Composer accepts no other base class on several ranks. The constructor of the base class is not called, since it
    # would read the rank and the length of the data now.
    def __init__(
        self,
        sampler: Indices,
        sizes: BatchSizeSchedule,
        clock: State | Callable[[], State],
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
        from_epoch_start: bool = False,
    ) -> None:
        if not isinstance(sizes, BatchSizeSchedule):
            raise TypeError(
                f"BatchSizeSampler.sizes={sizes!r}: it is not a batch-size schedule. Pass one such as "
                f"BatchSizeSchedule({{'0sp': 8}})."
            )
        if isinstance(sampler, DistributedSampler) and getattr(sampler, "num_replicas", 1) != 1:
            raise ValueError(
                "BatchSizeSampler.sampler has the indices of one rank. Pass one with the indices of all ranks: "
                "DistributedSampler(data, num_replicas=1, rank=0)."
            )
        self.sampler, self.sizes, self.clock = sampler, sizes, clock
        self._rank, self._world_size = rank, world_size
        self.drop_last, self.from_epoch_start = drop_last, from_epoch_start
        if world_size is not None:
            self._check_ranks(0 if rank is None else rank, world_size)

    def __iter__(self) -> Iterator[list[int]]:
        rank, world_size = self._read_ranks()
        run = self._read_clock()
        if self.from_epoch_start:
            run.timestamp = _epoch_start(run.timestamp)
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(run.timestamp.epoch.value)
        indices = islice(self.sampler, run.timestamp.sample_in_epoch.value, None)
        return _read_parts(indices, self._batch_sizes(run, world_size), rank, world_size)

    def num_batches(self) -> int:
        """The number of batches from the clock's time to the end of its epoch; 0 at the end.

        Raises `ValueError` as iteration does.
        """
        _, world_size = self._read_ranks()
        return sum(1 for _ in self._batch_sizes(self._read_clock(), world_size))

    def __len__(self) -> int:
        raise TypeError(
            "BatchSizeSampler has no length, since epochs differ in batches. Use num_batches(), which counts from the "
            "clock's time to the end of its epoch."
        )

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: the epoch is the clock's."""

    def _batch_sizes(self, run: SimpleNamespace, world_size: int) -> Iterator[int]:
        """The sizes of the batches, over all ranks, from the time of a run to the end of its epoch. It counts them."""
        remaining = len(self.sampler) - run.timestamp.sample_in_epoch.value
        tokens_per_sample = run.horizon.tokens_per_sample or 0
        while remaining >= world_size:
            size = self.sizes.at(run)
            if size > remaining:
                if self.drop_last:
                    return
                size = remaining - remaining % world_size
            yield size
            remaining -= size
            run.timestamp = run.timestamp.after_batch(size, size * tokens_per_sample, 0)  # tokens may be a Fraction

    def _read_ranks(self) -> tuple[int, int]:
        """The rank and the number of ranks, by the arguments or by torch.distributed."""
        is_distributed = dist.is_available() and dist.is_initialized()
        own_rank, ranks = (dist.get_rank(), dist.get_world_size()) if is_distributed else (0, 1)
        rank = own_rank if self._rank is None else self._rank
        world_size = ranks if self._world_size is None else self._world_size
        self._check_ranks(rank, world_size)
        return rank, world_size

    def _check_ranks(self, rank: int, world_size: int) -> None:
        check_positive_int(world_size, "BatchSizeSampler.world_size")
        if type(rank) is not int or not 0 <= rank < world_size:
            raise ValueError(
                f"BatchSizeSampler.rank={rank!r}: it is out of range. Pass one from 0 to {world_size - 1}."
            )
        check_divisor(self.sizes, world_size, f"BatchSizeSampler.world_size={world_size}")

    def _read_clock(self) -> SimpleNamespace:
        """A state to count ahead of the clock. Raises `ValueError` if the clock does not say which sizes follow."""
        state = self.clock() if callable(self.clock) else self.clock
        horizon, thresholds = Horizon.of(state), [threshold for threshold, _ in self.sizes.entries[1:]]
        if thresholds and horizon.batches_per_epoch is not None:
            raise ValueError(
                f"BatchSizeSampler.clock: it knows batches_per_epoch={horizon.batches_per_epoch}, and epochs differ in "
                f"batches where the size changes. Leave batches_per_epoch out, and call clock.next_epoch()."
            )
        for threshold in thresholds:
            unit = unit_of(horizon.place(threshold)[1])
            if unit is TimeUnit.TOKEN and horizon.tokens_per_sample is None:
                raise ValueError(
                    f"BatchSizeSampler.sizes: {threshold} is in tokens, and the clock has no tokens_per_sample, by "
                    f"which the sampler counts ahead. Pass tokens_per_sample=... to the clock."
                )
            if unit is TimeUnit.SECOND:
                raise ValueError(
                    f"BatchSizeSampler.sizes: {threshold} is in seconds, which the sampler cannot count ahead. Write "
                    f"the thresholds in samples."
                )
        timestamp = Timestamp(**{name: getattr(state.timestamp, name) for name in _COUNTERS})
        counted = getattr(state, "_explicit_units", ())  # also where the count is 0
        return SimpleNamespace(horizon=horizon, timestamp=timestamp, _explicit_units=counted)


def _epoch_start(timestamp: Timestamp) -> Timestamp:
    """The counters at the beginning of the epoch."""
    return timestamp.copy(
        batch=timestamp.batch - timestamp.batch_in_epoch,
        sample=timestamp.sample - timestamp.sample_in_epoch,
        token=timestamp.token - timestamp.token_in_epoch,
        batch_in_epoch=0,
        sample_in_epoch=0,
        token_in_epoch=0,
    )


def _read_parts(indices: Iterator[int], sizes: Iterator[int], rank: int, world_size: int) -> Iterator[list[int]]:
    """The parts of a rank in batches of these sizes."""
    for size in sizes:
        batch, part = list(islice(indices, size)), size // world_size
        yield batch[rank * part : (rank + 1) * part]


def find_sampler(loaders: object) -> BatchSizeSampler | None:
    """The sampler of the first data loader whose batches grow; the loaders may be in lists and mappings."""
    if isinstance(loaders, Mapping):
        return find_sampler(list(loaders.values()))
    if isinstance(loaders, (list, tuple)):
        samplers = [find_sampler(loader) for loader in loaders]
        return next((sampler for sampler in samplers if sampler is not None), None)
    sampler = getattr(loaders, "batch_sampler", None)
    sampler = getattr(sampler, "batch_sampler", sampler)  # accelerate's shard divides batches among ranks
    return sampler if isinstance(sampler, BatchSizeSampler) else None
