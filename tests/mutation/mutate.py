"""Change one thing in the source at a time, and see whether the tests of that file notice. Not part of make test.

    python tests/mutation/mutate.py --count 300 --seed 0 --jobs 2 timesched optim

Each mutant is one changed operator, comparison, number or condition, drawn at random (the same for the same seed and
source). It runs in a copy of the checkout, with the tests that tests.txt names for its file, and is killed where one of
them fails. The survivors are printed with their lines, and written to --out as JSON, by which two runs are compared:
`--compare OLD.json NEW.json` lists the mutants of unchanged lines that were killed in OLD and survive in NEW.
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
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TIMEOUT = 600  # seconds for the tests of one mutant; one that runs longer is killed, too: it hangs
MEMORY = 16 << 30  # bytes of address space, for one that fills a list without end
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div},
}


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """The mutants of one node: what is changed, and the node in its place."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPS:
        new = copy.deepcopy(node)
        new.ops = [SWAPS[type(node.ops[0])]()]  # type: ignore[list-item]  # of the same kind
        yield f"{type(node.ops[0]).__name__} to {type(new.ops[0]).__name__}", new
    elif isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in SWAPS:
        new = copy.deepcopy(node)
        new.op = SWAPS[type(node.op)]()  # type: ignore[assignment]  # of the same kind
        yield f"{type(node.op).__name__} to {type(new.op).__name__}", new
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "without not", copy.deepcopy(node.operand)
    elif isinstance(node, (ast.If, ast.IfExp, ast.While)):
        new = copy.deepcopy(node)
        new.test = ast.UnaryOp(ast.Not(), new.test)
        yield "condition turned round", new
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        value = (not node.value) if isinstance(node.value, bool) else node.value + 1
        yield f"{node.value!r} to {value!r}", ast.Constant(value)
    elif isinstance(node, ast.Raise):
        yield "nothing raised", ast.Pass()


def mutants(path: Path) -> Iterator[dict[str, Any]]:
    """All mutants of a file, each with the line as it stands and the text of the whole file in its place."""
    text = path.read_text(encoding="utf-8")
    tree, lines = ast.parse(text), text.splitlines()
    skipped: set[int] = set()  # annotations, which nothing runs
    for parent in ast.walk(tree):
        for name in ("annotation", "returns"):
            if isinstance(getattr(parent, name, None), ast.AST):
                skipped.update(map(id, ast.walk(getattr(parent, name))))
        for field, value in ast.iter_fields(parent):
            for i, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if not isinstance(child, ast.AST) or id(child) in skipped:
                    continue
                for what, new in changes(child):
                    ast.copy_location(new, child)
                    _put(parent, field, i, new)
                    changed = ast.unparse(ast.fix_missing_locations(tree))
                    _put(parent, field, i, child)
                    line = lines[child.lineno - 1].strip()  # type: ignore[attr-defined]  # what is mutated has a line
                    yield {"file": str(path.relative_to(ROOT)), "line": line, "what": what, "text": changed}


def _put(parent: ast.AST, field: str, i: int | None, node: ast.AST) -> None:
    if i is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[i] = node


def tests_of(file: str) -> list[str]:
    """The tests that cover a file, as tests.txt says: `pattern: paths` in each line, the first that fits."""
    for row in Path(__file__).with_name("tests.txt").read_text(encoding="utf-8").splitlines():
        pattern, _, paths = row.partition(":")
        if row.strip() and not row.startswith("#") and fnmatch(file, pattern.strip()):
            return paths.split()
    raise SystemExit(f"{file}: tests.txt names no tests for it; add a line.")


