"""Runs that users have reported: warnings at a load, epochs that end early, second fits, refused batches, and more."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from lightning.pytorch.tuner import Tuner
from lightning.pytorch.utilities import CombinedLoader
from transformers import TrainerCallback

from tests.docs.tables import page_code
from tests.trainers import test_lightning, test_transformers
from tests.trainers.test_lightning import BATCHES, LR, Loader, Model
from timesched import Clock, LinearScheduler
from timesched.integrations import accelerate, lightning
from timesched.integrations.transformers import schedule

LINE = LinearScheduler()
pytestmark = test_lightning.pytestmark


def line(steps: int, start: int = 0) -> list[float]:
    return [LR * LINE.at(f"{k}ba", Clock(f"{steps}ba")) for k in range(start, steps)]


# Hugging Face


def test_a_warning_at_a_load_arrives_once(tmp_path: Path) -> None:
    """transformers drops every UserWarning while it loads the scheduler."""

    def train(folder: str, learning_rate: float, resume: Any = None) -> list[str]:
        options = {"optimizer_cls_and_kwargs": (torch.optim.SGD, {"lr": learning_rate})}
        trainer = test_transformers.new_trainer(tmp_path / folder, save_strategy="steps", save_steps=6, **options)
        schedule(trainer, LINE)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer.train(resume_from_checkpoint=resume)
        return [str(warning.message) for warning in caught if "initial value" in str(warning.message)]

    assert train("first", 0.1) == []
    (text,) = train("second", 0.2, str(tmp_path / "first/checkpoint-6"))
    assert "the initial value was [0.2, 0.2], and the state has [0.1, 0.1]" in text


class EndEpoch(TrainerCallback):
    """Ends the first epoch after two of four steps."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_epoch_stop = state.global_step == 2


def test_an_epoch_that_a_callback_ends_early(tmp_path: Path) -> None:
    """An epoch has batches of 6, 6, 6 and 3 samples: 12 samples in the first epoch, and then 21."""
    trainer = test_transformers.new_trainer(tmp_path, num_train_epochs=2, callbacks=[EndEpoch()])
    schedule(trainer, LinearScheduler(t_max="2ep"), max_duration="2ep")
    trainer.train()
    stamp = trainer.lr_scheduler.clock.timestamp
    assert (stamp.epoch.value, stamp.batch.value, stamp.sample.value) == (2, 6, 33)
    learning_rates = [row["lr"][0] for row in trainer.recorder.rows]
    assert learning_rates == [0.01 * (1 - k / 8) for k in (0, 1, 4, 5, 6, 7)]


def test_an_optimizer_for_each_layer_is_refused(tmp_path: Path) -> None:
    from transformers.trainer_pt_utils import LayerWiseDummyOptimizer

    trainer = test_transformers.new_trainer(tmp_path, optimizers=(LayerWiseDummyOptimizer(), None))
    schedule(trainer, LINE)
    with pytest.raises(ValueError, match="an optimizer for each layer, which no schedule reaches"):
        trainer.train()


# Lightning


def test_a_second_fit_continues_the_first(tmp_path: Path) -> None:
    model, trainer = Model(LINE), test_lightning.trainer(tmp_path, max_epochs=2)
    trainer.fit(model, Loader())
    assert [lr for lr, _ in model.used] == line(2 * BATCHES)
    model.used.clear()
    trainer.fit_loop.max_epochs = 4
    trainer.fit(model, Loader())
    assert [lr for lr, _ in model.used] == line(4 * BATCHES, start=2 * BATCHES)
    assert (model.clock.timestamp.batch, model.clock.timestamp.epoch) == (4 * BATCHES, 4)


def test_a_second_fit_past_the_end_is_refused(tmp_path: Path) -> None:
    model, trainer = Model(LINE, max_duration="12ba"), test_lightning.trainer(tmp_path, max_epochs=2)
    trainer.fit(model, Loader())
    trainer.fit_loop.max_epochs = 4
    with pytest.raises(ValueError, match="max_duration='12ba': an earlier fit of this Trainer has reached it"):
        trainer.fit(model, Loader())


