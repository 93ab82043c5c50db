"""The wheel as a user meets it: built from the sdist, installed alone, imported from somewhere else."""

import email
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from configparser import ConfigParser
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("timesched", "optim")

# All in one worker: building and installing is most of the time, and happens once per worker.
pytestmark = pytest.mark.xdist_group("wheel")


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
    return environment(tmp_path_factory, wheel)


def environment(tmp_path_factory: pytest.TempPathFactory, *package: object) -> Path:
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
    run(*pip, "install", "--no-deps", "--no-index", *package, cwd=place.parent)
    return python


@pytest.fixture(scope="module")
def editable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment that holds the checkout as an editable install, and borrows the rest."""
    return environment(tmp_path_factory, "--no-build-isolation", "--editable", ROOT)


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def read(wheel: Path, name: str) -> str:
    (path,) = (path for path in names_in(wheel) if path.endswith(f".dist-info/{name}"))
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(path).decode()


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    return email.message_from_string(read(wheel, "METADATA"))


def test_torch_is_the_only_dependency(metadata: Message) -> None:
    requirements = metadata.get_all("Requires-Dist", [])
    assert [one for one in requirements if "extra ==" not in one] == ["torch>=2.6"]
    assert metadata["Requires-Python"] == ">=3.10"


def test_extras(metadata: Message) -> None:
    extras = {"composer", "transformers", "lightning", "accelerate", "config", "plot", "test", "dev"}
    assert set(metadata.get_all("Provides-Extra", [])) == extras


def test_entry_points(wheel: Path) -> None:
    """The command, and what Hypothesis calls when it starts."""
    found = ConfigParser()
    found.read_string(read(wheel, "entry_points.txt"))
    assert {name: dict(found[name]) for name in found.sections()} == {
        "console_scripts": {"timesched": "timesched.cli:main"},
        "hypothesis": {"timesched": "timesched.testing.hook:register"},
    }


def test_both_packages_are_whole_and_typed(wheel: Path) -> None:
    sources = {path.relative_to(ROOT).as_posix() for top in PACKAGES for path in ROOT.glob(f"{top}/**/*.py")}
    markers = {f"{top}/py.typed" for top in PACKAGES}
    assert sources | markers <= names_in(wheel)


def test_nothing_else_is_in_it(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in names_in(wheel)}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)


def test_import_finds_the_installed_packages(installed: Path, tmp_path: Path) -> None:
    code = "import timesched, optim; print(timesched.__file__); print(optim.__file__)"
    for line in run(installed, "-c", code, cwd=tmp_path).splitlines():
        assert installed.parents[1] in Path(line).parents


def test_the_command_line_is_installed(installed: Path, tmp_path: Path) -> None:
    shown = run(installed.with_name("timesched"), "show", "LinearScheduler", "--max-duration", "2ba", cwd=tmp_path)
    assert shown.splitlines()[-1].split() == ["1", "2", "0"]


@pytest.mark.parametrize("first", ["hypothesis", "timesched", "timesched.testing"])
def test_hypothesis_draws_our_types_without_being_told(installed: Path, tmp_path: Path, first: str) -> None:
    """Whichever is imported first: `timesched.testing` imports Hypothesis, whose hook imports `timesched.testing`."""
    code = (
        f"import {first}\n"
        "from hypothesis import find, strategies as st\n"
        "from timesched import LinearScheduler, Time\n"
        "for each in (Time, LinearScheduler):\n"
        "    print(type(find(st.from_type(each), lambda value: True)).__name__)\n"
        "import sys\n"
        "print('timesched.testing.hook' in sys.modules)"  # nobody but Hypothesis has imported it
    )
    assert run(installed, "-c", code, cwd=tmp_path).splitlines()[-3:] == ["Time", "LinearScheduler", "True"]


@pytest.mark.skipif(importlib.util.find_spec("basedpyright") is None, reason="the environment that lints has it")
@pytest.mark.parametrize("kind", ["installed", "editable"])
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_program_of_a_user_has_types(checker: str, kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """In strict mode, against the package as it is installed."""
    python = request.getfixturevalue(kind)
    program = shutil.copy(ROOT / "tests" / "typing" / "user_program.py", tmp_path)
    if checker == "mypy":
        said = run(sys.executable, "-m", "mypy", "--strict", "--python-executable", python, program, cwd=tmp_path)
        assert "Success: no issues found in 1 source file" in said
    else:
        settings = {"typeCheckingMode": "strict", "include": [Path(program).name]}
        (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
        said = run(sys.executable, "-m", "basedpyright", "--pythonpath", python, cwd=tmp_path)
        assert "0 errors, 0 warnings" in said
