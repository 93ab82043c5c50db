#!/usr/bin/env python3
"""Counts the lines of code in tracked Python files, without docstrings, comments and blank lines.

    python3 tools/code_lines.py timesched optim
    python3 tools/code_lines.py --files --at main~5 timesched

The first command prints the sum for these folders and files in the working tree. `--files` also prints a line for each
file, the largest first: its lines of code, and all its lines. `--at COMMIT` counts the files of a commit.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

LAYOUT = ("COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER")
NOT_CODE = {getattr(tokenize, kind) for kind in LAYOUT}
WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(source: str) -> int:
    """The number of lines in a source text that are code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))  # a string may have several lines
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, WITH_DOCSTRING) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            lines.difference_update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return len(lines)


def git(*arguments: str) -> str:
    """The output of a git command."""
    return subprocess.run(["git", *arguments], capture_output=True, encoding="utf-8", check=True).stdout


def sources(paths: list[str], commit: str | None) -> Iterator[tuple[str, str]]:
    """The names and texts of the tracked Python files under some paths: in the working tree, or in a commit."""
    if commit is None:
        names = git("ls-files", "-z", "--", *paths)
    else:
        names = git("ls-tree", "-r", "-z", "--name-only", commit, "--", *paths)
    for name in names.split("\0"):
        if name.endswith(".py"):
            yield name, Path(name).read_text("utf-8") if commit is None else git("show", f"{commit}:./{name}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Count lines of code.")
    parser.add_argument("paths", nargs="+", metavar="PATH")
    parser.add_argument("--files", action="store_true", help="a line for each file, too")
    parser.add_argument("--at", metavar="COMMIT", help="as they are in a commit")
    options = parser.parse_args()
    rows: list[tuple[int, int, str]] = []
    for name, source in sources(options.paths, options.at):
        rows.append((code_lines(source), len(source.splitlines()), name))
    if options.files:
        for code, lines, name in sorted(rows, reverse=True):
            print(f"{code:6} {lines:6} {name}")
    all_code = sum(code for code, _, _ in rows)
    all_lines = sum(lines for _, lines, _ in rows)
    print(f"{all_code} lines of code, {all_lines} lines in {len(rows)} files: {' '.join(options.paths)}")


if __name__ == "__main__":
    main()