class Refusing(Model):
    """Refuses the sixth batch of each epoch, which ends the epoch."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if batch_idx == 5 else None


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_batch_that_the_module_refuses_is_not_counted(accumulate: int, tmp_path: Path) -> None:
    """With accumulation, the fifth microbatch of an epoch was trained on: the next batch counts it."""
    samples = 3 * (10 if accumulate == 1 else 9)
    model = Refusing(LINE, max_duration=f"{samples}sp")
    trainer = test_lightning.trainer(tmp_path, max_epochs=2, accumulate_grad_batches=accumulate)
    trainer.fit(model, Loader())
    stamp = model.clock.timestamp
    assert len(model.used) == stamp.batch.value == (10 if accumulate == 1 else 4)
    assert stamp.sample.value == samples and stamp.epoch == 1


class Sized(Model):
    batch_size = 2

    def train_dataloader(self) -> Any:
        rows = [{"input_ids": torch.arange(4)} for _ in range(40)]
        return torch.utils.data.DataLoader(rows, batch_size=self.batch_size)


def test_a_trial_of_the_batch_size_leaves_no_trace(tmp_path: Path) -> None:
    model, trainer = Sized(LINE, max_duration="20ba"), test_lightning.trainer(tmp_path, max_epochs=2)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*clock.*")
        assert Tuner(trainer).scale_batch_size(model, max_trials=2) == 4
    model.used.clear()
    trainer.fit(model)
    assert [lr for lr, _ in model.used] == line(20)


def test_samples_of_several_loaders_need_a_count(tmp_path: Path) -> None:
    class First(Model):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step(batch["a"], batch_idx)

    def fit(**options: Any) -> Model:
        model = First(LinearScheduler(t_max="40sp"), max_duration="40sp", **options)
        loaders = CombinedLoader({"a": Loader(), "b": Loader()}, "min_size")
        test_lightning.trainer(tmp_path, max_epochs=1).fit(model, loaders)
        return model

    with pytest.raises(ValueError, match="samples: a schedule reads them, and the Trainer has several data loaders"):
        fit()
    model = fit(count=lambda batch: {"samples": len(batch["a"]["input_ids"]) + len(batch["b"]["input_ids"])})
    assert model.clock.timestamp.sample == 42


def test_a_run_that_counted_no_tokens_continues_in_tokens(tmp_path: Path) -> None:
    """With a conversion factor the position is computed. Otherwise the load is refused."""
    first = test_transformers.new_trainer(tmp_path / "first", save_strategy="steps", save_steps=6)
    schedule(first, LINE)
    first.train()

    def continue_run(**options: Any) -> Any:
        counted = {} if options else test_transformers.COUNT
        trainer = test_transformers.new_trainer(tmp_path / "second", **counted)
        schedule(trainer, LinearScheduler(t_max="1000tok"), max_duration="1000tok", on_change="new", **options)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The Trainer has ended the run at")
            trainer.train(resume_from_checkpoint=str(tmp_path / "first/checkpoint-6"))
        return trainer

    trainer = continue_run(tokens_per_sample=10)
    assert trainer.recorder.rows[0]["lr"][0] == 0.01 * LinearScheduler(t_max="1000tok").at("330tok", Clock("1000tok"))
    with pytest.raises(ValueError, match="at batch 6, and nobody has counted its tokens"):
        continue_run()


# Back to a trainer without our schedules: the function of docs/checkpoints.md


def to_lambda_lr(state: Any) -> Any:
    names: dict[str, Any] = {}
    exec(page_code("checkpoints.md", "# to LambdaLR"), names)
    return names["to_lambda_lr"](state)


def test_a_hugging_face_trainer_without_us_resumes_from_our_checkpoint(tmp_path: Path) -> None:
    """Its own linear schedule continues at this step, as in a run that had it from the start."""
    own = test_transformers.new_trainer(tmp_path / "own")
    own.train()
    first = test_transformers.new_trainer(tmp_path / "first", save_strategy="steps", save_steps=6)
    schedule(first, LINE)
    first.train()
    checkpoint = tmp_path / "first/checkpoint-6"
    torch.save(to_lambda_lr(torch.load(checkpoint / "scheduler.pt")), checkpoint / "scheduler.pt")
    resumed = test_transformers.new_trainer(tmp_path / "resumed")
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert resumed.recorder.rows == own.recorder.rows[6:]


class Plain(Model):
    """A LambdaLR of torch, in place of our schedules."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=LR, weight_decay=0.3)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 24)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def test_a_lightning_trainer_without_us_resumes_from_our_checkpoint(tmp_path: Path) -> None:
    class Ours(Model):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=LR, weight_decay=0.3)
            return lightning.schedule(self, optimizer, LINE)

    trainer = test_lightning.trainer(tmp_path, callbacks=[test_lightning.Saving()])  # in the second epoch
    trainer.fit(Ours(), Loader())
    checkpoint = torch.load(tmp_path / "middle.ckpt", weights_only=False)
    checkpoint["lr_schedulers"] = [to_lambda_lr(checkpoint["lr_schedulers"][0])]
    torch.save(checkpoint, tmp_path / "plain.ckpt")
    model = Plain()
    test_lightning.trainer(tmp_path).fit(model, Loader(), ckpt_path=tmp_path / "plain.ckpt")
    assert [lr for lr, _ in model.used] == pytest.approx(line(24, start=16), rel=1e-15)


# accelerate: a checkpoint of other schedulers, in the order of docs/trainers/accelerate.md


@pytest.mark.parametrize("writes_lr", [False, True])
def test_accelerate_takes_over_a_run(writes_lr: bool, tmp_path: Path) -> None:
    """Also the run of a loop that writes `lr` itself, whose checkpoint has no `initial_lr`."""

    def prepare() -> Any:
        accelerator, weight = Accelerator(cpu=True), torch.nn.Linear(1, 1)
        model, optimizer = accelerator.prepare(weight, torch.optim.AdamW(weight.parameters(), lr=0.1))
        return accelerator, model, optimizer

    def step(model: Any, optimizer: Any) -> None:
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    try:
        accelerator, model, optimizer = prepare()
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 40)
        for _ in range(10):
            step(model, optimizer)
            scheduler.step()
        for group in optimizer.param_groups if writes_lr else ():
            del group["initial_lr"]
        accelerator.save_state(tmp_path / "checkpoint")

        accelerator, model, optimizer = prepare()
        names: dict[str, Any] = {"accelerator": accelerator, "optimizer": optimizer, "cosine": LINE}
        names |= {"schedule": accelerate.schedule, "checkpoint": tmp_path / "checkpoint"}
        exec(page_code("trainers/accelerate.md", "# take over"), names)
        assert optimizer.param_groups[0]["lr"] == 0.1 * LINE.at("10ba", Clock("40ba"))
        step(model, optimizer)
        names["scheduler"].step()
        assert optimizer.param_groups[0]["lr"] == 0.1 * LINE.at("11ba", Clock("40ba"))
        assert names["scheduler"].clock.timestamp.token == 4000
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
