"""Several processes, for real: torchrun with gloo on the CPU.

A launch costs seconds, so there is one for each number of processes; _distributed/program.py says what runs in it. The
tests below report what became of each check.
"""

import fcntl
import functools
import json
import os
from pathlib import Path

import pytest

from tests.optim._distributed.program import CHECKS, checks
from tests.torchrun import launch

# On one worker, as they share the launches.
pytestmark = pytest.mark.xdist_group("distributed")

PROGRAM = Path(__file__).with_name("_distributed") / "program.py"
TIMEOUT = 600  # seconds for a launch, which takes 20 to 100 on two cores


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """A function of the number of processes: what became of each check (nothing, or a traceback), and the output."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder /= "distributed"
    folder.mkdir(exist_ok=True)

    @functools.cache
    def report(world):
        if world != 2:
            report(2)  # it saves the checkpoints
        # pytest-xdist 3.8 with pytest 9.2 keeps no group on one worker, without a word (its issue 1386): the worker
        # that comes first launches, the others wait for it.
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = folder / f"done-{world}.json"
            if not done.exists():
                done.write_text(json.dumps(launch(PROGRAM, world, folder, TIMEOUT)))
            return json.loads(done.read_text())

    return report


@pytest.mark.parametrize(
    ("world", "check"),
    [(world, name) for world in CHECKS for name, _ in checks(world)],
    ids=lambda value: str(value).replace(" ", "_"),
)
def test_on_several_processes(launched, world, check):
    """_distributed/program.py lists the checks; each function there says what it checks."""
    results, output = launched(world)
    if check not in results:
        pytest.fail(f"'{check}' did not come to its end on {world} processes. {output}", pytrace=False)
    if results[check]:
        pytest.fail(f"On {world} processes: {results[check]}", pytrace=False)
