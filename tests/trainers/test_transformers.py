"""The adapter for transformers, in runs of the real Trainer: every batch runs with the value of its time."""

import math
import os
import re
import shutil
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from transformers import Trainer, TrainerCallback

import optim
from tests.torchrun import ROOT, launch
from tests.trainers import hf_program
from tests.trainers.hf_runs import (
    BETA,
    BETA1,
    COSINE,
    DECAY,
    ENTRIES,
    EPOCH,
    LENGTHS,
    LR,
    STEPS,
    WEIGHT_DECAY,
    Samples,
    new_model,
    new_trainer,
    run,
)
from timesched import Horizon, LinearScheduler
from timesched.integrations.transformers import Binding, schedule

PROGRAM = Path(hf_program.__file__)
SCHEDULES = {"lr": (COSINE, LR), "weight_decay": (DECAY, WEIGHT_DECAY), "betas[0]": (BETA, BETA1)}


def before(batches):
    """How much was counted before each batch."""
    return [0, *accumulate(batches)][:-1]


def check(rows, counts, horizon):
    """Each batch ran with the values of its time; the second group of the Trainer's own optimizers has no decay."""
    assert len(rows) == len(counts)
    unit = "ba" if horizon.max_duration.unit.value == "ep" else horizon.max_duration.unit.value
    for row, count in zip(rows, counts):
        for key, (one, initial) in SCHEDULES.items():
            value = initial * one.at(f"{count}{unit}", horizon)
            assert row[key][0] == value, (key, count)
            assert set(row[key][1:]) <= {0.0 if key == "weight_decay" else value}


def tokens_of(batch, padding):
    microbatches = [LENGTHS[i : i + 2] for i in batch[::2]]
    return sum(max(each) * len(each) if padding else sum(each) for each in microbatches)


BATCHES = range(STEPS)
SAMPLES, FEWER_SAMPLES = before([6, 6, 6, 3] * 3), before([6, 6, 6, 2] * 3)
TOKENS, ALL_TOKENS = (before([tokens_of(batch, padding) for batch in EPOCH * 3]) for padding in (False, True))
OURS = {"optimizer_cls_and_kwargs": (optim.AdamW, {"lr": LR, "betas": (BETA1, 0.99)})}
COUNT, COUNT_ALL = ({"include_num_input_tokens_seen": how} for how in ("non_padding", "all"))

# The length that is given, the arguments of the Trainer, the count before each batch, and the run.
RUNS = {
    "epochs of the Trainer": (None, {}, BATCHES, Horizon("12ba")),
    "max_steps": (None, {"max_steps": 7}, BATCHES[:7], Horizon("7ba")),
    "batches": ("9ba", {}, BATCHES, Horizon("9ba")),
    "a ratio": ("20ba", {"ssr": 0.5}, BATCHES, Horizon("20ba", ssr=0.5)),
    "epochs": ("2.5ep", {}, BATCHES, Horizon("2.5ep", batches_per_epoch=4)),
    "samples": ("50sp", {}, SAMPLES, Horizon("50sp")),
    "full microbatches": ("50sp", {"dataloader_drop_last": True}, FEWER_SAMPLES, Horizon("50sp")),
    "all tokens": ("300tok", {**COUNT_ALL, "bf16": True}, ALL_TOKENS, Horizon("300tok")),
    "tokens without padding": ("300tok", {**COUNT, **OURS}, TOKENS, Horizon("300tok")),
    "tokens by a rate": ("300tok", {"tokens_per_sample": 6}, [6 * count for count in SAMPLES], Horizon("300tok")),
}


@pytest.mark.parametrize("name", RUNS)
def test_every_batch_runs_with_the_value_of_its_time(name, tmp_path):
    length, options, counts, horizon = RUNS[name]
    trainer = run(tmp_path, max_duration=length, **options)
    check(trainer.recorder.rows, counts, horizon)
    logged = [each["learning_rate"] for each in trainer.state.log_history if "learning_rate" in each]
    assert logged == [row["lr"][0] for row in trainer.recorder.rows]
    stamp = trainer.lr_scheduler.clock.timestamp
    assert stamp.batch == trainer.state.global_step and stamp.epoch == len(counts) // 4


# Of dynamo itself, which asks a tensor that is no parameter for its gradient.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_a_compiled_model(tmp_path):
    trainer = run(tmp_path, max_steps=3, torch_compile=True, torch_compile_backend="eager")
    check(trainer.recorder.rows, range(3), Horizon("3ba"))


class Loading(Trainer):
    """Has a data loader of its own, which reads each sample twice."""

    def get_train_dataloader(self):
        data = [Samples()[i % 21] for i in range(42)]
        return torch.utils.data.DataLoader(data, self._train_batch_size, collate_fn=self.data_collator)


def test_the_length_of_an_epoch_is_that_of_the_data_loader(tmp_path):
    trainer = run(tmp_path, max_duration="1.5ep", kind=Loading, num_train_epochs=2)
    check(trainer.recorder.rows, range(14), Horizon("1.5ep", batches_per_epoch=7))
    assert trainer.lr_scheduler.clock.timestamp.sample == 84


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([Samples()[i % 21] for i in range(30)])


