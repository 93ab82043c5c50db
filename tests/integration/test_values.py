"""The callback of docs/values.md in Composer's Trainer: each batch has the value of its time, also in a resumed run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from composer import Callback

from tests.docs.tables import page_code
from tests.integration.callback_runs import BATCHES, make_trainer, saving
from tests.integration.training import finish
from timesched import Clock, CosineAnnealingScheduler, CosineAnnealingWithWarmupScheduler, Schedule


class Recorder(Callback):
    """Notes the weight of each batch."""

    def __init__(self, config: SimpleNamespace) -> None:
        self.config = config
        self.weights: list[float] = []

    def before_forward(self, state: Any, logger: Any) -> None:
        self.weights.append(self.config.weight)


def run(decay: Schedule, ssr: float = 1.0, **options: Any) -> list[float]:
    """The weight of each batch, in a Trainer with the callback of the page."""
    page: dict[str, Any] = {}
    exec(page_code("values.md", "# Composer").partition("trainer =")[0], page)
    config = SimpleNamespace(weight=0.2)
    recorder = Recorder(config)
    settings = {"scale_schedule_ratio": ssr, "schedulers": CosineAnnealingScheduler(), **options}
    finish(*make_trainer([page["SetWeight"](config, decay, ssr), recorder], **settings))
    return recorder.weights


def run_plain_loop(decay: Schedule, ssr: float) -> list[float]:
    clock, weights = Clock(f"{BATCHES}ba", ssr=ssr), []
    while not clock.done:
        weights.append(0.2 * decay(clock))
        clock.tick()
    return weights


@pytest.mark.parametrize("ssr", [1.0, 0.5])
def test_each_batch_has_the_value_of_its_time_also_in_a_resumed_run(ssr: float, tmp_path: Path) -> None:
    decay = CosineAnnealingWithWarmupScheduler("4ba", f"{BATCHES}ba", scale_warmup=True)
    whole = run(decay, ssr, run_name="values", **saving(tmp_path))
    assert whole == run_plain_loop(decay, ssr)
    checkpoints = sorted(tmp_path.rglob("*.pt"))
    assert checkpoints
    for path in checkpoints:
        rest = run(decay, ssr, load_path=str(path))
        assert 0 < len(rest) < len(whole) and rest == whole[-len(rest) :]
