"""Clocks of two ranks: the checks of program.py, in two real processes."""

from pathlib import Path

import pytest

from tests.torchrun import launch

CHECKS = (
    "counts_are_summed",
    "seconds_are_those_of_rank_0",
    "rates_are_of_all_ranks",
    "a_number_of_one_rank_alone_is_refused_on_all",
    "a_clock_that_counts_alone_says_so_once",
)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return launch(Path(__file__).with_name("program.py"), 2, tmp_path_factory.mktemp("ranks"), 120)


@pytest.mark.parametrize("check", CHECKS)
def test_two_ranks(check, results):
    found, said = results
    assert found.get(check) == "", found.get(check) or said
