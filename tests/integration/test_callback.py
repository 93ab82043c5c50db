"""The callback in the real Trainer: the value of every batch, in runs of all kinds, and what it refuses."""

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

from optim.lr_scheduler import CosineDecayLR, LinearLR, SequentialLR
from optim.weight_decay_scheduler import ConstantWD, LinearWD
from tests.integration.callback_runs import (
    BATCHES,
    BETA,
    BIAS,
    BOTH,
    CASES,
    EMBEDDING,
    HALVED,
    LR,
    MATRIX,
    WEIGHT_DECAY,
    counted,
    done,
    falling,
    linear,
    make_optimizer,
    make_trainer,
    sequence,
)
from tests.integration.training import BATCHES_PER_EPOCH, Stream, data, finish
from timesched import Clock, ConstantScheduler, Horizon, LinearScheduler, MultiStepScheduler, bind
from timesched.integrations.composer import Binding, Schedules

LINE = LinearScheduler()
DECAY = partial(LinearWD, initial_val=0.2, end_val=0.0)
RATE = partial(CosineDecayLR, initial_learning_rate=0.1, end_learning_rate=0.0, total_iters=20)


@BOTH
def test_schedules_of_timesched(kind: Any) -> None:
    """Each batch runs with the schedule at the time at which it begins: exactly, in whatever unit it is written."""
    record = done(*CASES["bindings"], kind=kind)
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
    assert record.of("weight_decay", MATRIX) == [0.25] * 8 + [0.125] * 8 + [0.0625] * 4


@BOTH
def test_schedulers_in_closed_form(kind: Any) -> None:
    """By hand, to the rounding of a cosine: step k is what batch k runs with, whether counted or read off the clock."""
    record = done(*CASES["closed"], kind=kind)
    decay = [0.1 + 0.2 * (1 + math.cos(math.pi * k / 20)) / 2 for k in range(BATCHES)]
    cosine = [0.01 + 0.09 * (1 + math.cos(math.pi * k / 15)) / 2 for k in range(15)]
    betas = [1 - 1 / (k + 10) for k in range(BATCHES)]
    for group in (EMBEDDING, MATRIX, BIAS):
        assert record.of("lr", group) == pytest.approx([0, 0.02, 0.04, 0.06, 0.08, *cosine], rel=0, abs=1e-15)
        assert record.of("betas[1]", group) == pytest.approx(betas, rel=1e-15)
    assert record.of("weight_decay", MATRIX) == pytest.approx(decay, rel=1e-14)
    assert record.of("weight_decay", BIAS) == record.of("weight_decay", EMBEDDING) == [0.2] * 7 + [0.1] * 13


def test_the_ratio() -> None:
    """A run that is half as long: times in batches shrink with it, also those of a closed form that has the clock."""
    step = MultiStepScheduler(["8ba"], 0.5)
    entries = Binding(step, "lr", "matrix"), Binding(linear, "betas[0]"), partial(DECAY, total_iters="20ba")
    trainer, record = make_trainer([Schedules(*entries, ssr=0.5)], max_duration="10ba")
    finish(trainer, record)
    assert record.of("lr", MATRIX) == [0.1] * 4 + [0.05] * 6
    assert record.of("betas[0]", BIAS) == [BETA * (1.0 - 0.5 * k / 10) for k in range(10)]
    assert record.of("weight_decay", BIAS) == falling(0.2, 0, 10, 10)


def test_one_step_for_every_batch() -> None:
    """Whatever the microbatches, and how often the Trainer steps the schedulers of its own; made before or here."""
    model, optimizer = make_optimizer()
    theirs, made = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5), counted(optimizer, [None])
    entries = Binding(LINE, "weight_decay", "matrix"), partial(counted, tags="embedding"), made
    options = {"model": model, "optimizers": optimizer, "schedulers": theirs, "device_train_microbatch_size": 2}
    record = done(*entries, **options)
    assert record.of("lr", MATRIX) == [0.1] * 8 + [0.05] * 8 + [0.025] * 4
    assert record.of("weight_decay", MATRIX) == [WEIGHT_DECAY * (1 - k / 20) for k in range(BATCHES)]
    assert record.of("weight_decay", EMBEDDING) == record.of("weight_decay", BIAS) == falling(1.0, 0, BATCHES)
    assert made.last_epoch == BATCHES


