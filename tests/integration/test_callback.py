"""The callback in the real Trainer: the value of every batch, and runs that go on from checkpoints."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import composer.optim
import pytest
import torch

import optim
from optim.config import build
from optim.weight_decay_scheduler import CosineDecayWD, LinearWD
from tests.integration.callback_run import (
    BATCHES,
    BETA,
    BETA_1,
    BETA_2,
    BIAS,
    CASES,
    DECAY,
    EMBEDDING,
    LR,
    MATRIX,
    RATE,
    WEIGHT_DECAY,
    At,
    assert_goes_on,
    column,
    finish,
    make_optimizer,
    make_trainer,
    run,
    saving,
)
from tests.integration.training import BATCHES_PER_EPOCH
from timesched import Horizon, LinearScheduler, MultiStepScheduler
from timesched.integrations.composer import Binding, Schedules

ROOT = Path(__file__).parents[2]


def resume_in_fresh_process(folder: Path, *arguments: str) -> dict[str, Any]:
    """What the runs saved under `folder` did when another Python process took them up."""
    command = [sys.executable, "-m", "tests.integration.callback_run", str(folder), *arguments]
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    resumed: dict[str, Any] = torch.load(folder / "resumed.pt", weights_only=True)
    return resumed


# The value of every batch


@pytest.mark.parametrize("name", ["bindings", "bindings-optim"])
def test_schedules_of_timesched(name: str) -> None:
    """Each batch runs with the schedule at the time at which it begins: exactly, in whatever unit it is written."""
    case = CASES[name]
    trainer, record = make_trainer([Schedules(*case.entries())], case.optimizer)
    finish(trainer, record)
    run = Horizon("20ba", batches_per_epoch=BATCHES_PER_EPOCH)
    lr_head, lr_rest, decay, beta = case.entries()
    assert len(record.times) == BATCHES

    def at(schedule: Any, base: float) -> list[float]:
        return [base * schedule.at(time, run) for time in record.times]

    assert record.of(RATE, MATRIX) == at(lr_head.schedule, LR)
    assert record.of(RATE, EMBEDDING) == record.of(RATE, BIAS) == at(lr_rest.schedule, LR)
    assert record.of(DECAY, MATRIX) == at(decay.schedule, WEIGHT_DECAY)
    assert record.of(DECAY, EMBEDDING) == record.of(DECAY, BIAS) == [WEIGHT_DECAY] * BATCHES
    product = [
        BETA * math.prod((beta.schedule[0].at(time, run), 1.0 - 0.5 * k / BATCHES))
        for k, time in enumerate(record.times)
    ]
    for group in (EMBEDDING, MATRIX, BIAS):
        assert record.of(BETA_1, group) == product
        assert record.of(BETA_2, group) == [0.999] * BATCHES
    # And two of them by hand: a warmup of 4 batches and a cosine over the other 16, and the two steps.
    ramp = [k / 4 for k in range(4)]
    cosine = [0.1 + 0.9 * (1 + math.cos(math.pi * (k - 4) / 16)) / 2 for k in range(4, BATCHES)]
    assert record.of(RATE, MATRIX) == pytest.approx([LR * x for x in ramp + cosine], rel=1e-14)
    assert record.of(DECAY, MATRIX) == [0.25] * 8 + [0.125] * 8 + [0.0625] * 4


@pytest.mark.parametrize("name", ["beside", "beside-optim"])
def test_next_to_the_schedules_of_the_trainer(name: str) -> None:
    """Neither disturbs the other: the learning rate is that of the run without the callback."""
    case = CASES[name]
    both = {}
    for entries in ([], case.entries()):
        schedule = composer.optim.CosineAnnealingScheduler(alpha_f=0.1)
        trainer, record = make_trainer([Schedules(*entries)], case.optimizer, schedulers=schedule)
        finish(trainer, record)
        both[bool(entries)] = record
    for group in (EMBEDDING, MATRIX, BIAS):
        assert both[True].of(RATE, group) == both[False].of(RATE, group)
    restarts, beta = case.entries()
    values = [restarts.schedule.at(time, Horizon("20ba")) for time in both[True].times]
    assert both[True].of(DECAY, EMBEDDING) == both[True].of(DECAY, MATRIX) == [WEIGHT_DECAY * x for x in values]
    assert both[True].of(DECAY, BIAS) == [WEIGHT_DECAY] * BATCHES
    assert both[True].of(BETA_1, BIAS) == [BETA * beta.schedule.at(f"{k}ba", Horizon("20ba")) for k in range(BATCHES)]


@pytest.mark.parametrize("name", ["closed", "closed-optim"])
def test_schedulers_in_closed_form(name: str) -> None:
    """By hand, to the rounding of a cosine: step k is what batch k runs with, whether counted or read off the clock."""
    done = run(name)
    decay = [0.1 + 0.2 * (1 + math.cos(math.pi * k / 20)) / 2 for k in range(BATCHES)]
    warmup = [0.1 * k / 5 for k in range(5)]
    cosine = [0.01 + 0.09 * (1 + math.cos(math.pi * k / 15)) / 2 for k in range(15)]
    for group in (EMBEDDING, MATRIX, BIAS):
        assert column(done, group, RATE) == pytest.approx(warmup + cosine, rel=0, abs=1e-15)
        assert column(done, group, BETA_2) == pytest.approx([1 - 1 / (k + 10) for k in range(BATCHES)], rel=1e-15)
    assert column(done, MATRIX, DECAY) == pytest.approx(decay, rel=1e-14)
    assert column(done, BIAS, DECAY) == column(done, EMBEDDING, DECAY) == [0.2] * 7 + [0.1] * 13


def test_a_scheduler_that_was_made_before() -> None:
    model, optimizer = make_optimizer(optim.AdamW)
    scheduler = LinearWD(optimizer, 0.2, 0.0, 20, param_group_tags="head")
    trainer, record = make_trainer([Schedules(scheduler)], model=model, optimizers=optimizer)
    finish(trainer, record)
    assert record.of(DECAY, MATRIX) == pytest.approx([0.2 * (1 - k / 20) for k in range(BATCHES)], rel=0, abs=1e-16)
    assert scheduler.last_epoch == BATCHES


def test_schedulers_from_a_config() -> None:
    """Times in it follow the Trainer's clock, which is there when the function of the entry is called."""
    model, optimizer = make_optimizer(optim.AdamW)
    schedulers = [
        {"LinearWD": {"initial_val": 0.2, "end_val": 0.0, "total_iters": "1dur", "param_group_tags": "matrix"}},
        {"LinearScheduler": {"alpha_f": 0.5, "key": "betas[0]"}},
    ]
    config = {"optimizer": optimizer, "schedulers": schedulers}
    callback = Schedules(lambda optimizer, clock: build(model, config, clock).schedulers)
    trainer, record = make_trainer([callback], model=model, optimizers=optimizer)
    assert len(callback.schedulers) == 2
    finish(trainer, record)
    assert record.of(DECAY, MATRIX) == pytest.approx([0.2 * (1 - k / 20) for k in range(BATCHES)], rel=0, abs=1e-16)
    assert record.of(BETA_1, BIAS) == [BETA * (1.0 - 0.5 * (k / 20)) for k in range(BATCHES)]


