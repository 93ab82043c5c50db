"""Counts lines of code: those of Python files without docstrings, comments and blank lines.

    python3 tools/code_lines.py timesched optim

prints the count of each folder, or file, and their sum.
"""

import ast
import io
import sys
import tokenize
from pathlib import Path

NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(source: str) -> int:
    """How many lines of a program are code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))  # a string may have several lines
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, WITH_DOCSTRING) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            lines.difference_update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return len(lines)


def count(path: Path) -> int:
    """The lines of code of a file, or of all Python files below a folder."""
    files = path.rglob("*.py") if path.is_dir() else [path]
    return sum(code_lines(file.read_text(encoding="utf-8")) for file in files)


if __name__ == "__main__":
    counts = {name: count(Path(name)) for name in sys.argv[1:]}
    for name, lines in counts.items():
        print(f"{lines:6} {name}")
    print(f"{sum(counts.values()):6} in all")
