"""Points, spans and periods on a counter: their edges, in whole counts, floats and tensors."""

from fractions import Fraction

import pytest
import torch

from timesched import TimeUnit
from timesched.positions import Mark, Milestones, Period, nearest_float


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