# Resumed runs


def test_every_case_resumed_from_every_checkpoint(tmp_path: Path) -> None:
    full = {name: run(name, **saving(tmp_path / name)) for name in CASES}
    resumed = resume_in_fresh_process(tmp_path)
    assert len(resumed) == 3 * len(CASES)
    for name, after in resumed.items():
        case, batch = name.split("/")
        assert_goes_on(full[case], after, int(batch), name)


class Crash(Exception):
    """What the interrupted run dies of."""


def die(state: Any) -> None:
    raise Crash


def test_a_crashed_run_goes_on_by_itself(tmp_path: Path) -> None:
    before = run("closed-optim")
    with pytest.raises(Crash):
        run("closed-optim", At(12, die), save_folder=str(tmp_path / "closed-optim"), save_interval="5ba")
    after = resume_in_fresh_process(tmp_path, "closed-optim")["closed-optim"]
    assert_goes_on(before, after, 10)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("length", ["20ba", "1500tok"])
def test_a_stopped_run_goes_on(first: bool, length: str, tmp_path: Path) -> None:
    """stop_training() makes an end of the present moment, for the Trainer and not for the schedules."""

    def trainer(*more: Any, **options: Any) -> Any:
        schedule = MultiStepScheduler(["200tok", "0.5dur", "0.9dur"], gamma=0.5)
        mine = [Schedules(Binding(schedule, "weight_decay")), *more]
        return make_trainer(mine[::-1] if first else mine, max_duration=length, **options)

    before = finish(*trainer())
    assert len(set(column(before, MATRIX, DECAY))) == 4
    stop = At(10, lambda state: state.stop_training())
    stopped, record = trainer(stop, save_folder=str(tmp_path), save_filename="{batch}.pt", save_interval="10ba")
    assert finish(stopped, record)["rows"] == before["rows"][:10]
    group = stopped.state.optimizers[0].param_groups[0]
    assert group["weight_decay"] == column(before, EMBEDDING, DECAY)[10]
    assert_goes_on(before, finish(*trainer(load_path=str(tmp_path / "10.pt"))), 10)


def test_checkpoints_hold_plain_values(tmp_path: Path) -> None:
    run("mixed-optim", **saving(tmp_path))
    saved = torch.load(tmp_path / "8.pt", weights_only=False)["state"]["callbacks"]["Schedules"]
    torch.save(saved, tmp_path / "callback.pt")
    assert torch.load(tmp_path / "callback.pt", weights_only=True) == saved
    assert (tmp_path / "callback.pt").stat().st_size < 4096


def test_a_checkpoint_without_the_callback(tmp_path: Path) -> None:
    """Composer warns; times go on from where the run is, and steps are counted from the first."""
    finish(*make_trainer([], **saving(tmp_path)))
    entries = [
        Binding(LinearScheduler(), "weight_decay", "matrix"),
        partial(CosineDecayWD, initial_val=0.2, end_val=0.0, total_iters="1dur", param_group_tags="embedding"),
        lambda optimizer: LinearWD(optimizer, 0.2, 0.0, 20, param_group_tags=[None]),
    ]
    with pytest.warns(UserWarning, match="Schedules is not in the state_dict"):
        trainer, record = make_trainer([Schedules(*entries)], load_path=str(tmp_path / "13.pt"))
    finish(trainer, record)
    rest = range(13, BATCHES)
    assert record.of(DECAY, MATRIX) == [WEIGHT_DECAY * (1 - k / BATCHES) for k in rest]
    cosine = [0.2 * (1 + math.cos(math.pi * k / BATCHES)) / 2 for k in rest]
    assert record.of(DECAY, EMBEDDING) == pytest.approx(cosine, rel=1e-14)
    assert record.of(DECAY, BIAS) == pytest.approx([0.2 * (1 - k / 20) for k in range(7)], rel=1e-14)
