"""check_schedule_laws: checks every law on one schedule, in one line of a user's test."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable
from contextlib import suppress
from fractions import Fraction
from itertools import pairwise

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from timesched.schedulers import ConstantScheduler, CosineAnnealingScheduler, LinearScheduler, PolynomialScheduler
from timesched.schedulers.schedule import Schedule, ScheduleLike, schedule_times
from timesched.testing.laws import LAWS, Law, LawBroken, Promise, PromiseAt, check_ratio, evaluate
from timesched.testing.runs import COUNTED, Run, runs
from timesched.time.value import Time


def check_schedule_laws(
    schedule: ScheduleLike,
    promise: Promise | PromiseAt | None = None,
    laws: Iterable[str] = tuple(LAWS),
    max_examples: int = 200,
) -> None:
    """Check a schedule against the laws of schedules, on random runs that suit it.

    `schedule`: a schedule of this package, a subclass of `Schedule`, or a function of `(state)` or `(state, ssr)`. The
    laws that the signature of a function allows apply to it. `promise`: its start, end, range, ..., or a function of
    the schedule and the horizon that returns them. None promises that values are finite. `laws`: the laws that are
    checked, all by default:

    * 'purity': the value depends only on the moment and the run, whatever was evaluated before
    * 'ratio': stretched by a ratio, the schedule has at time t its unstretched value at t / ratio, with
      `scale_warmup=True`; a schedule with a `t_warmup` in batches, but without `scale_warmup`, is not checked
    * 'unit': written in another unit, it has the same values
    * 'ends': the promise holds
    * 'epochs': times in epochs do not move when an epoch gets more batches
    * 'one formula': numbers and tensors give the same value
    * 'rates': the error names a missing conversion factor, and only a factor that is needed
    * 'cost': a value late in the run takes no longer than an early one

    Raises `LawBroken` with the smallest example that it finds; returns None otherwise.

    It evaluates a few batches of each run, mostly around the times of the schedule. In a function, it tests around the
    20 largest changes in the first 2000 batches. It does not find a wrong value at another single batch, such as a NaN.
    Without a promise, it does not find a time that is wrong in the same way in every run.

    >>> from timesched import LinearScheduler
    >>> check_schedule_laws(LinearScheduler(t_max="0.5dur"), max_examples=20)
    """
    promise_at = promise if callable(promise) else lambda _schedule, _horizon: promise or Promise()
    names = tuple(laws)  # `laws` may be a generator
    unknown = [name for name in names if name not in LAWS]
    if unknown:
        raise ValueError(
            f"check_schedule_laws.laws={list(names)}: {unknown[0]!r} is not a law. Pass names out of "
            f"{', '.join(map(repr, LAWS))}."
        )
    for name in names:
        _check_law(LAWS[name], schedule, promise_at, max_examples)


def _check_law(law: Law, schedule: ScheduleLike, promise: PromiseAt, max_examples: int) -> None:
    """Check a law on random runs. The changes of a function, whose times are not known, are for the law 'ratio' alone.

    They are not searched before: the law 'purity' must be the first to call a function, which may keep a state.
    """
    changes = largest_changes(schedule) if law is check_ratio and not isinstance(schedule, Schedule) else ()

    @settings(max_examples=max_examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.data())
    def examples(data: st.DataObject) -> None:
        fresh = copy.deepcopy(schedule)  # it has seen no other example
        law(fresh, dataclasses.replace(data.draw(suitable_runs(schedule)), changes=changes), data.draw, promise)

    try:
        examples()
    except Flaky as error:
        raise LawBroken(
            f"law 'purity': {schedule!r} broke a law and then kept it on the same example. Its value must not depend "
            f"on earlier calls."
        ) from error


# Schedules that may end before the run does.
_MAY_END_EARLY = (ConstantScheduler, CosineAnnealingScheduler, LinearScheduler, PolynomialScheduler)


def suitable_runs(schedule: ScheduleLike) -> st.SearchStrategy[Run]:
    """Runs that a schedule accepts: no longer than its `t_max`, if `t_max` is an absolute time. Some runs end at a time
    of the schedule.
    """
    times = [time for time in schedule_times(schedule) if time.unit in COUNTED and time.exact > 0]
    suitable = runs() | st.builds(_ending_at, runs(), st.sampled_from(times)) if times else runs()
    t_max = None if isinstance(schedule, _MAY_END_EARLY) else getattr(schedule, "t_max", None)
    if not isinstance(t_max, Time) or t_max.unit not in COUNTED:
        return suitable
    return suitable.map(lambda run: min(run, _ending_at(run, t_max), key=lambda run: run.batches))


def _ending_at(run: Run, time: Time) -> Run:
    """A run that ends with the last batch that is complete at a time."""
    batches = int(Fraction(time.exact) / run.per_batch(time.unit))
    assume(batches > 0)
    return dataclasses.replace(run, batches=batches)


def largest_changes(schedule: ScheduleLike) -> tuple[int, ...]:
    """Up to 20 of the first 2000 batches, at which a function changes most, since its times are not known."""
    values: list[float] = []
    with suppress(Exception):  # a law raises it later
        values += [evaluate(schedule, Run(2000).state(batch)) for batch in range(2001)]
    sizes = {batch: abs(after - before) for batch, (before, after) in enumerate(pairwise(values), start=1)}
    return tuple(batch for batch in sorted(sizes, key=sizes.__getitem__)[-20:] if sizes[batch])
