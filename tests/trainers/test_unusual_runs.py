"""Runs that users have reported: warnings at a load, epochs that end early, second fits, refused batches, and more."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from lightning.pytorch import LightningModule
from lightning.pytorch.tuner import Tuner
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader
from transformers import TrainerCallback
from transformers.trainer_pt_utils import LayerWiseDummyOptimizer

from tests.docs.tables import page_code
from tests.trainers.rows import lightning, transformers
from tests.trainers.rows.lightning import Loader, Module, WithTorch
from tests.trainers.runs import IGNORE_LIGHTNING, LR, UNEVEN, Run, Task, collate, plain_loop
from timesched import Clock, LinearScheduler
from timesched.integrations import accelerate

LINE = LinearScheduler()
pytestmark = IGNORE_LIGHTNING


def line(steps: int, start: int = 0) -> list[float]:
    """The learning rates of the steps after `start`."""
    return plain_loop(UNEVEN, Task((LINE,), f"{steps}ba")).of("lr")[start:]


# Hugging Face


def test_a_warning_at_a_load_arrives_once(tmp_path: Path) -> None:
    """transformers drops every UserWarning while it loads the scheduler."""

    def train(learning_rate: float, load: Any = None) -> list[str]:
        task = Task((LINE,), None, save_after=[6], load=load)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            made = torch.optim.SGD, {"lr": learning_rate}  # which the Trainer calls for two groups
            transformers.train(tmp_path, task, optimizer_cls_and_kwargs=made)
        return [str(warning.message) for warning in caught if "initial value" in str(warning.message)]

    assert train(0.1) == []
    (text,) = train(0.2, load=(tmp_path, 6))
    assert "the initial value was [0.2, 0.2], and the state has [0.1, 0.1]" in text


class EndEpoch(TrainerCallback):
    """Ends the first epoch after two of four steps."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_epoch_stop = state.global_step == 2


def test_an_epoch_that_a_callback_ends_early(tmp_path: Path) -> None:
    """An epoch has batches of 12, 12, 12 and 1 samples: 24 samples in the first epoch, and then 37."""
    task = Task((LinearScheduler(t_max="2ep"),), "2ep", accumulate=4)
    run = transformers.train(tmp_path, task, callbacks=[EndEpoch()])
    assert (run.counts["epoch"], run.counts["batch"], run.counts["sample"]) == (2, 6, 61)
    assert run.of("lr") == [LR * (1 - k / 8) for k in (0, 1, 4, 5, 6, 7)]


def test_an_optimizer_for_each_layer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="an optimizer for each layer, which no schedule reaches"):
        transformers.train(tmp_path, Task(), optimizers=(LayerWiseDummyOptimizer(), None))


def test_a_run_that_counted_no_tokens_continues_in_tokens(tmp_path: Path) -> None:
    """With a conversion factor the position is computed. Otherwise the load is refused."""
    transformers.train(tmp_path, Task((LINE,), None, counts_tokens=False, save_after=[6]))
    task = Task((LinearScheduler(t_max="1000tok"),), "1000tok", on_change="new", load=(tmp_path, 6))
    with pytest.raises(ValueError, match="at batch 6, and nobody has counted its tokens"):
        transformers.train(tmp_path, task)
    with pytest.warns(UserWarning, match="The Trainer has ended the run at"):
        run = transformers.train(tmp_path, replace(task, counts_tokens=False), tokens_per_sample=10)
    assert run.of("lr")[0] == LR * task.entries[0].at("180tok", Clock("1000tok"))


# Lightning


def test_a_second_fit_continues_the_first(tmp_path: Path) -> None:
    module, trainer = Module(Task((LINE,), None)), lightning.make_trainer(tmp_path, Task())
    trainer.fit(module, Loader(3))
    assert module.net.run.of("lr") == line(26)
    module.net.run = Run()
    trainer.fit_loop.max_epochs = 4
    trainer.fit(module, Loader(3))
    assert module.net.run.of("lr") == line(52, start=26)
    assert (module.clock.timestamp.batch, module.clock.timestamp.epoch) == (52, 4)


