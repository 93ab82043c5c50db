"""The callback of docs/trainers/hugging_face.md, in runs of transformers' Trainer, and units that it does not count.

Under torchrun, `FOLDER` checks two ranks.
"""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from transformers import TrainerCallback

import optim
from tests.docs.tables import DOCS
from tests.torchrun import Report, launch
from tests.trainers.test_transformers import COUNT, LR, STREAM, Samples, new_trainer, of_all_ranks, tokens
from timesched import LinearScheduler, Time, WarmupStableDecayScheduler
from timesched.integrations.transformers import schedule

PAGE = (DOCS / "trainers" / "hugging_face.md").read_text("utf-8")
(PROGRAM,) = [code for code in re.findall("```python\n(.*?)```", PAGE, re.DOTALL) if "class SaveAndEvaluate" in code]
# The calls of the program, which have other times here.
SAVES, EVALUATIONS = [line.strip() for line in PROGRAM.splitlines() if line.strip().startswith("if ")]
NEVER = "if False:"

LINE = LinearScheduler()
STABLE = WarmupStableDecayScheduler("0.1dur", t_decay="0.3dur")
EVALUATED = {"eval_dataset": [Samples()[i] for i in range(3)]}
COUNTED = [*tokens(False)[1:], 3 * 126]  # tokens after each of 12 steps
LARGEST = Time(37, "tok")  # of a step


def new_callback(trainer: Any, saves: str = NEVER, evaluations: str = NEVER) -> Any:
    """The callback of the page, with other calls."""
    code = PROGRAM.partition("\n\n\n")[0].replace(SAVES, saves).replace(EVALUATIONS, evaluations)
    names: dict[str, Any] = {"TrainerCallback": TrainerCallback, "largest": LARGEST}
    exec(code, names)
    return names["SaveAndEvaluate"](trainer, STABLE)


