"""The real Trainer, with every schedule: what each batch runs with, and that a resumed run is the same run."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from math import isclose, prod
from pathlib import Path
from typing import Any

import pytest
import torch
from composer import Callback

from tests.integration.runs import (
    CHECKPOINT,
    LENGTHS,
    MIDDLE,
    Case,
    Run,
    cases,
    run,
    saving,
    weight_decay_schedule,
)
from tests.integration.training import BASE_LR, BASE_WEIGHT_DECAY

ROOT = Path(__file__).parents[2]


def resume_in_fresh_process(folder: Path, *arguments: str) -> dict[str, Any]:
    """What the runs saved under `folder` did when another Python process took them up."""
    command = [sys.executable, "-m", "tests.integration.resume_run", str(folder), *arguments]
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    resumed: dict[str, Any] = torch.load(folder / "resumed.pt", weights_only=True)
    return resumed


def values(schedule: Any, case: Case, done: Run, with_ratio: bool = True) -> list[float]:
    """A schedule on the Trainer's own State, at the time that the Trainer had when it set each batch's value.

    Composer steps its schedulers before it counts the batch, so batch k runs with the value of the time at which
    batch k - 1 began; the first two batches run with the value at 0.
    """
    state, times = done.trainer.state, done.record.times
    now, found = state.timestamp, []
    for time in [times[0], *times[:-1]]:
        state.timestamp = time
        found.append(schedule(state, case.ratio) if with_ratio else schedule(state))
    state.timestamp = now
    return found


def check_values(case: Case, done: Run) -> None:
    """The learning rates are those of our schedule exactly, and of Composer's class where we do not differ."""
    record = done.record
    assert record.lr == [BASE_LR * x for x in values(case.ours(), case, done)]
    factors = [values(each, case, done) for each in case.theirs()]
    theirs = [BASE_LR * prod(x) for x in zip(*factors, strict=True)]
    same = all(isclose(a, b, rel_tol=0, abs_tol=1e-12) for a, b in zip(record.lr, theirs, strict=True))
    assert same is not case.scaled_boundary
    if case.bound:
        schedule = weight_decay_schedule(case.ratio)
        decays = [BASE_WEIGHT_DECAY * x for x in values(schedule, case, done, with_ratio=False)]
        assert record.weight_decay == decays
        assert len(set(decays)) > 3
    else:
        assert set(record.weight_decay) == {BASE_WEIGHT_DECAY}


def check_length(case: Case, done: Run) -> None:
    """The run ended at the first batch at or after its scaled length."""
    length = int(LENGTHS[case.unit] * case.ratio)
    starts = [time.get(case.unit).value for time in done.record.times]
    assert starts[-1] < length <= done.trainer.state.timestamp.get(case.unit).value
    assert len(done.record.lr) > MIDDLE[case.ratio][0]


def check_uneven(done: Run) -> None:
    tokens = [time.token.value for time in done.record.times]
    assert len({b - a for a, b in pairwise(tokens)}) >= 3


@pytest.mark.parametrize("unit", LENGTHS)
def test_every_schedule_and_ratio_saved_and_resumed(unit: str, tmp_path: Path) -> None:
    full = {}
    for case in cases(unit):
        done = run(case, **saving(case, tmp_path / case.name))
        check_values(case, done)
        check_length(case, done)
        check_uneven(done)
        full[case.name] = done
    resumed = resume_in_fresh_process(tmp_path, unit)
    assert resumed.keys() == full.keys()
    for case in cases(unit):
        before, after, middle = full[case.name], resumed[case.name], MIDDLE[case.ratio][0]
        assert after["lr"] == before.record.lr[middle:], case.name
        assert after["weight_decay"] == before.record.weight_decay[middle:], case.name
        assert after["tensors"].keys() == before.tensors.keys()
        for key, tensor in before.tensors.items():
            assert torch.equal(after["tensors"][key], tensor), (case.name, key)


class Crash(Exception):
    """What the interrupted run dies of."""


class CrashAt(Callback):
    def __init__(self, batch: int) -> None:
        self.batch = batch

    def batch_end(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch == self.batch:
            raise Crash


def test_a_crashed_run_goes_on_by_itself(tmp_path: Path) -> None:
    """Saved every five batches, dead at the twelfth, and taken up by Composer's autoresume in another process."""
    case = next(case for case in cases("tok") if case.bound and case.ratio == 1.0)
    before = run(case)
    with pytest.raises(Crash):
        run(case, CrashAt(12), save_folder=str(tmp_path / case.name), save_interval="5ba")
    after = resume_in_fresh_process(tmp_path, "tok", case.name)[case.name]
    assert after["lr"] == before.record.lr[10:]
    assert after["weight_decay"] == before.record.weight_decay[10:]
    assert all(torch.equal(after["tensors"][key], before.tensors[key]) for key in before.tensors)


class StopAt(Callback):
    def __init__(self, batch: int) -> None:
        self.batch = batch

    def batch_end(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch == self.batch:
            state.stop_training()


@pytest.mark.parametrize("unit", LENGTHS)
def test_a_stopped_run_goes_on(unit: str, tmp_path: Path) -> None:
    """stop_training() makes max_duration the time that has come; the run that goes on has its own again."""
    name = "CosineAnnealingWithWarmupScheduler"
    case = next(case for case in cases(unit, (0.5,)) if case.classes == (name,))
    middle = MIDDLE[case.ratio][0]
    before = run(case)
    stopped = run(case, StopAt(middle), **saving(case, tmp_path))
    assert stopped.record.lr == before.record.lr[:middle]
    after = run(case, load_path=str(tmp_path / CHECKPOINT))
    assert after.record.lr == before.record.lr[middle:]
    assert all(torch.equal(after.tensors[key], before.tensors[key]) for key in before.tensors)
