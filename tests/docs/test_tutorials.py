"""The tutorials that are scripts: the files of each page are written, and its commands print what the page shows.

Such a page has blocks of Python that begin with `# train.py`, or with `# train.py, continued`, and consoles with
commands. All other pages are doctests, which pytest collects by itself.
"""

import doctest
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs/tutorials").glob("*.md"))
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE  # those of the doctests, in pyproject.toml
ENVIRONMENTS = {"newest": "test", "composer": "test", "trainers": "test-trainers"}  # and the make target of each
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def extras(page):
    """The trainers that a page tells its reader to install."""
    return re.findall(r'pip install "torch-timesched\[(\w+)\]"', page.read_text(encoding="utf-8"))


def files(page):
    """The text of each file of a page, by name."""
    found = {}
    for block in blocks(page, "python"):
        if name := re.match(r"# (\w+\.py)(, continued)?\n", block):
            assert (name[1] in found) == bool(name[2]), f"{page.name} continues a file that it has not begun"
            found[name[1]] = found.get(name[1], "") + block
    return found


def commands(page):
    """Each command of a page, and what it prints."""
    return [re.match(r"\$ (.*)\n([^$]*)\Z", block).groups() for block in blocks(page, "console")]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if commands(page) and all(map(find_spec, extras(page)))], ids=lambda page: page.stem
)
def test_the_commands_print_what_the_page_shows(page, tmp_path):
    for name, text in files(page).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    if sys.platform == "linux":
        environment["GLOO_SOCKET_IFNAME"] = "lo"  # some machines cannot resolve their own name
    for command, shown in commands(page):
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        example = doctest.Example(command, shown)
        checker = doctest.OutputChecker()
        assert checker.check_output(shown, done.stdout, FLAGS), checker.output_difference(example, done.stdout, FLAGS)
