"""tools/quick.py: which tests run for which changes, and that its lists name what exists."""

import subprocess
from pathlib import Path

import pytest

from tools import quick

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    str(path.relative_to(ROOT)) for package in ("timesched", "optim") for path in (ROOT / package).rglob("*.py")
)


@pytest.mark.parametrize("module", MODULES)
def test_each_module_has_tests_that_exist(module):
    tests = quick.covering_tests(module)
    assert tests and all((ROOT / path).exists() for path in tests)


def test_each_pattern_fits_a_module_first():
    """A pattern that comes after a wider one would never be used."""
    used = {tuple(quick.covering_tests(module)) for module in MODULES}
    listed = {tuple(line.partition(":")[2].split()) for line in quick.read_lines("covering_tests.txt")}
    assert used == listed


def test_slow_tests_exist():
    for beginning in quick.read_lines("slow_tests.txt"):
        file, _, test = beginning.partition("::")
        assert (ROOT / file).exists(), beginning
        assert not test or f"def {test.partition('[')[0]}(" in (ROOT / file).read_text(encoding="utf-8"), beginning


def test_tests_for_changed_files():
    changed = ["tests/unit/test_clock.py", "docs/loop.md", "optim/loading.py", "tests/building.py", "Makefile"]
    expected = ["tests/unit/test_clock.py", "docs/loop.md", "tests/optim/test_load_by_name.py"]
    assert quick.select_tests(changed) == quick.select_tests([*changed, "tests/unit/test_clock.py"]) == expected
    paths = ("tests/trainers/test_trl.py", "tests/parity/test_time.py", "docs/loop.md")
    assert [quick.environment_of(path) for path in paths] == ["trainers", "composer", "newest"]


def test_changed_files_of_a_repository(tmp_path, monkeypatch):
    """Committed on the branch, changed in the checkout, and new; a deleted file has no tests to run."""

    def git(*command):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *command], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-b", "main")
    for name in ("same", "changed", "deleted"):
        (tmp_path / name).write_text(name)
    git("add", "."), git("commit", "-m", "first"), git("checkout", "-b", "branch")
    (tmp_path / "committed").write_text("1")
    git("add", "."), git("commit", "-m", "second")
    (tmp_path / "changed").write_text("2")
    (tmp_path / "new").write_text("3")
    (tmp_path / "deleted").unlink()
    monkeypatch.setattr(quick, "ROOT", tmp_path)
    assert quick.changed_files("main") == ["changed", "committed", "new"]