def test_several_fits(tmp_path: Path) -> None:
    """Each has the length that it is given; one that sets the time back sets back what follows the clock."""
    entries = Binding(LINE, "weight_decay", "matrix"), lambda on: LinearWD(on, 1.0, 0.0, 40, param_group_tags=[None])
    trainer, record = make_trainer([Schedules(*entries)], max_duration=None)
    assert trainer.state.optimizers[0].param_groups[MATRIX]["weight_decay"] == WEIGHT_DECAY
    trainer.fit(duration="10ba")
    trainer.fit(duration="10ba")
    trainer.save_checkpoint(str(tmp_path / "20.pt"))
    finish(trainer, record, duration="10ba", reset_time=True)
    first, second = [1 - k / 10 for k in range(10)], [1 - k / 20 for k in range(10, 20)]
    assert record.of("weight_decay", MATRIX) == [WEIGHT_DECAY * x for x in first + second + first]
    assert record.of("weight_decay", BIAS) == falling(1.0, 0, 30, 40)
    # The same from a checkpoint, by way of a Trainer that knows another length when it loads and saves without a fit.
    again, _ = make_trainer([Schedules(*entries)], max_duration="40ba", load_path=str(tmp_path / "20.pt"))
    again.save_checkpoint(str(tmp_path / "same.pt"))
    again, more = make_trainer([Schedules(*entries)], max_duration="40ba", load_path=str(tmp_path / "same.pt"))
    finish(again, more, duration="10ba", reset_time=True)
    assert more.rows == record.rows[20:]


def test_epochs_whose_length_is_not_known() -> None:
    """The count of epochs moves after the end of a batch, and the next batch has the value of it."""
    schedule = MultiStepScheduler(["1ep", "2ep"], gamma=0.5)
    record = done(Binding(schedule, "weight_decay"), train_dataloader=data(Stream()))
    assert record.of("weight_decay", MATRIX) == [0.25] * 8 + [0.125] * 8 + [0.0625] * 4


def test_what_is_logged() -> None:
    log, quiet = InMemoryLogger(), InMemoryLogger()
    decay = partial(ConstantWD, val=0.125, param_group_tags=[None])
    entries = Binding(LINE, "lr", "head"), Binding(LINE, "betas[0]"), decay
    trainer, record = make_trainer([LRMonitor(), Schedules(*entries, log=True)], loggers=log)
    finish(trainer, record)
    seen = {name: [value for _, value in rows] for name, rows in log.data.items() if "-AdamW/" in name}
    mine = {"betas[0]-AdamW/group0", "betas[0]-AdamW/group1", "betas[0]-AdamW/group2", "weight_decay-AdamW/group2"}
    assert seen.keys() - {f"lr-AdamW/group{i}" for i in range(3)} == mine
    # After batch k, the value of batch k + 1, at its time.
    assert seen["betas[0]-AdamW/group1"][:-1] == record.of("betas[0]", MATRIX)[1:]
    assert seen["weight_decay-AdamW/group2"] == [0.125] * BATCHES
    assert [int(time.batch) for time, _ in log.data["betas[0]-AdamW/group1"]] == list(range(1, BATCHES + 1))
    done(*entries, loggers=quiet, max_duration="2ba")
    assert not any("AdamW" in name for name in quiet.data)


def test_one_callback_for_one_trainer_after_another() -> None:
    """Also one that only evaluates."""
    callback = Schedules(*CASES["bindings"])
    trainer, _ = make_trainer([callback], train_dataloader=None, max_duration=None, eval_dataloader=data())
    trainer.eval()
    trainer.close()
    rows = [finish(*make_trainer([callback]))["rows"] for _ in range(2)]
    assert rows[0] == rows[1]


# What it refuses


def child(optimizer: Any) -> LinearLR:
    """The scheduler of another one, which owns it."""
    made = LinearLR(optimizer, 0.0, 0.1, 5)
    SequentialLR(optimizer, [made, RATE(optimizer)], [5])
    return made


