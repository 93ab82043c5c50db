"""Whether `import optim` finds our package. Nothing is imported to find out."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_OPTIM = Path(__file__).parents[1] / "optim" / "__init__.py"


def check_optim() -> None:
    """Raise `ImportError` if another module hides our package `optim`, or another project has replaced its files."""
    origin = getattr(importlib.util.find_spec("optim"), "origin", None)
    if origin is not None and Path(origin).resolve() != _OPTIM.resolve():
        raise ImportError(
            f"{origin} hides the package optim of torch-timesched. Rename it, or start Python in another folder."
        )
    if origin is None or "WeightAverage" not in _OPTIM.read_text(encoding="utf-8"):
        raise ImportError(
            f"{_OPTIM} is not the file of torch-timesched: another project called optim has replaced or removed it. "
            f"Run pip uninstall optim, and then pip install --force-reinstall --no-deps torch-timesched."
        )
