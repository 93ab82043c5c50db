"""The code of docs/values.md in the real Trainers: each step has the value of a plain loop, also in a resumed run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from lightning.pytorch.callbacks import Callback
from torch.nn import Linear
from torch.optim import SGD
from transformers import TrainerCallback

from tests.docs.tables import page_code
from tests.trainers import test_lightning, test_transformers
from tests.trainers.test_lightning import Loader, Model
from timesched import Clock, LinearScheduler
from timesched.integrations import accelerate, transformers

DECAY, RISE = LinearScheduler(1.0, 0.25), LinearScheduler(0.0, 1.0, t_max="0.5dur")
pytestmark = test_lightning.pytestmark


def run_plain_loop(initial: float, schedule: LinearScheduler, batches: int) -> list[float]:
    clock, values = Clock(f"{batches}ba"), []
    while not clock.done:
        values.append(initial * schedule(clock))
        clock.tick()
    return values


class Dropouts(TrainerCallback):
    """Notes the dropout probability of each step."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.values.append(model.transformer.drop.p)


def train_gpt2(folder: Path, resume: Any = None) -> list[float]:
    trainer = test_transformers.new_trainer(folder, save_strategy="steps", save_steps=6)  # accumulates 3 microbatches
    recorder = Dropouts()
    trainer.add_callback(recorder)
    names = {"trainer": trainer, "decay": DECAY, "cosine": DECAY, "schedule": transformers.schedule}
    exec(page_code("values.md", "# Hugging Face"), names)
    trainer.train(resume_from_checkpoint=resume)
    return recorder.values


def test_hugging_face(tmp_path: Path) -> None:
    whole = train_gpt2(tmp_path / "whole")
    assert whole == run_plain_loop(0.1, DECAY, test_transformers.STEPS)
    rest = train_gpt2(tmp_path / "rest", resume=str(tmp_path / "whole" / "checkpoint-6"))  # in the second epoch
    assert rest == whole[6:]


class Weights(Callback):
    """Notes the loss weight of each step, and saves after five."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.values.append(pl_module.kl_weight)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == 5:
            trainer.save_checkpoint(Path(trainer.default_root_dir) / "middle.ckpt")


@pytest.mark.parametrize("accumulate", [1, 2])
def test_lightning_module(tmp_path: Path, accumulate: int) -> None:
    names: dict[str, Any] = {"Model": Model, "rise": RISE}
    exec(page_code("values.md", "# Lightning"), names)

    def train(resume: Any = None) -> list[float]:
        recorder = Weights()
        trainer = test_lightning.trainer(
            tmp_path, callbacks=[recorder], max_epochs=2, accumulate_grad_batches=accumulate
        )
        model = names["ScheduledModel"](DECAY, max_duration=f"{24 // accumulate}ba")
        trainer.fit(model, Loader(), ckpt_path=resume)
        return recorder.values

    whole = train()
    assert whole == run_plain_loop(0.2, RISE, 24 // accumulate)
    assert train(resume=tmp_path / "middle.ckpt") == whole[5:]


class Loop:
    """The loop of accelerate on the page: each batch has two microbatches."""

    def __init__(self) -> None:
        accelerator, model, self.config = (
            Accelerator(cpu=True, gradient_accumulation_steps=2),
            Linear(1, 1),
            SimpleNamespace(),
        )
        model, optimizer = accelerator.prepare(model, SGD(model.parameters(), lr=0.1))
        self.make_scheduler, self.loop = page_code("values.md", "# accelerate").split("for batch in loader:")
        self.weights: list[float] = []
        self.names = {"accelerator": accelerator, "optimizer": optimizer, "model": model, "config": self.config}
        self.names |= {"decay": DECAY, "rise": RISE, "schedule": accelerate.schedule, "train": self.note_weight}
        exec(self.make_scheduler, self.names)

    def note_weight(self, batch: int) -> None:
        self.weights.append(self.config.weight)

    def run(self, microbatches: range) -> Any:
        exec(f"for batch in loader:{self.loop}", self.names | {"loader": microbatches})
        return self.names["scheduler"]


def test_accelerate() -> None:
    expected = run_plain_loop(0.2, RISE, 12)
    GradientState._reset_state()  # an earlier Trainer of this process may have left it inside an epoch
    try:
        first, resumed = Loop(), Loop()
        state = first.run(range(10)).state_dict()
        first.run(range(10, 24))
        assert first.weights[::2] == first.weights[1::2] == expected
        resumed.names["scheduler"].load_state_dict(state)
        resumed.run(range(10, 24))
        assert resumed.weights == first.weights[10:]
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
