"""The callback in the real Trainer: the value of every batch, in runs of all kinds."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import composer.optim
import pytest
import torch
from composer.callbacks import LRMonitor
from composer.loggers import InMemoryLogger

import optim
from optim.config import build
from optim.weight_decay_scheduler import ConstantWD, LinearWD
from tests.integration.callback_runs import (
    BATCHES,
    BETA,
    BIAS,
    BOTH,
    CASES,
    EMBEDDING,
    LR,
    MATRIX,
    WEIGHT_DECAY,
    counted,
    done,
    falling,
    linear,
    make_optimizer,
    make_trainer,
    saving,
)
from tests.integration.training import (
    BATCHES_PER_EPOCH,
    Stream,
    assert_goes_on,
    data,
    finish,
    tensors_of,
)
from tests.optim.compiling import BACKEND, fresh, graphs
from timesched import Horizon, LinearScheduler, MultiStepScheduler
from timesched.integrations.composer import Binding, Schedules

DECAY = Binding(LinearScheduler(), "weight_decay", "matrix")
HALVED = [1.0 - 0.5 * k / BATCHES for k in range(BATCHES)]  # the values of `linear`


@BOTH
def test_schedules_of_timesched(kind: Any) -> None:
    """Each batch runs with the schedule at the time at which it begins: exactly, in whatever unit it is written."""
    record = done(CASES["bindings"], kind=kind)
    run = Horizon("20ba", batches_per_epoch=BATCHES_PER_EPOCH)
    lr_head, lr_rest, _, beta = (entry.schedule for entry in CASES["bindings"])
    assert len(record.times) == BATCHES
    assert record.of("lr", MATRIX) == [LR * lr_head.at(time, run) for time in record.times]
    assert record.of("lr", EMBEDDING) == record.of("lr", BIAS) == [LR * lr_rest.at(time, run) for time in record.times]
    product = [BETA * (beta[0].at(time, run) * half) for time, half in zip(record.times, HALVED, strict=True)]
    for group in (EMBEDDING, MATRIX, BIAS):
        assert record.of("betas[0]", group) == product
        assert record.of("betas[1]", group) == [0.999] * BATCHES
    assert record.of("weight_decay", EMBEDDING) == record.of("weight_decay", BIAS) == [WEIGHT_DECAY] * BATCHES
    # And two of them by hand: a warmup of 4 batches and a cosine over the other 16, and the two steps.
    cosine = [0.1 + 0.9 * (1 + math.cos(math.pi * (k - 4) / 16)) / 2 for k in range(4, BATCHES)]
    assert record.of("lr", MATRIX) == pytest.approx([LR * x for x in [0, 1 / 4, 2 / 4, 3 / 4, *cosine]], rel=1e-14)
    assert record.of("weight_decay", MATRIX) == [0.25] * 8 + [0.125] * 8 + [0.0625] * 4


@BOTH
def test_next_to_the_schedules_of_the_trainer(kind: Any) -> None:
    """Neither disturbs the other: the learning rate is that of the run without the callback."""
    schedules = {"schedulers": composer.optim.CosineAnnealingScheduler(alpha_f=0.1)}
    alone, both = (done(entries, kind=kind, **schedules) for entries in ([], CASES["beside"]))
    restarts, _, beta = CASES["beside"]
    for group in (EMBEDDING, MATRIX, BIAS):
        assert both.of("lr", group) == alone.of("lr", group)
        assert both.of("betas[0]", group) == [BETA * beta.schedule.at(time, Horizon("20ba")) for time in both.times]
    values = [WEIGHT_DECAY * restarts.schedule.at(time, Horizon("20ba")) for time in both.times]
    assert both.of("weight_decay", EMBEDDING) == both.of("weight_decay", MATRIX) == values
    assert both.of("weight_decay", BIAS) == [0.2] * 7 + [0.1] * 13


@BOTH
def test_schedulers_in_closed_form(kind: Any) -> None:
    """By hand, to the rounding of a cosine: step k is what batch k runs with, whether counted or read off the clock."""
    record = done(CASES["closed"], kind=kind)
    decay = [0.1 + 0.2 * (1 + math.cos(math.pi * k / 20)) / 2 for k in range(BATCHES)]
    warmup = [0.1 * k / 5 for k in range(5)]
    cosine = [0.01 + 0.09 * (1 + math.cos(math.pi * k / 15)) / 2 for k in range(15)]
    betas = [1 - 1 / (k + 10) for k in range(BATCHES)]
    for group in (EMBEDDING, MATRIX, BIAS):
        assert record.of("lr", group) == pytest.approx(warmup + cosine, rel=0, abs=1e-15)
        assert record.of("betas[1]", group) == pytest.approx(betas, rel=1e-15)
    assert record.of("weight_decay", MATRIX) == pytest.approx(decay, rel=1e-14)
    assert record.of("weight_decay", BIAS) == record.of("weight_decay", EMBEDDING) == [0.2] * 7 + [0.1] * 13


def test_a_scheduler_that_was_made_before() -> None:
    model, optimizer = make_optimizer(optim.AdamW)
    scheduler = counted(optimizer)
    record = done([scheduler], model=model, optimizers=optimizer)
    assert record.of("weight_decay", MATRIX) == falling(1.0, 0, BATCHES)
    assert scheduler.last_epoch == BATCHES


def test_schedulers_from_a_config() -> None:
    """Times in it follow the Trainer's clock, which is there when the function of the entry is called."""
    model, optimizer = make_optimizer(optim.AdamW)
    schedulers = [
        {"LinearWD": {"initial_val": 0.2, "end_val": 0.0, "total_iters": "1dur", "param_group_tags": "matrix"}},
        {"LinearScheduler": {"alpha_f": 0.5, "key": "betas[0]"}},
    ]
    config = {"optimizer": optimizer, "schedulers": schedulers}
    entry = lambda optimizer, clock: build(model, config, clock).schedulers  # noqa: E731
    record = done([entry], model=model, optimizers=optimizer)
    assert record.of("weight_decay", MATRIX) == falling(0.2, 0, BATCHES)
    assert record.of("betas[0]", BIAS) == [BETA * half for half in HALVED]


