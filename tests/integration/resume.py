"""Runs that go on in a process of their own.

python -m tests.integration.resume MODULE FOLDER: from every checkpoint FOLDER/NAME/*.pt, by the function `run` of the
module; what they did is written to FOLDER/resumed.pt. MODULE FOLDER NAME: that run goes on by Composer's autoresume.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from tests.torchrun import python_output


def in_another_process(module: str, folder: Path, *name: str) -> dict[str, Any]:
    """What the runs saved under `folder` did when another Python process took them up."""
    python_output("-m", "tests.integration.resume", module, folder, *name)
    resumed: dict[str, Any] = torch.load(folder / "resumed.pt", weights_only=True)
    return resumed


def main(module: str, folder: Path, only: str | None = None) -> None:
    run = importlib.import_module(module).run
    if only is None:
        paths = sorted(folder.glob("*/*.pt"))
        resumed = {f"{path.parent.name}/{path.stem}": run(path.parent.name, load_path=str(path)) for path in paths}
    else:
        resumed = {only: run(only, autoresume=True, save_folder=str(folder / only), save_interval="5ba")}
    torch.save(resumed, folder / "resumed.pt")


if __name__ == "__main__":
    warnings.simplefilter("error")
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
