"""The tables of the documents, as lists of their cells; the code of the README; and the modules that make the site."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).parents[2] / "docs"


def extension(name: str) -> ModuleType:
    """A module of docs/_ext."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"_ext/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def readme_code(start: str) -> str:
    """The only block of Python in README.md, or the only code in a sentence, that begins so; its `...` are the
    arguments `given`.
    """
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    codes = re.findall(r"^```python\n(.*?)^```$|(?<!`)`([^`\n]+)`(?!`)", readme, re.MULTILINE | re.DOTALL)
    (code,) = [block or inline for block, inline in codes if (block or inline).startswith(start)]
    return code.replace("...", "**given")


def page_code(name: str, start: str) -> str:
    """The only block of Python on a page of docs/ that begins so; its `...` are the arguments `given`."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / name).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (code,) = [block for block in blocks if block.startswith(start)]
    return str(code).replace("...", "**given")


def page_yaml(name: str, start: str) -> str:
    """The only block of YAML on a page of docs/ that begins so."""
    blocks = re.findall(r"^```yaml\n(.*?)^```$", (DOCS / name).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (code,) = [block for block in blocks if block.startswith(start)]
    return str(code)


def rows(name: str, header: list[str]) -> list[list[list[str]]]:
    """The tables of a document that have these cells in their first line, each as a list of its rows."""
    found: list[list[list[str]]] = []
    inside = False
    for line in (DOCS / name).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if cells == header:
            found.append([])
        elif inside and cells and set(line) != {"|", "-"}:
            found[-1].append(cells)
        inside = cells == header or (inside and bool(cells))
    assert found, f"{name} has no table of {header}"
    return found