def test_data_without_a_length(tmp_path):
    trainer = run(tmp_path, max_duration="50sp", train_dataset=Stream(), max_steps=8)
    check(trainer.recorder.rows, [6 * i for i in range(8)], Horizon("50sp"))
    with pytest.raises(ValueError, match="counts epochs, and the data loader has no length"):
        run(tmp_path, max_duration="2ep", train_dataset=Stream(), max_steps=8)


class Skipping(TrainerCallback):
    """What a gradient scaler says of a step that it skipped."""

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        optimizer._is_overflow = state.global_step in (0, 1, 5)


def test_skipped_steps(tmp_path):
    trainer = run(tmp_path, callbacks=[Skipping()])
    check(trainer.recorder.rows, BATCHES, Horizon("12ba"))
    assert trainer.lr_scheduler.bound[0].last_epoch == STEPS - 3


class Small(Trainer):
    """Has memory for microbatches of three samples, and finds out in the second batch."""

    def training_step(self, model, inputs, *rest):
        if len(inputs["input_ids"]) > 3 and self.state.global_step:
            raise RuntimeError("CUDA out of memory.")
        return super().training_step(model, inputs, *rest)


def test_a_batch_size_that_is_found(tmp_path):
    options = {"per_device_train_batch_size": 4, "auto_find_batch_size": True, "max_duration": "50sp"}
    trainer = run(tmp_path, kind=Small, **options)
    check(trainer.recorder.rows[-9:], before([9, 9, 3] * 3), Horizon("50sp"))
    assert len(trainer.recorder.rows) == 10


def test_training_twice_begins_anew(tmp_path):
    trainer = run(tmp_path, max_steps=4)
    trainer.train()
    check(trainer.recorder.rows, [*range(4), *range(4)], Horizon("4ba"))


def test_an_optimizer_that_makes_its_own_rate(tmp_path):
    """It is logged as NaN."""
    model = new_model()
    optimizer = optim.Adafactor(model.parameters(), lr=None, relative_step=True, weight_decay=0.1)
    binding = Binding(LinearScheduler(), "weight_decay")
    trainer = run(tmp_path, binding, max_steps=2, model=model, optimizers=(optimizer, None))
    assert [row["weight_decay"] for row in trainer.recorder.rows] == [[0.1], [0.05]]
    assert [math.isnan(each["learning_rate"]) for each in trainer.state.log_history[:-1]] == [True, True]


@pytest.mark.parametrize("kind", [optim.SGD, torch.optim.SGD])
def test_tags(tmp_path, kind):
    model = new_model()
    head = [model.transformer.ln_f.weight, model.transformer.ln_f.bias]
    rest = [parameter for parameter in model.parameters() if all(parameter is not each for each in head)]
    groups = [{"params": rest}, {"params": head, "tags": ["head"]}]
    optimizer = kind(groups, lr=LR, momentum=0.9, weight_decay=0.1)
    line, options = LinearScheduler(), {"max_steps": 4, "model": model, "optimizers": (optimizer, None)}
    trainer = run(tmp_path, Binding(line, "lr", "head"), Binding(line, "weight_decay", [None]), **options)
    left = [line.at(f"{i}ba", Horizon("4ba")) for i in range(4)]
    assert [row["lr"] for row in trainer.recorder.rows] == [[LR, LR * part] for part in left]
    assert [row["weight_decay"] for row in trainer.recorder.rows] == [[0.1 * part, 0.1] for part in left]
    assert trainer.lr_scheduler.get_last_lr() == [LR, 0.0]


@pytest.mark.parametrize("kind", [optim.AdamW, torch.optim.AdamW])
def test_an_embedding_resized_after_the_optimizer_was_made(tmp_path, kind):
    model = new_model()
    optimizer = kind(model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY, betas=(BETA1, 0.99))
    model.resize_token_embeddings(80)
    trainer = run(tmp_path, model=model, optimizers=(optimizer, None))
    check(trainer.recorder.rows, BATCHES, Horizon("12ba"))
    for parameter, state in optimizer.state.items():
        assert state["exp_avg"].shape == parameter.shape
    losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
    assert losses[-1] < losses[0] and all(map(math.isfinite, losses))


