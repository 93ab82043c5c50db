"""A data loader whose batches grow in the real Composer Trainer: shuffled, with workers and thresholds in tokens.

tests/trainers/test_conformance.py has batches that grow on one rank and on two, and a resume after any batch.
"""

from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from composer import Callback, DataSpec, Event
from torch.utils.data import DataLoader, DistributedSampler

from tests.building import batches_of_loop
from tests.integration import training
from tests.integration.training import WINDOWS, collate, count_tokens, finish, make_trainer, split, windows
from timesched import BatchSizeSampler, BatchSizeSchedule, Clock, LinearScheduler
from timesched.integrations.composer import Binding, Schedules

LENGTH = "80sp"  # two epochs of 31, and more
TOKENS_PER_SAMPLE = 16
SIZES = BatchSizeSchedule("0tok:2 160tok:4 640tok:8")


class Targets(Callback):
    """The targets of each batch, which say which samples it has."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []

    def batch_start(self, state: Any, logger: Any) -> None:
        self.rows.append(state.batch["target"].tolist())


def rows() -> list[tuple[torch.Tensor, int]]:
    """The windows, all of one length, and each with a target of its own."""
    return [(tokens.repeat(2)[:TOKENS_PER_SAMPLE], i) for i, (tokens, _) in enumerate(windows())]


def shuffled() -> DistributedSampler:
    return DistributedSampler(range(WINDOWS), num_replicas=1, rank=0)


def train(**options: Any) -> tuple[Any, list[list[int]]]:
    """A run of the Trainer, and the targets of its batches."""
    callback = Schedules(Binding(LinearScheduler(), "weight_decay"), tokens_per_sample=TOKENS_PER_SAMPLE)
    batches = BatchSizeSampler(shuffled(), SIZES, lambda: callback.clock, from_epoch_start=True)
    loader = DataLoader(rows(), batch_sampler=batches, collate_fn=collate, num_workers=2)
    spec = DataSpec(loader, get_num_tokens_in_batch=count_tokens, split_batch=split)
    targets = Targets()
    settings = {"train_dataloader": spec, "max_duration": LENGTH, "device_train_microbatch_size": 1, **options}
    return finish(*make_trainer([callback, targets], **settings)), targets.rows


def test_a_run_that_is_resumed_in_an_epoch_and_after_one(tmp_path: Path) -> None:
    """Bit for bit, with the batches of a plain loop."""
    expected = batches_of_loop(shuffled(), SIZES, Clock(LENGTH, tokens_per_sample=TOKENS_PER_SAMPLE))
    end = 1 + [*accumulate(map(len, expected))].index(WINDOWS)  # of the first epoch
    moments = (3, Event.BATCH_CHECKPOINT), (end, Event.EPOCH_CHECKPOINT), (end + 2, Event.BATCH_CHECKPOINT)
    before, batches = train(**training.saving(tmp_path, *moments))
    assert batches == expected and {len(batch) for batch in batches} >= {2, 4, 8}
    for batch, _ in moments:
        after, rest = train(load_path=str(tmp_path / f"{batch}.pt"))
        assert rest == batches[batch:]
        training.assert_goes_on(before, after, batch)


def test_the_callback_has_no_clock_before_a_run() -> None:
    with pytest.raises(ValueError, match=r"clock=lambda: callback\.clock"):
        _ = Schedules(Binding(LinearScheduler(), "weight_decay")).clock
