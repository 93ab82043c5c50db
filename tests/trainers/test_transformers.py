"""What only the adapter for transformers promises, in runs of the real Trainer."""

from __future__ import annotations

import math
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from transformers import Trainer, TrainerCallback

import optim
from tests.docs.tables import readme_code
from tests.torchrun import ROOT, python_output
from tests.trainers import runs
from tests.trainers.rows.transformers import DATA, make_trainer, train
from tests.trainers.runs import AVERAGE, LR, UNEVEN, Model, Task, collate, plain_loop
from timesched import BatchSizeSchedule, LinearScheduler, MultiStepScheduler
from timesched.integrations.transformers import Binding, schedule

LINE = LinearScheduler()
BOTH = (LINE, runs.ENTRIES[1])


class OwnLoader(Trainer):
    """Its data loader reads each sample twice."""

    def get_train_dataloader(self) -> Any:
        return DataLoader(DATA * 2, runs.MICROBATCH, collate_fn=collate)


class Small(Trainer):
    """Has memory for microbatches of three samples, and finds out in the second batch."""

    def training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
        if len(inputs["input_ids"]) > 3 and self.state.global_step:
            raise RuntimeError("CUDA out of memory.")
        return super().training_step(model, inputs, *rest)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(DATA[:30])


def collate_with_mask(samples: Any) -> dict[str, Any]:
    lengths, batch = torch.tensor([len(sample) for sample in samples]), collate(samples)
    return {**batch, "attention_mask": torch.arange(batch["input_ids"].shape[1]) < lengths[:, None]}


def count_tokens(batch: Any) -> dict[str, int]:
    return {"tokens": batch["input_ids"].numel()}


STREAM = {"train_dataset": Stream(), "max_steps": 99}
MASKED = {"include_num_input_tokens_seen": "non_padding", "data_collator": collate_with_mask, "bf16": True}
# The tokens of each sample of an epoch, the task, and arguments of the Trainer and of `schedule`.
RUNS: dict[str, tuple[list[int], Task, dict[str, Any]]] = {
    "epochs of its data loader": (UNEVEN * 2, Task(BOTH, "1.5ep"), {"kind": OwnLoader}),
    "epochs of one step": (UNEVEN[:3], Task(BOTH, "9ep", epochs=9, batch_size=4), {"train_dataset": DATA[:3]}),
    "data without a length": (UNEVEN[:30], Task(BOTH, "50sp"), STREAM),
    "tokens without padding": (UNEVEN, Task(batch_size=4), MASKED),
    "tokens by a factor": ([6] * 37, Task(counts_tokens=False), {"tokens_per_sample": 6}),
    "tokens by a function": (UNEVEN, Task(counts_tokens=False, accumulate=3), {"count": count_tokens}),
}


@pytest.mark.parametrize("name", RUNS)
def test_each_step_has_the_values_of_its_time(name: str, tmp_path: Path) -> None:
    lengths, task, options = RUNS[name]
    run, plain = train(tmp_path, task, **options), plain_loop(lengths, task)
    assert run.values == plain.values and len(run.values) > 7
    assert [row["learning_rate"] for row in run.logs] == run.of("lr")


def test_max_steps_and_epochs(tmp_path: Path) -> None:
    run = train(tmp_path, Task(BOTH, None), max_steps=7)
    assert run.values == plain_loop(UNEVEN, Task(BOTH, "7ba")).values
    run.trainer.train()  # which begins again
    assert run.of("lr") == [LR * (1 - k / 7) for k in range(7)] * 2


def test_the_call_of_the_readme(tmp_path: Path) -> None:
    """In a Trainer that would train for longer."""
    steps = MultiStepScheduler(["0.3dur", "0.5dur", "0.9dur"])
    task = Task((steps,), "90ep", batch_size=12)
    trainer = make_trainer(tmp_path, task, num_train_epochs=100)
    exec(readme_code("schedule(trainer"), {"trainer": trainer, "schedule": schedule, "steps": steps})
    trainer.train()
    assert trainer.model.run.of("lr") == plain_loop(UNEVEN, task).of("lr")


def test_logs(tmp_path: Path) -> None:
    """Every few steps, with the values that the step ran with. The summary of the run has none."""
    run = train(tmp_path, Task(BOTH, None), max_steps=6, logging_steps=2)
    assert [row["weight_decay/head"] for row in run.logs] == run.of("weight_decay", 1)[1::2]
    assert not any("/" in name for name in run.trainer.state.log_history[-1])


def test_a_batch_size_that_is_found(tmp_path: Path) -> None:
    """The first batch of the larger size does not count."""
    run = train(tmp_path, Task(BOTH, "50sp", batch_size=4), kind=Small, auto_find_batch_size=True)
    plain = plain_loop(UNEVEN, Task(BOTH, "50sp"))
    assert run.values == [plain.values[0], *plain.values] and run.counts["sample"] == plain.counts["sample"]


