"""Clocks of two ranks. The argument is a folder, to which the outcome of each check is written."""

from __future__ import annotations

import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

import timesched
from tests.building import sgd, tick
from tests.torchrun import Report, start_ranks
from timesched import BatchSizeSampler, BatchSizeSchedule, Clock, CosineAnnealingScheduler, ScheduleLR, bind


def tokens_of(rank: int, step: int) -> int:
    """Each rank has its own number of tokens in each batch."""
    return 100 + 13 * rank + 7 * (step % 5)


def same_on_all_ranks(value: Any) -> None:
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    assert values == values[:1] * len(values), values


def counts_are_summed() -> None:
    clock, rank, world = Clock("20000tok", process_group=True), dist.get_rank(), dist.get_world_size()
    scheduler = bind(CosineAnnealingScheduler(), sgd(lr=0.5), clock)
    for step in range(9):
        clock.tick(samples=torch.tensor(4 + rank), tokens=tokens_of(rank, step))
        scheduler.step()
        total = sum(tokens_of(other, past) for other in range(world) for past in range(step + 1))
        assert clock.timestamp.token == total and clock.timestamp.batch == step + 1
        assert scheduler.get_last_lr() == [0.5 * CosineAnnealingScheduler().at(f"{total}tok", clock)]
    assert clock.timestamp.sample == 9 * sum(4 + other for other in range(world))
    same_on_all_ranks(clock.state_dict())


def a_step_of_schedule_lr_sums_its_counts() -> None:
    rank, world, schedule = dist.get_rank(), dist.get_world_size(), CosineAnnealingScheduler()
    scheduler = ScheduleLR(sgd(lr=0.5), schedule, "20000tok", process_group=True)
    for step in range(5):
        scheduler.step(samples=4, tokens=tokens_of(rank, step))
        total = sum(tokens_of(other, past) for other in range(world) for past in range(step + 1))
        assert scheduler.clock.timestamp.token == total
        assert scheduler.get_last_lr() == [0.5 * schedule.at(f"{total}tok", scheduler.clock)]
    with pytest.raises(ValueError, match="tokens: 1 of 2 ranks passed it"):
        scheduler.step(samples=4, tokens=5 if rank == 0 else None)
    epochs = ScheduleLR(sgd(), schedule, 4, unit="ep", process_group=True)
    for _ in range(2):
        time.sleep(0.01 * rank)
        epochs.step()
    same_on_all_ranks((scheduler.state_dict(), epochs.clock.state_dict()))
    assert epochs.clock.timestamp == "2ep" and scheduler.last_epoch == 5


def seconds_are_those_of_rank_0() -> None:
    clock = Clock("60sec", process_group=True)
    for _ in range(3):
        time.sleep(0.01 * dist.get_rank())
        clock.tick()
    clock.tick(duration=timedelta(seconds=1 + dist.get_rank()))
    same_on_all_ranks(clock.state_dict())
    assert 1.0 <= clock.timestamp.total_wct.total_seconds() < 20.0


def rates_are_of_all_ranks() -> None:
    clock = Clock("10ba", samples_per_batch=32, tokens_per_sample=8, process_group=True)
    clock.tick()
    assert (clock.timestamp.sample, clock.timestamp.token) == (32, 256)
    clock.tick(samples=3)
    world = dist.get_world_size()
    assert (clock.timestamp.sample, clock.timestamp.token) == (32 + 3 * world, 256 + 24 * world)


def a_number_of_one_rank_alone_is_refused_on_all() -> None:
    clock = Clock("10ba", process_group=dist.group.WORLD)
    with pytest.raises(ValueError, match="tokens: 1 of 2 ranks passed it"):
        clock.tick(tokens=5 if dist.get_rank() == 0 else None)
    assert clock.timestamp.batch == 0
    for bad in ({"tokens": -5}, {"tokens": 2**63}, {"tokens": torch.empty((), device="meta")}, {"duration": -1}):
        last = dist.get_rank() == 1  # the others raise as it does
        with pytest.raises((ValueError, RuntimeError), match=None if last else "1 of 2 ranks passed a wrong"):
            clock.tick(**{"tokens": 5, **(bad if last else {})})
        assert clock.timestamp.batch == 0


