#!/usr/bin/env python3
"""Check that no modules import each other in a circle: ``python tools/imports.py [PACKAGE ...]``.

What counts is what an import runs: statements at the top of a module, also within `if`, `try` or a class. Imports
for type checkers only (`if TYPE_CHECKING`) and imports within functions run nothing by themselves; those that would
close a circle are listed, so that somebody decides whether each is worth it. A package that is imported on the way to
its module (`a` in `import a.b`) is no edge: else every package that gathers names would be a circle.
"""

from __future__ import annotations

import ast
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("timesched", "optim")
Graph = dict[str, set[str]]


def modules_of(packages: list[str], root: Path = ROOT) -> dict[str, Path]:
    """The files of the packages under the names that they are imported by."""
    files = [path for package in packages for path in sorted((root / package).rglob("*.py"))]
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def imported(node: ast.AST, name: str, is_package: bool, modules: dict[str, Path]) -> set[str]:
    """The modules that one statement imports, of those that are looked at."""
    if isinstance(node, ast.Import):
        targets = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        parts = name.split(".")
        base = parts[: len(parts) + is_package - node.level] if node.level else []
        source = ".".join([*base, *([node.module] if node.module else [])])
        inner = [f"{source}.{alias.name}" for alias in node.names]
        targets = [each if each in modules else source for each in inner]
    else:
        return set()
    return {target for target in targets if target in modules}


def graphs(modules: dict[str, Path]) -> tuple[Graph, Graph]:
    """What each module imports when it is imported; and what it imports for type checkers, or later."""
    now: Graph = {name: set() for name in modules}
    aside: Graph = {name: set() for name in modules}

    def walk(node: ast.AST, name: str, path: Path, graph: Graph) -> None:
        for child in ast.iter_child_nodes(node):
            graph[name] |= imported(child, name, path.name == "__init__.py", modules)
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                walk(child, name, path, aside)
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                for each in child.body:
                    walk(ast.Module([each], []), name, path, aside)
                for each in child.orelse:
                    walk(ast.Module([each], []), name, path, graph)
            else:
                walk(child, name, path, graph)

    for name, path in modules.items():
        walk(ast.parse(path.read_text(encoding="utf-8")), name, path, now)
    return now, aside


def circle_in(graph: Graph) -> list[str]:
    """The modules of one circle, each imported by the next, with the first once more at the end; or an empty list."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def main(packages: list[str], root: Path = ROOT) -> int:
    now, aside = graphs(modules_of(packages, root))
    circle = circle_in(now)
    if circle:
        print(f"tools/imports.py: modules import each other: {' <- '.join(circle)}")
        return 1
    for name, targets in aside.items():
        for target in sorted(targets - now[name]):
            circle = circle_in({**now, name: now[name] | {target}})
            if circle:
                print(f"tools/imports.py: {name} -> {target}, in a function or for type checkers, closes a circle")
    print(f"tools/imports.py: {len(now)} modules, no circle")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(PACKAGES)))
