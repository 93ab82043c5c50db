"""The schedules of other projects: tests/golden/peer_schedules.json, whose `about` says what the numbers are."""

import json
import re
from fractions import Fraction
from pathlib import Path

import pytest

import timesched
from tests.docs.tables import rows
from timesched import Horizon, Time

CASES = json.loads((Path(__file__).parents[1] / "golden" / "peer_schedules.json").read_text(encoding="utf-8"))["cases"]
OURS = [case for case in CASES if case["ours"]]


def made(ours):
    """The schedule of a case, and the schedules inside it."""
    arguments = dict(ours["args"])
    if "schedule" in arguments:
        arguments["schedule"] = made(arguments["schedule"])
    if "schedules" in arguments:
        arguments["schedules"] = [made(each) for each in arguments["schedules"]]
    return getattr(timesched, ours["schedule"])(**arguments)


@pytest.mark.parametrize("case", OURS, ids=lambda case: f"{case['peer']}: {case['name']}")
def test_the_same_values(case):
    ours = case["ours"]
    length, ratio = Time.from_timestring(ours["horizon"]), ours.get("ssr", 1.0)
    run = Horizon(Time(Fraction(length.value) / Fraction(ratio), length.unit), ssr=ratio)
    schedule, later = made(ours), {"k": 0, "k+1": 1}[ours["at"]]
    expected = {step: value for step, value in case["points"] if step not in ours.get("except_at", ())}
    values = {step: ours.get("base", 1.0) * schedule.at(Time(step + later, length.unit), run) for step in expected}
    assert expected and values == pytest.approx(expected, rel=0, abs=1e-9)


((*NAMES,),) = rows("comparison.md", ["project", "there", "here"])


@pytest.mark.parametrize("row", NAMES, ids=lambda row: f"{row[0]}: {row[2]}")
def test_a_row_of_the_page_is_a_case(row):
    """The call in the last cell has the values of the project, since it is the schedule of one of its cases."""
    call = eval(re.match("`(.*?)`", row[2])[1], dict(vars(timesched)))
    assert call in [made(case["ours"]) for case in OURS if row[0].lower() in case["peer"].lower()]


def test_most_are_reproduced():
    assert len(OURS) == 57 and {case["ours"]["schedule"] for case in OURS} >= {
        *("WarmupStableDecayScheduler", "InverseSquareRootWithWarmupScheduler", "PiecewiseScheduler", "RexScheduler"),
        *("OneCycleScheduler", "CooldownScheduler", "ProductScheduler"),
    }
