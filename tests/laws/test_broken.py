"""Tests of the tests: for each law, a schedule that breaks it in the way people break it, and must be caught."""

import itertools
from dataclasses import dataclass

import pytest
import torch

from timesched import (
    CooldownScheduler,
    LinearScheduler,
    LinearWithWarmupScheduler,
    ProductScheduler,
    Schedule,
    StepScheduler,
)
from timesched.fields import time
from timesched.maths import shapes
from timesched.maths.counts import Milestones, Period, stages
from timesched.testing import LawBroken, Promise, check_schedule_laws


def ignores_the_ratio(state, ssr=1.0):
    """Composer 0.32's warmup: the ramp is stretched, the boundary where it ends is not."""
    warmup, now = 10, state.timestamp.batch.value
    return min(1.0, now / (warmup * ssr)) if now < warmup else 1.0


def truncates(state, ssr=1.0):
    """A milestone cut to a whole batch after it is stretched."""
    return 1.0 if state.timestamp.batch < int(7 * ssr) else 0.1


_calls = itertools.count()


def counts_its_calls(state, ssr=1.0):
    return 1.0 / (1 + next(_calls))


@dataclass(frozen=True, eq=False, repr=False)
class Broken(LinearScheduler):
    """Resolved by a function of it and the frame."""

    how: object = None

    def resolve(self, frame):
        return self.how(self, frame)


def takes_samples_for_batches(schedule, frame):
    end, index = frame.mark(schedule.t_max), frame.mark("1ba").index
    return lambda counts: max(0.0, 1.0 - counts[index] / float(end.count or 1))


def ends_one_count_late(schedule, frame):
    span = frame.span(schedule.t_max)
    return lambda counts: 1.0 - span.done((counts[0] - 1 if counts[0] else 0,))


def overshoots(schedule, frame):
    span = frame.span(schedule.t_max)
    return lambda counts: 1.0 - span.done(counts) * 1.0000000001


def jumps_after_the_warmup(schedule, frame):
    half, end = LinearScheduler(0.0, 0.5, schedule.t_max).resolve(frame), frame.mark(schedule.t_max)
    return lambda counts: 1.0 if end.reached(counts) else half(counts)


def computes_tensors_in_float32(schedule, frame):
    exact = LinearScheduler(1.0, 0.0, schedule.t_max).resolve(frame)

    def value(counts):
        out = exact(counts)
        return out.float().double() if isinstance(out, torch.Tensor) else out

    return value


def guesses_the_rate(schedule, frame):
    count, _ = frame.horizon.place(schedule.t_max)
    return lambda counts: 1.0 - min(1.0, float(counts[0]) / float(count or 1))


def walks_through_the_cycles(schedule, frame):
    period = float(frame.mark(schedule.t_max).count)

    def value(counts):
        left = float(counts[0])
        while left >= period:
            left -= period
        return 1.0 - left / period

    return value


def counts_the_batches_of_its_epochs(schedule, frame):
    frame.mark(schedule.t_max)
    return lambda counts: float(counts[0])


@dataclass(frozen=True, eq=False, repr=False)
class LinearInOneUnit(Schedule):
    """Not broken: a user's own class with everything right."""

    t_max: object = time("1dur")

    def resolve(self, frame):
        span = frame.span(self.t_max)
        return lambda counts: span.left(counts)


LINE = Promise(start=1.0, low=0.0, high=1.0, continuous=True, falls=True)


@pytest.mark.parametrize(
    ("how", "t_max", "law", "promise"),
    [
        (ignores_the_ratio, None, "ratio", None),
        (truncates, None, "ratio", None),
        (takes_samples_for_batches, "12ba", "unit", None),
        (ends_one_count_late, "12ba", "ends", lambda s, run: Promise(end=0.0, until=run.place(s.t_max))),
        (overshoots, "1dur", "ends", LINE),
        (jumps_after_the_warmup, "0.25dur", "ends", Promise(continuous=True)),
        (lambda state: 1.0 + state.timestamp.batch.value % 2, None, "ends", Promise(falls=True)),
        (counts_its_calls, None, "purity", None),
        (counts_the_batches_of_its_epochs, "1dur", "epochs", None),
        (computes_tensors_in_float32, "1dur", "one formula", None),
        (guesses_the_rate, "100tok", "rates", None),
        (walks_through_the_cycles, "3ba", "cost", None),
    ],
)
def test_a_broken_schedule_is_caught(how, t_max, law, promise):
    schedule = Broken(t_max=t_max, how=how) if t_max else how
    with pytest.raises(LawBroken, match=f"law '{law}': "):
        check_schedule_laws(schedule, promise, laws=[law], max_examples=5000)  # the first that fails ends it


