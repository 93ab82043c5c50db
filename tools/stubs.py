#!/usr/bin/env python3
"""Write what type checkers and editors read of the schedulers: ``python tools/stubs.py [--check]``.

The classes of optim/lr_scheduler.py and its two sisters are made from one table when they are imported, which no type
checker follows. Their signatures stand in stub files beside the modules; a test runs `--check`, which only compares.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import optim
from optim.schedules.closed_form import Scheduler
from optim.schedules.made import Made

HEAD = """# Written by tools/stubs.py from the table of formulas: change that, and run it again.
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from timesched.time.value import Time

from .schedules.assembled import Chained, ScalePerParam, Sequential
from .schedules.closed_form import Scheduler as Scheduler
from .schedules.made import Cyclic, Lambda, Made, Multiplicative

Count = float | str | Time[Any]  # a count as it is given
Kept = int | Time[Any]  # and as an attribute
"""


def written_by_hand(module: ModuleType) -> str:
    """The classes that stand in a module's own text, without bodies."""
    text = ""
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ClassDef):
            lines = [f"class {node.name}({', '.join(map(ast.unparse, node.bases))}):"]
            for each in node.body:
                if isinstance(each, ast.FunctionDef):
                    arguments = ast.unparse(each.args)
                    lines.append(
                        f"    def {each.name}({arguments}) -> {ast.unparse(each.returns or ast.Constant(None))}: ..."
                    )
            text += "\n" + "\n".join(lines) + "\n"
    return text


def made(cls: type[Scheduler]) -> str:
    """A class that a formula or a composite was made into."""
    lines = [f"class {cls.__name__}({', '.join(base.__name__ for base in cls.__bases__)}):"]
    if "formula" not in vars(cls):
        return lines[0] + " ...\n"
    assert issubclass(cls, Made)
    types = {cls.names.get(field.name, field.name): str(field.type) for field in dataclasses.fields(cls.formula)}
    arguments = ["self", "optimizer: Optimizer"]
    for p in list(inspect.signature(cls).parameters.values())[1:]:
        if p.name in types:
            kept = re.sub(r"Sequence.(.*).", r"tuple[\1, ...]", types[p.name])
            lines.append(f"    {p.name}: {kept.replace('Count', 'Kept')}")
        default = "" if p.default is p.empty else f" = {p.default!r}"
        arguments.append(f"{p.name}: {types.get(p.name, 'Any')}{default}")
    listed = "".join(f"        {argument},\n" for argument in arguments)
    return "\n".join([*lines, f"    def __init__(\n{listed}    ) -> None: ...\n"])


def stub(module: ModuleType) -> str:
    """The text of a module's stub."""
    own = [c for c in vars(module).values() if inspect.isclass(c) and issubclass(c, Scheduler)]
    classes = [c for c in dict.fromkeys(own) if c.__module__ == module.__name__ and len(c.__bases__) == 2]
    others = sorted({c.__bases__[0].__name__ for c in classes if c.__bases__[0].__module__ == optim.scheduler.__name__})
    imports = "from .scheduler import (\n" + "".join(f"    {name},\n" for name in others) + ")\n" if others else ""
    text = (
        HEAD.replace("\nCount =", imports + "\nCount =")
        + written_by_hand(module)
        + "\n"
        + "\n".join(map(made, classes))
    )
    if hasattr(module, "ChainedScheduler") and module.ChainedScheduler.__name__ != "ChainedScheduler":
        text += "\nChainedScheduler = ChainedLR\n"
    return text


def main() -> None:
    """Write the stubs, or say which are out of date."""
    stale = []
    for module in (optim.scheduler, optim.lr_scheduler, optim.weight_decay_scheduler):
        path = Path(inspect.getfile(module)).with_suffix(".pyi")
        text = stub(module)
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path.name)
    if stale:
        sys.exit(f"out of date: {', '.join(stale)}; run python tools/stubs.py")


if __name__ == "__main__":
    main()
