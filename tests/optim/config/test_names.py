"""The names that configs know: all public classes; and which file of the package may import which."""

import ast
from pathlib import Path

import pytest

import optim
import timesched
from optim import lr_scheduler, weight_decay_scheduler
from optim.names import CLOSED_FORMS, SCHEDULES, optimizers
from tests.optim.schedulers.building import name_of
from tests.optim.schedulers.signatures import WD as GENERIC
from tests.optim.signatures import SIGNATURES
from timesched.schedule import Schedule
from tests.laws.rows import ROWS

PACKAGE = Path(optim.__file__).parent


def public(module, base, *but):
    found = {name: getattr(module, name) for name in getattr(module, "__all__", vars(module)) if name[0] != "_"}
    classes = {name: cls for name, cls in found.items() if isinstance(cls, type) and issubclass(cls, base)}
    return {name: cls for name, cls in classes.items() if cls not in but}


def test_every_public_class_has_its_name():
    assert optimizers().own == public(optim, optim.Optimizer, optim.Optimizer)
    assert optimizers().own.keys() == {*SIGNATURES, "AdamBase"}
    assert public(timesched, Schedule, Schedule) == SCHEDULES
    assert SCHEDULES.keys() == {row.schedule.__name__ for row in ROWS}
    for module, family in ((lr_scheduler, "lr"), (weight_decay_scheduler, "wd")):
        names = {name for name in CLOSED_FORMS if hasattr(module, name)} - {"ChainedScheduler"}
        assert names == {name_of(stem, family) for stem in GENERIC}
        assert set(module.__all__) - {"LRScheduler", "WeightDecayScheduler", "ChainedScheduler"} == names
    assert not {"LRScheduler", "WeightDecayScheduler", "Scheduler"} & set(CLOSED_FORMS)
    assert CLOSED_FORMS["ChainedScheduler"] is CLOSED_FORMS["ChainedLR"]


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
        elif isinstance(node, ast.Import):
            parts |= {part for alias in node.names for part in alias.name.split(".")}
    assert not parts & later