def trained(
    folder: Path, saves: str = NEVER, evaluations: str = NEVER, *, resume: Any = None, options: Any = None, **ours: Any
) -> Any:
    """A Trainer that has trained with the callback; the steps that it saved after are `saved_steps(folder)`."""
    trainer = new_trainer(folder, **(options or {}))
    schedule(trainer, STABLE, **ours)
    trainer.add_callback(new_callback(trainer, saves, evaluations))
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def saved_steps(folder: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*"))


def evaluated_steps(trainer: Any) -> list[int]:
    return [logs["step"] for logs in trainer.state.log_history if "eval_loss" in logs]


def test_the_program(tmp_path: Path) -> None:
    """As it is, in a run of 12 steps of three microbatches each."""
    assert len(PROGRAM.partition("\n\n\n")[0].splitlines()) <= 15
    trainer = new_trainer(tmp_path, **EVALUATED, **COUNT)
    given = {"trainer": trainer, "schedule": schedule, "TrainerCallback": TrainerCallback}
    exec(PROGRAM, {**given, "WarmupStableDecayScheduler": WarmupStableDecayScheduler})
    assert saved_steps(tmp_path) == [3, 6, 9, 10, 12]  # the decay begins after 10.8 steps
    assert evaluated_steps(trainer) == [2, 3, 4, 5, 6, 8, 9, 10, 11, 12]


# Each epoch has 4 steps and 21 samples: 6, 6, 6 and 3.
EVENTS: list[tuple[str, dict[str, Any], list[int]]] = [
    ('clock.every("5ba")', {}, [5, 10]),
    ('clock.every("20sp")', {}, [4, 8, 11]),
    ('clock.every("0.75ep")', {}, [3, 6, 9, 12]),
    ('clock.every("100tok")', COUNT, [3, 7, 10]),
    ('clock.passed("40sp") or clock.passed("1ep") or clock.passed("0.9dur")', {}, [4, 8, 11]),
    ('clock.before("20sp") or clock.before("1.6ep") or clock.before(decay)', {}, [3, 6, 8]),
    ('clock.passed("100tok") or clock.passed("250tok")', COUNT, [3, 8]),
]


@pytest.mark.parametrize(("asked", "options", "steps"), EVENTS)
def test_each_moment_once_also_in_a_run_that_resumes(
    tmp_path: Path, asked: str, options: dict[str, Any], steps: list[int]
) -> None:
    """From each checkpoint, most of them in the middle of an epoch: it saves where the first run saves."""
    line, options = f"if {asked}:", {**EVALUATED, **options}
    whole = trained(tmp_path / "whole", line, line, options=options)
    assert (saved_steps(tmp_path / "whole"), evaluated_steps(whole)) == (steps, steps)
    for step in steps:
        folder = tmp_path / f"from {step}"
        checkpoint = str(tmp_path / "whole" / f"checkpoint-{step}")
        resumed = trained(folder, line, line, resume=checkpoint, options=options)
        later = [other for other in steps if other > step]
        assert saved_steps(folder) == later
        assert resumed.recorder.rows == whole.recorder.rows[step:]
        for name, value in resumed.model.state_dict().items():
            assert torch.equal(value, whole.model.state_dict()[name])


# Nothing checks these before the first step


def test_tokens_that_are_not_counted(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="counted no tokens in 1ba"):
        trained(tmp_path, 'if clock.every("100tok"):')


def test_an_evaluation_needs_data(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="evaluation requires an eval_dataset"):
        trained(tmp_path, NEVER, 'if clock.every("2ba"):')


@pytest.mark.parametrize("time", ["1ep", "2iter"])
def test_epochs_without_a_length_and_iterations_never_pass(tmp_path: Path, time: str) -> None:
    assert trained(tmp_path, f'if clock.every("{time}"):', options=STREAM).state.global_step == 8
    assert saved_steps(tmp_path) == []


# Before the decay

BEFORE = "if clock.before(decay):"
(EARLIER,) = set(re.findall(r"`(clock\.passed\(decay - largest\))`", PAGE))
BRANCHES: dict[str, tuple[str, tuple[str, str], dict[str, Any], dict[str, Any]]] = {
    "batches": (BEFORE, ("12ba", "24ba"), {}, {}),
    "epochs": (BEFORE, ("3ep", "6ep"), {}, {}),
    "samples": (BEFORE, ("50sp", "100sp"), {}, {}),
    "tokens by a factor": (BEFORE, ("300tok", "600tok"), {"tokens_per_sample": 6}, {}),
    "measured tokens": (f"if {EARLIER}:", ("300tok", "600tok"), {}, COUNT),
    "counted tokens": (
        *(f"if {EARLIER}:", ("300tok", "600tok")),
        *({"count": lambda batch: {"tokens": int((batch["input_ids"] > 0).sum())}}, {}),
    ),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_a_branch_from_before_the_decay(tmp_path: Path, name: str) -> None:
    """The checkpoint loads into a longer run, whose decay begins later; one from after the mark is refused."""
    saves, lengths, ours, options = BRANCHES[name]
    first = {**ours, "max_duration": lengths[0], "options": options}
    longer = {**ours, "max_duration": lengths[1], "options": {**options, "num_train_epochs": 6}}
    trained(tmp_path / "before", saves, **first)
    (step,) = saved_steps(tmp_path / "before")
    trainer = trained(tmp_path / "branch", saves, resume=str(tmp_path / "before" / f"checkpoint-{step}"), **longer)
    rates = [row["lr"][0] for row in trainer.recorder.rows]
    (saved,) = saved_steps(tmp_path / "branch")
    assert step < saved
    assert rates[: saved - step + 1] == [LR] * (saved - step + 1)  # the step after it runs at the peak, too
    assert rates[-1] < LR and trainer.lr_scheduler.get_last_lr()[0] < rates[-1]
    trained(tmp_path / "after", "if clock.passed(decay):", **first)
    (step_after,) = saved_steps(tmp_path / "after")
    assert step_after > step
    with pytest.raises(ValueError, match="saved"):
        trained(tmp_path / "other", resume=str(tmp_path / "after" / f"checkpoint-{step_after}"), **longer)


def test_measured_tokens(tmp_path: Path) -> None:
    """The decay begins at 210 tokens. `before` does not know the next step; the first one at or after 173 has 198."""
    assert COUNTED[4:7] == [163, 198, 231]
    ours = {"max_duration": "300tok", "options": COUNT}
    with pytest.raises(ValueError, match="Clock.before.time='210tok': no conversion factor gives the tokens"):
        trained(tmp_path, BEFORE, **ours)
    trained(tmp_path, f"if {EARLIER}:", **ours)
    assert saved_steps(tmp_path) == [6]


# Units that are not counted, before the first step

NO_LENGTH = "epochs: .*data loader has no length"
NO_TOKENS = r"include_num_input_tokens_seen='all'.*count="
AVERAGE = optim.WeightAverage
UNCOUNTED: list[tuple[Any, dict[str, Any], dict[str, Any], str]] = [
    (LINE, {"average": partial(AVERAGE, half_life="1ep")}, STREAM, NO_LENGTH),
    (LINE, {"average": partial(AVERAGE, half_life="2ba", start="1ep")}, STREAM, NO_LENGTH),
    (LINE, {"average": partial(AVERAGE, half_life="100tok")}, {}, NO_TOKENS),
    (LinearScheduler(t_max="100tok"), {}, {}, NO_TOKENS),
    (LINE, {"average": partial(AVERAGE, half_life="2iter")}, {}, "iterations: the run counts them"),
    (LinearScheduler(t_max="9iter"), {}, {}, "iterations: the run counts them"),
]


@pytest.mark.parametrize(("entry", "ours", "options", "message"), UNCOUNTED)
def test_a_unit_that_is_not_counted(tmp_path: Path, entry: Any, ours: Any, options: Any, message: str) -> None:
    trainer = new_trainer(tmp_path, **options)
    schedule(trainer, entry, **ours)
    with pytest.raises(ValueError, match=message):
        trainer.train()
    assert {group["lr"] for group in trainer.optimizer.param_groups} == {LR} and not trainer.recorder.rows


def test_a_function_that_does_not_count_the_unit(tmp_path: Path) -> None:
    """Nobody knows before the first batch."""
    trainer = new_trainer(tmp_path)
    average = partial(AVERAGE, half_life="100tok")
    schedule(trainer, LINE, count=lambda batch: {"samples": len(batch["labels"])}, average=average)
    with pytest.raises(ValueError, match="tokens: the run counts .*{'tokens': "):
        trainer.train()


# On two ranks


def test_two_ranks(tmp_path: Path) -> None:
    found, said = launch(Path(__file__), 2, tmp_path, 150)
    assert found == {"events": ""}, "\n".join([*found.values(), said])


class Requests(TrainerCallback):
    """The steps after which this rank saves or evaluates. It comes after the callback that asks for them."""

    def __init__(self) -> None:
        self.saves: list[int] = []
        self.evaluations: list[int] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.saves += [state.global_step] * control.should_save
        self.evaluations += [state.global_step] * control.should_evaluate


def all_ranks_save_and_evaluate_together(folder: Path) -> None:
    """In tokens, of which each rank has its own number, and in samples."""
    trainer, requests = new_trainer(folder, **EVALUATED, **COUNT, ddp_backend="gloo"), Requests()
    schedule(trainer, STABLE, max_duration="400tok")
    trainer.add_callback(new_callback(trainer, f'if clock.every("150tok") or {EARLIER}:', 'if clock.every("20sp"):'))
    trainer.add_callback(requests)
    trainer.train()
    assert len(requests.saves) >= 2 and len(requests.evaluations) >= 2
    found = requests.saves, requests.evaluations, evaluated_steps(trainer)
    assert of_all_ranks(found) == [found] * 2
    assert (saved_steps(folder), evaluated_steps(trainer)) == (requests.saves, requests.evaluations)


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    Report(folder).check("events", lambda: all_ranks_save_and_evaluate_together(folder))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