def test_lines_that_run_once_do_not_break_the_law_of_cost():
    """As the lines of a callback do: the law counts a late value twice."""
    calls = itertools.count(1)

    def schedule(state, ssr=1.0):
        for _ in range(1000 if next(calls) % 7 == 6 else 0):  # each example calls it four times, then counts three
            pass
        return 1.0

    check_schedule_laws(schedule, laws=["cost"], max_examples=10)


def drops(mark):
    return stages([mark], [lambda counts: 1.0, lambda counts: 0.1])


def passes_a_milestone(mark):
    return shapes.milestones(Milestones([mark]), 0.1)


def goes_down_in_steps(mark):
    return shapes.steps(Period(mark.index, mark.count), 0.5)


@pytest.mark.parametrize(
    ("shape", "t_max"),
    [
        *((drops, t_max) for t_max in ("30ba", "0.5dur", "7ep", "30ep", "100ba", "1000ba")),
        *((passes_a_milestone, t_max) for t_max in ("1001ba", "0.5dur", "30ep")),
        (goes_down_in_steps, "30ep"),
    ],
)
def test_what_comes_one_batch_late_is_found(shape, t_max):
    """With the usual number of examples, and without a promise."""

    def late(schedule, frame):
        mark = frame.mark(schedule.t_max)
        return shape(mark.at(mark.count + 1))

    with pytest.raises(LawBroken, match="law 'ratio': "):
        check_schedule_laws(Broken(t_max=t_max, how=late), laws=["ratio"])


@pytest.mark.parametrize("milestone", [30, 101, 999])
def test_a_late_milestone_of_a_function_is_found(milestone):
    def drops_late(state, ssr=1.0):
        return 1.0 if state.timestamp.batch.value < milestone * ssr + 1 else 0.1

    with pytest.raises(LawBroken, match="law 'ratio': "):
        check_schedule_laws(drops_late, laws=["ratio"])


def rises_at_its_end(schedule, frame):
    mark = frame.mark(schedule.t_max)
    return lambda counts: 2.0 if counts[0] == mark.count else 1.0


def test_an_end_without_until_is_that_of_the_run():
    """Also where the end is wrong in runs of one length alone: those that end at a time of the schedule."""
    check_schedule_laws(LinearInOneUnit(), Promise(end=0.0), laws=["ends"], max_examples=50)
    for schedule, end in ((LinearInOneUnit(), 0.5), (Broken(t_max="700ba", how=rises_at_its_end), 1.0)):
        with pytest.raises(LawBroken, match=f"law 'ends': .* ends at {end}"):
            check_schedule_laws(schedule, Promise(end=end), laws=["ends"])


@pytest.mark.parametrize(
    "schedule",
    [
        LinearInOneUnit("90ba"),
        LinearWithWarmupScheduler("0.1dur", t_max="1e6tok"),
        ProductScheduler([CooldownScheduler(StepScheduler("3ba"), t_decay="4ba", t_start="8ba")]),
        lambda state, ssr=1.0: min(1.0, state.timestamp.batch.value / (8 * ssr)),
        lambda state: 0.5,
    ],
)
def test_a_right_one_passes(schedule):
    assert check_schedule_laws(schedule, max_examples=30) is None


def test_a_name_that_is_no_law_is_refused():
    with pytest.raises(ValueError, match=r"laws=\['speed'\]"):
        check_schedule_laws(LinearScheduler(), laws=["speed"])


def test_laws_from_a_generator_are_checked_too():
    with pytest.raises(LawBroken, match="law 'ratio': "):
        check_schedule_laws(ignores_the_ratio, laws=(law for law in ["ratio"]))
