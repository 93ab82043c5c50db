"""A value of an object in the real Trainers: what each step runs with, what is logged, and a resumed run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from lightning.pytorch.callbacks import Callback
from transformers import TrainerCallback

from tests.trainers import test_lightning, test_torchtitan, test_transformers
from tests.trainers.test_lightning import Loader, Model
from timesched import LinearScheduler
from timesched.integrations import accelerate, torchtitan, transformers
from timesched.integrations.common import Binding

LINE = LinearScheduler(1.0, 0.25)
DROPOUT = 0.1  # of GPT-2
pytestmark = test_lightning.pytestmark


def expected(initial: float, steps: int) -> Any:
    return pytest.approx([initial * (1 - 0.75 * k / steps) for k in range(steps)], rel=1e-15)


class Dropouts(TrainerCallback):
    """Notes the dropout probability of each step."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.values.append(model.transformer.drop.p)


def train_gpt2(folder: Path, model_init: bool = False, resume: Any = None) -> tuple[list[float], Any]:
    options = {"save_strategy": "steps", "save_steps": 6}
    trainer = test_transformers.new_trainer(folder, **options)
    if model_init:
        trainer.model_init = test_transformers.new_model
    recorder = Dropouts()
    trainer.add_callback(recorder)
    transformers.schedule(trainer, LINE, Binding(LINE, "model.transformer.drop.p", target=trainer, name="dropout"))
    trainer.train(resume_from_checkpoint=resume)
    return recorder.values, trainer


@pytest.mark.parametrize("model_init", [False, True])
def test_hugging_face(tmp_path: Path, model_init: bool) -> None:
    steps = test_transformers.STEPS
    whole, trainer = train_gpt2(tmp_path / "whole", model_init)
    assert whole == expected(DROPOUT, steps)
    assert any("dropout" in row for row in trainer.state.log_history)
    rest, _ = train_gpt2(tmp_path / "rest", model_init, resume=str(tmp_path / "whole" / "checkpoint-6"))
    assert rest == whole[6:]


class Weights(Callback):
    """Notes the loss weight of each step, and saves after five."""

    def __init__(self, config: SimpleNamespace) -> None:
        self.config = config
        self.values: list[float] = []

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.values.append(self.config.weight)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 4:
            trainer.save_checkpoint(Path(trainer.default_root_dir) / "middle.ckpt")


def test_lightning_module(tmp_path: Path) -> None:
    def train(resume: Any = None) -> tuple[list[float], Any]:
        config = SimpleNamespace(weight=0.5)
        model = Model(LINE, Binding(LINE, "weight", target=config), max_duration="12ba")
        recorder = Weights(config)
        trainer = test_lightning.trainer(tmp_path, callbacks=[recorder], max_epochs=1)
        trainer.fit(model, Loader(), ckpt_path=resume)
        return recorder.values, trainer

    whole, trainer = train()
    assert whole == expected(0.5, 12)
    assert trainer.lr_scheduler_configs[0].scheduler.named_values()["SimpleNamespace.weight"] == 0.125
    rest, _ = train(resume=tmp_path / "middle.ckpt")
    assert rest == whole[5:]


def test_accelerate() -> None:
    def prepare() -> tuple[SimpleNamespace, Any, Any]:
        accelerator = Accelerator(cpu=True)
        optimizer = accelerator.prepare(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1))
        config = SimpleNamespace(weight=0.5)
        binding = Binding(LINE, "weight", target=config)
        return config, optimizer, accelerate.schedule(accelerator, optimizer, LINE, binding, max_duration="6ba")

    try:
        config, optimizer, scheduler = prepare()
        values, states = [], []
        for _ in range(6):
            values.append(config.weight)
            states.append(scheduler.state_dict())
            optimizer.step()
            scheduler.step()
        assert values == expected(0.5, 6)
        for value, state in zip(values, states, strict=True):
            config, _, scheduler = prepare()
            scheduler.load_state_dict(state)
            assert config.weight == value
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)


def test_torchtitan_has_no_target() -> None:
    entries = [LINE, Binding(LINE, "weight", target=SimpleNamespace(weight=0.5))]
    with pytest.raises(ValueError, match="Binding.target: torchtitan makes its config before the model"):
        config = torchtitan.Schedules.Config(entries=entries)
        config.build(
            optimizers=test_torchtitan.optimizers().build(model_parts=test_torchtitan.stages(1)), training_steps=9
        )
