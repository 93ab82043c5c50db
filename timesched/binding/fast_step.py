"""The fast step of `ScheduleLR`: it takes half of the time of a full step, 2.7 against 5.5 microseconds.

A full step ticks the clock, catches up with the parameter groups, evaluates the schedule, checks the value and writes
it. A fast step does the same in one place, from values that a full step has left. It is prepared only if

* a step counts a batch with known samples and tokens, and the clock sums nothing over ranks;
* the schedule is of timesched, and reads one count: of batches, samples or tokens.

It is made only if

* nothing else has moved the clock, and the clock has the same horizon as before;
* the scheduler may write, its groups are the same dicts as before, and their values are floats;
* the new values are finite, and nothing is compiled (`GroupTarget.write_at_once`).

Otherwise the scheduler makes a full step, which also finds what is wrong.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

from timesched.schedulers.schedule import Schedule
from timesched.time.timestamp import TOTALS
from timesched.time.units import Counter, TimeUnit


class FastStep:
    """A step that is prepared: it counts a usual batch and writes floats, as long as nothing has changed."""

    def __init__(self, scheduler: Any, usual_batch: tuple[int, int], count: int, index: int) -> None:
        self.clock = clock = scheduler.clock
        self.target, self.cursor = scheduler._target, scheduler._cursor
        self.samples, self.tokens = usual_batch
        self.count, self.index = count, index  # of a batch, and in the numbers of a timestamp: what the schedule reads
        self.function = scheduler.schedule._resolution(clock).function
        self.batches_per_epoch = clock.dataloader_len
        self.horizon = clock.horizon

    def make(self, scheduler: Any) -> bool:
        """Make the step of a `ScheduleLR`; or do nothing, and return False, if something has changed."""
        clock, timestamp, target = self.clock, scheduler._timestamp, self.target
        if clock.timestamp is not timestamp or clock.horizon is not self.horizon:
            return False
        value = self.function((timestamp._numbers[self.index] + self.count,))
        if not target.write_at_once(value):
            return False
        now = monotonic()
        microseconds = round((now - clock._last_tick_time) * 1e6)
        timestamp = timestamp.after_batch(self.samples, self.tokens, microseconds, self.batches_per_epoch)
        clock._advance(timestamp, now)
        scheduler._timestamp = timestamp
        self.cursor.steps += 1
        return True


def make_fast_step(scheduler: Any) -> FastStep | None:
    """The next steps of a `ScheduleLR`, if they count usual batches, and if the schedule reads one count of them."""
    clock, schedule = scheduler.clock, scheduler.schedule
    usual_batch = clock.horizon.usual_batch
    if scheduler._counts_epochs or usual_batch is None or clock.process_group not in (None, False):
        return None
    if not isinstance(schedule, Schedule):
        return None
    counters = schedule._resolution(clock).counters
    counts: dict[Counter, int] = dict(zip((TimeUnit.BATCH, TimeUnit.SAMPLE, TimeUnit.TOKEN), (1, *usual_batch)))
    if len(counters) != 1 or not counts.get(counters[0]):
        return None
    return FastStep(scheduler, usual_batch, counts[counters[0]], TOTALS[counters[0]])
