"""State follows its parameter: all cases for each optimizer, in a process of its own, as a crash is a failure."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.optim.following_program import CASES, WAYS
from tests.optim.signatures import NAMES

PROGRAM = Path(__file__).with_name("following_program.py")


@pytest.mark.parametrize("name", NAMES)
def test_state_follows_its_parameter(name):
    ran = subprocess.run([sys.executable, PROGRAM, name], capture_output=True, text=True, timeout=600, check=False)
    lines = dict(line.split(": ", 1) for line in ran.stdout.splitlines())
    failed = {label: said for label, said in lines.items() if said != "ok"}
    assert not failed, "\n".join(f"{label}: {said.encode().decode('unicode_escape')}" for label, said in failed.items())
    assert ran.returncode == 0, f"ended with {ran.returncode}:\n{ran.stdout[-500:]}\n{ran.stderr[-3000:]}"
    assert len(lines) == len(CASES) * len(WAYS)
