"""Every law on every row of the one table of schedules."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timesched
from timesched.testing.laws import LAWS
from tests.laws.rows import ROWS
from timesched.testing.runs import runs, runs_with_plans


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_law(row, law):
    @given(st.data())
    def holds(data):
        run = data.draw(runs())
        LAWS[law](data.draw(row.schedules(run)), run, data.draw, row.promise)

    holds()


@pytest.mark.parametrize("law", ["unit", "ends", "purity", "one formula", "cost"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_law_where_batches_change_their_size(row, law):
    """The ratio law is not among them: a threshold that is stretched may lie within another batch."""

    @settings(max_examples=settings.default.max_examples // 4)
    @given(st.data())
    def holds(data):
        run = data.draw(runs_with_plans())
        LAWS[law](data.draw(row.schedules(run)), run, data.draw, row.promise)

    holds()


def test_each_schedule_has_a_row():
    public = [getattr(timesched, name) for name in timesched.__all__]
    schedules = {thing for thing in public if isinstance(thing, type) and issubclass(thing, timesched.Schedule)}
    assert {row.schedule for row in ROWS} == schedules - {timesched.Schedule}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_law_on_examples(row, law):
    """The examples that the documentation draws are of the row's class, in shares of a run: they suit any."""
    schedules = [eval(example, vars(timesched)) for example in row.examples]
    assert schedules and all(type(schedule) is row.schedule for schedule in schedules)

    @settings(max_examples=settings.default.max_examples // 10)
    @given(st.data())
    def holds(data):
        LAWS[law](data.draw(st.sampled_from(schedules)), data.draw(runs()), data.draw, row.promise)

    holds()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_equality_asks_for_no_conversion(row):
    """Times of other units are not equal, and comparing schedules that have them raises nothing."""

    @settings(max_examples=settings.default.max_examples // 10 + 1)
    @given(st.data())
    def holds(data):
        run = data.draw(runs())
        one, other = (data.draw(row.schedules(run)) for _ in range(2))
        assert one == eval(repr(one), {**vars(timesched), "Fraction": Fraction})
        assert one != other or hash(one) == hash(other)

    holds()
