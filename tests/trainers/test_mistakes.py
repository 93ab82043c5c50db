"""Mistakes that users of the trainers make: each error names the right form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainers import test_lightning, test_transformers
from timesched import LinearScheduler
from timesched.integrations.transformers import schedule

pytestmark = test_lightning.pytestmark
A_SCHEDULE = (
    r"LinearScheduler\.\w+: this is a schedule, not a scheduler of an optimizer. .* the adapter of your trainer"
)


def test_schedule_after_train(tmp_path: Path) -> None:
    trainer = test_transformers.new_trainer(tmp_path, max_steps=1)
    trainer.train()
    with pytest.raises(ValueError, match=r"has trained already. Call schedule\(\) before train\(\)"):
        schedule(trainer, LinearScheduler())


def test_a_schedule_as_the_scheduler_of_a_hugging_face_trainer(tmp_path: Path) -> None:
    model = test_transformers.new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = test_transformers.new_trainer(
        tmp_path, max_steps=1, model=model, optimizers=(optimizer, LinearScheduler())
    )
    with pytest.raises(AttributeError, match=A_SCHEDULE):
        trainer.train()


def test_a_schedule_in_lightnings_list(tmp_path: Path) -> None:
    class Model(test_lightning.Model):
        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(self.parameters(), lr=0.1)], [LinearScheduler()]

    with pytest.raises(AttributeError, match=A_SCHEDULE):
        test_lightning.trainer(tmp_path, max_epochs=1).fit(Model(), test_lightning.Loader())
