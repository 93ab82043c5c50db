"""The documents name every optimizer, every schedule and every scheduler."""

import re

import pytest

import optim
import timesched
from optim.scheduler import STEP_METHODS
from tests.docs.tables import DOCS
from tests.optim.signatures import NAMES


def named(page):
    """The names of a page that stand in backticks."""
    code = " ".join(re.findall(r"`([^`\n]+)`", (DOCS / page).read_text(encoding="utf-8")))
    return set(re.findall(r"\w+", code))


def test_optimizers():
    head = (DOCS / "optimizers.md").read_text(encoding="utf-8").partition("## ")[0]
    assert set(re.findall(r"`(\w+)`", head)) >= set(NAMES)


def test_closed_form_schedulers():
    assert named("schedulers.md") >= set(optim.lr_scheduler.__all__) - {"LRScheduler"}
    assert named("differences/cerebras.md") >= set(STEP_METHODS)


@pytest.mark.parametrize("package", [timesched.schedulers, timesched.composition])
def test_schedules(package):
    schedules = {name for name in vars(package) if name.endswith("Scheduler")}
    assert schedules and named("loop.md") >= schedules
