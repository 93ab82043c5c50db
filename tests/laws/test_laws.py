"""Every law on every row of the one table of schedules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesched.testing.laws import LAWS
from timesched.testing.rows import ROWS
from timesched.testing.runs import runs


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_law(row, law):
    @given(st.data())
    def holds(data):
        run = data.draw(runs())
        LAWS[law](data.draw(row.schedules(run)), run, data.draw, row.promise)

    holds()
