"""The reference shows the arguments and errors that all closed-form schedulers have in the page of each."""

import importlib.util
import inspect
from pathlib import Path

import pytest

from optim import lr_scheduler
from optim.scheduler import Scheduler

PATH = Path(__file__).parents[2] / "docs/_ext/common_arguments.py"
SPEC = importlib.util.spec_from_file_location("common_arguments", PATH)
assert SPEC is not None and SPEC.loader is not None
common_arguments = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(common_arguments)


@pytest.mark.parametrize("name", lr_scheduler.__all__)
def test_every_argument_is_shown(name):
    cls = getattr(lr_scheduler, name)
    parameters = list(inspect.signature(cls).parameters)
    lines, common = inspect.getdoc(cls).splitlines(), inspect.getdoc(Scheduler).splitlines()
    shown = common_arguments.joined(lines, common, parameters)
    assert list(common_arguments.entries(shown, "Args:")) == [name for name in parameters if name != "schedule"]
    assert list(common_arguments.entries(shown, "Raises:")) == ["ValueError", "TypeError"]
    example = ">>> import torch"
    assert shown[shown.index(example) :] == lines[lines.index(example) :]
    assert common_arguments.joined(common, common, parameters) == common


def test_errors_of_its_own_come_first():
    lines, common = inspect.getdoc(lr_scheduler.ChainedLR).splitlines(), inspect.getdoc(Scheduler).splitlines()
    errors = common_arguments.entries(common_arguments.joined(lines, common, ["schedulers"]), "Raises:")
    text = " ".join(" ".join(errors["ValueError"]).split())
    assert "one but the first starts at 0; a number is not finite or out of its range; a time is given" in text
