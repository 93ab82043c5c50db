"""The fast step of `ScheduleLR`: it takes half of the time of a full step, 2.7 against 5.5 microseconds.

A full step ticks the clock, catches up with the parameter groups, evaluates the schedule, checks the value and writes
it. A fast step does the same in one place, from values that a full step has left. It is prepared only if

* a step counts a batch with known samples and tokens, and the clock sums nothing over ranks;
* the schedule is of timesched, and reads one count: of batches, samples or tokens.

It is made only if

* nothing else has moved the clock, the clock has the same horizon as before, and its tick warns of no missing step;
* the scheduler may write, its groups are the same dicts as before, and their values are floats;
* the new values are finite floats, and nothing is compiled (`GroupTarget.write_at_once`).

Otherwise the scheduler makes a full step, which also finds what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from timesched.schedulers.schedule import Schedule
from timesched.time.timestamp import TOTALS
from timesched.time.units import Counter, TimeUnit


def make_fast_step(scheduler: Any) -> Callable[[Any], bool] | None:
    """A function that makes the next steps of a `ScheduleLR`; None if they must be full steps.

    The function gets the scheduler. If something has changed, it does nothing, and returns False.
    """
    clock, schedule = scheduler.clock, scheduler.schedule
    horizon, usual_batch = clock.horizon, clock.horizon.usual_batch
    if scheduler._counts_epochs or usual_batch is None or clock.process_group not in (None, False):
        return None
    if not isinstance(schedule, Schedule):
        return None
    resolution = schedule._resolution(clock)
    lengths: dict[Counter, int] = dict(zip((TimeUnit.BATCH, TimeUnit.SAMPLE, TimeUnit.TOKEN), (1, *usual_batch)))
    if len(resolution.counters) != 1 or not lengths.get(resolution.counters[0]):
        return None
    position = TOTALS[resolution.counters[0]]  # in the numbers of a timestamp, of the count that the schedule reads
    length = lengths[resolution.counters[0]]  # of a batch, in this count
    function, target, cursor = resolution.function, scheduler._target, scheduler._cursor
    (samples, tokens), batches_per_epoch = usual_batch, clock.dataloader_len

    def make_step(scheduler: Any) -> bool:
        timestamp = scheduler._timestamp
        if clock.timestamp is not timestamp or clock.horizon is not horizon or clock._ticks_until_warning == 1:
            return False
        value = function((timestamp._numbers[position] + length,))
        if not target.write_at_once(value):
            return False
        now = monotonic()
        microseconds = round((now - clock._last_tick_time) * 1e6)
        timestamp = timestamp.after_batch(samples, tokens, microseconds, batches_per_epoch)
        clock._advance(timestamp, now)
        scheduler._timestamp = timestamp
        cursor.steps += 1
        return True

    return make_step
