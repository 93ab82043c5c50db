"""Points, spans and periods on a counter: their edges, in whole counts, floats and tensors."""

import random
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from timesched import TimeUnit
from timesched.positions import Mark, Milestones, Period, nearest

LONGEST = 2**63 - 1


@given(st.integers(1, 2**60), st.integers(1, 2**60), st.integers(0, LONGEST))
def test_periods_of_huge_counts_are_exact(p, q, count):
    """The long division of an int64 tensor, whose products do not fit, against Python's integers."""
    check_period(p, q, count)


def test_many_periods_of_huge_counts_are_exact():
    numbers = random.Random(0)
    for _ in range(3000):
        check_period(*(numbers.randrange(1, 2 ** numbers.randrange(1, bits)) for bits in (61, 61, 64)))


def check_period(p, q, count):
    period = Period(0, Fraction(p, q))
    complete, left = divmod(count * q, p)
    if complete > LONGEST:  # no tensor holds the number of periods
        return
    assert period.complete((count,)) == complete == period.complete((torch.tensor(count),)).item()
    done = period.done((torch.tensor(count),)).item()
    assert period.done((count,)) == left / p and abs(done - left / p) <= 2.0**-52


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
    below, first = float(count), nearest(count)
    assert below < count < first and below == float(int(count) // 2 * 2)
    mark, milestones = Mark(0, TimeUnit.BATCH, count), Milestones([Mark(0, TimeUnit.BATCH, count)])
    for value, reached in ((below, False), (first, True)):
        tensor = torch.tensor(value, dtype=torch.float64)
        assert mark.reached((value,)) is mark.reached((tensor,)).item() is mark.reached((int(value),)) is reached
        assert milestones.passed((value,)) == milestones.passed((tensor,)).item() == milestones.passed((int(value),))
        assert milestones.passed((value,)) == int(reached)