# Of dynamo itself, which asks a tensor that is no parameter for its gradient.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_a_compiled_model(tmp_path: Path) -> None:
    task = Task(BOTH, "30tok")
    run = train(tmp_path, task, torch_compile=True, torch_compile_backend="eager")
    assert run.values == plain_loop(UNEVEN, task).values


def test_an_optimizer_without_a_learning_rate(tmp_path: Path) -> None:
    model = Model()
    optimizer = optim.Adafactor(model.parameters(), lr=None, relative_step=True, weight_decay=0.1)
    trainer = make_trainer(tmp_path, Task(), model, optimizers=(optimizer, None), max_steps=4)
    schedule(trainer, Binding(LINE, "weight_decay"))
    trainer.train()
    logs = trainer.state.log_history[:-1]
    assert [row["weight_decay"] for row in logs] == [0.1 * left for left in (1.0, 0.75, 0.5, 0.25)]
    assert all(math.isnan(row["learning_rate"]) for row in logs)


# Wrong uses


class Voice(Model):
    main_input_name = "input_features"  # which the Trainer does not find


SGD = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=LR)
TOKENS, EPOCHS, ITERATIONS = (
    LinearScheduler(t_max="99tok"),
    "epochs: .*data loader has no length",
    "iterations: the run",
)
WITHOUT, SAMPLES = {"counts_tokens": False}, {"count": lambda batch: {"samples": len(batch["input_ids"])}}


def half_life(time: str, **options: Any) -> dict[str, Any]:
    return {"average": partial(optim.WeightAverage, half_life=time, **options)}


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"max_duration": None, "ssr": 0.5}, {}, r"schedule\.ssr=0\.5: it scales max_duration"),
    (
        {},
        {"optimizers": (SGD, torch.optim.lr_scheduler.ConstantLR(SGD))},
        r"has a ConstantLR already\. Leave it out, as",
    ),
    (
        {"entries": (TOKENS,), "max_duration": "9ba"},
        {"model": Voice()},
        "tokens: the run counts .* main_input_name of its model",
    ),
    ({"entries": (TOKENS,), "max_duration": "9ba", **WITHOUT}, SAMPLES, "tokens: the run counts .*{'tokens': "),
    ({"entries": (LINE,), "max_duration": "2ep"}, STREAM, EPOCHS),
    ({"entries": (LINE,), "max_duration": "9ba", **half_life("1ep")}, STREAM, EPOCHS),
    ({"entries": (LinearScheduler(t_max="9iter"),)}, {}, ITERATIONS),
    (half_life("2iter"), {}, ITERATIONS),
    ({"sizes": BatchSizeSchedule("0sp:2 10sp:4")}, {}, "has a BatchSizeSampler.*Use a loop of your own, or accelerate"),
]


@pytest.mark.parametrize(("changes", "options", "words"), REFUSED)
def test_refused(changes: Any, options: Any, words: str, tmp_path: Path) -> None:
    """Most of them before the first step."""
    model = options.get("model") or Model()
    optimizer = runs.make_optimizer(model)
    with pytest.raises(ValueError, match=words):
        train(tmp_path, replace(Task(), **changes), **{"model": model, "optimizers": (optimizer, None), **options})
    assert optimizer.param_groups[1]["lr"] in (LR, 0.0) and len(model.run.seen) == ("tokens: " in words)


def test_the_trainer_has_one_call_of_schedule(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, Task())
    callbacks = list(trainer.callback_handler.callbacks)
    with pytest.raises(TypeError, match=r"entries=\(\): there is no schedule"):
        schedule(trainer)
    with pytest.raises(TypeError, match=r"it is of type LinearScheduler. Pass the Trainer first, and then the sch"):
        schedule(LINE, trainer)
    assert trainer.callback_handler.callbacks == callbacks and "create_scheduler" not in vars(trainer)
    schedule(trainer, LINE)
    with pytest.raises(ValueError, match=r"has schedules already\. Call schedule\(\) once, with all entries, before"):
        schedule(trainer, Binding(LINE, "weight_decay"))


def test_arguments_that_have_no_effect(tmp_path: Path) -> None:
    for options, words in (
        ({"lr_scheduler_type": "cosine", "warmup_steps": 3}, "lr_scheduler_type=.*, warmup_steps=3 has no effect"),
        ({"warmup_steps": 5}, "warmup_steps=5 has no effect"),
    ):
        with pytest.warns(UserWarning, match=words):
            schedule(make_trainer(tmp_path, Task(), **options), LINE)
    trainer = make_trainer(tmp_path, Task())
    trainer.args.load_best_model_at_end = True
    with pytest.warns(UserWarning, match="load_best_model_at_end=True: the average"):
        schedule(trainer, LINE, average=AVERAGE, evaluate_averaged=True)


# Where a run ends


