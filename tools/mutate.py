"""Change one thing in the source at a time, and see whether a test of that file fails. Not part of make test.

    python tools/mutate.py --count 300 --seed 0 --jobs 2 timesched optim

Each mutant is one changed operator, comparison, number or condition. It is drawn at random; the same seed and source
give the same mutants. It runs in a copy of the checkout, and is killed if a test fails. covering_tests.txt names the
tests of its file. Only the tests that call the changed function run, the quickest first. For a change outside of
functions, all of them run. A first run on the unchanged source records which test calls which function. The survivors
are printed with their lines, and all outcomes are written to --out as JSON. `--compare OLD.json NEW.json` compares two
runs: it lists the mutants of unchanged lines that were killed in OLD and survive in NEW.

`--list FILE` takes the mutants of such a file instead of drawing any. They are found by the name of the function and
the text of the line, even if these are in a different file now. `--dry` writes the file without running a test.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import json
import multiprocessing
import multiprocessing.connection
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from quick import covering_tests

ROOT = Path(__file__).parents[1]
PACKAGES = (f"{ROOT}/timesched/", f"{ROOT}/optim/")
TIMEOUT = 600  # seconds for the tests of one mutant; a mutant that runs longer counts as killed, because it hangs
MEMORY = 16 << 30  # bytes of address space, for a mutant that fills a list without end
OUTPUT_KEYS = ("file", "function", "line", "what")  # the keys of a mutant in the output
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div},
}


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """The mutants of one node: a description of the change, and the changed node."""
    new: Any = copy.deepcopy(node)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPS:
        new.ops = [SWAPS[type(node.ops[0])]()]
        yield f"{type(node.ops[0]).__name__} to {type(new.ops[0]).__name__}", new
    elif isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in SWAPS:
        new.op = SWAPS[type(node.op)]()
        yield f"{type(node.op).__name__} to {type(new.op).__name__}", new
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "without not", new.operand
    elif isinstance(node, (ast.If, ast.IfExp, ast.While)):
        new.test = ast.UnaryOp(ast.Not(), new.test)
        yield "condition turned round", new
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        value = (not node.value) if isinstance(node.value, bool) else node.value + 1
        yield f"{node.value!r} to {value!r}", ast.Constant(value)
    elif isinstance(node, ast.Raise):
        yield "nothing raised", ast.Pass()


def mutants(path: Path) -> Iterator[dict[str, Any]]:
    """All mutants of a file, each with the original line and the changed text of the whole file."""
    text = path.read_text(encoding="utf-8")
    tree, lines = ast.parse(text), text.splitlines()
    skipped: set[int] = set()  # annotations, which are never run
    functions: dict[int, tuple[int | None, str]] = {}  # the first line of the function around a node, and its name
    for node in ast.walk(tree):  # the inner functions come later
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            line_number = min(statement.lineno for statement in [node, *getattr(node, "decorator_list", [])])
            for part in ast.walk(node):
                functions[id(part)] = line_number, getattr(node, "name", functions.get(id(part), (None, ""))[1])
        for name in ("annotation", "returns"):
            if isinstance(getattr(node, name, None), ast.AST):
                skipped.update(map(id, ast.walk(getattr(node, name))))
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            for i, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if not isinstance(child, ast.AST) or id(child) in skipped:
                    continue
                for change, new in changes(child):
                    ast.copy_location(new, child)
                    _replace_child(parent, field, i, new)
                    changed = ast.unparse(ast.fix_missing_locations(tree))
                    _replace_child(parent, field, i, child)
                    line = lines[child.lineno - 1].strip()  # type: ignore[attr-defined]  # every mutated node has a line
                    first_line, name = functions.get(id(child), (None, ""))
                    where = {"file": str(path.relative_to(ROOT)), "function": name, "line": line, "what": change}
                    yield {**where, "text": changed, "of": first_line}


def _replace_child(parent: ast.AST, field: str, i: int | None, node: ast.AST) -> None:
    if i is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[i] = node


def tests_of(file: str) -> list[str]:
    """The tests that cover a file, by covering_tests.txt."""
    paths = covering_tests(file)
    if paths is None:
        raise SystemExit(f"{file}: covering_tests.txt has no pattern for this file. Add a line.")
    return paths


class Recorder:
    """A plugin of pytest that records which functions of the packages each test calls, and how long it takes.

    It also records which tests start processes, because it does not see the calls in them. Nor does it see calls that
    torch.compile traces: a mutant that only a compiled test would kill counts as a survivor.
    """

    def __init__(self) -> None:
        self.calls: dict[str, set[tuple[str, int]]] = {}
        self.seconds: dict[str, float] = {}
        self.starting: set[str] = set()
        self.current_test = ""
        sys.addaudithook(self.note)

    def note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" and "python" in f"{arguments[0]}" and "inductor" not in f"{arguments[1]}":
            self.starting.add(self.current_test)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        called = self.calls[item.nodeid] = set()
        self.current_test = item.nodeid

        def trace(frame: FrameType, event: str, argument: object) -> None:
            if frame.f_code.co_filename.startswith(PACKAGES):
                called.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

        sys.settrace(trace)
        threading.settrace(trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration


class Selector:
    """A plugin of pytest that runs only these tests, in this order."""

    def __init__(self, wanted: list[str]) -> None:
        self.places = {test: i for i, test in enumerate(wanted)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self.places), key=lambda item: self.places[item.nodeid]
        )


def run_in_processes(target: Callable[[Any, Path], None], rows: list[Any], jobs: int) -> Iterator[tuple[int, bool]]:
    """Call `target(row, folder)` for each row, and yield the row's index and whether the call succeeded, as they end.

    Each call runs in its own process, a fork of this one, which has imported torch and pytest. A process that dies has
    failed.
    """
    forks = multiprocessing.get_context("fork")
    waiting, running = list(enumerate(rows))[::-1], dict[Any, tuple[int, BaseProcess, Path]]()
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < jobs:
                i, row = waiting.pop()
                place = Path(folder) / str(i)
                process: BaseProcess = forks.Process(target=target, args=(row, place))
                process.start()
                running[process.sentinel] = i, process, place
            for sentinel in multiprocessing.connection.wait(list(running)):
                i, process, place = running.pop(sentinel)
                process.join()
                shutil.rmtree(place, ignore_errors=True)
                yield i, process.exitcode == 0


def run_pytest(folder: Path, *arguments: str, plugin: object) -> int:
    """Run pytest quietly in a checkout, and return its status."""
    os.chdir(folder)
    os.environ.update(PYTHONPATH=str(folder), HYPOTHESIS_PROFILE="ci")
    sys.path[:] = [str(folder), *(path for path in sys.path if path not in ("", str(ROOT), sys.path[0]))]
    output = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(output, stream)
    return int(pytest.main(["-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider", *arguments], [plugin]))


def record(path_and_output: tuple[str, Path], folder: Path) -> None:
    """Record the functions that the tests of a path call, and exit with the status of the tests."""
    recorder = Recorder()
    code, calls_of_tests = run_pytest(ROOT, path_and_output[0], plugin=recorder), []
    for test, called in recorder.calls.items():
        calls = sorted((os.path.relpath(file, ROOT), line) for file, line in called)
        about = {"seconds": recorder.seconds[test], "starts": test in recorder.starting}
        calls_of_tests.append({"test": test, "file": test.partition("::")[0], **about, "calls": calls})
    path_and_output[1].write_text(json.dumps(calls_of_tests), encoding="utf-8")
    sys.exit(code if recorder.calls else 0)  # there are no tests if they are for another environment


def run_tests(mutant: dict[str, Any], folder: Path) -> None:
    """Run the tests of a mutant in a copy of the checkout, and exit with their status."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.alarm(TIMEOUT)  # ends the process
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".git", "build", "__pycache__"))
    (folder / mutant["file"]).write_text(mutant["text"], encoding="utf-8")
    files = dict.fromkeys(test.partition("::")[0] for test in mutant["tests"])
    sys.exit(run_pytest(folder, *files, plugin=Selector(mutant["tests"])) if files else 0)


