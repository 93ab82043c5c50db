"""The callback in the real Trainer: the value of every batch, in runs of all kinds."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import composer.optim
import pytest
import torch
from composer import DataSpec
from composer.callbacks import LRMonitor
from composer.loggers import InMemoryLogger
from torch.utils.data import DataLoader

import optim
from optim.config import build
from optim.weight_decay_scheduler import ConstantWD, LinearWD
from tests.integration.callback_runs import (
    BATCHES,
    BETA,
    BIAS,
    CASES,
    EMBEDDING,
    LR,
    MATRIX,
    WEIGHT_DECAY,
    bindings,
    closed,
    falling,
    linear,
    make_optimizer,
    make_trainer,
    run,
    saving,
)
from tests.integration.training import (
    BATCHES_PER_EPOCH,
    assert_goes_on,
    collate,
    column,
    count_tokens,
    data,
    finish,
    streamed,
    tensors_of,
    windows,
)
from tests.optim.compiling import BACKEND, fresh, graphs
from timesched import Horizon, LinearScheduler, MultiStepScheduler
from timesched.integrations.composer import Binding, Schedules


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

    assert record.of("lr", MATRIX) == at(lr_head.schedule, LR)
    assert record.of("lr", EMBEDDING) == record.of("lr", BIAS) == at(lr_rest.schedule, LR)
    assert record.of("weight_decay", MATRIX) == at(decay.schedule, WEIGHT_DECAY)
    assert record.of("weight_decay", EMBEDDING) == record.of("weight_decay", BIAS) == [WEIGHT_DECAY] * BATCHES
    product = [
        BETA * math.prod((beta.schedule[0].at(time, run), 1.0 - 0.5 * k / BATCHES))
        for k, time in enumerate(record.times)
    ]
    for group in (EMBEDDING, MATRIX, BIAS):
        assert record.of("betas[0]", group) == product
        assert record.of("betas[1]", group) == [0.999] * BATCHES
    # And two of them by hand: a warmup of 4 batches and a cosine over the other 16, and the two steps.
    ramp = [k / 4 for k in range(4)]
    cosine = [0.1 + 0.9 * (1 + math.cos(math.pi * (k - 4) / 16)) / 2 for k in range(4, BATCHES)]
    assert record.of("lr", MATRIX) == pytest.approx([LR * x for x in ramp + cosine], rel=1e-14)
    assert record.of("weight_decay", MATRIX) == [0.25] * 8 + [0.125] * 8 + [0.0625] * 4


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
        assert both[True].of("lr", group) == both[False].of("lr", group)
    restarts, beta = case.entries()
    values = [restarts.schedule.at(time, Horizon("20ba")) for time in both[True].times]
    assert (
        both[True].of("weight_decay", EMBEDDING)
        == both[True].of("weight_decay", MATRIX)
        == [WEIGHT_DECAY * x for x in values]
    )
    assert both[True].of("weight_decay", BIAS) == [WEIGHT_DECAY] * BATCHES
    assert both[True].of("betas[0]", BIAS) == [
        BETA * beta.schedule.at(f"{k}ba", Horizon("20ba")) for k in range(BATCHES)
    ]


@pytest.mark.parametrize("name", ["closed", "closed-optim"])
def test_schedulers_in_closed_form(name: str) -> None:
    """By hand, to the rounding of a cosine: step k is what batch k runs with, whether counted or read off the clock."""
    done = run(name)
    decay = [0.1 + 0.2 * (1 + math.cos(math.pi * k / 20)) / 2 for k in range(BATCHES)]
    warmup = [0.1 * k / 5 for k in range(5)]
    cosine = [0.01 + 0.09 * (1 + math.cos(math.pi * k / 15)) / 2 for k in range(15)]
    for group in (EMBEDDING, MATRIX, BIAS):
        assert column(done["rows"], "lr", group) == pytest.approx(warmup + cosine, rel=0, abs=1e-15)
        assert column(done["rows"], "betas[1]", group) == pytest.approx(
            [1 - 1 / (k + 10) for k in range(BATCHES)], rel=1e-15
        )
    assert column(done["rows"], "weight_decay", MATRIX) == pytest.approx(decay, rel=1e-14)
    assert (
        column(done["rows"], "weight_decay", BIAS)
        == column(done["rows"], "weight_decay", EMBEDDING)
        == [0.2] * 7 + [0.1] * 13
    )


def test_a_scheduler_that_was_made_before() -> None:
    model, optimizer = make_optimizer(optim.AdamW)
    scheduler = LinearWD(optimizer, 0.2, 0.0, 20, param_group_tags="head")
    trainer, record = make_trainer([Schedules(scheduler)], model=model, optimizers=optimizer)
    finish(trainer, record)
    assert record.of("weight_decay", MATRIX) == pytest.approx(
        [0.2 * (1 - k / 20) for k in range(BATCHES)], rel=0, abs=1e-16
    )
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
    assert record.of("weight_decay", MATRIX) == pytest.approx(
        [0.2 * (1 - k / 20) for k in range(BATCHES)], rel=0, abs=1e-16
    )
    assert record.of("betas[0]", BIAS) == [BETA * (1.0 - 0.5 * (k / 20)) for k in range(BATCHES)]


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
    spec = DataSpec(
        DataLoader(windows(), 4, collate_fn=collate), get_num_tokens_in_batch=count_tokens, split_batch=halves
    )
    model, optimizer = make_optimizer()
    torchs = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    entries = [
        Binding(LinearScheduler(), "weight_decay", "matrix"),
        lambda optimizer: LinearWD(optimizer, 1.0, 0.0, 20, param_group_tags="embedding"),
    ]
    options = {"model": model, "optimizers": optimizer, "schedulers": torchs}
    trainer, record = make_trainer(
        [Schedules(*entries)], train_dataloader=spec, device_train_microbatch_size=2, **options
    )
    finish(trainer, record)
    assert record.of("lr", MATRIX) == [0.1] * 8 + [0.05] * 8 + [0.025] * 4
    assert record.of("weight_decay", MATRIX) == [WEIGHT_DECAY * (1 - k / 20) for k in range(BATCHES)]
    assert record.of("weight_decay", EMBEDDING) == falling(1.0, 0, BATCHES)


def halves(batch: dict[str, torch.Tensor], size: int) -> list[dict[str, torch.Tensor]]:
    parts = [batch[key].split(size) for key in ("tokens", "target")]
    return [{"tokens": tokens, "target": target} for tokens, target in zip(*parts, strict=True)]


def test_several_fits(tmp_path: Path) -> None:
    """Each has the length that it is given; one that sets the time back sets back what follows the clock."""
    entries = [
        Binding(LinearScheduler(), "weight_decay", "matrix"),
        lambda optimizer: LinearWD(optimizer, 1.0, 0.0, 40, param_group_tags="embedding"),
    ]
    trainer, record = make_trainer([Schedules(*entries)], max_duration=None)
    assert trainer.state.optimizers[0].param_groups[MATRIX]["weight_decay"] == WEIGHT_DECAY
    trainer.fit(duration="10ba")
    trainer.fit(duration="10ba")
    trainer.save_checkpoint(str(tmp_path / "20.pt"))
    trainer.fit(duration="10ba", reset_time=True)
    full = tensors_of(trainer)
    trainer.close()
    first, second = [1 - k / 10 for k in range(10)], [1 - k / 20 for k in range(10, 20)]
    assert record.of("weight_decay", MATRIX) == [WEIGHT_DECAY * x for x in first + second + first]
    assert record.of("weight_decay", EMBEDDING) == falling(1.0, 0, 30, 40)
    # The same from a checkpoint, by a Trainer that knows another length when it loads.
    again, more = make_trainer([Schedules(*entries)], max_duration="40ba", load_path=str(tmp_path / "20.pt"))
    again.save_checkpoint(str(tmp_path / "same.pt"))  # before it fits: what was loaded
    states = [torch.load(tmp_path / name, weights_only=False)["state"]["callbacks"] for name in ("20.pt", "same.pt")]
    for before, after in zip(*(each["Schedules"]["schedules"] for each in states), strict=True):
        for each in (before, after):
            del each["state"]["value"]  # of another length
        assert before == after
    again.fit(duration="10ba", reset_time=True)
    assert more.rows == record.rows[20:]
    assert full.keys() == tensors_of(again).keys()
    again.close()


def test_epochs_whose_length_is_not_known() -> None:
    """The count of epochs moves after the end of a batch, and the next batch has the value of it."""
    schedule = MultiStepScheduler(["1ep", "2ep"], gamma=0.5)
    trainer, record = make_trainer([Schedules(Binding(schedule, "weight_decay"))], train_dataloader=streamed())
    assert trainer.state.dataloader_len is None
    finish(trainer, record)
    assert record.of("weight_decay", MATRIX) == [0.25] * 8 + [0.125] * 8 + [0.0625] * 4


def test_what_is_logged() -> None:
    log = InMemoryLogger()
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
    quiet = InMemoryLogger()
    finish(*make_trainer([Schedules(Binding(linear, "lr"))], loggers=quiet, max_duration="2ba"))
    assert not any("AdamW" in name for name in quiet.data)


def test_an_optimizer_that_is_compiled() -> None:
    """One graph for the whole run, whatever changes from batch to batch; and the values of the run without it."""
    rows = {}
    for compiled in (False, True):
        model, optimizer = make_optimizer(optim.AdamW)
        if compiled:
            optimizer.compile(backend=BACKEND)
        trainer, record = make_trainer([Schedules(*closed())], model=model, optimizers=optimizer)
        with fresh():
            finish(trainer, record)
            assert graphs() == int(compiled)
        rows[compiled] = record.rows
    assert rows[True] == rows[False]


def test_a_trainer_that_only_evaluates() -> None:
    trainer, _ = make_trainer(
        [Schedules(*bindings())], train_dataloader=None, max_duration=None, eval_dataloader=data()
    )
    trainer.eval()
    trainer.close()


def test_one_callback_for_one_trainer_after_another() -> None:
    callback = Schedules(*bindings())
    rows = [finish(*make_trainer([callback]))["rows"] for _ in range(2)]
    assert rows[0] == rows[1]
