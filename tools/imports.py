#!/usr/bin/env python3
"""Check which modules import which: ``python tools/imports.py [PACKAGE ...]``.

* No module imports from a layer above its own: `IMPORTS_FROM` lists the layers right below a layer.
* No modules import each other in a circle.

Imports within functions and for type checkers (`if TYPE_CHECKING`) count, too, except the imports in `ON_PURPOSE`. A
package that is imported on the way to its module (`a` in `import a.b`) does not count. Otherwise, every package that
gathers names would be a circle.
"""

from __future__ import annotations

import ast
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("timesched", "optim")
Graph = dict[str, set[str]]

# The layers from the top down. A layer imports from itself, from the layers named here, and from all layers below them.
# A module is in the layer with which its name begins. If there are several, the longest name counts.
IMPORTS_FROM = {
    "timesched.cli": ("optim",),
    "optim": ("optim.config", "optim.initial_state", "optim.average"),
    "optim.config": ("optim.muon", "optim.groups", "optim.lr_scheduler", "optim.weight_decay_scheduler"),
    "optim.initial_state": ("optim.muon",),
    "optim.average": ("optim.muon",),
    "optim.muon": ("optim.algorithms",),
    "optim.algorithms": ("optim.step",),
    "optim.step": ("optim.state",),
    "optim.state": ("optim.precision",),
    "optim.precision": ("optim.base",),
    "optim.groups": ("optim.base",),
    "optim.base": ("timesched",),
    "optim.lr_scheduler": ("optim.scheduler_bases",),
    "optim.weight_decay_scheduler": ("optim.scheduler_bases",),
    "optim.scheduler_bases": ("optim.scheduler",),
    "optim.scheduler": ("optim.closed_form",),
    "optim.closed_form": ("timesched",),
    "timesched": ("timesched.integrations", "timesched.drawing", "timesched.testing"),
    "timesched.integrations": ("timesched.binding", "timesched.batch_size"),
    "timesched.drawing": ("timesched.binding",),
    "timesched.testing": ("timesched.batch_size",),
    "timesched.binding": ("timesched.schedulers",),
    "timesched.batch_size": ("timesched.schedulers",),
    "timesched.schedulers": ("timesched.maths",),
    "timesched.maths": ("timesched.run",),
    "timesched.run": ("timesched.time",),
    "timesched.time": (),
}
ELSEWHERE = {  # modules outside of the folder of their layer
    "timesched.__main__": "timesched.cli",
    **dict.fromkeys(("timesched.fields", "timesched.findings", "timesched.reading"), "timesched.schedulers"),
    **dict.fromkeys(("timesched.rules", "timesched.hints", "timesched.types"), "timesched.time"),
    "timesched.packages": "timesched.time",
}

# Imports within functions and for type checkers that go up or close a circle, with their purpose.
ON_PURPOSE = {
    (
        "timesched.schedulers.schedule",
        "timesched.schedulers.composition",
    ): "Schedule.cooldown returns a schedule that is made of it",
    ("timesched.schedulers.schedule", "timesched.drawing.axes"): "Schedule.plot",
    ("timesched.schedulers.schedule", "timesched.drawing.lines"): "Schedule.plot, and the picture in a notebook",
    ("timesched.schedulers.schedule", "timesched.drawing.svg"): "the picture of a schedule in a notebook",
    ("timesched.binding.bound", "timesched.drawing.schedulers"): "the picture of a scheduler in a notebook",
    ("timesched.binding.bound", "timesched.drawing.svg"): "the picture of a scheduler in a notebook",
    ("timesched.binding.evaluation", "timesched.integrations.composer_state"): "a scheduler of Composer on a clock",
    ("optim.config.names", "optim"): "a config names any optimizer that `optim` names",
    (
        "timesched.integrations.llmfoundry",
        "optim.config.names",
    ): "a YAML names the optimizers of `optim`",
    ("timesched.integrations.section", "optim"): "a config names an average of the weights",
    # The optimizer calls these modules with itself as argument.
    ("optim.state.keeper", "optim.state.optimizer"): "the type of an argument",
    ("optim.state.checkpoint", "optim.state.optimizer"): "the type of an argument",
    ("optim.state.step_wrapper", "optim.state.optimizer"): "the type of an argument",
    ("optim.step.gather", "optim.step.rule_optimizer"): "the type of an argument",
    ("optim.step.stepper", "optim.step.rule_optimizer"): "the type of an argument",
}


