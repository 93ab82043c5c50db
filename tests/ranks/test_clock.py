"""Clocks of two ranks: the checks of program.py, in two real processes."""

from pathlib import Path

from tests.ranks.program import CHECKS
from tests.torchrun import output_of_ranks, read_report


def test_two_ranks(tmp_path):
    """One test, since the checks share the launch."""
    program = Path(__file__).with_name("program.py")
    output = output_of_ranks([str(program), str(tmp_path)], timeout=300)
    results = read_report(tmp_path, 2)
    assert set(results) == {check.__name__ for check in CHECKS}, output
    assert not any(results.values()), "\n".join(results.values())
