"""The adapter for transformers, in runs of the real Trainer: every batch runs with the value of its time.

As a program: `test_transformers.py CHECKPOINT` goes on from it alone, and under torchrun `FOLDER` checks two ranks.
"""

from __future__ import annotations

import math
import os
import random
import re
import shutil
import sys
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, IterableDataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import optim
from tests.torchrun import ROOT, Report, launch, python_output
from timesched import CosineAnnealingWithWarmupScheduler, Horizon, LinearScheduler
from timesched.integrations.transformers import Binding, schedule

COSINE = CosineAnnealingWithWarmupScheduler("0.2dur", alpha_f=0.1)
DECAY, BETA, LINE = LinearScheduler(1.0, 0.25), LinearScheduler(1.0, 0.9), LinearScheduler()
ENTRIES = (COSINE, Binding(DECAY, "weight_decay"), Binding(BETA, "betas[0]"))
LR, WEIGHT_DECAY, BETA1 = 0.01, 0.1, 0.9
OURS = {"optimizer_cls_and_kwargs": (optim.AdamW, {"lr": LR, "betas": (BETA1, 0.99)})}
COUNT, COUNT_ALL = ({"include_num_input_tokens_seen": how} for how in ("non_padding", "all"))

# 21 samples in microbatches of 2, of which 3 make a batch: 6, 6, 6 and 3 samples in an epoch.
LENGTHS = [3 + 5 * i % 7 for i in range(21)]
STEPS = 12  # in three epochs
RESUMED = {
    **{**OURS, **COUNT, "max_duration": "400tok", "train_sampling_strategy": "random"},
    **{"save_strategy": "steps", "save_steps": 6},  # two batches into the second epoch
}


class Samples(Dataset[Any]):
    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, index: int) -> list[int]:
        return [random.Random(f"{index},{i}").randrange(1, 50) for i in range(LENGTHS[index])]


def padded(samples: list[list[int]]) -> dict[str, torch.Tensor]:
    longest = max(map(len, samples))
    ids = torch.tensor([sample + [0] * (longest - len(sample)) for sample in samples])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": ids.masked_fill(ids == 0, -100)}


class Recorder(TrainerCallback):
    """The values that each batch ran with, by key, for all groups."""

    def __init__(self) -> None:
        self.rows: list[dict[str, list[float]]] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        groups = [{**group, "betas[0]": group.get("betas", [None])[0]} for group in optimizer.param_groups]
        keys = ("lr", "weight_decay", "betas[0]")
        self.rows.append({key: [float(each[key]) for each in groups if each.get(key) is not None] for key in keys})


