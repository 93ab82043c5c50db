"""Every law on every row of the one table of schedules."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timesched.testing.laws import LAWS
from timesched.testing.rows import ROWS
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
