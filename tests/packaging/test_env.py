"""tools/env.py as the Makefile calls it: what it installs, and what it prints where."""

import os
import pty
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "env.py"

# In one worker: making an environment is most of the time.
pytestmark = pytest.mark.xdist_group("env")


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A checkout of the script alone, whose requirements are a wheel that lies beside them."""
    wheel = tmp_path / "nothing_much-1.0-py3-none-any.whl"
    about = "nothing_much-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("nothing_much.py", "answer = 42\n")
        file.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: nothing-much\nVersion: 1.0\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{about}/RECORD", "")
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "newest.txt").write_text(f"{wheel}\n")
    (tmp_path / "tools").mkdir()
    shutil.copy(SCRIPT, tmp_path / "tools")
    return tmp_path


def start(tools: Path, stderr: int = subprocess.PIPE) -> "subprocess.Popen[str]":
    """The script at work, without a network and in a cache of its own."""
    return subprocess.Popen(
        [sys.executable, tools / "tools" / "env.py", "newest"],
        env={**os.environ, "TIMESCHED_CACHE": str(tools / "cache"), "PIP_NO_INDEX": "1", "COLUMNS": "60"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


def test_a_failure_shows_what_pip_said(tools: Path) -> None:
    (tools / "requirements" / "newest.txt").write_text("nothing-much==2.0\n")
    with start(tools) as script:
        out, err = script.communicate()
    assert (script.returncode, out) == (1, "") and err.startswith("tools/env.py: installing the newest torch")
    assert "No matching distribution found for nothing-much==2.0" in err
    assert re.search(r"^tools/env.py: this command failed \(1\): .* -m pip install ", err, re.MULTILINE)
    assert "Check network and disk space" in err and "installed in" not in err


def test_standard_output_is_the_path_alone_and_on_a_terminal_one_line_is_rewritten(tools: Path) -> None:
    ours, theirs = pty.openpty()
    shown = b""
    with start(tools, stderr=theirs) as script:
        os.close(theirs)
        try:
            while piece := os.read(ours, 65536):
                shown += piece
        except OSError:  # what Linux answers at the end of a terminal
            pass
        out, _ = script.communicate()
    os.close(ours)
    assert script.returncode == 0
    first, last = shown.decode().split("\r\n")[:-1]
    assert first.startswith("tools/env.py: installing the newest torch")
    empty, *rewritten, end = last.split("\r\x1b[K")
    assert re.fullmatch(r"tools/env.py: installed in \d+ s", end) and empty == ""
    steps = {re.match(r"tools/env.py: step . of 2, \w+|$", line)[0] for line in rewritten}
    assert steps - {""} == {"tools/env.py: step 1 of 2, venv", "tools/env.py: step 2 of 2, pip"}
    assert max(map(len, rewritten)) <= 59
    python = Path(out.removesuffix("\n"))
    assert python.parts[-2:] == ("bin", "python")
    printed = subprocess.run(
        [python, "-c", "print(__import__('nothing_much').answer)"], capture_output=True, check=True
    )
    assert printed.stdout == b"42\n"
    with start(tools) as script:  # all is there
        assert script.communicate() == (out, "") and script.returncode == 0
