"""The line for Composer in README.md, in a run of the real Trainer."""

from __future__ import annotations

import torch
from composer import Trainer

import timesched
from tests.docs.tables import readme_line
from tests.integration.training import BASE_LR, NextByte, Record, data


def test_the_line_for_composer() -> None:
    """20 batches of 50,000 tokens; each runs with the value at the start of the one before it."""
    names = {**vars(timesched), "Trainer": Trainer}
    exec(readme_line("wsd = "), names)
    model, record, batches = NextByte(), Record(), data()
    batches.get_num_tokens_in_batch = lambda batch: 50_000
    names["given"] = {
        **{"model": model, "optimizers": torch.optim.SGD(model.parameters(), lr=BASE_LR), "train_dataloader": batches},
        **{"callbacks": record, "device": "cpu", "progress_bar": False},
    }
    trainer = eval(readme_line("Trainer("), names)
    trainer.fit()
    trainer.close()
    run = timesched.Horizon("1Mtok")
    starts = [f"{50_000 * max(batch - 1, 0)}tok" for batch in range(20)]
    assert record.of("lr") == [BASE_LR * names["wsd"].at(start, run) for start in starts]
