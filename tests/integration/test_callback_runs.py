"""The callback in other runs: ratios, microbatches, several fits, unknown epochs, loggers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import composer.optim
import pytest
import torch
from composer import DataSpec
from composer.callbacks import LRMonitor
from composer.loggers import InMemoryLogger
from torch.utils.data import DataLoader, IterableDataset

import optim
from optim.weight_decay_scheduler import ConstantWD, LinearWD
from tests.integration.callback_run import (
    BATCHES,
    BETA,
    BETA_1,
    BIAS,
    DECAY,
    EMBEDDING,
    MATRIX,
    RATE,
    WEIGHT_DECAY,
    assert_goes_on,
    bindings,
    closed,
    finish,
    linear,
    make_optimizer,
    make_trainer,
    saving,
)
from tests.integration.training import collate, count_tokens, data, tensors_of, windows
from tests.optim.compiling import BACKEND, fresh, graphs
from timesched import LinearScheduler, MultiStepScheduler
from timesched.integrations.composer import Binding, Schedules


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
    # The same from a checkpoint, by a Trainer that knows another length when it loads.
    again, more = make_trainer([Schedules(*entries)], max_duration="40ba", load_path=str(tmp_path / "20.pt"))
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