def test_the_ratio(tmp_path: Path) -> None:
    """A run that is half as long: times in batches shrink with it, also those of a closed form that has the clock."""
    entries = [
        Binding(MultiStepScheduler(["8ba"], 0.5), "weight_decay", "matrix"),
        Binding(linear, "betas[0]"),
        partial(LinearWD, initial_val=0.2, end_val=0.0, total_iters="20ba", param_group_tags=["embedding", None]),
    ]

    def trainer(**options: Any) -> Any:
        schedule = composer.optim.MultiStepScheduler(["8ba"], 0.5)
        mine = Schedules(*entries, ssr=0.5)
        return make_trainer([mine], schedulers=schedule, scale_schedule_ratio=0.5, **options)

    trained, record = trainer(**saving(tmp_path))
    before = finish(trained, record)
    assert len(record.rows) == 10
    assert record.of("weight_decay", MATRIX) == [0.25] * 4 + [0.125] * 6
    assert record.of("lr", MATRIX) == [0.1] * 5 + [0.05] * 5  # Composer's own, one batch behind
    assert record.of("betas[0]", BIAS) == [BETA * (1.0 - 0.5 * k / 10) for k in range(10)]
    assert record.of("weight_decay", BIAS) == falling(0.2, 0, 10, 10)
    assert_goes_on(before, finish(*trainer(load_path=str(tmp_path / "8.pt"))), 8)


def test_one_step_for_every_batch() -> None:
    """Whatever the microbatches, and how often the Trainer steps the schedulers of its own."""
    model, optimizer = make_optimizer()
    torchs = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    options = {"model": model, "optimizers": optimizer, "schedulers": torchs, "device_train_microbatch_size": 2}
    record = done(
        [DECAY, partial(LinearWD, initial_val=1.0, end_val=0.0, total_iters=20, param_group_tags="embedding")],
        **options,
    )
    assert record.of("lr", MATRIX) == [0.1] * 8 + [0.05] * 8 + [0.025] * 4
    assert record.of("weight_decay", MATRIX) == [WEIGHT_DECAY * (1 - k / 20) for k in range(BATCHES)]
    assert record.of("weight_decay", EMBEDDING) == falling(1.0, 0, BATCHES)


