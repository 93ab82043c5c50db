"""The names that configs know: all public classes; and which file of the package may import which."""

import ast
from pathlib import Path

import pytest

import optim
import timesched
from optim import lr_scheduler, names, weight_decay_scheduler
from tests.optim.rows import FULLEST
from timesched.schedule import Schedule

PACKAGE = Path(optim.__file__).parent


def test_every_public_class_has_its_name():
    assert names.optimizers().own.keys() == {row.name for row in FULLEST} | {"AdamBase"}
    schedules = {name for name in timesched.__all__ if isinstance(getattr(timesched, name), type)}
    schedules = {name for name in schedules if issubclass(getattr(timesched, name), Schedule)} - {"Schedule"}
    assert names.SCHEDULE.own.keys() == schedules and len(schedules) > 20
    closed_forms = {*lr_scheduler.__all__, *weight_decay_scheduler.__all__} - {"LRScheduler", "WeightDecayScheduler"}
    assert names.CLOSED_FORM.own.keys() == closed_forms
    assert names.LR.own.keys() == set(lr_scheduler.__all__) - {"LRScheduler"}
    assert names.SCHEDULER.own.keys() == closed_forms | schedules
    assert names.LR.own["ChainedScheduler"] is names.LR.own["ChainedLR"]


@pytest.mark.parametrize(
    "file, later",
    [
        *((path.relative_to(PACKAGE).as_posix(), {"config"}) for path in sorted((PACKAGE / "groups").glob("*.py"))),
        ("names.py", {"config", "read", "resolve", "build"}),
        ("config/read.py", {"resolve", "build", "names"}),
        ("config/resolve.py", {"build"}),
    ],
)
def test_one_direction(file, later):
    """Groups and names know nothing of configs; a config is read, then resolved, then built."""
    parts = set()
    for node in ast.walk(ast.parse((PACKAGE / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            parts |= {*(node.module or "").split("."), *(alias.name for alias in node.names)}
    assert not parts & later
