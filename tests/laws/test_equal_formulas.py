"""Which absolute-value formulas equal a schedule of `timesched` bit for bit: the table is at the end of rows.py."""

import dataclasses
from fractions import Fraction

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from tests.laws.rows import CLOSED_FORMS, DIFFERENT, EQUAL, WITHOUT_SCHEDULE
from timesched import Horizon
from timesched.maths.positions import UnsuitableRun
from timesched.testing.runs import COUNTED, RATIOS, runs


@pytest.mark.parametrize("row", [row for row in CLOSED_FORMS if row.schedule in EQUAL], ids=lambda row: row.name)
def test_a_formula_equals_a_schedule(row):
    """On runs in all units and with a ratio: with the counters of a run, and of ints, floats and tensors."""
    equal = EQUAL[row.schedule]

    @settings(deadline=None)
    @given(st.data())
    def holds(data):
        run = data.draw(runs(longest=500))
        formula = dataclasses.replace(data.draw(row.schedules(run)), **equal.given)
        schedule, ratio = equal.schedule(formula), data.draw(st.just(Fraction(1)) | RATIOS)
        factor = getattr(formula, equal.scaled_by) if equal.scaled_by else 1.0
        state = run.state(data.draw(st.integers(0, 2 * run.batches)), ratio)
        try:
            multiplier = schedule(state)
        except UnsuitableRun:  # a schedule must cover the run, and its phases must fit
            reject()
        assert has_same_bits(formula._current_value(state), factor * multiplier)
        unit = data.draw(st.sampled_from(COUNTED))
        value_of, multiplier_of = formula.curve(state, unit), schedule.curve(state, unit)
        end = min(int(run.time(2 * run.batches, unit).exact) + 1, 2**53)
        counts = data.draw(st.lists(st.integers(0, end), min_size=1, max_size=5))
        for count in [*counts, *[count + 0.5 for count in counts]]:
            assert has_same_bits(value_of(count), factor * multiplier_of(count))
        for dtype in (torch.int64, torch.float64):
            tensor = torch.tensor(counts, dtype=dtype)
            assert all(map(has_same_bits, value_of(tensor).tolist(), (factor * multiplier_of(tensor)).tolist()))

    holds()


def has_same_bits(value, other):
    return float(value).hex() == float(other).hex()


@pytest.mark.parametrize("different", DIFFERENT, ids=lambda different: different.reason)
def test_a_formula_differs_from_the_nearest_schedule(different):
    run = Horizon("100ba", ssr=different.ssr)
    value_of, multiplier_of = different.formula.curve(run, "ba"), different.schedule.curve(run, "ba")
    if different.batch is not None:
        assert abs(value_of(different.batch) - multiplier_of(different.batch)) > 0.01
    else:
        values, multipliers = ([curve(batch) for batch in range(100)] for curve in (value_of, multiplier_of))
        assert values != multipliers and values == pytest.approx(multipliers, rel=1e-13)


def test_each_formula_is_compared():
    compared = EQUAL.keys() | {type(different.formula) for different in DIFFERENT}
    assert {row.schedule for row in CLOSED_FORMS} == compared | WITHOUT_SCHEDULE
    assert compared.isdisjoint(WITHOUT_SCHEDULE)