def test_a_second_fit_past_the_end_is_refused(tmp_path: Path) -> None:
    module, trainer = Module(Task((LINE,), "12ba")), lightning.make_trainer(tmp_path, Task())
    trainer.fit(module, Loader(3))
    trainer.fit_loop.max_epochs = 4
    with pytest.raises(ValueError, match="max_duration='12ba': an earlier fit of this Trainer has reached it"):
        trainer.fit(module, Loader(3))


class Refusing(Module):
    """Refuses the sixth batch of each epoch, which ends the epoch."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if batch_idx == 5 else None


@pytest.mark.parametrize(("accumulate", "samples", "steps"), [(1, 30, 10), (2, 27, 4)])
def test_a_batch_that_the_module_refuses_is_not_counted(
    accumulate: int, samples: int, steps: int, tmp_path: Path
) -> None:
    """With accumulation, the fifth microbatch of an epoch was trained on: the next batch counts it."""
    task = Task((LINE,), f"{samples}sp", accumulate=accumulate)
    run = lightning.train(tmp_path, task, Refusing(task))
    assert len(run.values) == run.counts["batch"] == steps
    assert (run.counts["sample"], run.counts["epoch"]) == (samples, 1)


class Sized(Module):
    batch_size = 2
    validation_step = LightningModule.validation_step  # which does nothing, so no data are needed

    def train_dataloader(self) -> Any:
        return DataLoader(lightning.DATA, self.batch_size, collate_fn=collate)


def test_a_trial_of_the_batch_size_leaves_no_trace(tmp_path: Path) -> None:
    module, trainer = Sized(Task((LINE,), "20ba")), lightning.make_trainer(tmp_path, Task())
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*clock.*")
        assert Tuner(trainer).scale_batch_size(module, max_trials=2) == 4
    module.net.run = Run()
    trainer.fit(module)
    assert module.net.run.of("lr") == line(20)


def test_samples_of_several_loaders_need_a_count(tmp_path: Path) -> None:
    class First(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step(batch["a"], batch_idx)

    def train(**options: Any) -> Run:
        module = First(Task((LinearScheduler(t_max="40sp"),), "40sp"), **options)
        loaders = CombinedLoader({"a": Loader(3), "b": Loader(3)}, "min_size")
        return lightning.train(tmp_path, module.task, module, loaders)

    with pytest.raises(ValueError, match="samples: a schedule reads them, and the Trainer has several data loaders"):
        train()
    run = train(count=lambda batch: {"samples": len(batch["a"]["input_ids"]) + len(batch["b"]["input_ids"])})
    assert run.counts["sample"] == 42


# Back to a trainer without our schedules: the function of docs/checkpoints.md


def to_lambda_lr(state: Any) -> Any:
    names: dict[str, Any] = {}
    exec(page_code("checkpoints.md", "# to LambdaLR"), names)
    return names["to_lambda_lr"](state)


def test_a_hugging_face_trainer_without_us_resumes_from_our_checkpoint(tmp_path: Path) -> None:
    """Its own linear schedule continues at this step, as in a run that had it from the start."""
    own = transformers.train(tmp_path / "own", Task((), None))
    transformers.train(tmp_path, Task((LINE,), None, save_after=[6]))
    path = tmp_path / "checkpoint-6" / "scheduler.pt"
    torch.save(to_lambda_lr(torch.load(path)), path)
    resumed = transformers.train(tmp_path / "resumed", Task((), None, load=(tmp_path, 6)))
    assert resumed.values == own.values[6:] and torch.equal(resumed.after[-1], own.after[-1])


def test_a_lightning_trainer_without_us_resumes_from_our_checkpoint(tmp_path: Path) -> None:
    task = Task((LINE,), None, save_after=[16])  # in the second epoch
    lightning.train(tmp_path, task)
    path = tmp_path / "16.ckpt"
    checkpoint = torch.load(path, weights_only=False)
    checkpoint["lr_schedulers"] = [to_lambda_lr(checkpoint["lr_schedulers"][0])]
    torch.save(checkpoint, path)
    run = lightning.train(tmp_path, replace(task, load=(tmp_path, 16)), WithTorch(task))
    assert run.of("lr") == pytest.approx(line(26, start=16), rel=1e-15)


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
