"""Tests of the tests: for each law, a schedule that breaks it in the way people break it, and must be caught."""

import itertools
from dataclasses import dataclass

import pytest
import torch

from timesched import CosineAnnealingWarmRestartsScheduler, LinearScheduler, LinearWithWarmupScheduler, Schedule
from timesched.fields import time
from timesched.testing import LawBroken, Promise, check_schedule_laws


def ignores_the_ratio(state, ssr=1.0):
    """Composer 0.32's warmup: the ramp is stretched, the boundary where it ends is not."""
    warmup, now = 10, state.timestamp.batch.value
    return min(1.0, now / (warmup * ssr)) if now < warmup else 1.0


def truncates(state, ssr=1.0):
    """A milestone cut to a whole batch after it is stretched."""
    return 1.0 if state.timestamp.batch < int(7 * ssr) else 0.1


@dataclass(frozen=True, eq=False, repr=False)
class TakesSamplesForBatches(LinearScheduler):
    def resolve(self, frame):
        end = frame.mark(self.t_max)
        counter = frame.mark("1ba").counter
        return lambda counts: max(0.0, 1.0 - counts[counter] / float(end.count or 1))


@dataclass(frozen=True, eq=False, repr=False)
class EndsOneCountLate(LinearScheduler):
    def resolve(self, frame):
        span = frame.span(self.t_max)
        return lambda counts: 1.0 - span.done((counts[0] - 1 if counts[0] else 0,))


@dataclass(frozen=True, eq=False, repr=False)
class Overshoots(LinearScheduler):
    def resolve(self, frame):
        span = frame.span(self.t_max)
        return lambda counts: 1.0 - span.done(counts) * 1.0000000001


@dataclass(frozen=True, eq=False, repr=False)
class JumpsAtTheWarmup(LinearWithWarmupScheduler):
    def _warm(self, frame, rest):
        half = LinearScheduler(0.0, 0.5, self.t_warmup).resolve(frame)
        start = frame.mark(self.t_warmup, self.scale_warmup)
        return lambda counts: rest(counts) if start.reached(counts) else half(counts)


_calls = itertools.count()


def counts_its_calls(state, ssr=1.0):
    return 1.0 / (1 + next(_calls))


@dataclass(frozen=True, eq=False, repr=False)
class ComputesTensorsInFloat32(LinearScheduler):
    def resolve(self, frame):
        exact = super().resolve(frame)

        def value(counts):
            out = exact(counts)
            return out.float().double() if isinstance(out, torch.Tensor) else out

        return value


@dataclass(frozen=True, eq=False, repr=False)
class GuessesTheRate(LinearScheduler):
    def resolve(self, frame):
        count, _ = frame.horizon.locate(self.t_max)
        return lambda counts: 1.0 - min(1.0, float(counts[0]) / float(count or 1))


@dataclass(frozen=True, eq=False, repr=False)
class WalksThroughTheCycles(CosineAnnealingWarmRestartsScheduler):
    def resolve(self, frame):
        period = float(frame.mark(self.t_0).count)

        def value(counts):
            left = float(counts[0])
            while left >= period:
                left -= period
            return 1.0 - left / period

        return value


@dataclass(frozen=True, eq=False, repr=False)
class LinearInOneUnit(Schedule):
    """Not broken: a user's own class with everything right."""

    t_max: object = time("1dur")

    def resolve(self, frame):
        span = frame.span(self.t_max)
        return lambda counts: span.left(counts)


@dataclass(frozen=True, eq=False, repr=False)
class CountsTheBatchesOfItsEpochs(Schedule):
    t_max: object = time("1dur")

    def resolve(self, frame):
        frame.mark(self.t_max)
        return lambda counts: float(counts[0])


LINE = Promise(start=1.0, low=0.0, high=1.0, continuous=True, falls=True)


@pytest.mark.parametrize(
    ("schedule", "law", "promise"),
    [
        (ignores_the_ratio, "ratio", None),
        (truncates, "ratio", None),
        (TakesSamplesForBatches(t_max="12ba"), "unit", None),
        (EndsOneCountLate(t_max="12ba"), "ends", lambda s, run: Promise(end=0.0, until=run.locate(s.t_max))),
        (Overshoots(), "ends", LINE),
        (JumpsAtTheWarmup("0.25dur"), "ends", Promise(continuous=True, since=None)),
        (lambda state: 1.0 + state.timestamp.batch.value % 2, "ends", Promise(falls=True)),
        (counts_its_calls, "purity", None),
        (CountsTheBatchesOfItsEpochs(), "epochs", None),
        (ComputesTensorsInFloat32(), "one formula", None),
        (GuessesTheRate(t_max="100tok"), "rates", None),
        (WalksThroughTheCycles("3ba"), "cost", None),
    ],
    ids=lambda value: getattr(value, "__name__", None) or type(value).__name__,
)
def test_a_broken_schedule_is_caught(schedule, law, promise):
    with pytest.raises(LawBroken, match=rf"law \d+b? \({law}"):
        check_schedule_laws(schedule, promise, laws=[law], max_examples=5000)  # the first that fails ends it


@pytest.mark.parametrize(
    "schedule",
    [
        LinearInOneUnit("90ba"),
        LinearWithWarmupScheduler("0.1dur", t_max="1e6tok"),
        lambda state, ssr=1.0: min(1.0, state.timestamp.batch.value / (8 * ssr)),
        lambda state: 0.5,
    ],
)
def test_a_right_one_passes(schedule):
    assert check_schedule_laws(schedule, max_examples=50) is None


def test_a_name_that_is_no_law_is_refused():
    with pytest.raises(ValueError, match="'speed' is not a law"):
        check_schedule_laws(LinearScheduler(), laws=["speed"])