def new_model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    size = {"n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 16, "vocab_size": 64}
    return GPT2LMHeadModel(GPT2Config(**size, bos_token_id=None, eos_token_id=None))


def new_trainer(folder: Any, kind: type[Trainer] = Trainer, **options: Any) -> Trainer:
    """A Trainer with a `Recorder` as `recorder`. `options` go to its arguments, or to itself if it has them."""
    data = ("train_dataset", "eval_dataset", "data_collator")
    names = ("model", "optimizers", "optimizer_cls_and_kwargs", "callbacks", *data)
    to_trainer = {name: options.pop(name) for name in names if name in options}
    settings = {
        **{"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3, "num_train_epochs": 3},
        **{"learning_rate": LR, "weight_decay": WEIGHT_DECAY, "adam_beta1": BETA1},
        **{"train_sampling_strategy": "sequential", "save_strategy": "no", "report_to": "none", "logging_steps": 1},
        **{"use_cpu": True, "disable_tqdm": True, "dataloader_pin_memory": False},
    }
    arguments = TrainingArguments(str(folder), **{**settings, **options})
    given = {"model": to_trainer.pop("model", None) or new_model(), "train_dataset": Samples(), **to_trainer}
    trainer = kind(args=arguments, **{"data_collator": padded, **given})
    trainer.recorder = Recorder()
    trainer.add_callback(trainer.recorder)
    return trainer


def run(folder: Any, *entries: Any, resume: Any = None, **options: Any) -> Trainer:
    """A Trainer that has trained."""
    names = ("max_duration", "count", "tokens_per_sample", "ssr", "on_change", "log")
    ours = {key: options.pop(key) for key in names if key in options}
    trainer = new_trainer(folder, **options)
    schedule(trainer, *(entries or ENTRIES), **ours)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def outcome(trainer: Trainer) -> dict[str, Any]:
    """What is to be the same, bit for bit, whether the run was interrupted or not."""
    stamp = trainer.lr_scheduler.clock.timestamp.state_dict()
    counts = {key: value for key, value in stamp.items() if not key.endswith("_wct")}
    return {"rows": trainer.recorder.rows[-6:], "weights": trainer.model.state_dict(), "counts": counts}


def before(batches: list[int]) -> list[int]:
    """How much was counted before each batch."""
    return [0, *accumulate(batches)][:-1]


def tokens(padding: bool) -> list[int]:
    """The tokens before each batch of three epochs, in microbatches of two samples."""
    batches = [[LENGTHS[i : i + 2] for i in range(first, min(first + 6, 21), 2)] for first in range(0, 21, 6)]
    return before([sum(max(m) * len(m) if padding else sum(m) for m in batch) for batch in batches] * 3)


def check(rows: list[Any], counts: list[int], horizon: Horizon) -> None:
    """Each batch ran with the values of its time, and none began after the end; the second group of the Trainer's own
    optimizers has no decay.
    """
    unit = "ba" if horizon.max_duration.unit.value == "ep" else horizon.max_duration.unit.value
    end, _ = horizon.locate(horizon.max_duration, scale=False)
    counts = [count for count in counts if count < end]
    assert len(rows) == len(counts)
    schedules = {"lr": (COSINE, LR), "weight_decay": (DECAY, WEIGHT_DECAY), "betas[0]": (BETA, BETA1)}
    for row, count in zip(rows, counts):
        for key, (one, initial) in schedules.items():
            value = initial * one.at(f"{count}{unit}", horizon)
            assert row[key][0] == value, (key, count)
            assert set(row[key][1:]) <= {0.0 if key == "weight_decay" else value}


class Loading(Trainer):
    """Has a data loader of its own, which reads each sample twice."""

    def get_train_dataloader(self) -> DataLoader[Any]:
        data: Any = [Samples()[i % 21] for i in range(42)]
        return DataLoader(data, self._train_batch_size, collate_fn=self.data_collator)


class Small(Trainer):
    """Has memory for microbatches of three samples, and finds out in the second batch."""

    def training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
        if len(inputs["input_ids"]) > 3 and self.state.global_step:
            raise RuntimeError("CUDA out of memory.")
        return super().training_step(model, inputs, *rest)


class Skipping(TrainerCallback):
    """What a gradient scaler says of a step that it skipped."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        optimizer._is_overflow = state.global_step in (0, 1, 5)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([Samples()[i % 21] for i in range(30)])


BATCHES, SAMPLES = list(range(STEPS)), before([6, 6, 6, 3] * 3)
STREAM = {"train_dataset": Stream(), "max_steps": 8}
COMPILED = {"max_steps": 3, "torch_compile": True, "torch_compile_backend": "eager"}
FOUND = {"kind": Small, "per_device_train_batch_size": 4, "auto_find_batch_size": True}
# The length that is given, the arguments of the Trainer, the count before each batch, and the run.
RUNS: dict[str, tuple[str | None, dict[str, Any], list[int], Horizon]] = {
    "epochs of the Trainer": (None, {}, BATCHES, Horizon("12ba")),
    "max_steps": (None, {"max_steps": 7}, BATCHES[:7], Horizon("7ba")),
    "a ratio": ("20ba", {"ssr": 0.5}, BATCHES, Horizon("20ba", ssr=0.5)),
    "epochs": ("2.5ep", {}, BATCHES, Horizon("2.5ep", batches_per_epoch=4)),
    "epochs of a data loader": (
        *("1.5ep", {"kind": Loading, "num_train_epochs": 2}),
        *(list(range(14)), Horizon("1.5ep", batches_per_epoch=7)),
    ),
    "samples": ("50sp", {}, SAMPLES, Horizon("50sp")),
    "full microbatches": ("50sp", {"dataloader_drop_last": True}, before([6, 6, 6, 2] * 3), Horizon("50sp")),
    "data without a length": ("50sp", STREAM, list(range(0, 48, 6)), Horizon("50sp")),
    # the first batch of the larger size does not count
    "a batch size that is found": ("50sp", FOUND, [0, *before([9, 9, 3] * 3)], Horizon("50sp")),
    "all tokens": ("300tok", {**COUNT_ALL, "bf16": True}, tokens(True), Horizon("300tok")),
    "tokens without padding": ("300tok", {**COUNT, **OURS}, tokens(False), Horizon("300tok")),
    "tokens by a rate": ("300tok", {"tokens_per_sample": 6}, [6 * count for count in SAMPLES], Horizon("300tok")),
    "skipped steps": (None, {"callbacks": [Skipping()]}, BATCHES, Horizon("12ba")),
    "a compiled model": (None, COMPILED, BATCHES[:3], Horizon("3ba")),
}


# Of dynamo itself, which asks a tensor that is no parameter for its gradient.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("name", RUNS)
def test_every_batch_runs_with_the_value_of_its_time(name: str, tmp_path: Path) -> None:
    length, options, counts, horizon = RUNS[name]
    trainer = run(tmp_path, max_duration=length, **options)
    check(trainer.recorder.rows, counts, horizon)
    clock = trainer.lr_scheduler.clock
    assert clock.timestamp.batch == trainer.state.global_step
    assert clock.dataloader_len is None or clock.timestamp.epoch == int(trainer.state.epoch)
    skipped = 3 if name == "skipped steps" else 0
    assert trainer.lr_scheduler.bound[0].last_epoch == trainer.state.global_step - skipped
    logged = [each["learning_rate"] for each in trainer.state.log_history if "learning_rate" in each]
    assert logged == [row["lr"][0] for row in trainer.recorder.rows][-len(logged) :]


@pytest.mark.parametrize("log", [True, False])
def test_what_is_scheduled_is_logged_beside_the_learning_rate(tmp_path: Path, log: bool) -> None:
    entries = COSINE, Binding(DECAY, "weight_decay"), Binding(BETA, "betas[0]")
    trainer = run(tmp_path, *entries, log=log, max_steps=6, logging_steps=2)
    groups = range(2 * log)  # the Trainer's own optimizer has two, without tags
    rows, logged = trainer.recorder.rows, trainer.state.log_history[:-1]
    names = {f"{key}/group{i}" for key in ("lr", "weight_decay", "betas[0]") for i in groups}
    assert [set(each) for each in logged] == [{"loss", "grad_norm", "learning_rate", "epoch", "step", *names}] * 3
    for row, each in zip(rows[1::2], logged):  # what the batch ran with
        assert [each[f"weight_decay/group{i}"] for i in groups] == row["weight_decay"][: len(groups)]
        assert [each[f"betas[0]/group{i}"] for i in groups] == row["betas[0]"][: len(groups)]
    assert not names & trainer.state.log_history[-1].keys()  # of the whole run


def test_training_twice_begins_anew(tmp_path: Path) -> None:
    trainer = run(tmp_path, max_steps=4)
    trainer.train()
    check(trainer.recorder.rows, [*range(4), *range(4)], Horizon("4ba"))


def test_tags_and_an_optimizer_that_makes_its_own_rate(tmp_path: Path) -> None:
    """A group's factor multiplies its learning rate. Without a learning rate, NaN is logged."""
    model, left = new_model(), [1.0, 0.75, 0.5, 0.25]
    tagged = {"params": list(model.transformer.ln_f.parameters()), "tags": ["head"], "adjust_learning_rate": 0.5}
    rest = [each for name, each in model.named_parameters() if "ln_f" not in name]
    optimizer = torch.optim.SGD([{"params": rest}, tagged], lr=LR, momentum=0.9, weight_decay=0.1)
    options: dict[str, Any] = {"max_steps": 4, "model": model, "optimizers": (optimizer, None)}
    trainer = run(tmp_path, Binding(LINE, "lr", "head"), Binding(LINE, "weight_decay", [None]), **options)
    assert [row["lr"] for row in trainer.recorder.rows] == [[LR, 0.5 * LR * part] for part in left]
    assert [row["weight_decay"] for row in trainer.recorder.rows] == [[0.1 * part, 0.1] for part in left]
    assert trainer.lr_scheduler.get_last_lr() == [LR, 0.0]
    options["optimizers"] = optim.Adafactor(model.parameters(), lr=None, relative_step=True, weight_decay=0.1), None
    trainer = run(tmp_path, Binding(LINE, "weight_decay"), **options)
    assert [row["weight_decay"] for row in trainer.recorder.rows] == [[0.1 * part] for part in left]
    assert [math.isnan(each["learning_rate"]) for each in trainer.state.log_history[:-1]] == [True] * 4


# Checkpoints


@pytest.fixture(scope="module")
def saved(tmp_path_factory: Any) -> Any:
    """A run that was not interrupted, and its checkpoint of the middle of an epoch."""
    folder = tmp_path_factory.mktemp("saved")
    return run(folder, **RESUMED), folder / "checkpoint-6"


def test_a_fresh_process_goes_on_from_the_checkpoint_alone(saved: Any) -> None:
    trainer, checkpoint = saved
    python_output(__file__, checkpoint)
    resumed, whole = torch.load(checkpoint.parent / "outcome.pt"), outcome(trainer)
    assert resumed["rows"] == whole["rows"] and resumed["counts"] == whole["counts"]
    assert all(torch.equal(each, whole["weights"][name]) for name, each in resumed["weights"].items())


def test_a_checkpoint_of_other_schedules(saved: Any, tmp_path: Path) -> None:
    """Refused; a run that is made longer goes on if it says so."""
    new_trainer(tmp_path, max_steps=4, save_strategy="steps", save_steps=2).train()
    longer = {**RESUMED, "max_duration": "500tok", "num_train_epochs": 4}
    for entries, checkpoint, options, message in (
        (ENTRIES, saved[1], longer, "(?s)400tok.*500tok.* saved, .* now"),
        ([*ENTRIES[:2], Binding(LINE, "betas[0]")], saved[1], RESUMED, "a different schedule"),
        ([COSINE], saved[1], RESUMED, "state is of 3 schedules, and here are 1"),
        (ENTRIES, tmp_path / "checkpoint-2", RESUMED, "state is of 0 schedules, and here are 3"),
    ):
        with pytest.raises(ValueError, match=message):
            run(tmp_path, *entries, resume=str(checkpoint), **options)
    trainer = run(tmp_path, **longer, resume=str(saved[1]), on_change="new")
    assert len(trainer.recorder.rows) == 10
    assert trainer.lr_scheduler.clock.timestamp.token == 4 * sum(LENGTHS)
    assert trainer.lr_scheduler.bound[0].get() == [LR * COSINE.at(f"{4 * sum(LENGTHS)}tok", Horizon("500tok"))] * 2


# Wrong uses: at once, when it trains, and in the first batch


def with_scheduler() -> dict[str, Any]:
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    return {"model": model, "optimizers": (optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer))}


class Voice(torch.nn.Module):
    """A model whose input the Trainer does not count."""

    main_input_name = "input_features"

    def __init__(self) -> None:
        super().__init__()
        self.model = new_model()

    def forward(self, **batch: Any) -> Any:
        return self.model(**batch)


RISING = LinearScheduler(0.5, 1.0, t_max="500tok")
AT_ONCE: list[tuple[Any, dict[str, Any], dict[str, Any], type[Exception], str]] = [
    ([], {}, {}, TypeError, r"entries=\(\): there is no schedule"),
    (["cosine"], {}, {}, TypeError, "schedule='cosine': it is not a schedule"),
    (ENTRIES, {"ssr": 0.5}, {}, ValueError, "schedule.ssr=0.5: it scales max_duration"),
    (ENTRIES, {}, with_scheduler(), ValueError, r"has a ConstantLR already"),
]
TRAINING: list[tuple[Any, dict[str, Any], str]] = [
    ([RISING], {}, "include_num_input_tokens_seen='all'"),
    ([RISING], {**COUNT, "model": Voice()}, "tokens: the Trainer found none in this batch"),
    ([COSINE], {"max_duration": "2ep", **STREAM}, "epochs: .*data loader has no length"),
    ([COSINE, Binding(LINE, "lr")], {}, "key='lr': .* was created later"),
]


@pytest.mark.parametrize(("entries", "given", "options", "error", "message"), AT_ONCE)
def test_refused_at_once(tmp_path: Path, entries: Any, given: Any, options: Any, error: Any, message: str) -> None:
    trainer = new_trainer(tmp_path, **options)
    callbacks = list(trainer.callback_handler.callbacks)
    with pytest.raises(error, match=message):
        schedule(trainer, *entries, **given)
    assert trainer.callback_handler.callbacks == callbacks and "create_scheduler" not in vars(trainer)


@pytest.mark.parametrize(("entries", "options", "message"), TRAINING)
def test_refused_when_it_trains(tmp_path: Path, entries: Any, options: Any, message: str) -> None:
    given = {"max_duration": options["max_duration"]} if "max_duration" in options else {}
    trainer = new_trainer(tmp_path, **{key: value for key, value in options.items() if key not in given})
    schedule(trainer, *entries, **given)
    with pytest.raises(ValueError, match=message):
        trainer.train()
    unchanged = {group["lr"] for group in trainer.optimizer.param_groups} == {LR} and not trainer.recorder.rows
    assert unchanged is ("in this batch" not in message)


def test_a_trainer_with_schedules_is_refused(tmp_path: Path) -> None:
    trainer = new_trainer(tmp_path)
    schedule(trainer, COSINE)
    with pytest.raises(ValueError) as error:
        schedule(trainer, Binding(DECAY, "weight_decay"))
    assert str(error.value) == (
        "schedule.trainer: the Trainer has schedules already. Call schedule() once, with all entries, before train()."
    )
    with pytest.raises(ValueError) as error:
        schedule(new_trainer(tmp_path, **with_scheduler()), COSINE)
    assert str(error.value) == (
        "schedule.trainer: the Trainer has a ConstantLR already. Leave it out, as in "
        "Trainer(optimizers=(optimizer, None))."
    )
    trainer = new_trainer(tmp_path)
    schedule(trainer, RISING)
    with pytest.raises(ValueError) as error:
        trainer.train()
    assert str(error.value) == (
        "tokens: the run counts them, and the Trainer does not. Set "
        "TrainingArguments(include_num_input_tokens_seen='all') or 'non_padding', or pass count= or "
        "tokens_per_sample= to schedule()."
    )


# In processes of their own


def test_the_example(tmp_path: Path) -> None:
    command = ROOT / "examples/transformers_run.py", "--steps", 4, "--out", tmp_path / "out"
    said = python_output(*command)
    end = "batches 4, tokens 16384\nnext learning rate 0.0003, next weight decay 0.01\n"
    losses = [float(loss) for loss in re.findall(r"'loss': '([\d.]+)'", said)]
    assert said.endswith(end) and len(losses) == 4 and losses[-1] < losses[0]
    shutil.rmtree(tmp_path / "out" / "checkpoint-4")
    resumed = python_output(*command, "--resume")
    assert resumed.endswith(end) and re.findall(r"'loss': '([\d.]+)'", resumed) == [f"{x:.4g}" for x in losses[2:]]


def test_two_ranks(tmp_path: Path) -> None:
    found, said = launch(Path(__file__), 2, tmp_path, 150)
    assert found == {"tokens": ""}, "\n".join([*found.values(), said])


class Counting(Trainer):
    """Notes the tokens of each microbatch of this rank."""

    def training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
        self.__dict__.setdefault("own", []).append(int(inputs["attention_mask"].sum()))
        return super().training_step(model, inputs, *rest)


def of_all_ranks(value: Any) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def values_are_those_of_all_tokens(folder: Path) -> None:
    """The same on both ranks, in batches of 3 microbatches, of which an epoch has 6."""
    trainer = run(folder, kind=Counting, ddp_backend="gloo", **COUNT, max_duration="420tok")
    assert of_all_ranks(trainer.recorder.rows) == [trainer.recorder.rows] * 2
    first, second = of_all_ranks(trainer.own)
    assert first != second
    clock = trainer.lr_scheduler.clock
    assert (clock.timestamp.sample, clock.timestamp.epoch) == (3 * 21, 3)
    with pytest.raises(ValueError, match="process_group=False: the seconds may differ between ranks"):
        clock.every("1h")  # each rank has its own seconds, unless a schedule reads them
    microbatches = [sum(each) for each in zip(first, second)]
    batches = [sum(microbatches[i : i + 3]) for i in range(0, len(microbatches), 3)]
    assert len(batches) == 6 and clock.timestamp.token == sum(batches)
    check(trainer.recorder.rows, before(batches), Horizon("420tok"))


def main(folder: Path) -> None:
    if "RANK" not in os.environ:
        trainer = run(folder.parent / "resumed", resume=str(folder), **RESUMED)
        torch.save(outcome(trainer), folder.parent / "outcome.pt")
        return
    dist.init_process_group("gloo")
    Report(folder).check("tokens", lambda: values_are_those_of_all_tokens(folder))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