@pytest.mark.parametrize("options", [{}, {"eval_delay": 9}, {"eval_strategy": "epoch", "save_strategy": "epoch"}])
def test_the_length_that_is_given_ends_the_run_as_max_steps_does(options: dict[str, Any], tmp_path: Path) -> None:
    """With an evaluation and a checkpoint of the last step."""
    outcomes = []
    options = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 3, **options}
    for length, steps in ((None, 7), ("7ba", 99)):
        folder = tmp_path / str(steps)
        state = train(folder, Task((LINE,), length), **options, max_steps=steps).trainer.state
        logs = [(row["step"], sorted(row)) for row in state.log_history]
        outcomes.append((state.global_step, logs, sorted(path.name for path in folder.glob("checkpoint-*"))))
    assert outcomes[0] == outcomes[1] and outcomes[0][0] == 7


class Stopping(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step == 5


def test_a_trainer_that_ends_before_its_schedules_says_so(tmp_path: Path) -> None:
    """But not if a callback stopped it. The suite runs one that ends less than a batch before."""
    with pytest.warns(UserWarning, match="ended the run at 20/13ep, and its schedules end at 3ep"):
        train(tmp_path, Task((LINE,), "3ep"), max_steps=20)
    for length in ("100ba", None):
        assert len(train(tmp_path, Task((LINE,), length), callbacks=[Stopping()]).values) == 5


# Resumed


def test_another_batch_size(tmp_path: Path) -> None:
    """The error for a run in steps says what to do."""
    task = Task((LINE,), None, save_after=[3])
    train(tmp_path, task)
    other = replace(task, load=(tmp_path, 3), batch_size=2)
    with pytest.raises(ValueError) as caught:
        train(tmp_path, other)
    assert str(caught.value) == (
        "batches_per_epoch=19: an epoch had 13 batches when this was saved. With another batch size pass max_duration "
        "to schedule(): the saved length, or from the start a length in samples or tokens."
    )
    assert "Horizon('26ba'" in str(caught.value.__cause__)
    assert train(tmp_path, replace(other, max_duration="26ba")).of("lr") == [LR * (1 - k / 26) for k in range(3, 26)]


@pytest.mark.parametrize("skips_data", [True, False])
def test_epochs_are_those_that_the_trainer_continues_with(skips_data: bool, tmp_path: Path) -> None:
    """It counts them from its steps, in their present length, and skips the batches that are done, or reads them."""
    task = Task(
        (LinearScheduler(t_max="2ep"), Binding(LINE, "weight_decay")), "2ep", epochs=3, accumulate=2, save_after=[9]
    )
    train(tmp_path, task)
    now = replace(task, accumulate=1 if skips_data else 2, on_change="new", load=(tmp_path, 9))
    run, epoch = train(tmp_path, now, ignore_data_skip=not skips_data), 13 if skips_data else 7
    first = 9 if skips_data else 7
    assert run.of("lr") == pytest.approx([LR * max(0, 1 - k / epoch / 2) for k in range(first, 2 * epoch)], rel=1e-14)
    assert run.counts["epoch"] == run.trainer.state.epoch == 2


@pytest.mark.parametrize("drop", [False, True])
def test_the_samples_of_a_run_that_is_taken_over(drop: bool, tmp_path: Path) -> None:
    """The last batch of an epoch is smaller, or is left out. The checkpoint has no state of a scheduler."""
    whole = train(tmp_path, Task((LINE,), None), dataloader_drop_last=drop)
    train(tmp_path, Task((), save_after=[15]), dataloader_drop_last=drop)
    (tmp_path / "checkpoint-15" / "scheduler.pt").unlink()
    task = Task((LINE,), None, load=(tmp_path, 15))
    with pytest.raises(ValueError, match='on_change="new"'):
        train(tmp_path, task, dataloader_drop_last=drop)
    run = train(tmp_path, replace(task, on_change="new"), dataloader_drop_last=drop)
    assert run.counts == whole.counts and run.values == whole.values[15:]


def test_an_evaluation_of_the_average_that_casts_the_model(tmp_path: Path) -> None:
    """`bf16_full_eval` casts the model within an evaluation, and leaves it so: what stays are the weights."""
    task = Task((LINE,), None, average=AVERAGE, evaluate_averaged=True)
    run = train(tmp_path, task, bf16_full_eval=True)
    run.trainer.evaluate()
    assert torch.equal(runs.flat(run.trainer.model.parameters()), run.after[-1].bfloat16())
    assert torch.equal(
        runs.flat(state["average"] for state in run.trainer.lr_scheduler.average.state.values()), run.average
    )


def test_the_example(tmp_path: Path) -> None:
    command = ROOT / "examples/transformers_run.py", "--steps", 4, "--out", tmp_path / "out"
    said = python_output(*command)
    end = "batches 4, tokens 16384\nnext learning rate 0.0003, next weight decay 0.01\n"
    losses = [float(loss) for loss in re.findall(r"'loss': '([\d.]+)'", said)]
    assert said.endswith(end) and len(losses) == 4 and losses[-1] < losses[0]
    shutil.rmtree(tmp_path / "out" / "checkpoint-4")
    resumed = python_output(*command, "--resume")
    assert resumed.endswith(end) and re.findall(r"'loss': '([\d.]+)'", resumed) == [f"{x:.4g}" for x in losses[2:]]