DECAY_20 = partial(DECAY, total_iters=20)
COSINE = composer.optim.CosineAnnealingScheduler()
TWO = "'weight_decay' was superseded by"
# What is given to the callback, options of the Trainer, and the error.
REFUSED: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (lambda: [LINE], {}, TypeError, r"does not say which key it sets: pass Binding\(LinearScheduler\("),
    (lambda: ["weight_decay"], {}, TypeError, "'weight_decay' is none of a Binding"),
    (lambda: [Binding(3, "lr")], {}, TypeError, "3 is not a schedule"),
    (lambda: [Binding([], "lr")], {}, ValueError, "is empty"),
    (lambda: [Binding(linear, "betas[first]")], {}, ValueError, "name a key"),
    (lambda: [lambda optimizer: 3], {}, TypeError, "returned 3: a scheduler has step"),
    (lambda: [Binding(linear, "lr", "body")], {}, ValueError, "the tag 'body': .*'embedding', 'head', 'matrix'"),
    (lambda: [Binding(ConstantScheduler(0.5), "lr"), Binding(LINE, "momentum")], {}, ValueError, "no 'momentum'"),
    (lambda: [Binding(lambda state: 1.0, "lr")], {"ssr": 0.5}, ValueError, r"takes the state alone.*0\.5"),
    (lambda: [], {"ssr": -1.0}, ValueError, r"ssr.*-1"),
    (lambda: [], {"callbacks": [Schedules()]}, ValueError, "two Schedules callbacks.*entries of both to one"),
    # two schedulers on one number
    (lambda: [Binding(linear, "lr"), Binding(linear, "lr", "head")], {}, ValueError, "'lr' was superseded by"),
    (lambda: [DECAY_20, partial(ConstantWD, val=0.2, param_group_tags="head")], {}, ValueError, TWO),
    (lambda: [DECAY_20, Binding(linear, "weight_decay", "head")], {}, ValueError, TWO),
    (lambda: [Binding(linear, "weight_decay", "head"), DECAY_20], {}, ValueError, TWO),
    (lambda: [child], {}, ValueError, r"LinearLR\(.* superseded by SequentialLR"),
    (lambda: [Binding(linear, "lr", "head")], {"schedulers": LINE}, ValueError, r"'lr' of .* 1 is set by two.*of sch"),
    (lambda: [RATE], {"schedulers": COSINE}, ValueError, r"'lr' of parameter group 0 is set by two.*of schedulers="),
    # schedulers that cannot run in this Trainer
    (lambda: [counted(make_optimizer()[1])], {}, ValueError, "LinearWD is for another optimizer"),
    (lambda: [partial(DECAY_20, clock=Clock("20ba"))], {}, ValueError, r"LinearWD follows a timesched\.Clock, which n"),
    (lambda: [lambda on, clock: bind(linear, on, Clock("20ba"))], {}, ValueError, "BoundLR follows a"),
    (lambda: [lambda on: sequence(on, Clock("20ba"))], {}, ValueError, r"SequentialLR follows .* \(optimizer, clock\)"),
]


@pytest.mark.parametrize(("entries", "options", "error", "said"), REFUSED)
def test_refused(entries: Any, options: dict[str, Any], error: type[Exception], said: str) -> None:
    """Whatever the entries before had written; what owned a key before owns it again."""
    model, optimizer = make_optimizer()
    first = [bind(linear, optimizer, Clock("20ba"), key) for key in ("lr", "weight_decay")]
    before = [{**group} for group in optimizer.param_groups]
    own = {"ssr": options["ssr"]} if "ssr" in options else {}
    trainers = {key: value for key, value in options.items() if key not in ("ssr", "callbacks")}
    with pytest.raises(error, match=said) as caught:
        mine = [Schedules(*entries(), **own), *options.get("callbacks", [])]
        make_trainer(mine, model=model, optimizers=optimizer, **trainers)
    assert optimizer.param_groups == before
    for each in first:
        each.step()
    assert caught.tb is not None  # which holds on to what was refused, as in a notebook


def test_schedulers_given_to_a_fit() -> None:
    """They are refused beside the callback's, and dropped as the error says."""
    trainer, record = make_trainer([Schedules(Binding(LINE, "lr"))], max_duration=None)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"set by two.*trainer\.state\.schedulers = \[\] drops them"):
            trainer.fit(duration="4ba", schedulers=LINE)
    trainer.state.schedulers = []
    finish(trainer, record, duration="4ba")
    assert record.of("lr", MATRIX) == falling(LR, 0, 4, 4)


def test_a_scheduler_of_other_tags_may_be_the_trainers() -> None:
    model, optimizer = make_optimizer()
    other = RATE(optimizer, param_group_tags=["embedding", None])
    options = {"model": model, "optimizers": optimizer, "schedulers": other, "step_schedulers_every_batch": True}
    record = done(Binding(linear, "lr", "head"), **options)
    assert record.of("lr", MATRIX) == [LR * half for half in HALVED]
    cosine = [0.1 * (1 + math.cos(math.pi * k / BATCHES)) / 2 for k in range(BATCHES)]
    assert record.of("lr", EMBEDDING) == pytest.approx(cosine, rel=1e-14)
