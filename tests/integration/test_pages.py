"""The programs for Composer in README.md and docs/values.md, in runs of the real Trainer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from composer import Event

from tests.docs.tables import page_code, readme_code
from tests.integration.training import (
    BASE_LR,
    BATCHES_PER_EPOCH,
    NextByte,
    Record,
    data,
    finish,
    make_trainer,
    saving,
)
from timesched import CosineAnnealingScheduler, CosineAnnealingWithWarmupScheduler, Horizon, Schedule


def test_the_program_of_the_readme() -> None:
    """45 epochs; each batch runs with the value at the start of the one before it."""
    model, record = NextByte(), Record()
    given = {
        **{"model": model, "optimizers": torch.optim.SGD(model.parameters(), lr=BASE_LR), "train_dataloader": data()},
        **{"callbacks": record, "device": "cpu", "progress_bar": False},
    }
    names = {"given": given}
    exec(readme_code("from composer"), names)
    names["trainer"].fit()
    names["trainer"].close()
    used = record.of("lr")
    assert len(used) == 45 * BATCHES_PER_EPOCH
    drops = [batch - 1 for batch in range(1, len(used)) if used[batch] != used[batch - 1]]
    assert drops == [13.5 * BATCHES_PER_EPOCH, 22.5 * BATCHES_PER_EPOCH, 40.5 * BATCHES_PER_EPOCH]
    assert [round(used[batch + 1] / BASE_LR, 12) for batch in drops] == [0.1, 0.01, 0.001]


def run_with_weights(decay: Schedule, ssr: float, **options: Any) -> list[float]:
    """The weight of each batch, in a Trainer with the callback of docs/values.md."""
    page: dict[str, Any] = {}
    exec(page_code("values.md", "# Composer").partition("trainer =")[0], page)
    config, model, weights = SimpleNamespace(weight=0.2), NextByte(), []
    model.register_forward_pre_hook(lambda *_: weights.append(config.weight))
    settings = {"max_duration": "20ba", "scale_schedule_ratio": ssr, "schedulers": CosineAnnealingScheduler()}
    finish(*make_trainer([page["SetWeight"](config, decay, ssr)], model, **settings, **options))
    return weights


@pytest.mark.parametrize("ssr", [1.0, 0.5])
def test_each_batch_has_the_weight_of_its_time_also_in_a_resumed_run(ssr: float, tmp_path: Path) -> None:
    decay = CosineAnnealingWithWarmupScheduler("4ba", "20ba", scale_warmup=True)
    moments = (3, Event.BATCH_CHECKPOINT), (BATCHES_PER_EPOCH, Event.EPOCH_CHECKPOINT)
    whole = run_with_weights(decay, ssr, **saving(tmp_path, *moments))
    assert whole == [0.2 * decay.at(f"{k}ba", Horizon("20ba", ssr=ssr)) for k in range(int(20 * ssr))]
    for batch, _ in moments:
        assert run_with_weights(decay, ssr, load_path=str(tmp_path / f"{batch}.pt")) == whole[batch:]
