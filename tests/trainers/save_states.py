"""Checkpoints that this code must resume for ever.

    python -m tests.trainers.save_states NAME

writes tests/golden/states/NAME/TRAINER with the code of the checkout, for each trainer that is installed. Call it in
both environments. A checkpoint of an earlier version is never written again.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from tests.golden.states import STATES
from tests.trainers.test_conformance import ROWS, SAVED, kept_kind, train


def save(name: str, version: str) -> None:
    """Save the checkpoint of one trainer."""
    kind, kept = kept_kind(name), STATES / version / name
    if kept.exists():
        raise SystemExit(f"{kept} exists. A checkpoint of an earlier version is never written again.")
    with tempfile.TemporaryDirectory() as folder:
        train(name, Path(folder), SAVED[kind])
        shutil.copytree(folder, kept)


if __name__ == "__main__":
    for trainer in ROWS:
        save(trainer, sys.argv[1])
