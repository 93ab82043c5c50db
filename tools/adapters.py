"""Which packages the adapters in `timesched/integrations` import, for tests and pages where some are not installed."""

from __future__ import annotations

import ast
import sys
from importlib.util import find_spec
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "timesched" / "integrations"
EVERYWHERE = {"timesched", "optim", "torch", *sys.stdlib_module_names}


def imported_packages(module: Path) -> set[str]:
    """The packages that a module imports and that some environments lack."""
    packages = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            packages |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            packages.add(node.module.partition(".")[0])
    return packages - EVERYWHERE


PACKAGES = {module: imported_packages(module) for module in sorted(FOLDER.glob("*.py"))}
ALL_PACKAGES = sorted(set().union(*PACKAGES.values()))
TRAINERS = [module.stem for module, packages in PACKAGES.items() if module.stem in packages]


def modules_without_packages() -> list[Path]:
    """The adapters that cannot be imported here."""
    return [module for module, packages in PACKAGES.items() if not all(map(find_spec, packages))]
