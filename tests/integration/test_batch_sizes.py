"""A data loader whose batches grow in the real Composer Trainer: the samples of each batch, also after any resume.

A test starts this file as a script with a folder as its argument, to which it writes the outcome of each check.
"""

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from composer import Callback, DataSpec, Event
from composer.utils import dist
from torch.utils.data import DataLoader, DistributedSampler

from tests.building import batches_of_loop
from tests.integration import training
from tests.integration.training import WINDOWS, collate, count_tokens, finish, make_trainer, split, windows
from tests.torchrun import Report, output_of_ranks, read_report, start_ranks
from timesched import BatchSizeSampler, BatchSizeSchedule, Clock, LinearScheduler
from timesched.integrations.composer import Binding, Schedules

LENGTH = 80  # samples: two epochs of 31, and more
KINDS = {
    "samples": BatchSizeSchedule("0sp:2 10sp:4 40sp:8"),
    "fractions": BatchSizeSchedule("0dur:2 0.3dur:4 0.6dur:8"),
    "tokens": BatchSizeSchedule("0tok:2 160tok:4 640tok:8"),
}
TOKENS_PER_SAMPLE = 16


# Composer's own, where a checkpoint was saved after the last batch of an epoch: it discards all batches of the epoch.
pytestmark = pytest.mark.filterwarnings("ignore:No batches were trained:UserWarning")


class Targets(Callback):
    """The targets of each batch on all ranks, which say which samples it has."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []

    def batch_start(self, state: Any, logger: Any) -> None:
        parts = dist.all_gather_object(state.batch["target"].tolist())
        self.rows.append([target for part in parts for target in part])


def rows() -> list[tuple[torch.Tensor, int]]:
    """The windows, all of one length, and each with a target of its own."""
    return [(tokens.repeat(2)[:TOKENS_PER_SAMPLE], i) for i, (tokens, _) in enumerate(windows())]


def order(shuffle: bool) -> DistributedSampler:
    return DistributedSampler(range(WINDOWS), num_replicas=1, rank=0, shuffle=shuffle)


def train(sizes: BatchSizeSchedule, shuffle: bool, num_workers: int = 0, **options: Any) -> tuple[Any, list[list[int]]]:
    """A run of the Trainer, and the targets of its batches."""
    callback = Schedules(Binding(LinearScheduler(), "weight_decay"), tokens_per_sample=TOKENS_PER_SAMPLE)
    batches = BatchSizeSampler(order(shuffle), sizes, lambda: callback.clock, from_epoch_start=True)
    loader = DataLoader(rows(), batch_sampler=batches, collate_fn=collate, num_workers=num_workers)
    spec = DataSpec(loader, get_num_tokens_in_batch=count_tokens, split_batch=split)
    targets = Targets()
    trainer, record = make_trainer(
        [callback, targets],
        train_dataloader=spec,
        max_duration=f"{LENGTH}sp",
        device_train_microbatch_size=1,
        **options,
    )
    return finish(trainer, record), targets.rows


def new_clock() -> Clock:
    return Clock(f"{LENGTH}sp", tokens_per_sample=TOKENS_PER_SAMPLE)


@pytest.mark.parametrize(
    ("kind", "shuffle", "num_workers"),
    [
        ("samples", False, 0),
        ("samples", True, 2),
        ("fractions", True, 0),
        ("tokens", True, 0),
    ],
)
def test_a_run_that_is_resumed_after_any_batch(kind: str, shuffle: bool, num_workers: int, tmp_path: Path) -> None:
    """Bit for bit, with the batches of a plain loop."""
    moments = [(batch, Event.BATCH_CHECKPOINT) for batch in range(1, LENGTH)]
    saving = training.saving(tmp_path, *moments)
    before, batches = train(KINDS[kind], shuffle, num_workers, **saving)
    assert batches == batches_of_loop(order(shuffle), KINDS[kind], new_clock())
    assert {len(batch) for batch in batches} >= {2, 4, 8}
    for batch in range(1, len(batches), 5 if num_workers else 1):
        after, rest = train(KINDS[kind], shuffle, num_workers, load_path=str(tmp_path / f"{batch}.pt"))
        assert rest == batches[batch:]
        training.assert_goes_on(before, after, batch)


def test_a_run_that_is_resumed_after_an_epoch(tmp_path: Path) -> None:
    sizes = KINDS["samples"]
    batches = batches_of_loop(order(True), sizes, new_clock())
    end = next(i + 1 for i in range(len(batches)) if sum(map(len, batches[: i + 1])) == WINDOWS)
    before, _ = train(sizes, True, **training.saving(tmp_path, (end, Event.EPOCH_CHECKPOINT)))
    after, rest = train(sizes, True, load_path=str(tmp_path / f"{end}.pt"))
    assert rest == batches[end:]
    training.assert_goes_on(before, after, end)


def test_two_ranks(tmp_path: Path) -> None:
    output = output_of_ranks([__file__, str(tmp_path)], tmp_path, 300, NODE_RANK="0")
    results = read_report(tmp_path, 2)
    assert set(results) == {"resumes"}, output
    assert not any(results.values()), "\n".join(results.values())


def resumes(folder: Path) -> None:
    """A run of two ranks that is resumed after five of its batches."""
    sizes, moments = KINDS["tokens"], (2, 5, 10, 12, 17)
    saving = training.saving(folder, *((batch, Event.BATCH_CHECKPOINT) for batch in moments))
    before, batches = train(sizes, True, **saving)
    sampler = order(True)
    assert [target for row in batches[:10] for target in row] == [*sampler][:30]  # ranks cannot share the last one
    assert [len(batch) for batch in batches] == [2] * 5 + [4] * 8 + [8, 8, 2] + [8] * 3
    for batch in moments:
        after, rest = train(sizes, True, load_path=str(folder / f"{batch}.pt"))
        assert rest == batches[batch:]
        training.assert_goes_on(before, after, batch)


def test_the_callback_has_no_clock_before_a_run() -> None:
    with pytest.raises(ValueError, match=r"clock=lambda: callback\.clock"):
        _ = Schedules(Binding(LinearScheduler(), "weight_decay")).clock


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.initialize_dist("cpu")
    report = Report(folder)
    report.check("resumes", lambda: resumes(folder))


if __name__ == "__main__":
    start_ranks(main, 2, Path(sys.argv[1]))