def modules_of(packages: list[str], root: Path = ROOT) -> dict[str, Path]:
    """The files of the packages, by the names of their modules."""
    files = [path for package in packages for path in sorted((root / package).rglob("*.py"))]
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def imported_modules(node: ast.AST, name: str, is_package: bool, modules: dict[str, Path]) -> set[str]:
    """The modules among `modules` that one statement imports."""
    if isinstance(node, ast.Import):
        targets = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        parts = name.split(".")
        base = parts[: len(parts) + is_package - node.level] if node.level else []
        source = ".".join([*base, *([node.module] if node.module else [])])
        full_names = [f"{source}.{alias.name}" for alias in node.names]
        targets = [full_name if full_name in modules else source for full_name in full_names]
    else:
        return set()
    return {target for target in targets if target in modules}


def graphs(modules: dict[str, Path]) -> tuple[Graph, Graph]:
    """The modules that each module imports at once; and those that it imports later or for type checkers."""
    direct: Graph = {name: set() for name in modules}
    deferred: Graph = {name: set() for name in modules}

    def walk(node: ast.AST, name: str, path: Path, graph: Graph) -> None:
        for child in ast.iter_child_nodes(node):
            graph[name] |= imported_modules(child, name, path.name == "__init__.py", modules)
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                walk(child, name, path, deferred)
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                for statement in child.body:
                    walk(ast.Module([statement], []), name, path, deferred)
                for statement in child.orelse:
                    walk(ast.Module([statement], []), name, path, graph)
            else:
                walk(child, name, path, graph)

    for name, path in modules.items():
        walk(ast.parse(path.read_text(encoding="utf-8")), name, path, direct)
    return direct, deferred


def find_circle(graph: Graph) -> list[str]:
    """The modules of one circle, each imported by the next, with the first again at the end; or an empty list."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def layer_of(name: str) -> str | None:
    """The layer of a module, if it is in one."""
    layers = [layer for layer in IMPORTS_FROM if f"{name}.".startswith(f"{layer}.")]
    return ELSEWHERE.get(name) or max(layers, key=len, default=None)


def layers_below(layer: str) -> set[str]:
    """A layer and all layers below it."""
    return {layer}.union(*map(layers_below, IMPORTS_FROM[layer]))


def is_upward(name: str, target: str) -> bool:
    """Whether an import goes to a layer that is not below."""
    layer, other = layer_of(name), layer_of(target)
    return layer is not None and other is not None and other not in layers_below(layer)


def faults(direct: Graph, deferred: Graph) -> list[str]:
    """The faults in the imports of these modules, as lines of text."""
    lines = []
    for name, target in ON_PURPOSE:
        if name in deferred and target not in deferred[name]:
            lines.append(f"ON_PURPOSE names {name} -> {target}, which is not imported in a function. Leave it out.")
    both: Graph = {}
    for name in direct:
        both[name] = direct[name] | {target for target in deferred[name] if (name, target) not in ON_PURPOSE}
        for target in sorted(both[name]):
            if is_upward(name, target):
                lines.append(f"{name} -> {target} goes up: {layer_of(target)} is not a layer below {layer_of(name)}")
    circle = find_circle(both)
    if circle:
        lines.append(f"modules import each other: {' <- '.join(circle)}")
    return lines


def main(packages: list[str], root: Path = ROOT) -> int:
    direct, deferred = graphs(modules_of(packages, root))
    lines = faults(direct, deferred)
    for line in lines:
        print(f"tools/imports.py: {line}")
    if not lines:
        print(f"tools/imports.py: {len(direct)} modules, no circle, and no import that goes up")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(PACKAGES)))
