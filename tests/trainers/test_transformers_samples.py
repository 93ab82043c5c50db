"""What the data loader of transformers' Trainer hands out, and where the Trainer's run ends.

Under torchrun, `FOLDER` checks two ranks.
"""

from __future__ import annotations

import math
import sys
import warnings
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, SubsetRandomSampler
from transformers import (
    DataCollatorWithFlattening,
    Trainer,
    TrainerCallback,
    default_data_collator,
)

import optim
from tests.torchrun import Report, launch
from tests.trainers.test_transformers import LR, new_trainer, of_all_ranks, run
from timesched import Horizon, LinearScheduler
from timesched.integrations.transformers import schedule

LINE, LENGTH = LinearScheduler(), "1000sp"
AVERAGE = partial(optim.WeightAverage, half_life="0.1sec")
ROWS = [[i + 1] * 3 for i in range(21)]  # each sample is told from the others by its first token


class Noting(Trainer):
    """Notes the samples of each microbatch of this rank, and what the clock has counted after each batch."""

    def training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
        rows = self.__dict__.setdefault("rows", [])
        rows.append(inputs["input_ids"].reshape(-1, 3)[:, 0].tolist())
        return super().training_step(model, inputs, *rest)


class Counts(TrainerCallback):
    def __init__(self) -> None:
        self.counts: list[tuple[int, int, int]] = []  # microbatches, samples, and the epoch after each batch
        self.trainer: Any = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        samples = self.trainer.lr_scheduler.clock.timestamp.sample.value
        self.counts.append((len(self.trainer.rows), samples, math.ceil(state.epoch)))


def check(folder: Any, resume: Any = None, counted: int = 0, repeated: bool = False, **options: Any) -> None:
    """Each batch counts the samples that no batch before it had in its epoch, on any rank; or the `repeated` ones, too.

    All steps run with the rate of the samples before them, of which the clock had `counted` some before the run.
    """
    options = {"kind": Noting, "train_dataset": ROWS, "num_train_epochs": 2, **options}
    count = options.pop("count", None)
    trainer, noted = new_trainer(folder, **options), Counts()
    trainer.add_callback(noted)
    noted.trainer = trainer
    schedule(trainer, LINE, max_duration=LENGTH, count=count)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The Trainer has ended the run")
        trainer.train(resume_from_checkpoint=resume)
    ranks = of_all_ranks(trainer.rows) if dist.is_initialized() else [trainer.rows]
    microbatches = [list(chain(*each)) for each in zip(*ranks)]
    seen: dict[int, set[int]] = {}
    ends = [end for end, _, _ in noted.counts]
    for start, (end, total, epoch), row in zip([0, *ends], noted.counts, trainer.recorder.rows):
        assert row["lr"][0] == LR * LINE.at(f"{counted}sp", Horizon(LENGTH))
        handed = list(chain(*microbatches[start:end]))
        before = seen.setdefault(epoch, set())
        counted += len(handed if repeated else set(handed) - before)
        before.update(handed)
        assert total == counted
    assert ends[-1] == len(trainer.rows)


class OwnLoader(Noting):
    """Has batches of three, whatever the argument says."""

    def get_train_dataloader(self) -> Any:
        return self.accelerator.prepare(
            DataLoader(self.train_dataset, 3, collate_fn=self.data_collator, drop_last=self.args.dataloader_drop_last)
        )


class OwnSampler(Noting):
    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return SubsetRandomSampler(range(13))


class Replacing(Noting):
    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return RandomSampler(ROWS, replacement=True, num_samples=33)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(ROWS)


class SizedStream(Stream):
    def __len__(self) -> int:
        return len(ROWS)


class Unbatched(Noting):
    """Its data loader hands out batches as they are, of 1, 2 and 3 samples."""

    def get_train_dataloader(self) -> Any:
        data: Any = [self.data_collator(ROWS[k : k + 1 + k % 3]) for k in range(12)]
        return DataLoader(data, batch_size=None)


def samples_of(batch: Any) -> dict[str, int]:
    return {"samples": len(batch["input_ids"])}


