"""Runs that go on in a process of their own.

python -m tests.integration.resume MODULE FOLDER: from every checkpoint FOLDER/NAME/*.pt, by the function `run` of the
module, and by Composer's autoresume from every FOLDER/crashed/NAME. What they did is written to FOLDER/resumed.pt.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from tests.torchrun import python_output


def in_another_process(module: str, folder: Path) -> dict[str, Any]:
    """What the runs saved under `folder` did when another Python process took them up."""
    python_output("-m", "tests.integration.resume", module, folder)
    resumed: dict[str, Any] = torch.load(folder / "resumed.pt", weights_only=True)
    return resumed


def main(module: str, folder: Path) -> None:
    run = importlib.import_module(module).run
    paths = sorted(folder.glob("*/*.pt"))
    resumed = {f"{path.parent.name}/{path.stem}": run(path.parent.name, load_path=str(path)) for path in paths}
    for path in folder.glob("crashed/*"):
        resumed[f"crashed/{path.name}"] = run(path.name, autoresume=True, save_folder=str(path), save_interval="5ba")
    torch.save(resumed, folder / "resumed.pt")


if __name__ == "__main__":
    warnings.simplefilter("error")
    main(sys.argv[1], Path(sys.argv[2]))
