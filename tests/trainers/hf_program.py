"""Programs for processes of their own: `hf_program.py CHECKPOINT` goes on from it alone; under torchrun, two ranks."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import Trainer

import optim
from tests.torchrun import Report
from tests.trainers import hf_runs
from timesched import Horizon, LinearScheduler

RESUMED = {
    "max_duration": "400tok",
    "include_num_input_tokens_seen": "non_padding",
    "train_sampling_strategy": "random",
    "optimizer_cls_and_kwargs": (optim.AdamW, {"lr": hf_runs.LR, "betas": (hf_runs.BETA1, 0.99)}),
    "save_strategy": "steps",
    "save_steps": 6,  # two batches into the second epoch
}


def outcome(trainer: Trainer) -> dict[str, Any]:
    """What is to be the same, bit for bit, whether the run was interrupted or not."""
    counts = trainer.lr_scheduler.clock.timestamp.state_dict()
    return {
        "rows": trainer.recorder.rows[-6:],
        "weights": trainer.model.state_dict(),
        "counts": {key: value for key, value in counts.items() if not key.endswith("_wct")},
    }


class Counting(Trainer):
    """Notes the tokens of each microbatch of this rank; rank 1 is the slower one."""

    def training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
        self.__dict__.setdefault("own", []).append(int(inputs["attention_mask"].sum()))
        time.sleep(0.01 * self.args.process_index)
        return super().training_step(model, inputs, *rest)


def of_all_ranks(value: Any) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def tokens_of_batches(trainer: Trainer) -> list[int]:
    """Those of all ranks; an epoch has 6 microbatches on each, in two batches of 3."""
    microbatches = [sum(each) for each in zip(*of_all_ranks(trainer.own))]
    return [sum(microbatches[i : i + 3]) for i in range(0, len(microbatches), 3)]


def tokens(folder: Path) -> None:
    options = {"include_num_input_tokens_seen": "non_padding", "max_duration": "300tok", "ddp_backend": "gloo"}
    trainer = hf_runs.run(folder, kind=Counting, **options)
    batches = tokens_of_batches(trainer)
    counts = [sum(batches[:i]) for i in range(len(batches))]
    first, second = of_all_ranks(trainer.own)
    assert first != second and len(counts) == 6
    for row, count in zip(trainer.recorder.rows, counts):
        assert set(row["lr"]) == {hf_runs.LR * hf_runs.COSINE.at(f"{count}tok", Horizon("300tok"))}
    clock = trainer.lr_scheduler.clock
    assert clock.timestamp.sample == 3 * 21 and clock.timestamp.epoch == 3
    assert of_all_ranks(trainer.recorder.rows) == [trainer.recorder.rows] * 2


def seconds(folder: Path) -> None:
    options = {"include_num_input_tokens_seen": "non_padding", "max_duration": "60sec", "ddp_backend": "gloo"}
    options["accelerator_config"] = {"split_batches": True}  # a microbatch of 2 is one sample for each rank
    trainer = hf_runs.run(folder, LinearScheduler(), kind=Counting, **options)
    assert of_all_ranks(trainer.recorder.rows) == [trainer.recorder.rows] * 2
    rates = [row["lr"][0] for row in trainer.recorder.rows]
    assert rates == sorted(rates, reverse=True) and len(set(rates)) == 12
    clock = trainer.lr_scheduler.clock
    assert of_all_ranks(clock.state_dict()) == [clock.state_dict()] * 2
    assert clock.timestamp.sample == 3 * 21 and clock.timestamp.token == sum(tokens_of_batches(trainer))


def main(folder: Path) -> None:
    if "RANK" not in os.environ:
        trainer = hf_runs.run(folder.parent / "resumed", resume=str(folder), **RESUMED)
        torch.save(outcome(trainer), folder.parent / "outcome.pt")
        return
    dist.init_process_group("gloo")
    report = Report(folder)
    for check in (tokens, seconds):
        report.check(check.__name__, lambda check=check: check(folder))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
