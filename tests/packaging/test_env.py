"""tools/env.py as the Makefile calls it: it prints the path of a Python, or what pip said where that failed."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "env.py"

# In one worker: making an environment is most of the time.
pytestmark = pytest.mark.xdist_group("env")


def call(place: Path, requirement: object) -> "subprocess.CompletedProcess[str]":
    """The script at work in a checkout of it alone, without a network and in a cache of its own."""
    for folder in ("requirements", "tools"):
        (place / folder).mkdir(exist_ok=True)
    (place / "requirements" / "newest.txt").write_text(f"{requirement}\n")
    shutil.copy(SCRIPT, place / "tools")
    environment = {**os.environ, "TIMESCHED_CACHE": str(place / "cache"), "PIP_NO_INDEX": "1", "COLUMNS": "60"}
    command = [sys.executable, place / "tools" / "env.py", "newest"]
    return subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def test_standard_output_is_the_path_alone(tmp_path: Path) -> None:
    wheel = tmp_path / "nothing_much-1.0-py3-none-any.whl"
    about = "nothing_much-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("nothing_much.py", "answer = 42\n")
        file.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: nothing-much\nVersion: 1.0\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{about}/RECORD", "")
    first, again = call(tmp_path, wheel), call(tmp_path, wheel)
    assert first.returncode == 0, first.stderr
    code = "print(__import__('nothing_much').answer)"
    assert subprocess.check_output([first.stdout.removesuffix("\n"), "-c", code]) == b"42\n"
    assert first.stderr.startswith("tools/env.py: installing the newest torch")
    assert re.search(r"\ntools/env.py: installed in \d+ s\n\Z", first.stderr)
    assert (again.returncode, again.stdout, again.stderr) == (0, first.stdout, "")  # all is there


def test_a_failure_shows_what_pip_said(tmp_path: Path) -> None:
    done = call(tmp_path, "nothing-much==2.0")
    assert (done.returncode, done.stdout) == (1, "") and "installed in" not in done.stderr
    assert "No matching distribution found for nothing-much==2.0" in done.stderr
    assert re.search(r"^tools/env.py: this command failed \(1\): .* -m pip install ", done.stderr, re.MULTILINE)
    assert "Check network and disk space" in done.stderr


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("env", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_progress_says_what_is_downloaded_and_how_much_is_left(tmp_path: Path) -> None:
    env = load_script()
    lines = ["Collecting torch==2.15.0", "Downloading torch-2.15.0-cp311-cp311-linux.whl (899.1 MB)"]
    assert env.describe_progress([], tmp_path) == "starting"
    assert (
        env.describe_progress(lines, tmp_path) == "package 1: Downloading torch-2.15.0-cp311-cp311-linux.whl (899.1 MB)"
    )
    (tmp_path / "lib" / "python3.11" / "site-packages" / "numpy-2.4.6.dist-info").mkdir(parents=True)
    end = "Installing collected packages: numpy, sympy, torch"
    expected = "all is downloaded, 1 of 3 packages are installed"
    assert env.describe_progress([*lines, end], tmp_path) == expected


def test_unpinned_requirements_keep_names_extras_and_markers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env, file = load_script(), tmp_path / "trainers.txt"
    file.write_text(
        "# trainers\njsonargparse[signatures]==4.53.0  # for configs\ntrl==1.16.0; python_version >= '3.11'\n"
    )
    pinned = env.fingerprint(file)
    assert env.requirement_lines(file)[0] == "jsonargparse[signatures]==4.53.0"
    monkeypatch.setenv("UNPINNED", "1")
    assert env.requirement_lines(file) == ["jsonargparse[signatures]", "trl; python_version >= '3.11'"]
    assert env.fingerprint(file) != pinned
