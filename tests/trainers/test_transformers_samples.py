"""The clock counts the samples that the data loader of transformers' Trainer returns.

Under torchrun, `FOLDER` checks two ranks.
"""

from __future__ import annotations

import math
import sys
import warnings
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, SubsetRandomSampler
from transformers import DataCollatorWithFlattening, Trainer, TrainerCallback, default_data_collator

from tests.torchrun import Report, launch
from tests.trainers.rows.transformers import train
from tests.trainers.runs import LR, Model, Task, of_all_ranks
from timesched import Horizon, LinearScheduler

LINE = LinearScheduler()
ROWS = [{"input_ids": [i + 1] * 3, "labels": [i] * 3} for i in range(21)]  # each sample is known by its tokens
TASK = Task((LINE,), "1000sp", accumulate=3, batch_size=2)


class Noting(Model):
    """Notes the samples of a microbatch, also if they are one row."""

    def forward(self, input_ids: Any, **_: Any) -> Any:
        loss = super().forward(input_ids)
        self.run.seen[-1] = input_ids.reshape(-1, 3)[:, 0].tolist()
        return loss


class Counts(TrainerCallback):
    """After each batch: the microbatches, the samples that the clock has counted, and the epoch."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **rest: Any) -> None:
        samples = rest["lr_scheduler"].clock.timestamp.sample.value
        self.rows.append((len(getattr(model, "module", model).run.seen), samples, math.ceil(state.epoch)))


def check(folder: Path, task: Task = TASK, counted: int = 0, repeated: bool = False, **options: Any) -> None:
    """Each batch counts the samples that no batch before it had in its epoch, on any rank; or the `repeated` ones, too.

    All steps run with the rate of the samples before them, of which the clock had `counted` some before the run.
    """
    counts = Counts()
    settings = {"train_dataset": ROWS, "data_collator": default_data_collator, "model": Noting(), "callbacks": [counts]}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The Trainer has ended the run")
        run = train(folder, task, **settings | options)
    microbatches = [list(chain(*parts)) for parts in zip(*of_all_ranks(run.seen))]
    seen: dict[int, set[int]] = {}
    ends = [end for end, _, _ in counts.rows]
    for start, (end, total, epoch), rate in zip([0, *ends], counts.rows, run.of("lr")):
        assert rate == LR * LINE.at(f"{counted}sp", Horizon("1000sp"))
        returned = list(chain(*microbatches[start:end]))
        before = seen.setdefault(epoch, set())
        counted += len(returned if repeated else set(returned) - before)
        before.update(returned)
        assert total == counted
    assert ends[-1] == len(run.seen) and len(ends) == len(run.values)


class OwnLoader(Trainer):
    """Has batches of three, whatever the argument says."""

    def get_train_dataloader(self) -> Any:
        options = {"collate_fn": self.data_collator, "drop_last": self.args.dataloader_drop_last}
        return self.accelerator.prepare(DataLoader(self.train_dataset, 3, **options))


class OwnSampler(Trainer):
    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return SubsetRandomSampler(range(13))


class Replacing(Trainer):
    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return RandomSampler(ROWS, replacement=True, num_samples=33)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(ROWS)


class SizedStream(Stream):
    def __len__(self) -> int:
        return len(ROWS)


class Unbatched(Trainer):
    """Its data loader returns batches as they are, of 1, 2 and 3 samples."""

    def get_train_dataloader(self) -> Any:
        return DataLoader([self.data_collator(ROWS[k : k + 1 + k % 3]) for k in range(12)], batch_size=None)


def samples_of(batch: Any) -> dict[str, int]:
    return {"samples": len(batch["input_ids"])}


OWN = {"kind": OwnLoader, "per_device_train_batch_size": 1}
DROPPED = {"dataloader_drop_last": True}
BALANCED = {"train_sampling_strategy": "batch_rebalance"}
LOADERS: dict[str, dict[str, Any]] = {
    "the Trainer's own": {},
    "shuffled": {"train_sampling_strategy": "random"},
    "the last microbatch is dropped": DROPPED,
    "balanced by length": BALANCED,
    "one row": {"data_collator": DataCollatorWithFlattening()},
    "its own batches": OWN,
    "its own batches, dropped": {**OWN, **DROPPED},
    "its own sampler": {"kind": OwnSampler},
    "with replacement": {"kind": Replacing, "repeated": True},
    "a stream with a length": {"train_dataset": SizedStream()},
    "counted batches": {"kind": Unbatched, "count": samples_of, "repeated": True},
    "counted samples": {"kind": OwnSampler, "count": samples_of},
}


@pytest.mark.parametrize("name", LOADERS)
def test_samples_are_those_that_were_returned(name: str, tmp_path: Path) -> None:
    check(tmp_path, **LOADERS[name])


@pytest.mark.parametrize("ignore", [False, True])
def test_a_run_that_is_resumed_in_an_epoch(ignore: bool, tmp_path: Path) -> None:
    """After two of its batches, which the Trainer skips, or it begins the epoch again."""
    options = {"num_train_epochs": 3, "save_strategy": "steps", "save_steps": 6}
    check(tmp_path, **options)
    check(tmp_path, replace(TASK, load=(tmp_path, 6)), 21 + 12, **options, ignore_data_skip=ignore)


# In processes of their own


class OfRanks(Trainer):
    """Its data loader is not prepared: a sampler gives each rank its share."""

    def get_train_dataloader(self) -> Any:
        sampler = DistributedSampler(ROWS, shuffle=False)  # type: ignore[arg-type]  # any sequence will do
        return DataLoader(self.train_dataset, 2, sampler=sampler, collate_fn=self.data_collator)


class OfRankAlone(Trainer):
    """Its data loader reads what this rank has alone."""

    def get_train_dataloader(self) -> Any:
        own: Any = ROWS[dist.get_rank() : 14 : 2]
        return DataLoader(own, 2, collate_fn=self.data_collator)


SPLIT, DISPATCHED = {"split_batches": True}, {"dispatch_batches": True}
STREAM = {"train_dataset": Stream(), "max_steps": 1}  # a full batch of it
ON_RANKS: dict[str, dict[str, Any]] = {
    "the Trainer's own": {},
    "dropped": DROPPED,
    "split": {"accelerator_config": SPLIT, "per_device_train_batch_size": 4},
    "dispatched": {"accelerator_config": DISPATCHED},
    "dispatched and split": {"accelerator_config": SPLIT | DISPATCHED, "per_device_train_batch_size": 4},
    "its own batches": OWN,
    "its own sampler": {"kind": OwnSampler},
    "balanced by length": BALANCED,
    "a sampler of each rank": {"kind": OfRanks},
    "data of each rank": {"kind": OfRankAlone},
    "a stream": STREAM,
    "a stream that is split": {**STREAM, "accelerator_config": SPLIT, "per_device_train_batch_size": 4},
    "a stream of each rank": {**STREAM, "accelerator_config": {"dispatch_batches": False}},
    "counted": {"count": samples_of, "repeated": True},
}


def test_two_ranks(tmp_path: Path) -> None:
    results, output = launch(Path(__file__), 2, tmp_path, 240)
    assert results == dict.fromkeys([*ON_RANKS, "seconds"], ""), "\n".join([*results.values(), output])


def check_seconds(folder: Path) -> None:
    """All ranks end at the seconds of the first, which they have only if a time of the run needs them."""
    run = train(folder, Task((LINE,), "0.2sec", epochs=99))
    assert of_all_ranks((len(run.values), run.counts)) == [(len(run.values), run.counts)] * 2
    clock = train(folder, Task((LINE,), None)).trainer.lr_scheduler.clock
    with pytest.raises(ValueError, match="process_group=False: the seconds may differ between ranks"):
        clock.every("1h")


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    report = Report(folder)
    for name, options in ON_RANKS.items():
        report.check(name, partial(check, folder, **options))
    report.check("seconds", partial(check_seconds, folder))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
