"""Mistakes that users of the trainers make: each error names the right form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trainers.rows import lightning, transformers
from tests.trainers.runs import IGNORE_LIGHTNING, Model, Task, make_optimizer
from timesched import LinearScheduler
from timesched.integrations.transformers import schedule

pytestmark = IGNORE_LIGHTNING
A_SCHEDULE = (
    r"LinearScheduler\.\w+: this is a schedule, not a scheduler of an optimizer. .* the adapter of your trainer"
)


def test_schedule_after_train(tmp_path: Path) -> None:
    trainer = transformers.train(tmp_path, Task(()), max_steps=1).trainer
    with pytest.raises(ValueError, match=r"has trained already. Call schedule\(\) before train\(\)"):
        schedule(trainer, LinearScheduler())


def test_a_schedule_as_the_scheduler_of_a_hugging_face_trainer(tmp_path: Path) -> None:
    model = Model()
    trainer = transformers.make_trainer(tmp_path, Task(), model, optimizers=(make_optimizer(model), LinearScheduler()))
    with pytest.raises(AttributeError, match=A_SCHEDULE):
        trainer.train()


def test_a_schedule_in_lightnings_list(tmp_path: Path) -> None:
    class Listed(lightning.Module):
        def configure_optimizers(self) -> Any:
            return [make_optimizer(self.net)], [LinearScheduler()]

    with pytest.raises(AttributeError, match=A_SCHEDULE):
        lightning.train(tmp_path, Task(), Listed(Task()))
