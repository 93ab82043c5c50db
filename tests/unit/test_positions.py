"""Points, spans and periods on a counter: their edges, in whole counts, floats and tensors."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from timesched import CyclicScheduler, Horizon, Time, TimeUnit
from timesched.maths import Frame, Mark, Period, ops
from timesched.maths.counts import Milestones, nearest_float, stages


@pytest.mark.parametrize(
    "length", [Fraction(1, 3), Fraction(1, 10), Fraction(3, 10), Fraction(29, 100), Fraction(7, 3)]
)
def test_a_period_is_complete_at_its_end(length):
    """Not one float later: at the float nearest to the end of each, although the quotient may round to just below."""
    period, ends = Period(0, length), [float(k * length) for k in range(3000)]
    assert [period.complete((end,)) for end in ends] == list(range(3000))
    tensor = torch.tensor(ends, dtype=torch.float64)
    assert period.complete((tensor,)).tolist() == list(range(3000))
    before = torch.nextafter(tensor, torch.tensor(-1.0, dtype=torch.float64))[1:]
    assert period.complete((before,)).tolist() == list(range(2999))


@pytest.mark.parametrize("count", [2**53 + 1, 2**62 + 1, 10**17 + 1, 2**53 + Fraction(1, 3), 2**60 + Fraction(1, 2)])
def test_a_float_below_a_point_has_not_reached_it(count):
    """Where the nearest float to a point is a whole number below it, the next one is the first that reaches it."""
    below, first = float(count), nearest_float(count)
    assert below < count < first and below == float(int(count) // 2 * 2)
    mark, milestones = Mark(0, TimeUnit.BATCH, count), Milestones([Mark(0, TimeUnit.BATCH, count)])
    for value, reached in ((below, False), (first, True)):
        tensor = torch.tensor(value, dtype=torch.float64)
        assert mark.reached((value,)) is mark.reached((tensor,)).item() is mark.reached((int(value),)) is reached
        assert milestones.passed((value,)) == milestones.passed((tensor,)).item() == milestones.passed((int(value),))
        assert milestones.passed((value,)) == int(reached)


def test_a_fall_that_is_too_short_for_the_fraction_of_a_cycle():
    schedule, run = CyclicScheduler(f"{10**17}tok", "1tok", alpha_i=0.0), Horizon("1e18tok")
    values = [schedule.at(Time(count, "tok"), run) for count in (0, 5 * 10**16, 10**17 + 1)]
    assert values == [0.0, pytest.approx(0.5), 0.0]


# Stages: one function after another


def fold(marks, functions):
    """The definition of `stages`: at each mark that is reached, its function in place of the earlier ones."""

    def value(counts):
        result = functions[0](counts)
        for mark, function in zip(marks, functions[1:]):
            result = ops.where(mark.reached(counts), function(counts), result)
        return result

    return value


def constant(value):
    return lambda counts: value


COUNTS = st.fractions(0, 12, max_denominator=3)


@given(st.data(), st.integers(1, 3), st.integers(0, 9))
def test_stages_are_equal_to_a_fold(data, counters, n):
    """For numbers and tensors, with marks of one counter or of several, in any order of their counters."""
    indices = data.draw(st.lists(st.integers(0, counters - 1), min_size=n, max_size=n))
    positions = {i: sorted(data.draw(st.lists(COUNTS, min_size=n, max_size=n))) for i in range(counters)}
    marks = [Mark(i, TimeUnit.BATCH, positions[i].pop(0)) for i in indices]
    functions = [constant(float(k)) for k in range(n + 1)]
    new, old = stages(marks, functions), fold(marks, functions)
    exact = data.draw(st.lists(COUNTS, min_size=counters, max_size=counters))
    whole, floats = [int(count) for count in exact], [float(count) for count in exact]
    for counts in (exact, whole, floats):
        assert new(tuple(counts)) == old(tuple(counts))
    for counts in (whole, floats):
        tensors = tuple(
            torch.tensor(count, dtype=torch.int64 if counts is whole else torch.float64) for count in counts
        )
        assert float(new(tensors)) == float(old(tensors)) == old(tuple(counts))


@pytest.mark.parametrize("counters", [1, 2])
def test_ten_thousand_stages(counters):
    """No recursion, for numbers and for tensors."""
    marks = [Mark(k % counters, TimeUnit.BATCH, k) for k in range(10_000)]
    value = stages(marks, [constant(float(k)) for k in range(10_001)])
    assert value((5000,) * counters) == 5001.0
    assert float(value((torch.tensor(5000),) * counters)) == 5001.0


def test_between_takes_marks():
    frame = Frame(Horizon("100ba"))
    with pytest.raises(TypeError, match=r"Frame.between: 20 is a count. Pass marks: end.at\(count\) makes one"):
        frame.between(frame.mark("0ba"), 20)