def a_clock_that_counts_alone_says_so_once() -> None:
    def said(schedule: Any, *arguments: Any, given: int | None = None, **options: Any) -> list[str]:
        clock = Clock(*arguments, **options)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            scheduler = bind(schedule, sgd(lr=0.5), clock)
            tick(clock, 4, scheduler, tokens=given)
        return [str(each.message) for each in found]

    linear = timesched.LinearScheduler()
    (words,) = said(linear, "9999tok", given=5)
    assert "process_group=True" in words and "process_group=False" in words and "tokens" in words
    assert len(said(linear, "60sec")) == 1
    (words,) = said([linear, timesched.LinearScheduler(t_max="9ba")], "9999tok", given=5)
    assert "the ranks may differ in tokens. Make" in words  # and not in batches, which the schedule also reads
    assert not said(linear, "9999tok", given=5, process_group=False)
    assert not said(linear, "9999tok", given=5, process_group=True)
    assert not said(linear, "9999tok", samples_per_batch=2, tokens_per_sample=3)  # the same on every rank
    assert not said(linear, "99ba", given=5)


def what_some_ranks_pass_is_refused() -> None:
    """Ranks with other counts would evaluate at other batches."""
    for ask in (
        lambda clock: clock.passed("150tok"),
        lambda clock: clock.before("150tok"),
        lambda clock: clock.every("50tok"),
        lambda clock: clock.every("1sec"),
    ):
        clock = Clock("20000tok")
        clock.tick(tokens=tokens_of(dist.get_rank(), 0))
        with pytest.raises(ValueError, match="between ranks.*process_group=True"):
            ask(clock)
        assert clock.passed("1ba")
    clock = Clock("20000tok", process_group=True)
    found = []
    for step in range(9):
        clock.tick(tokens=tokens_of(dist.get_rank(), step))
        found.append((clock.passed("500tok"), clock.every("300tok"), clock.passed("0.05dur"), clock.passed("1e-6sec")))
    assert sum(row[0] for row in found) == 1 and sum(row[1] for row in found) >= 5
    same_on_all_ranks(found)


def batches_are_shared() -> None:
    """Each rank loads its part of each batch, also after an interruption. The parts are in the order of the ranks."""
    sizes, world = BatchSizeSchedule("0sp:4 12sp:8"), dist.get_world_size()
    clock, rows = Clock("44sp", process_group=True), []
    while not clock.done:
        order = DistributedSampler(range(23), num_replicas=1, rank=0)
        for part in DataLoader(range(23), batch_sampler=BatchSizeSampler(order, sizes, clock)):
            parts: list[Any] = [None] * world
            dist.all_gather_object(parts, part.tolist())
            rows.append([index for other in parts for index in other])
            clock.tick(samples=len(part))
            if len(rows) in (3, 7):  # the next loader continues the epoch
                break
        else:
            clock.next_epoch()
    assert [len(row) for row in rows] == [4, 4, 4, 8, 2, 8, 8, 6]
    for epoch, batches in enumerate((rows[:5], rows[5:])):
        order.set_epoch(epoch)
        assert [index for row in batches for index in row] == [*order][:22]  # two ranks cannot share the last one
    with pytest.raises(ValueError, match="world_size=2: the batch size 3 at 0sp"):
        iter(BatchSizeSampler(range(23), BatchSizeSchedule({"0sp": 3}), clock))


CHECKS = (
    batches_are_shared,
    counts_are_summed,
    a_step_of_schedule_lr_sums_its_counts,
    seconds_are_those_of_rank_0,
    rates_are_of_all_ranks,
    a_number_of_one_rank_alone_is_refused_on_all,
    a_clock_that_counts_alone_says_so_once,
    what_some_ranks_pass_is_refused,
)


def main(folder: Path) -> None:
    report = Report(folder)
    for check in CHECKS:
        report.check(check.__name__, check)


if __name__ == "__main__":
    start_ranks(main, 2, Path(sys.argv[1]))