# Checkpoints


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run that was not interrupted, and its checkpoint of the middle of an epoch."""
    folder = tmp_path_factory.mktemp("saved")
    return run(folder, **hf_program.RESUMED), folder / "checkpoint-6"


def test_a_fresh_process_goes_on_from_the_checkpoint_alone(saved):
    trainer, checkpoint = saved
    program(PROGRAM, checkpoint)
    resumed, whole = torch.load(checkpoint.parent / "outcome.pt"), hf_program.outcome(trainer)
    assert resumed["rows"] == whole["rows"] and resumed["counts"] == whole["counts"]
    assert all(torch.equal(each, whole["weights"][name]) for name, each in resumed["weights"].items())


@pytest.mark.parametrize(("on_change", "length"), [("same", None), ("new", "500tok")])
def test_a_run_that_is_made_longer(saved, tmp_path, on_change, length):
    longer = {**hf_program.RESUMED, "max_duration": "500tok", "num_train_epochs": 4, "on_change": on_change}
    if length is None:
        with pytest.raises(ValueError, match="(?s)400tok.*500tok.* saved, .* now"):
            run(tmp_path, resume=str(saved[1]), **longer)
        return
    trainer = run(tmp_path, resume=str(saved[1]), **longer)
    assert len(trainer.recorder.rows) == 10
    assert trainer.lr_scheduler.clock.timestamp.token == 4 * sum(LENGTHS)
    assert trainer.lr_scheduler.bound[0].get() == [LR * COSINE.at(f"{4 * sum(LENGTHS)}tok", Horizon(length))] * 2


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([COSINE, Binding(DECAY, "weight_decay"), Binding(LinearScheduler(), "betas[0]")], "another schedule:"),
        ([COSINE], "The state holds 3 schedules, and here are 1"),
    ],
)
def test_a_checkpoint_of_other_schedules_is_refused(saved, tmp_path, entries, message):
    with pytest.raises(ValueError, match=message):
        run(tmp_path, *entries, resume=str(saved[1]), **hf_program.RESUMED)


def test_a_checkpoint_of_the_scheduler_of_the_trainer_is_refused(tmp_path):
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    new_trainer(tmp_path, **options).train()
    with pytest.raises(ValueError, match="The state holds none of such schedules, and here are 3"):
        run(tmp_path, resume=str(tmp_path / "checkpoint-2"), **options)


# Wrong uses


def test_tokens_that_nobody_counts_are_refused(tmp_path):
    trainer = new_trainer(tmp_path)
    schedule(trainer, LinearScheduler(0.5, 1.0, t_max="500tok"))
    with pytest.raises(ValueError, match=r"include_num_input_tokens_seen='all'"):
        trainer.train()
    assert {group["lr"] for group in trainer.optimizer.param_groups} == {LR}
    assert trainer.recorder.rows == []


def test_a_model_whose_tokens_the_trainer_does_not_find_is_refused(tmp_path):
    model = new_model()
    model.main_input_name = "input_features"
    with pytest.raises(ValueError, match="the Trainer found none in this batch: .* main_input_name"):
        run(tmp_path, LinearScheduler(t_max="500tok"), model=model, **COUNT)


def test_two_schedules_of_one_key_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"'lr' was superseded"):
        run(tmp_path, COSINE, Binding(LinearScheduler(), "lr"))


def test_a_trainer_with_a_scheduler_is_refused(tmp_path):
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    theirs = torch.optim.lr_scheduler.ConstantLR(optimizer)
    trainer = new_trainer(tmp_path, model=model, optimizers=(optimizer, theirs))
    with pytest.raises(ValueError, match=r"already, a ConstantLR: leave it out, as in Trainer\(optimizers="):
        schedule(trainer, COSINE)
    trainer = new_trainer(tmp_path)
    schedule(trainer, COSINE)
    with pytest.raises(ValueError, match=r"already, schedules: .* call schedule\(\) once"):
        schedule(trainer, Binding(DECAY, "weight_decay"))


@pytest.mark.parametrize(
    ("entries", "options", "error", "message"),
    [
        ([], {}, TypeError, "There is no schedule"),
        (["cosine"], {}, TypeError, "'cosine' is not a schedule"),
        (ENTRIES, {"ssr": 0.5}, ValueError, r"ssr=0.5 scales max_duration, which is None"),
    ],
)
def test_wrong_arguments_change_nothing(tmp_path, entries, options, error, message):
    trainer = new_trainer(tmp_path)
    callbacks = list(trainer.callback_handler.callbacks)
    with pytest.raises(error, match=message):
        schedule(trainer, *entries, **options)
    assert trainer.callback_handler.callbacks == callbacks and "create_scheduler" not in vars(trainer)


def test_deepspeed_is_refused(tmp_path):
    trainer = new_trainer(tmp_path)
    trainer.is_deepspeed_enabled = True
    with pytest.raises(ValueError, match="DeepSpeed steps the scheduler itself"):
        schedule(trainer, COSINE)


# Other processes


def program(*command):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *map(str, command)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example(tmp_path):
    out = tmp_path / "out"
    said = program(ROOT / "examples/transformers_run.py", "--steps", 4, "--out", out)
    end = "batches 4, tokens 16384\nnext learning rate 0.0003, next weight decay 0.01\n"
    losses = [float(loss) for loss in re.findall(r"'loss': '([\d.]+)'", said)]
    assert said.endswith(end) and len(losses) == 4 and losses[-1] < losses[0]
    shutil.rmtree(out / "checkpoint-4")
    resumed = program(ROOT / "examples/transformers_run.py", "--steps", 4, "--out", out, "--resume")
    assert resumed.endswith(end) and re.findall(r"'loss': '([\d.]+)'", resumed) == [
        f"{loss:.4g}" for loss in losses[2:]
    ]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return launch(PROGRAM, 2, tmp_path_factory.mktemp("ranks"), 150)


@pytest.mark.parametrize("name", ["tokens", "seconds"])
def test_two_ranks(name, results):
    found, said = results
    assert found.get(name) == "", found.get(name) or said
