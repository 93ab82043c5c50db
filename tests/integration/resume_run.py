"""Resumes runs in a process of its own: python -m tests.integration.resume_run FOLDER UNIT [CASE].

FOLDER has a folder for each run with the checkpoint to go on from; with CASE, that run alone is resumed, from
the latest checkpoint that Composer finds there itself. What the runs did goes to FOLDER/resumed.pt.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch

from tests.integration.runs import CHECKPOINT, cases, run


def main(folder: Path, unit: str, only: str | None = None) -> None:
    resumed = {}
    for case in cases(unit):
        here = folder / case.name
        if only is None:
            done = run(case, load_path=str(here / CHECKPOINT))
        elif case.name == only:
            done = run(case, autoresume=True, save_folder=str(here), save_interval="5ba")
        else:
            continue
        record = done.record
        resumed[case.name] = {"lr": record.lr, "weight_decay": record.weight_decay, "tensors": done.tensors}
    torch.save(resumed, folder / "resumed.pt")


if __name__ == "__main__":
    warnings.simplefilter("error")
    main(Path(sys.argv[1]), *sys.argv[2:])
