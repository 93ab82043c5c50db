"""A value of an object in Composer's Trainer: what each batch runs with, what is logged, and a resumed run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from composer import Callback
from composer.loggers import InMemoryLogger

from tests.integration.callback_runs import BATCHES, make_trainer, saving
from tests.integration.training import finish
from timesched import LinearScheduler
from timesched.integrations.composer import Binding, Schedules

LINE = LinearScheduler(1.0, 0.25)
VALUES = [0.5 * (1 - 0.75 * k / BATCHES) for k in range(BATCHES)]


class Recorder(Callback):
    """Notes the loss weight of each batch."""

    def __init__(self, config: SimpleNamespace) -> None:
        self.config, self.weights = config, []

    def batch_start(self, state: Any, logger: Any) -> None:
        self.weights.append(self.config.loss.weight)


def run(**options: Any) -> tuple[list[float], SimpleNamespace]:
    config = SimpleNamespace(loss=SimpleNamespace(weight=0.5), length=64)
    entries = [
        Binding(LINE, "loss.weight", target=config, name="loss weight"),
        Binding(LINE, "length", target=config, multiple_of=16),
        Binding(LINE, "weight_decay"),
    ]
    recorder = Recorder(config)
    trainer, record = make_trainer([Schedules(*entries), recorder], **options)
    finish(trainer, record)
    return recorder.weights, config


def test_each_batch_runs_with_the_value_of_its_time() -> None:
    log = InMemoryLogger()
    weights, config = run(loggers=log)
    assert weights == pytest.approx(VALUES, rel=1e-15) and config.length == 16
    assert [value for _, value in log.data["loss weight"]][:-1] == weights[1:]
    assert "SimpleNamespace.length" in log.data and "weight_decay" in log.data


def test_a_resumed_run_has_the_same_values(tmp_path: Path) -> None:
    whole, _ = run(run_name="values", **saving(tmp_path))
    checkpoints = sorted(tmp_path.rglob("*.pt"))
    assert checkpoints
    for path in checkpoints:
        rest, _ = run(load_path=str(path))
        assert 0 < len(rest) < BATCHES and rest == whole[-len(rest) :]


def test_two_entries_of_one_name() -> None:
    configs = [SimpleNamespace(p=0.5) for _ in range(2)]
    with pytest.raises(ValueError, match="Binding.name='SimpleNamespace.p': two entries have this name. Pass name="):
        finish(*make_trainer([Schedules(*(Binding(LINE, "p", target=config) for config in configs))]))
