"""The wheel as a user meets it: built from the sdist, installed alone, imported from somewhere else."""

import configparser
import email
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import timesched
from optim.config.names import optimizers

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("timesched", "optim")


def run(*command: object, cwd: Path) -> str:
    """The output of a command that sees nothing of the checkout; its errors show in the failed test."""
    hidden = ("PYTHONPATH", "PYTHONHOME")
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if name not in hidden},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.args}\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the unpacked sdist: nothing is written to the checkout, and the sdist proves complete."""
    place = tmp_path_factory.mktemp("build")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", place, cwd=ROOT)
    (archive,) = place.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(place, filter="data")
    unpacked = place / archive.name.removesuffix(".tar.gz")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", place, cwd=unpacked)
    (path,) = place.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment that holds our wheel, and borrows torch and the rest from this one."""
    place = tmp_path_factory.mktemp("install") / "env"
    python = place / "bin" / "python"
    run(sys.executable, "-m", "venv", "--without-pip", place, cwd=place.parent)
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    # What a .pth file names comes after the environment's own packages, and no .pth file over there is read:
    # a timesched that is installed there as well, even an editable one, stays out of the way.
    own = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=place).strip()
    Path(own, "borrowed.pth").write_text(f"{Path(torch.origin).parents[1]}\n", encoding="utf-8")
    run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=place.parent)
    return python


def test_the_wheel(wheel: Path, installed: Path, tmp_path: Path) -> None:
    """One test, since each worker of `make test` would build and install its own wheel."""
    check_contents(wheel)
    check_installed_program(installed, tmp_path)
    if importlib.util.find_spec("basedpyright") is not None:  # the environment that lints has it
        check_types(installed, tmp_path)


def check_contents(wheel: Path) -> None:
    """Torch is the only dependency, and both packages are there with their types, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (place,) = {name.partition("/")[0] for name in names if ".dist-info/" in name}
        metadata, entries = (archive.read(f"{place}/{name}").decode() for name in ("METADATA", "entry_points.txt"))
    said = email.message_from_string(metadata)
    requirements = [one for one in said.get_all("Requires-Dist", []) if "extra ==" not in one]
    assert requirements == ["torch>=2.7"] and said["Requires-Python"] == ">=3.10"
    named = (ROOT / "README.md").read_text(encoding="utf-8").partition("Extras, ")[2]
    assert set(said.get_all("Provides-Extra", [])) == set(re.findall(r"`(\w+)`", named))
    check_entry_points(entries)
    sources = {path.relative_to(ROOT).as_posix() for top in PACKAGES for path in ROOT.glob(f"{top}/**/*.py")}
    held = {name for name in names if not name.startswith(f"{place}/")}
    assert held == sources | {f"{top}/py.typed" for top in PACKAGES}


def check_entry_points(text: str) -> None:
    """The command, and what other frameworks find by name. (tests/integration/test_llmfoundry.py loads its names.)"""
    entry_points = configparser.ConfigParser()
    entry_points.optionxform = str  # names keep their case
    entry_points.read_string(text)
    assert dict(entry_points["console_scripts"]) == {"timesched": "timesched.cli:main"}
    assert dict(entry_points["axolotl.plugins"]) == {"timesched": "timesched.integrations.axolotl:SchedulePlugin"}
    module = "timesched.integrations.llmfoundry"
    schedules = {f"timesched.{name}": f"{module}:{name}" for name in timesched.schedulers.__all__}
    assert dict(entry_points["llmfoundry_schedulers"]) == schedules
    own = {f"optim.{name}": f"{module}:{name}" for name in optimizers().public_classes}
    assert dict(entry_points["llmfoundry_optimizers"]) == own
    groups = {"console_scripts", "axolotl.plugins", "llmfoundry_schedulers", "llmfoundry_optimizers"}
    assert set(entry_points.sections()) == groups


def check_installed_program(installed: Path, tmp_path: Path) -> None:
    code = "import timesched, optim; print(timesched.__file__); print(optim.__file__)"
    for line in run(installed, "-c", code, cwd=tmp_path).splitlines():
        assert installed.parents[1] in Path(line).parents
    shown = run(installed.with_name("timesched"), "show", "LinearScheduler", "--max-duration", "2ba", cwd=tmp_path)
    assert shown.splitlines()[-1].split() == ["1", "2", "0"]


def check_types(installed: Path, tmp_path: Path) -> None:
    """A script of a user passes the strict type checker of editors, against the package as it is installed.

    `make lint` checks the same script with mypy, for which an installed package with `py.typed` is no different.
    """
    program = shutil.copy(ROOT / "tests" / "typing" / "user_program.py", tmp_path)
    settings = {"typeCheckingMode": "strict", "include": [Path(program).name]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    said = run(sys.executable, "-m", "basedpyright", "--pythonpath", installed, cwd=tmp_path)
    assert "0 errors, 0 warnings" in said