def outcomes(rows: list[dict[str, Any]], jobs: int) -> Iterator[tuple[int, str]]:
    """The index of each mutant and `killed` or `survived`, in the order in which their tests end.

    Each runs in a process of its own, a fork of this one, which has imported torch and pytest. A process that dies has
    noticed, too.
    """
    waiting, running = list(enumerate(rows))[::-1], {}
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < jobs:
                i, row = waiting.pop()
                place = Path(folder) / str(i)
                process = multiprocessing.get_context("fork").Process(target=run_tests, args=(row, place))
                process.start()
                running[process.sentinel] = i, process, place
            for sentinel in multiprocessing.connection.wait(list(running)):
                i, process, place = running.pop(sentinel)  # type: ignore[call-overload]  # of what we put there
                process.join()
                shutil.rmtree(place, ignore_errors=True)
                yield i, "survived" if process.exitcode == 0 else "killed"


def run_tests(mutant: dict[str, Any], there: Path) -> None:
    """Run the tests of a mutant in a copy of the checkout, and exit with their status."""
    import pytest

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.alarm(TIMEOUT)  # which ends the process
    shutil.copytree(ROOT, there, ignore=shutil.ignore_patterns(".git", "__pycache__"))
    (there / mutant["file"]).write_text(mutant["text"], encoding="utf-8")
    os.chdir(there)
    os.environ.update(PYTHONPATH=str(there), HYPOTHESIS_PROFILE="ci")
    sys.path[:] = [str(there), *(path for path in sys.path if path not in ("", str(ROOT), sys.path[0]))]
    output = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(output, stream)
    for test in tests_of(mutant["file"]):  # one by one: most mutants die before the large folders are collected
        code = (
            pytest.main(["-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider", test]) if Path(test).exists() else 0
        )
        if code:
            sys.exit(int(code))


def compare(old: Path, new: Path) -> int:
    """The mutants that both runs tried and only the old one killed."""

    def read(path: Path) -> dict[tuple[str, ...], str]:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return {(Path(row["file"]).name, row["line"], row["what"]): row["outcome"] for row in rows}

    before, after = read(old), read(new)
    lost = [key for key in before.keys() & after.keys() if (before[key], after[key]) == ("killed", "survived")]
    print(f"{len(before.keys() & after.keys())} mutants of unchanged lines in both, {len(lost)} killed before only")
    for key in sorted(lost):
        print("  " + "  ".join(key))
    return len(lost)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", default=["timesched", "optim"], help="files or folders (default: all)")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("mutants.json"))
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("OLD", "NEW"))
    options = parser.parse_args()
    if options.compare:
        sys.exit(bool(compare(*options.compare)))
    files = [file for path in map(ROOT.joinpath, options.paths) for file in sorted(path.rglob("*.py")) or [path]]
    found = [mutant for file in files if "testing" not in file.parts for mutant in mutants(file)]
    drawn = random.Random(options.seed).sample(found, min(options.count, len(found)))
    print(f"{len(found)} mutants in {len(files)} files, {len(drawn)} of them drawn", flush=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    for module in ("torch", "pytest"):
        importlib.import_module(module)
    unchanged = {tuple(tests_of(row["file"])): {**row, "text": (ROOT / row["file"]).read_text()} for row in drawn}
    for i, said in outcomes(list(unchanged.values()), options.jobs):
        if said == "killed":
            sys.exit(f"These tests fail on the source as it is, and so tell nothing: {' '.join(list(unchanged)[i])}")
    rows: list[dict[str, Any]] = []
    for i, said in outcomes(drawn, options.jobs):
        rows.append({**{key: value for key, value in drawn[i].items() if key != "text"}, "outcome": said})
        options.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")
        if said == "survived":
            print(f"survived: {rows[-1]['file']}: {rows[-1]['what']}: {rows[-1]['line']}", flush=True)
        if len(rows) % 20 == 0 or len(rows) == len(drawn):
            killed = sum(row["outcome"] == "killed" for row in rows)
            print(f"{killed} of {len(rows)} killed, {killed / len(rows):.0%}; {len(drawn)} in all", flush=True)


if __name__ == "__main__":
    main()
