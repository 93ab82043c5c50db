#!/usr/bin/env python3
"""Run the tests of the files that changed since a commit: ``python3 tools/quick.py [--since main] [ARGUMENT ...]``.

A changed test file or page is run itself. For a changed module, covering_tests.txt lists its tests. A property gets 20
examples. The tests of slow_tests.txt are left out, and all with "compile" in their names. So a green run is a hint, and
`make test-all` decides. The further arguments go to pytest.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = {"tests/integration": "composer", "tests/parity": "composer", "tests/trainers": "trainers"}
NO_TESTS = 5  # pytest's status when all tests of the paths are left out


def read_lines(name: str) -> list[str]:
    """The lines of a list in this folder, without comments."""
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def covering_tests(file: str) -> list[str] | None:
    """The test paths of a module, by the first pattern in covering_tests.txt that fits; None if no pattern fits."""
    for line in read_lines("covering_tests.txt"):
        pattern, _, paths = line.partition(":")
        if fnmatch(file, pattern.strip()):
            return paths.split()
    return None


def changed_files(since: str) -> list[str]:
    """The files that differ from the commit where this branch left `since`; files that git does not know count, too."""

    def git_lines(*command: str) -> list[str]:
        done = subprocess.run(["git", *command], cwd=ROOT, check=True, capture_output=True, text=True)
        return done.stdout.splitlines()

    (base,) = git_lines("merge-base", since, "HEAD")
    files = {*git_lines("diff", "--name-only", base), *git_lines("ls-files", "--others", "--exclude-standard")}
    return sorted(file for file in files if (ROOT / file).exists())


def select_tests(files: Iterable[str]) -> list[str]:
    """The test paths for changed files, each once."""
    selected: list[str] = []
    for file in files:
        path = Path(file)
        is_test = file.startswith("tests/") and path.match("test_*.py")
        is_page = file == "README.md" or (file.startswith("docs/") and path.suffix == ".md")
        if is_test or is_page:
            selected.append(file)
        elif file.startswith(("timesched/", "optim/")) and path.suffix == ".py":
            selected.extend(covering_tests(file) or [])
    return list(dict.fromkeys(selected))


def environment_of(path: str) -> str:
    """The environment, as tools/env.py names it, in which a test runs."""
    folder = "/".join(Path(path).parts[:2])
    return ENVIRONMENTS.get(folder, "newest")


def run_pytest(environment: str, paths: list[str], arguments: list[str]) -> int:
    """Run pytest in an environment and return its status; no tests at all count as success."""
    env = subprocess.run(
        [sys.executable, ROOT / "tools/env.py", environment], check=True, capture_output=True, text=True
    )
    slow = [f"--deselect={beginning}" for beginning in read_lines("slow_tests.txt")]
    variables = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HYPOTHESIS_PROFILE": "quick"}
    options = ["-q", "-n", "2", "-k", "not compile", *slow, *arguments]
    command = [env.stdout.strip(), "-m", "pytest", *options, *paths]
    status = subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, check=False).returncode
    return 0 if status == NO_TESTS else status


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the quick tests of the files that changed.")
    parser.add_argument("--since", default="main", help="the commit or branch to compare with (default: main)")
    options, arguments = parser.parse_known_args()
    tests = select_tests(changed_files(options.since))
    if not tests:
        print(f"No tests: nothing that has tests changed since {options.since}.")
    by_environment: dict[str, list[str]] = {}
    for path in tests:
        by_environment.setdefault(environment_of(path), []).append(path)
    return max([run_pytest(name, paths, arguments) for name, paths in by_environment.items()], default=0)


if __name__ == "__main__":
    sys.exit(main())
