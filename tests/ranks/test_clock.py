"""Clocks of two ranks: the checks of program.py, in two real processes."""

from pathlib import Path

import pytest

from tests.ranks.program import CHECKS
from tests.torchrun import launch


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return launch(Path(__file__).with_name("program.py"), 2, tmp_path_factory.mktemp("ranks"), 120)


@pytest.mark.parametrize("check", [check.__name__ for check in CHECKS])
def test_two_ranks(check, results):
    found, said = results
    assert found.get(check) == "", found.get(check) or said
