"""The tutorials and other pages with scripts: each runs where what it needs is installed, and prints what it shows.

Lines that begin with `>>>` are doctests, which pytest collects by itself. The other blocks of Python and YAML are
files: one begins with `# train.py`, say, and goes on in blocks that begin with `# train.py, continued`. The test here
writes the files and runs the commands of the page.
"""

import doctest
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

import pytest

from tests.torchrun import run_forked
from timesched.cli import main
from tools.adapters import TRAINERS

ROOT = Path(__file__).parents[2]
COMMAND_LINE = ROOT / "docs/command_line.md"
SCRIPTS = [ROOT / "docs" / name for name in ("quickstart.md", "distributed.md")]
PAGES = [*sorted((ROOT / "docs/tutorials").glob("*.md")), *SCRIPTS, COMMAND_LINE]
# How Python starts a program that pages call.
STARTS = {"python": [], "pytest": ["-m", "pytest"], "torchrun": ["torchrun"]}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE  # those of the doctests, in pyproject.toml


def named(pages):
    return pytest.mark.parametrize("page", pages, ids=lambda page: page.stem)


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def needs(page):
    """The trainers that a page tells its reader to install."""
    extras = re.findall(r'pip install "\.\[(\w+)\]"', page.read_text(encoding="utf-8"))
    return [extra for extra in extras if extra in TRAINERS]


def runs_here(page):
    """Whether this environment has what a page needs; a page that needs no trainer runs where there is none."""
    return all(map(find_spec, needs(page))) if needs(page) else not any(map(find_spec, TRAINERS))


def files(page):
    """The text of each file of a page, by name."""
    found = {}
    for block in blocks(page, "(?:python|yaml)"):
        if not block.startswith(">>>"):
            name, continued = re.match(r"# (\w+\.(?:py|yaml))(, continued)?\n", block).groups()
            assert (name in found) == bool(continued), f"{name} is begun twice, or not at all"
            found[name] = found.get(name, "") + block
    return found


def write_files(page, folder):
    for name, text in files(page).items():
        (folder / name).write_text(text, encoding="utf-8")


def commands(page):
    """Each command of a page, on one line, and what it prints."""
    on_one_line = [re.sub(r"\\\n *", "", block) for block in blocks(page, "console")]
    return [re.match(r"\$ (.*)\n([^$]*)\Z", block).groups() for block in on_one_line]


def run_here(command, capsys):
    """The output of `python -m timesched ...` in this process; tests/cli starts the real program."""
    words = list(takewhile(lambda word: word not in ("2>&1", "||"), shlex.split(command)))
    code = main(words[words.index("timesched") + 1 :])
    captured = capsys.readouterr()
    return captured.out + captured.err + (f"exit code {code}\n" if code else "")


def assert_printed(shown, output):
    checker = doctest.OutputChecker()
    assert checker.check_output(shown, output, FLAGS), checker.output_difference(
        doctest.Example("", shown), output, FLAGS
    )


if find_spec("ruamel"):  # which reads configs; the environment of the trainers goes without

    def test_the_command_line_prints_what_its_page_shows(tmp_path, monkeypatch, capsys):
        write_files(COMMAND_LINE, tmp_path)
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setenv("COLUMNS", "72")  # which the page sets for its plot
        for command, shown in commands(COMMAND_LINE):
            assert_printed(shown, run_here(command, capsys))
        sys.modules.pop("model", None)


def start(command, folder):
    """Run a command of a page in a folder."""
    variables = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}  # DeepSpeed prints that it has found no GPU
    if sys.platform == "linux":
        variables["GLOO_SOCKET_IFNAME"] = "lo"  # some machines cannot resolve their own name
    program, *words = shlex.split(command)
    if program in STARTS:
        return run_forked(*STARTS[program], *words, cwd=folder, **variables)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, **variables, "PATH": path, "PYTHONPATH": str(ROOT)}
    how = {"capture_output": True, "text": True, "cwd": folder, "env": environment}
    return subprocess.run(["bash", "-c", command], check=False, timeout=300, **how)


@named([page for page in PAGES if page != COMMAND_LINE and commands(page) and runs_here(page)])
def test_the_commands_print_what_the_page_shows(page, tmp_path):
    write_files(page, tmp_path)
    for command, shown in commands(page):
        done = start(command, tmp_path)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        assert_printed(shown, done.stdout)


@named(PAGES)
def test_all_code_of_a_page_runs(page):
    """Each block of Python is a doctest or a file, and files come with a command."""
    code = "".join(blocks(page, "python"))
    assert code and bool(files(page)) == bool(commands(page))
    assert ">>>" not in code or not needs(page), "pytest would collect these doctests without the trainer, too"
    assert page.read_text(encoding="utf-8").count("```python") == len(blocks(page, "python"))


@named(PAGES)
def test_an_environment_has_all_that_a_page_needs(page):
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    needed = {re.search(rf'^{trainer} = \["([\w-]+)', project, re.MULTILINE)[1] for trainer in needs(page)}
    pins = [(ROOT / f"requirements/{name}.txt").read_text("utf-8") for name in ("newest", "composer", "trainers")]
    assert any(needed <= set(re.findall(r"^([\w-]+)==", text, re.MULTILINE)) for text in pins)
