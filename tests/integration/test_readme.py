"""The program for Composer in README.md, in a run of the real Trainer."""

from __future__ import annotations

import torch

from tests.docs.tables import readme_code
from tests.integration.training import BASE_LR, BATCHES_PER_EPOCH, NextByte, Record, data


def test_the_program_for_composer() -> None:
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