def tests_for(mutant: dict[str, Any], recorded: list[dict[str, Any]]) -> list[str]:
    """The recorded tests that run the changed code of a mutant, the quickest first."""
    place, covering = [mutant["file"], mutant["of"]], tests_of(mutant["file"])
    rows = [row for row in recorded if any(Path(row["file"]).is_relative_to(path) for path in covering)]
    if any(place in row["calls"] for row in rows):  # otherwise the code runs outside of tests, as at an import
        starting = {row["file"] for row in rows if row["starts"]}  # which may be in a fixture for all of a file
        rows = [row for row in rows if place in row["calls"] or row["file"] in starting]
    return [row["test"] for row in sorted(rows, key=lambda row: row["seconds"])]


def key_of(row: dict[str, Any]) -> tuple[str, ...]:
    return row["function"], row["line"], row["what"]


def read_outcomes(path: Path) -> dict[tuple[str, ...], str]:
    """The outcomes of an earlier run, by the keys of its mutants."""
    return {key_of(row): row.get("outcome", "") for row in json.loads(path.read_text(encoding="utf-8"))}


def select_listed(path: Path, existing: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Select the mutants that an earlier output names, each once. Print the names that no mutant has."""
    by_key = {key_of(mutant): mutant for mutant in existing[::-1]}
    wanted = read_outcomes(path)
    for key in sorted(wanted.keys() - by_key.keys()):
        print("gone: " + "  ".join(key))
    return [by_key[key] for key in wanted if key in by_key]


def compare(old: Path, new: Path) -> int:
    """Print the mutants that both runs tried and only the old run killed, and return their number."""
    before, after = read_outcomes(old), read_outcomes(new)
    lost = [key for key in before.keys() & after.keys() if (before[key], after[key]) == ("killed", "survived")]
    print(f"{len(before.keys() & after.keys())} mutants of unchanged lines in both, {len(lost)} killed before only")
    for key in sorted(lost):
        print("  " + "  ".join(key))
    return len(lost)


def outcomes(drawn: list[dict[str, Any]], jobs: int) -> Iterator[dict[str, Any]]:
    """The description and outcome of each mutant, in the order in which their tests end."""
    os.environ["OMP_NUM_THREADS"] = "1"
    importlib.import_module("torch")
    named = sorted({path for row in drawn for path in tests_of(row["file"]) if (ROOT / path).exists()})
    paths = [path for path in named if not any(Path(path).is_relative_to(other) for other in {*named} - {path})]
    recorded: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        places = [(path, Path(folder) / f"{i}.json") for i, path in enumerate(paths)]
        for i, well in run_in_processes(record, places, jobs):
            if not well:
                sys.exit(f"These tests fail on the unchanged source, so they show nothing: {paths[i]}")
            print(f"recorded: {paths[i]}", flush=True)
            recorded += json.loads(places[i][1].read_text(encoding="utf-8"))
    for mutant in drawn:
        mutant["tests"] = tests_for(mutant, recorded)
    for i, survived in run_in_processes(run_tests, drawn, jobs):
        described = {key: drawn[i][key] for key in OUTPUT_KEYS}
        yield {**described, "tests": len(drawn[i]["tests"]), "outcome": "survived" if survived else "killed"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", default=["timesched", "optim"], help="files or folders (default: all)")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("mutants.json"))
    parser.add_argument("--list", type=Path, metavar="OLD", help="the mutants of this earlier output, if they exist")
    parser.add_argument("--dry", action="store_true", help="write the mutants to --out, and run nothing")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("OLD", "NEW"))
    options = parser.parse_args()
    if options.compare:
        sys.exit(bool(compare(*options.compare)))
    files = [file for path in map(ROOT.joinpath, options.paths) for file in sorted(path.rglob("*.py")) or [path]]
    all_mutants = [mutant for file in files if "testing" not in file.parts for mutant in mutants(file)]
    drawn = random.Random(options.seed).sample(all_mutants, min(options.count, len(all_mutants)))
    if options.list is not None:
        drawn = select_listed(options.list, all_mutants)
    print(f"{len(all_mutants)} mutants in {len(files)} files, {len(drawn)} of them drawn", flush=True)
    rows = [{key: mutant[key] for key in OUTPUT_KEYS} for mutant in drawn] if options.dry else []
    for row in () if options.dry else outcomes(drawn, options.jobs):
        rows.append(row)
        options.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")
        if row["outcome"] == "survived":
            print(f"survived: {row['file']}: {row['what']}: {row['line']}", flush=True)
        if len(rows) % 20 == 0 or len(rows) == len(drawn):
            killed = sum(row["outcome"] == "killed" for row in rows)
            print(f"{killed} of {len(rows)} killed, {killed / len(rows):.0%}; {len(drawn)} in all", flush=True)
    options.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
