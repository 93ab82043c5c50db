"""The callback in the real Trainer: the value of every batch, resumed runs, other runs, and what is refused."""

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
from composer import Callback, DataSpec
from composer.callbacks import LRMonitor
from composer.loggers import InMemoryLogger
from torch.utils.data import DataLoader, IterableDataset

import optim
from optim.lr_scheduler import CosineDecayLR
from optim.weight_decay_scheduler import ConstantWD, CosineDecayWD, LinearWD
from tests.integration.callback_run import (
    BATCHES,
    BETA,
    CASES,
    LR,
    WEIGHT_DECAY,
    bindings,
    closed,
    finish,
    linear,
    make_optimizer,
    make_trainer,
    run,
    saving,
)
from tests.integration.training import BATCHES_PER_EPOCH, collate, count_tokens, data, tensors_of, windows
from timesched import Clock, Horizon, LinearScheduler, MultiStepScheduler
from timesched.integrations.composer import Binding, Schedules

ROOT = Path(__file__).parents[2]
RATE, DECAY, BETA_1, BETA_2 = range(4)  # what a record has of each group
EMBEDDING, MATRIX, BIAS = range(3)


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


def assert_goes_on(before: dict[str, Any], after: dict[str, Any], batch: int, what: object = "") -> None:
    """Bit for bit: what each batch ran with, and where parameters and optimizer state ended."""
    assert after["rows"] == before["rows"][batch:], what
    assert after["tensors"].keys() == before["tensors"].keys()
    for key, tensor in before["tensors"].items():
        assert torch.equal(after["tensors"][key], tensor), (what, key)


def column(done: dict[str, Any], group: int, key: int) -> list[float]:
    return [row[group][key] for row in done["rows"]]


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