NAMED = [{"input_ids": row, "labels": row} for row in ROWS]
BALANCED = {
    "train_sampling_strategy": "batch_rebalance",
    "train_dataset": NAMED,
    "data_collator": default_data_collator,
}
LOADERS: dict[str, dict[str, Any]] = {
    "the Trainer's own": {},
    "shuffled": {"train_sampling_strategy": "random"},
    "the last microbatch is dropped": {"dataloader_drop_last": True},
    "balanced by length": BALANCED,
    "one row": {"data_collator": DataCollatorWithFlattening(), "train_dataset": NAMED},
    "its own batches": {"kind": OwnLoader, "per_device_train_batch_size": 1},
    "its own batches, dropped": {"kind": OwnLoader, "per_device_train_batch_size": 1, "dataloader_drop_last": True},
    "its own sampler": {"kind": OwnSampler},
    "with replacement": {"kind": Replacing, "repeated": True},
    "a stream with a length": {"train_dataset": SizedStream()},
    "counted batches": {"kind": Unbatched, "count": samples_of, "repeated": True},
    "counted samples": {"kind": OwnSampler, "count": samples_of},
}


@pytest.mark.parametrize("name", LOADERS)
def test_samples_are_those_that_were_handed_out(name: str, tmp_path: Path) -> None:
    check(tmp_path, **LOADERS[name])


@pytest.mark.parametrize("ignore", [False, True])
def test_a_run_that_is_resumed_in_an_epoch(ignore: bool, tmp_path: Path) -> None:
    """After two of its batches, which the Trainer skips, or it begins the epoch again."""
    options = {"num_train_epochs": 3, "save_strategy": "steps", "save_steps": 6}
    check(tmp_path, **options)
    check(tmp_path, tmp_path / "checkpoint-6", 21 + 12, **options, ignore_data_skip=ignore)


@pytest.mark.parametrize("ignore", [False, True])
def test_epochs_of_a_run_that_is_resumed(ignore: bool, tmp_path: Path) -> None:
    """They are the Trainer's own."""
    options = {"max_duration": "3ep", "num_train_epochs": 4, "save_strategy": "steps", "save_steps": 6}
    run(tmp_path, LINE, **options)
    trainer = run(tmp_path, LINE, **options, resume=tmp_path / "checkpoint-6", ignore_data_skip=ignore)
    places = [k / 4 for k in range(4 if ignore else 6, 12)]
    assert [row["lr"][0] for row in trainer.recorder.rows] == [LR * (1 - place / 3) for place in places]
    assert trainer.state.epoch == trainer.lr_scheduler.clock.timestamp.epoch == 3


# Where a run ends


EVALUATED = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 3, "eval_dataset": ROWS}


@pytest.mark.parametrize("options", [{}, {"eval_delay": 9}, {"eval_strategy": "epoch", "save_strategy": "epoch"}])
def test_the_length_that_is_given_ends_the_run_as_max_steps_does(options: dict[str, Any], tmp_path: Path) -> None:
    """With an evaluation and a checkpoint of the last step."""
    found = []
    for name, own, ours in (("own", {"max_steps": 7}, {}), ("ours", {"max_steps": 99}, {"max_duration": "7ba"})):
        folder = tmp_path / name
        trainer = run(folder, LINE, **{**EVALUATED, **options, **own, **ours, "train_dataset": ROWS})
        logs = [(each["step"], sorted(each)) for each in trainer.state.log_history]
        found.append((trainer.state.global_step, logs, sorted(path.name for path in folder.glob("checkpoint-*"))))
    assert found[0] == found[1] and found[0][0] == 7


