"""The tables of the documents, as lists of their cells; their toctrees and links; their code; and the modules that make
the site.
"""

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


def toctree_entries(page: Path) -> list[Path]:
    """The pages that the toctrees of a page name, without the ends of their names."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```\{toctree\}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    blocks += re.findall(r"^\.\. toctree::\n((?:[ \t]+.*\n|\n)*)", text, re.MULTILINE)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    names = [re.sub(r".*<(.*)>", r"\1", line) for line in lines if line and not line.startswith(":")]
    return [DOCS / name[1:] if name.startswith("/") else page.parent / name for name in names]


def linked_pages(page: Path) -> set[Path]:
    """The pages of Markdown to which a page leads by its links, or by its entries in the sidebar."""
    pages = {Path(f"{entry}.md") for entry in toctree_entries(page)}
    pages |= {page.parent / target for target in re.findall(r"\]\(([\w/.]+\.md)", page.read_text(encoding="utf-8"))}
    return {linked.resolve() for linked in pages if linked.exists()}
