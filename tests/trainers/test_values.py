"""The code of docs/values.md in the real Trainers: each step has the value of its time, also in a resumed run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import GradientState
from torch.optim import SGD

from tests.docs.tables import page_code
from tests.trainers.rows import lightning, transformers
from tests.trainers.runs import Task
from timesched import Horizon, LinearScheduler
from timesched.integrations.accelerate import schedule
from timesched.integrations.transformers import schedule as schedule_trainer

DECAY, RISE = LinearScheduler(1.0, 0.25), LinearScheduler(0.0, 1.0, t_max="0.5dur")
TASK = Task((DECAY,), None, accumulate=2, save_after=[9])  # of 14 steps of two epochs, and of 26 microbatches
RUN, STEPS = Horizon("14ba"), [7 * epoch + k // 2 for epoch in range(2) for k in range(13)]
REST = 17  # microbatches are before the ninth step ends


def test_hugging_face(tmp_path: Path) -> None:
    def train(load: str | None = None) -> list[float]:
        trainer, values = transformers.make_trainer(tmp_path, TASK), []
        trainer.model.transformer = torch.nn.ModuleDict({"drop": torch.nn.Dropout()})
        trainer.model.register_forward_pre_hook(lambda *_: values.append(trainer.model.transformer.drop.p))
        names = {"trainer": trainer, "decay": DECAY, "cosine": DECAY, "schedule": schedule_trainer}
        exec(page_code("values.md", "# Hugging Face"), names)
        trainer.train(resume_from_checkpoint=load)
        return values

    whole = train()
    assert whole == [0.1 * DECAY.at(f"{step}ba", RUN) for step in STEPS]
    assert train(str(tmp_path / "checkpoint-9")) == whole[REST:]


@pytest.mark.filterwarnings("ignore")  # what Lightning warns of
def test_lightning_module(tmp_path: Path) -> None:
    names: dict[str, Any] = {"Model": lightning.Module, "rise": RISE}
    exec(page_code("values.md", "# Lightning"), names)

    def train(load: tuple[Path, int] | None = None) -> list[float]:
        module, values = names["ScheduledModel"](TASK), []
        module.net.register_forward_pre_hook(lambda *_: values.append(module.kl_weight))
        lightning.train(tmp_path, replace(TASK, load=load), module)
        return values

    whole = train()
    assert whole == [0.2 * RISE.at(f"{step}ba", RUN) for step in STEPS]
    assert train((tmp_path, 9)) == whole[REST:]


class Loop:
    """The loop of accelerate on the page: each batch has two microbatches."""

    def __init__(self) -> None:
        accelerator, self.config = Accelerator(cpu=True, gradient_accumulation_steps=2), SimpleNamespace()
        model = torch.nn.Linear(1, 1)
        model, optimizer = accelerator.prepare(model, SGD(model.parameters(), lr=0.1))
        make_scheduler, self.loop = page_code("values.md", "# accelerate").split("for batch in loader:")
        self.weights: list[float] = []
        self.names = {"accelerator": accelerator, "optimizer": optimizer, "model": model, "config": self.config}
        self.names |= {"decay": DECAY, "rise": RISE, "schedule": schedule, "train": self.note_weight}
        exec(make_scheduler, self.names)

    def note_weight(self, batch: int) -> None:
        self.weights.append(self.config.weight)

    def run(self, microbatches: range) -> Any:
        exec(f"for batch in loader:{self.loop}", self.names | {"loader": microbatches})
        return self.names["scheduler"]


def test_accelerate() -> None:
    GradientState._reset_state()  # an earlier Trainer of this process may have left it inside an epoch
    first, resumed = Loop(), Loop()
    state = first.run(range(10)).state_dict()
    first.run(range(10, 24))
    assert first.weights[::2] == first.weights[1::2] == [0.2 * RISE.at(f"{k}ba", Horizon("12ba")) for k in range(12)]
    resumed.names["scheduler"].load_state_dict(state)
    resumed.run(range(10, 24))
    assert resumed.weights == first.weights[10:]
