"""The callback of docs/trainers/hugging_face.md, in runs of transformers' Trainer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from tests.docs.tables import DOCS
from tests.trainers.rows.transformers import make_trainer
from tests.trainers.runs import LR, Task
from tests.trainers.test_transformers import STREAM
from timesched import Time, WarmupStableDecayScheduler
from timesched.integrations.transformers import schedule

PAGE = (DOCS / "trainers" / "hugging_face.md").read_text("utf-8")
(PROGRAM,) = [code for code in re.findall("```python\n(.*?)```", PAGE, re.DOTALL) if "class SaveAndEvaluate" in code]
CLASS = PROGRAM.partition("\n\n\n")[0]
# Its calls, which have other times here, and the one that the page advises where tokens are measured.
SAVES, EVALUATIONS = [line.strip() for line in CLASS.splitlines() if line.strip().startswith("if ")]
(EARLIER,) = set(re.findall(r"`(clock\.passed\(decay - largest\))`", PAGE))
STABLE, TASK = WarmupStableDecayScheduler("0.1dur", t_decay="0.3dur"), Task(accumulate=2)


def steps(trainer: Any) -> tuple[list[int], list[int]]:
    """The steps after which it saved, and after which it evaluated."""
    folders, logs = Path(trainer.args.output_dir).glob("checkpoint-*"), trainer.state.log_history
    return sorted(int(path.name.split("-")[1]) for path in folders), [x["step"] for x in logs if "eval_runtime" in x]


def trained(folder: Path, saves: str, evaluations: str = "if False:", load: Any = None, **given: Any) -> Any:
    """A Trainer that has trained with the callback; `given`: arguments of `schedule`, and `options` of the Trainer."""
    trainer = make_trainer(folder, TASK, **{"num_train_epochs": 4, **given.pop("options", {})})
    schedule(trainer, STABLE, **given)
    names: dict[str, Any] = {"TrainerCallback": TrainerCallback, "largest": Time(66, "tok")}
    exec(CLASS.replace(SAVES, saves).replace(EVALUATIONS, evaluations), names)
    trainer.add_callback(names["SaveAndEvaluate"](trainer, STABLE))
    trainer.train(resume_from_checkpoint=load)
    return trainer


def test_the_program(tmp_path: Path) -> None:
    """As it is, in a run of 14 steps."""
    assert len(CLASS.splitlines()) <= 15
    trainer = make_trainer(tmp_path, TASK)
    names = {"trainer": trainer, "schedule": schedule, "TrainerCallback": TrainerCallback}
    exec(PROGRAM, {**names, "WarmupStableDecayScheduler": WarmupStableDecayScheduler})
    assert steps(trainer) == ([4, 7, 11, 12, 14], [2, 3, 5, 6, 7, 9, 10, 12, 13, 14])  # the decay begins after 12.6


@pytest.mark.parametrize("time", ["1ep", "2iter"])
def test_epochs_without_a_length_and_iterations_never_come(time: str, tmp_path: Path) -> None:
    assert steps(trained(tmp_path, f'if clock.every("{time}"):', options={**STREAM, "max_steps": 8})) == ([], [])


def test_what_the_callback_needs(tmp_path: Path) -> None:
    """Nothing checks it before the first step."""
    with pytest.raises(ValueError, match="nobody has counted its tokens"):
        trained(tmp_path, 'if clock.every("9tok"):', options={"include_num_input_tokens_seen": "no"})
    with pytest.raises(ValueError, match="evaluation requires an eval_dataset"):
        trained(tmp_path, "if False:", 'if clock.every("2ba"):', options={"eval_dataset": None})
    with pytest.raises(ValueError, match="Clock.before.time='280tok': no conversion factor gives the tokens"):
        trained(tmp_path, "if clock.before(decay):", max_duration="400tok")


@pytest.mark.parametrize(
    ("saves", "lengths", "given"),
    [
        ("if clock.before(decay):", ("2ep", "4ep"), {}),
        ("if clock.before(decay):", ("60sp", "120sp"), {}),
        ("if clock.before(decay):", ("400tok", "800tok"), {"tokens_per_sample": 7}),
        (f"if {EARLIER}:", ("400tok", "800tok"), {}),
        (f"if {EARLIER}:", ("400tok", "800tok"), {"count": lambda batch: {"tokens": batch["input_ids"].numel()}}),
    ],
)
def test_a_branch_from_before_the_decay(saves: str, lengths: Any, given: Any, tmp_path: Path) -> None:
    """The checkpoint loads into a longer run, whose decay begins later; a checkpoint of the decay does not."""
    (step,), _ = steps(trained(tmp_path / "before", saves, max_duration=lengths[0], **given))
    load = str(tmp_path / "before" / f"checkpoint-{step}")
    branch = trained(tmp_path / "branch", saves, load=load, max_duration=lengths[1], **given)
    rates, (saved,) = [row[0]["lr"] for row in branch.model.run.values], steps(branch)[0]
    assert step < saved and rates[: saved - step + 1] == [LR] * (saved - step + 1) and rates[-1] < LR
    (after,), _ = steps(trained(tmp_path / "after", "if clock.passed(decay):", max_duration=lengths[0], **given))
    assert after > step
    with pytest.raises(ValueError, match="saved"):
        trained(
            tmp_path / "other",
            saves,
            load=str(tmp_path / f"after/checkpoint-{after}"),
            max_duration=lengths[1],
            **given,
        )