class At(Callback):
    """Does something to the state at the end of a batch."""

    def __init__(self, batch: int, action: Any) -> None:
        self.batch, self.action = batch, action

    def batch_end(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch == self.batch:
            self.action(state)


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


def test_another_schedule_is_refused_with_the_difference(tmp_path: Path) -> None:
    def schedules(*more: Any, alpha: float = 0.5, key: str = "betas[0]", ssr: float = 1.0) -> Schedules:
        return Schedules(
            Binding(LinearScheduler(alpha, 1.0, "1dur"), key, "head"),
            partial(CosineDecayWD, initial_val=0.2, end_val=alpha / 5, total_iters=20),
            *more,
            ssr=ssr,
        )

    finish(*make_trainer([schedules()], **saving(tmp_path)))
    path = str(tmp_path / "8.pt")
    for other, said in (
        (schedules(alpha=0.25), r"Schedule 0 .*alpha_i=0\.5.* there.*alpha_i=0\.25.* here.*load_ignore_keys"),
        (schedules(key="betas[1]"), r"key 'betas\[0\]' there, 'betas\[1\]' here"),
        (schedules(ssr=2.0), r"ssr 1\.0 there, 2\.0 here"),
        (schedules(Binding(linear, "lr")), "has 2 schedules, and here are 3"),
        (
            Schedules(*schedules().entries[::-1]),
            r"Schedule 0 .*schedule 'LinearScheduler\(.*\)' there, 'CosineDecayWD' here\. Give",
        ),
        (
            Schedules(schedules().entries[0], partial(CosineDecayWD, initial_val=0.2, end_val=0.2, total_iters=20)),
            "CosineDecayWD.*end_val",
        ),
    ):
        with pytest.raises(ValueError, match=said):
            make_trainer([other], load_path=path)
    # The same schedule in other words is the same; and one may start anew, from the values of the new optimizer.
    written = schedules().entries
    same = Schedules(Binding(LinearScheduler(0.5, 1, "1.0dur"), ("betas", 0), ["head"]), written[1])
    make_trainer([same], load_path=path)[0].close()
    anew = Schedules(Binding(LinearScheduler(0.25, 1.0), "betas[0]", "head"))
    options = {"load_path": path, "load_ignore_keys": ["state/callbacks/Schedules"]}
    with pytest.warns(UserWarning, match="Schedules is not in the state_dict"):
        trainer, record = make_trainer([anew], **options)
    finish(trainer, record)
    assert record.of(BETA_1, MATRIX) == [BETA * (0.25 + 0.75 * (k / 20)) for k in range(8, BATCHES)]


# Other runs


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
    assert record.of(DECAY, MATRIX) == [0.25] * 4 + [0.125] * 6
    assert record.of(RATE, MATRIX) == [0.1] * 5 + [0.05] * 5  # Composer's own, one batch behind
    assert record.of(BETA_1, BIAS) == [BETA * (1.0 - 0.5 * k / 10) for k in range(10)]
    assert record.of(DECAY, BIAS) == pytest.approx([0.2 * (1 - k / 10) for k in range(10)], rel=0, abs=1e-16)
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
    assert record.of(RATE, MATRIX) == [0.1] * 8 + [0.05] * 8 + [0.025] * 4
    assert record.of(DECAY, MATRIX) == [WEIGHT_DECAY * (1 - k / 20) for k in range(BATCHES)]
    assert record.of(DECAY, EMBEDDING) == pytest.approx([1 - k / 20 for k in range(BATCHES)], rel=1e-15)


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
    assert record.of(DECAY, MATRIX) == [WEIGHT_DECAY * x for x in first + second + first]
    assert record.of(DECAY, EMBEDDING) == pytest.approx([1 - k / 40 for k in range(30)], rel=1e-15)
    # The same from a checkpoint, by a Trainer that does not know its length when it loads.
    again, more = make_trainer([Schedules(*entries)], max_duration=None, load_path=str(tmp_path / "20.pt"))
    again.save_checkpoint(str(tmp_path / "same.pt"))  # before it fits: what was loaded
    states = [torch.load(tmp_path / name, weights_only=False)["state"]["callbacks"] for name in ("20.pt", "same.pt")]
    assert states[0]["Schedules"] == states[1]["Schedules"]
    again.fit(duration="10ba", reset_time=True)
    assert more.rows == record.rows[20:]
    assert full.keys() == tensors_of(again).keys()
    again.close()


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(windows())


def test_epochs_whose_length_is_not_known() -> None:
    """The count of epochs moves after the end of a batch, and the next batch has the value of it."""
    loader = DataLoader(Endless(), batch_size=4, collate_fn=collate)
    spec = DataSpec(loader, get_num_tokens_in_batch=count_tokens, split_batch=lambda batch, size: [batch])
    schedule = MultiStepScheduler(["1ep", "2ep"], gamma=0.5)
    trainer, record = make_trainer([Schedules(Binding(schedule, "weight_decay"))], train_dataloader=spec)
    assert trainer.state.dataloader_len is None
    finish(trainer, record)
    assert record.of(DECAY, MATRIX) == [0.25] * 8 + [0.125] * 8 + [0.0625] * 4


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
    assert seen["betas[0]-AdamW/group1"][:-1] == record.of(BETA_1, MATRIX)[1:]
    assert seen["weight_decay-AdamW/group2"] == [0.125] * BATCHES
    assert [int(time.batch) for time, _ in log.data["betas[0]-AdamW/group1"]] == list(range(1, BATCHES + 1))
    assert not any("AdamW" in name for name in quiet().data)


def quiet() -> InMemoryLogger:
    log = InMemoryLogger()
    finish(*make_trainer([Schedules(Binding(linear, "lr"))], loggers=log, max_duration="2ba"))
    return log


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


# What is refused


@pytest.mark.parametrize(
    ("entry", "error", "said"),
    [
        (LinearScheduler(), TypeError, r"does not say what it drives: pass Binding\(LinearScheduler\("),
        ("weight_decay", TypeError, "'weight_decay' is none of a Binding"),
        (lambda optimizer: 3, TypeError, "returned 3: a scheduler has step"),
    ],
)
def test_entries_that_are_none(entry: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        make_trainer([Schedules(entry)])


def test_bindings_that_are_none() -> None:
    with pytest.raises(TypeError, match="3 is no schedule"):
        Binding(3, "lr")
    with pytest.raises(TypeError, match=r"'cosine' is no schedule"):
        Binding("cosine", "lr")
    with pytest.raises(ValueError, match="is empty"):
        Binding([], "lr")
    with pytest.raises(ValueError, match="name a key"):
        Binding(linear, "betas[first]")
    with pytest.raises(ValueError, match=r"ssr.*-1"):
        Schedules(ssr=-1.0)


def test_groups_and_keys_that_are_not_there() -> None:
    with pytest.raises(ValueError, match=r"No parameter group carries the tag 'body': .*'embedding', 'head', 'matrix'"):
        make_trainer([Schedules(Binding(linear, "lr", "body"))])
    with pytest.raises(ValueError, match="no 'momentum' to schedule"):
        make_trainer([Schedules(Binding(linear, "momentum"))])


def test_a_schedule_of_the_state_alone_has_no_ratio() -> None:
    with pytest.raises(ValueError, match=r"takes the state alone.*0\.5"):
        make_trainer([Schedules(Binding(lambda state: 1.0, "lr"), ssr=0.5)])


def test_two_callbacks() -> None:
    with pytest.raises(ValueError, match="two Schedules callbacks.*entries of both to one"):
        make_trainer([Schedules(Binding(linear, "lr")), Schedules(Binding(linear, "weight_decay"))])


@pytest.mark.parametrize(
    "entries",
    [
        [Binding(linear, "weight_decay"), Binding(linear, "weight_decay", "head")],
        [partial(ConstantWD, val=0.1), partial(ConstantWD, val=0.2, param_group_tags="head")],
        [partial(ConstantWD, val=0.1), Binding(linear, "weight_decay", "head")],
        [Binding(linear, "weight_decay", "head"), partial(ConstantWD, val=0.1)],
    ],
)
def test_two_schedules_on_one_number(entries: list[Any]) -> None:
    model, optimizer = make_optimizer()
    with pytest.raises(ValueError, match=r"'weight_decay' of parameter group 1 .*'embedding', 'head', 'matrix'"):
        make_trainer([Schedules(*entries)], model=model, optimizers=optimizer)
    # Nothing of them is left: each alone may have the groups.
    for entry in entries:
        trainer, _ = make_trainer([Schedules(entry)], model=model, optimizers=optimizer)
        trainer.close()
        trainer.state.callbacks[1].init(trainer.state, None)


@pytest.mark.parametrize("tags", [None, "head"])
@pytest.mark.parametrize("ours", [True, False])
def test_the_learning_rate_has_one_master(tags: Any, ours: bool) -> None:
    entry = Binding(linear, "lr", tags) if ours else partial(CosineDecayLR, **DECAYING, param_group_tags=tags)
    for schedule in (LinearScheduler(), composer.optim.LinearScheduler()):
        with pytest.raises(ValueError, match=r"'lr' of parameter group \d is driven by two.*of schedulers="):
            make_trainer([Schedules(entry)], schedulers=schedule)
    trainer, _ = make_trainer([Schedules(entry)], max_duration=None)
    with pytest.raises(ValueError, match=r"driven by two.*of schedulers="):
        trainer.fit(duration="2ba", schedulers=LinearScheduler())
    trainer.close()


DECAYING = {"initial_learning_rate": 0.1, "end_learning_rate": 0.0, "total_iters": 20}


def test_a_scheduler_of_other_tags_may_be_the_trainers() -> None:
    model, optimizer = make_optimizer()
    other = CosineDecayLR(optimizer, **DECAYING, param_group_tags=["embedding", None])
    options = {"model": model, "optimizers": optimizer, "step_schedulers_every_batch": True}
    trainer, record = make_trainer([Schedules(Binding(linear, "lr", "head"))], schedulers=other, **options)
    finish(trainer, record)
    assert record.of(RATE, MATRIX) == [LR * (1.0 - 0.5 * k / BATCHES) for k in range(BATCHES)]
    cosine = [0.1 * (1 + math.cos(math.pi * k / BATCHES)) / 2 for k in range(BATCHES)]
    assert record.of(RATE, EMBEDDING) == pytest.approx(cosine, rel=1e-14)


def test_a_scheduler_of_another_optimizer() -> None:
    _, optimizer = make_optimizer()
    with pytest.raises(ValueError, match="LinearWD drives another optimizer than the Trainer's"):
        make_trainer([Schedules(LinearWD(optimizer, 0.2, 0.0, 20))])


def test_a_part_of_another_scheduler() -> None:
    model, optimizer = make_optimizer()
    whole = closed()[0](optimizer, Clock("20ba"))
    with pytest.raises(ValueError, match="part of"):
        make_trainer([Schedules(whole.arguments["schedulers"][0])], model=model, optimizers=optimizer)