class Stopping(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step == 5


# The length, the arguments of a Trainer of 4 batches an epoch, of 21 samples, and what is said.
ENDS: list[tuple[str | None, dict[str, Any], str | None]] = [
    ("100sp", {}, "ended the run at 63sp, and its schedules end at 100sp"),
    ("3ep", {"max_steps": 6}, "ended the run at 1.5ep, and its schedules end at 3ep"),
    ("66sp", {}, None),  # less than a batch is missing
    ("100ba", {"callbacks": [Stopping()]}, None),
    (None, {"callbacks": [Stopping()]}, None),
    (None, {}, None),
]


@pytest.mark.parametrize(("length", "options", "words"), ENDS)
def test_a_trainer_that_ends_before_its_schedules_says_so(
    length: str | None, options: dict[str, Any], words: str | None, tmp_path: Path
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(tmp_path, LINE, max_duration=length, **options)
    said = [str(each.message) for each in caught if "its schedules end" in str(each.message)]
    assert len(said) == (words is not None) and (words or "") in "".join(said)


def test_another_batch_size(tmp_path: Path) -> None:
    """A run in samples continues where it was; the error for one in steps says what to do."""
    saving = {"save_strategy": "steps", "save_steps": 3}
    smaller = {"per_device_train_batch_size": 1, "resume": tmp_path / "checkpoint-3"}
    run(tmp_path, LINE, **saving, max_steps=99, max_duration="60sp")
    trainer = run(tmp_path, LINE, **smaller, max_steps=99, max_duration="60sp")
    assert [row["lr"][0] for row in trainer.recorder.rows] == [LR * (1 - k / 60) for k in range(18, 60, 3)]
    run(tmp_path, LINE, **saving)
    with pytest.raises(ValueError, match=r"batches_per_epoch=7: .* had 4 batches") as caught:
        run(tmp_path, LINE, **smaller)
    assert str(caught.value) == (
        "batches_per_epoch=7: an epoch had 4 batches when this was saved. With another batch size pass max_duration to "
        "schedule(): the saved length, or from the start a length in samples or tokens."
    )
    assert "Horizon('12ba'" in str(caught.value.__cause__)
    trainer = run(tmp_path, LINE, **smaller, max_duration="12ba")
    assert [row["lr"][0] for row in trainer.recorder.rows] == [LR * (1 - k / 12) for k in range(3, 12)]


# In processes of their own


def test_two_ranks(tmp_path: Path) -> None:
    found, said = launch(Path(__file__), 2, tmp_path, 240)
    assert found == dict.fromkeys([*ON_RANKS, "seconds", "other seconds"], ""), "\n".join([*found.values(), said])


class OfRanks(Noting):
    """Its data loader is not prepared: a sampler gives each rank its share."""

    def get_train_dataloader(self) -> Any:
        sampler = DistributedSampler(ROWS, shuffle=False)  # type: ignore[arg-type]  # any sequence will do
        return DataLoader(self.train_dataset, 2, sampler=sampler, collate_fn=self.data_collator)


class OfRankAlone(Noting):
    """Its data loader reads what this rank has alone."""

    def get_train_dataloader(self) -> Any:
        own: Any = ROWS[dist.get_rank() : 14 : 2]
        return DataLoader(own, 2, collate_fn=self.data_collator)


STREAM = {"train_dataset": Stream(), "max_steps": 1}  # a full batch of it
ON_RANKS: dict[str, dict[str, Any]] = {
    "the Trainer's own": {},
    "dropped": {"dataloader_drop_last": True},
    "split": {"accelerator_config": {"split_batches": True}, "per_device_train_batch_size": 4},
    "dispatched": {"accelerator_config": {"dispatch_batches": True}},
    "dispatched and split": {
        "accelerator_config": {"dispatch_batches": True, "split_batches": True},
        "per_device_train_batch_size": 4,
    },
    "its own batches": {"kind": OwnLoader, "per_device_train_batch_size": 1},
    "its own sampler": {"kind": OwnSampler},
    "balanced by length": BALANCED,
    "a sampler of each rank": {"kind": OfRanks},
    "data of each rank": {"kind": OfRankAlone},
    "a stream": STREAM,
    "a stream that is split": {
        **STREAM,
        "accelerator_config": {"split_batches": True},
        "per_device_train_batch_size": 4,
    },
    "a stream of each rank": {**STREAM, "accelerator_config": {"dispatch_batches": False}},
    "counted": {"count": samples_of, "repeated": True},
}


def seconds_are_those_of_the_first_rank(folder: Path) -> None:
    """In the length of the run, too: all ranks end at one step."""
    trainer = run(folder, LinearScheduler(t_max="99ba"), max_duration="0.2sec", max_steps=99, ddp_backend="gloo")
    found = trainer.state.global_step, trainer.lr_scheduler.clock.state_dict(), trainer.recorder.rows
    assert of_all_ranks(found) == [found] * 2


def averages_have_the_seconds_of_the_first_rank(folder: Path) -> None:
    """Next to schedules in batches: the averages of all ranks are equal."""
    trainer = new_trainer(folder, train_dataset=ROWS, max_steps=6, ddp_backend="gloo")
    schedule(trainer, LINE, average=AVERAGE)
    trainer.train()
    averages = [state["average"].sum().item() for state in trainer.lr_scheduler.average.state.values()]
    found = trainer.lr_scheduler.clock.state_dict(), averages
    assert of_all_ranks(found) == [found] * 2


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    report = Report(folder)
    for name, options in ON_RANKS.items():
        report.check(name, lambda options=options: check(folder, ddp_backend="gloo", **options))
    report.check("seconds", lambda: seconds_are_those_of_the_first_rank(folder))
    report.check("other seconds", lambda: averages_have_the_seconds_of_the_first_rank(folder))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
