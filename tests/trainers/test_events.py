"""Evaluations and checkpoints at times of a run of transformers' Trainer, and units that the Trainer does not count."""

from __future__ import annotations

import re
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import optim
from tests.trainers.test_transformers import COUNT, LR, STREAM, Samples, new_trainer, tokens
from timesched import LinearScheduler, Time, WarmupStableDecayScheduler
from timesched.integrations.transformers import Binding, schedule

LINE = LinearScheduler()
STABLE = WarmupStableDecayScheduler("0.1dur", t_decay="0.3dur")
EVALUATED = {"eval_dataset": [Samples()[i] for i in range(3)]}


def trained(folder: Path, *entries: Any, resume: Any = None, trainer_options: Any = None, **ours: Any) -> Any:
    """A Trainer that has trained; the steps that it saved after are `saved_steps(folder)`."""
    trainer = new_trainer(folder, **(trainer_options or {}))
    schedule(trainer, *entries, **ours)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def saved_steps(folder: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*"))


def evaluated_steps(trainer: Any) -> list[int]:
    return [logs["step"] for logs in trainer.state.log_history if "eval_loss" in logs]


# What an event may be written as

TIMES: list[tuple[Any, list[int]]] = [
    ("0.5dur", [6]),
    (Time(3, "ba"), [3]),
    (("3ba", "40sp", "1ep"), [3, 4, 8]),
    (None, []),
]


@pytest.mark.parametrize(("times", "steps"), TIMES)
def test_one_time_or_several(tmp_path: Path, times: Any, steps: list[int]) -> None:
    """In a run of 12 steps, of which an epoch has 4 and 21 samples."""
    trainer = trained(tmp_path, LINE, save_at=times, evaluate_at=times, trainer_options=EVALUATED)
    assert (saved_steps(tmp_path), evaluated_steps(trainer)) == (steps, steps)


WRONG_TIMES: list[tuple[dict[str, Any], str]] = [
    ({"save_at": "soon"}, "schedule.save_at: 'soon' is not a time"),
    ({"save_at": ["3ba", 3]}, "schedule.save_at: 3 has no unit"),
    ({"save_at": "-3ba"}, "schedule.save_at='-3ba'"),
    ({"evaluate_at": "5"}, "schedule.evaluate_at: '5' has no unit"),
    ({"evaluate_every": "0ba"}, "schedule.evaluate_every='0ba'"),
    ({"save_every": "ba"}, "schedule.save_every: 'ba' is not a time"),
    ({"save_before": ["decay", "3"]}, "schedule.save_before: '3' has no unit"),
    ({"save_before": "-1ba"}, "schedule.save_before='-1ba'"),
]


@pytest.mark.parametrize(("events", "message"), WRONG_TIMES)
def test_a_wrong_time_is_refused_at_once(tmp_path: Path, events: dict[str, Any], message: str) -> None:
    trainer = new_trainer(tmp_path, **EVALUATED)
    callbacks = list(trainer.callback_handler.callbacks)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        schedule(trainer, LINE, **events)
    assert trainer.callback_handler.callbacks == callbacks and "create_scheduler" not in vars(trainer)


@pytest.mark.parametrize("name", ["evaluate_every", "evaluate_at"])
def test_an_evaluation_needs_data(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"schedule.{name}='2ba': the Trainer has no"):
        schedule(new_trainer(tmp_path), LINE, **{name: "2ba"})


# Units that are not counted, before the first step

NO_LENGTH = "epochs: .*data loader has no length"
NO_TOKENS = r"include_num_input_tokens_seen='all'.*count="
AVERAGE = optim.WeightAverage
UNCOUNTED: list[tuple[Any, dict[str, Any], dict[str, Any], str]] = [
    (LINE, {"evaluate_every": "1ep"}, {**STREAM, **EVALUATED}, NO_LENGTH),
    (LINE, {"evaluate_at": "1ep"}, {**STREAM, **EVALUATED}, NO_LENGTH),
    (LINE, {"save_at": "0.5ep"}, STREAM, NO_LENGTH),
    (LINE, {"save_before": "2ep"}, STREAM, NO_LENGTH),
    (LINE, {"average": partial(AVERAGE, half_life="1ep")}, STREAM, NO_LENGTH),
    (LINE, {"average": partial(AVERAGE, half_life="2ba", start="1ep")}, STREAM, NO_LENGTH),
    (LINE, {"save_every": "100tok"}, {}, NO_TOKENS),
    (LINE, {"save_before": "100tok"}, {}, NO_TOKENS),
    (LINE, {"average": partial(AVERAGE, half_life="100tok")}, {}, NO_TOKENS),
    (LINE, {"save_every": "2iter"}, {}, "iterations: the run counts them"),
    (LINE, {"average": partial(AVERAGE, half_life="2iter")}, {}, "iterations: the run counts them"),
    (LinearScheduler(t_max="9iter"), {}, {}, "iterations: the run counts them"),
    (LINE, {"save_before": "60sec"}, {}, "schedule.save_before='60sec': the seconds"),
    (LINE, {"save_before": "decay"}, {}, r"save_before='decay': .* mark of \['end'\]"),
]


@pytest.mark.parametrize(("entry", "ours", "options", "message"), UNCOUNTED)
def test_a_unit_that_is_not_counted(tmp_path: Path, entry: Any, ours: Any, options: Any, message: str) -> None:
    trainer = new_trainer(tmp_path, **options)
    schedule(trainer, entry, **ours)
    with pytest.raises(ValueError, match=message):
        trainer.train()
    assert {group["lr"] for group in trainer.optimizer.param_groups} == {LR} and not trainer.recorder.rows


@pytest.mark.parametrize("ours", [{"save_every": "100tok"}, {"average": partial(AVERAGE, half_life="100tok")}])
def test_a_function_that_does_not_count_the_unit(tmp_path: Path, ours: dict[str, Any]) -> None:
    """Nobody knows before the first batch."""
    with pytest.raises(ValueError, match="tokens: the run counts .*{'tokens': "):
        trained(tmp_path, LINE, count=lambda batch: {"samples": len(batch["labels"])}, **ours)


# The last step before a time

COUNTED = [*tokens(False)[1:], 3 * 126]  # tokens after each of 12 steps
LARGEST = 37  # which is the first


def size_of(batch: Any) -> dict[str, int]:
    return {"tokens": int((batch["input_ids"] > 0).sum())}


BEFORE: list[tuple[Any, dict[str, Any], dict[str, Any], int]] = [
    (["decay", "0.1dur"], {}, {}, 8),  # 0.7 and 0.1 of 12 batches are 8.4 and 1.2
    ("20sp", {}, {}, 3),  # 6, 12, 18, 21 samples
    ("1.5ep", {}, {}, 6),
    ("decay", {"max_duration": "300tok", "tokens_per_sample": 6}, {}, 6),  # 210tok: of 33 samples
    ("decay", {"max_duration": "300tok"}, COUNT, 5),  # 210tok: 163 is less than 2 * 37 away
    ("decay", {"max_duration": "300tok", "count": size_of}, {}, 5),
]


@pytest.mark.parametrize(("times", "ours", "options", "step"), BEFORE)
def test_save_before(tmp_path: Path, times: Any, ours: Any, options: Any, step: int) -> None:
    trained(tmp_path, Binding(LINE, "weight_decay"), STABLE, save_before=times, trainer_options=options, **ours)
    assert saved_steps(tmp_path) == ([1, step] if isinstance(times, list) else [step])


def test_tokens_that_are_known_after_a_step(tmp_path: Path) -> None:
    """Saved once, at the first step that is less than two of the largest away; a time that a step jumps over warns."""
    assert COUNTED[:5] == [37, 72, 105, 126, 163] and COUNTED[-1] == 378
    times = [20, 37, 60, 126, 199, 200, 201, 300, 377, 378]
    trainer = new_trainer(tmp_path, **COUNT, save_total_limit=99)
    schedule(trainer, LINE, max_duration="400tok", save_before=[f"{time}tok" for time in times])
    with pytest.warns(UserWarning, match=r"save_before='20tok': .* 0tok to 37tok"):
        trainer.train()
    expected = set()
    for time in times:
        expected.update([i for i, end in enumerate(COUNTED, 1) if end <= time < end + 2 * LARGEST][:1])
    assert saved_steps(tmp_path) == sorted(expected)


@pytest.mark.parametrize("name", ["batches", "tokens"])
def test_a_branch_from_before_the_decay(tmp_path: Path, name: str) -> None:
    """The checkpoint loads into a longer run, whose decay begins later; one from after the mark is refused."""
    lengths = {"batches": ("12ba", "24ba"), "tokens": ("300tok", "600tok")}[name]
    options = COUNT if name == "tokens" else {}
    after = {"batches": "0.7dur", "tokens": "210tok"}[name]
    trained(
        tmp_path / "first", STABLE, max_duration=lengths[0], save_before="decay", save_at=after, trainer_options=options
    )
    step, step_after = saved_steps(tmp_path / "first")
    longer = {"max_duration": lengths[1], "trainer_options": {**options, "num_train_epochs": 6}}
    again = {**longer, "save_before": "decay"}
    checkpoints = tmp_path / "first"
    trainer = trained(tmp_path / "branch", STABLE, resume=str(checkpoints / f"checkpoint-{step}"), **again)
    rates = [row["lr"][0] for row in trainer.recorder.rows]
    (saved,) = saved_steps(tmp_path / "branch")
    assert step < step_after < saved
    assert rates[: saved - step + 1] == [LR] * (saved - step + 1)  # the step after it runs at the peak, too
    assert rates[-1] < LR and trainer.lr_scheduler.get_last_lr()[0] < rates[-1]
    with pytest.raises(ValueError, match="saved"):
        trained(tmp_path / "other", STABLE, resume=str(checkpoints / f"checkpoint-{step_after}"), **longer)


def test_a_run_that_resumes_there_does_not_save_again(tmp_path: Path) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    ours: dict[str, Any] = {"max_duration": "300tok", "save_before": "decay", "trainer_options": COUNT}
    whole = trained(first, STABLE, **ours)
    (step,) = saved_steps(first)
    resumed = trained(again, STABLE, resume=str(first / f"checkpoint-{step}"), **ours)
    assert saved_steps(again) == []
    assert resumed.recorder.rows == whole.recorder.rows[step:]
    for name, value in resumed.model.state_dict().items():
        assert torch.equal(value, whole.model.state_dict()[name])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        later = new_trainer(again, **COUNT)
        schedule(later, STABLE, max_duration="300tok", save_before="50tok")  # which is over
        later.train(resume_from_checkpoint=str(first / f"checkpoint-{step}"))
