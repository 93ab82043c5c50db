"""The table of docs/steps_to_tokens.md: the times after are the steps before, at 512 samples of 2048 tokens a step."""

import math
import re

import pytest

import timesched
from tests.docs.tables import rows
from timesched import Clock, HalfLife, Time

STEPS, TOKENS_PER_STEP = 100_000, 512 * 2048  # of the run in the table
TABLE = rows("steps_to_tokens.md", ["before", "after", ""])[0]
ROUNDED = ["2.1Btok", "1Btok"]


def steps(text):
    """The steps of a time in tokens or a fraction of the run."""
    time = Time.from_input(text)
    return time.exact * STEPS if time.unit == "dur" else time.exact / TOKENS_PER_STEP


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0].strip("`"))
def test_times_are_the_steps_before(row):
    before = [float(number) for number in re.findall(r"(?<=[=\[ ])\d[\d_]*(?=[,`\]])", row[0])]
    times = re.findall(r'"([\d.]+\w*(?:tok|dur))"', " ".join(row[1:]))
    for text in times if "_steps" in row[0] or "milestones" in row[0] else []:
        error = min(abs(steps(text) / each - 1) for each in before)
        assert error < (0.05 if text in ROUNDED else 1e-12)


def test_the_clocks_and_betas_of_the_table():
    known = {**vars(timesched), "loader": range(100), "accumulation": 2, "math": math}
    clocks = [eval(row[1].strip("`"), dict(known)) for row in TABLE if row[1].startswith("`Clock(")]
    assert [type(clock) for clock in clocks] == [Clock, Clock]
    assert clocks[0].max_duration.value == STEPS * TOKENS_PER_STEP
    (half_life,) = [eval(row[1].strip("`"), dict(known)) for row in TABLE if row[1].startswith("`HalfLife")]
    assert isinstance(half_life, HalfLife) and half_life.at("0ba", clocks[0]) == 0.95
