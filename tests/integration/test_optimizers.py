"""The real Trainer with the optimizers of `optim`, under schedules of `timesched`: saved, resumed, compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integration.optimizer_run import (
    BATCHES,
    CHECKPOINT,
    MIDDLE,
    RATES,
    finish,
    make_optimizer,
    make_trainer,
    saving,
)
from tests.optim.compiling import BACKEND, fresh, graphs
from tests.optim.problems import assert_close
from tests.optim.signatures import NAMES

ROOT = Path(__file__).parents[2]


def resume_in_fresh_process(folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.integration.optimizer_run", str(folder)]
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    resumed: dict[str, Any] = torch.load(folder / "resumed.pt", weights_only=True)
    return resumed


def assert_goes_on(before: dict[str, Any], after: dict[str, Any], what: str) -> None:
    """Bit for bit: what each batch ran with and gave, and where parameters and state ended."""
    for key in ("lr", "weight_decay", "losses"):
        assert after[key] == before[key][MIDDLE:], (what, key)
    assert after["tensors"].keys() == before["tensors"].keys(), what
    for key, tensor in before["tensors"].items():
        assert torch.equal(after["tensors"][key], tensor), (what, key)


def test_every_optimizer_trains_is_saved_and_resumed(tmp_path: Path) -> None:
    assert list(RATES) == NAMES
    full = {name: finish(make_trainer(*make_optimizer(name), **saving(tmp_path / name))) for name in NAMES}
    for name, done in full.items():
        losses = done["losses"]
        assert len(losses) == BATCHES and sum(losses[-8:]) < 0.9 * sum(losses[:8]), (name, losses)
        assert len(set(done["lr"])) > 15 and (len(set(done["weight_decay"])) > 10 or name == "Rprop")
        assert {key.split(".")[0] for key in done["tensors"]} == {"model", "optimizer"}
    resumed = resume_in_fresh_process(tmp_path)
    assert resumed.keys() == full.keys()
    for name in NAMES:
        assert_goes_on(full[name], resumed[name], name)


@pytest.mark.parametrize("name", ["AdamW", "SGD"])
@pytest.mark.parametrize("order", ["before", "after"])
def test_compiled_before_and_after_the_trainer_is_built(name: str, order: str, tmp_path: Path) -> None:
    """One graph for the whole run, with its two schedules; the run that goes on from the middle is the same run."""

    def compiled(**options: Any) -> dict[str, Any]:
        model, optimizer = make_optimizer(name, torch.float64)
        if order == "before":
            optimizer.compile(backend=BACKEND)
        trainer = make_trainer(model, optimizer, **options)
        if order == "after":
            optimizer.compile(backend=BACKEND)
        with fresh():
            done = finish(trainer)
            assert graphs() == 1
        return done

    eager = finish(make_trainer(*make_optimizer(name, torch.float64), **saving(tmp_path / "eager")))
    done = compiled(**saving(tmp_path / "compiled"))
    for key in ("lr", "weight_decay"):
        assert done[key] == pytest.approx(eager[key], rel=1e-14)
    for key, tensor in eager["tensors"].items():
        assert_close(done["tensors"][key], tensor, 1e-12, key)
    assert_goes_on(done, compiled(load_path=str(tmp_path / "compiled" / CHECKPOINT)), name)
    # A checkpoint does not say whether its run was compiled.
    changed = compiled(load_path=str(tmp_path / "eager" / CHECKPOINT))
    for key, tensor in eager["tensors"].items():
        assert_close(changed["tensors"][key], tensor, 1e-12, key)