def test_several_fits(tmp_path: Path) -> None:
    """Each has the length that it is given; one that sets the time back sets back what follows the clock."""
    entries = [DECAY, lambda optimizer: LinearWD(optimizer, 1.0, 0.0, 40, param_group_tags="embedding")]
    trainer, record = make_trainer([Schedules(*entries)], max_duration=None)
    assert trainer.state.optimizers[0].param_groups[MATRIX]["weight_decay"] == WEIGHT_DECAY
    trainer.fit(duration="10ba")
    trainer.fit(duration="10ba")
    trainer.save_checkpoint(str(tmp_path / "20.pt"))
    finish(trainer, record, duration="10ba", reset_time=True)
    full = tensors_of(trainer)
    first, second = [1 - k / 10 for k in range(10)], [1 - k / 20 for k in range(10, 20)]
    assert record.of("weight_decay", MATRIX) == [WEIGHT_DECAY * x for x in first + second + first]
    assert record.of("weight_decay", EMBEDDING) == falling(1.0, 0, 30, 40)
    # The same from a checkpoint, by way of a Trainer that knows another length when it loads and saves without a fit.
    again, _ = make_trainer([Schedules(*entries)], max_duration="40ba", load_path=str(tmp_path / "20.pt"))
    again.save_checkpoint(str(tmp_path / "same.pt"))
    again, more = make_trainer([Schedules(*entries)], max_duration="40ba", load_path=str(tmp_path / "same.pt"))
    finish(again, more, duration="10ba", reset_time=True)
    assert more.rows == record.rows[20:]
    assert full.keys() == tensors_of(again).keys()


def test_epochs_whose_length_is_not_known() -> None:
    """The count of epochs moves after the end of a batch, and the next batch has the value of it."""
    schedule = MultiStepScheduler(["1ep", "2ep"], gamma=0.5)
    record = done([Binding(schedule, "weight_decay")], train_dataloader=data(Stream()))
    assert record.of("weight_decay", MATRIX) == [0.25] * 8 + [0.125] * 8 + [0.0625] * 4


def test_what_is_logged() -> None:
    log, quiet = InMemoryLogger(), InMemoryLogger()
    entries = [
        Binding(LinearScheduler(), "lr", "head"),
        Binding(LinearScheduler(), "betas[0]"),
        partial(ConstantWD, val=0.125, param_group_tags=[None]),
    ]
    trainer, record = make_trainer([LRMonitor(), Schedules(*entries, log=True)], loggers=log)
    finish(trainer, record)
    seen = {name: [value for _, value in rows] for name, rows in log.data.items() if "-AdamW/" in name}
    mine = {"betas[0]-AdamW/group0", "betas[0]-AdamW/group1", "betas[0]-AdamW/group2", "weight_decay-AdamW/group2"}
    assert seen.keys() - {f"lr-AdamW/group{i}" for i in range(3)} == mine
    # After batch k, the value of batch k + 1, at its time.
    assert seen["betas[0]-AdamW/group1"][:-1] == record.of("betas[0]", MATRIX)[1:]
    assert seen["weight_decay-AdamW/group2"] == [0.125] * BATCHES
    assert [int(time.batch) for time, _ in log.data["betas[0]-AdamW/group1"]] == list(range(1, BATCHES + 1))
    done(entries, loggers=quiet, max_duration="2ba")
    assert not any("AdamW" in name for name in quiet.data)


def test_an_optimizer_that_is_compiled() -> None:
    """One graph for the whole run, whatever changes from batch to batch; and the values of the run without it."""
    rows = {}
    for compiled in (False, True):
        model, optimizer = make_optimizer(optim.AdamW)
        if compiled:
            optimizer.compile(backend=BACKEND)
        with fresh():
            rows[compiled] = done(CASES["closed"], model=model, optimizers=optimizer).rows
            assert graphs() == int(compiled)
    assert rows[True] == rows[False]


def test_a_trainer_that_only_evaluates() -> None:
    options = {"train_dataloader": None, "max_duration": None, "eval_dataloader": data()}
    trainer, _ = make_trainer([Schedules(*CASES["bindings"])], **options)
    trainer.eval()
    trainer.close()


def test_one_callback_for_one_trainer_after_another() -> None:
    callback = Schedules(*CASES["bindings"])
    rows = [finish(*make_trainer([callback]))["rows"] for _ in range(2)]
    assert rows[0] == rows[1]
