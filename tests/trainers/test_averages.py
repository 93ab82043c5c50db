"""Averages of the weights in real runs of the trainers: stepped on the clock, saved, and evaluated in their place."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from lightning.pytorch import LightningModule
from lightning.pytorch import Trainer as LightningTrainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.tuner import Tuner
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import optim
from timesched import LinearScheduler
from timesched.integrations import accelerate, lightning, transformers

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}Warning:lightning") for kind in ("Deprecation", "Future", "User")
]
AVERAGE = partial(optim.WeightAverage, half_life="3ba", start="2ba")
IN_TOKENS = partial(optim.WeightAverage, half_life="9tok")
STEPS, SIZE = 12, 4
IDS = torch.arange(STEPS * SIZE * 8).reshape(-1, 8) * 7 % 50
ROUNDED = 5e-7  # two spacings of a float32 weight between 1 and 4, which a step of the average rounds to
SAMPLES = [{"input_ids": row, "labels": row} for row in IDS]


def averaged(weights: list[torch.Tensor]) -> list[torch.Tensor]:
    """What `AVERAGE` is after each batch, from the weights after each."""
    found: list[torch.Tensor] = []
    keeps = 2 ** (-1 / 3)
    for batch, weight in enumerate(weights, 1):
        found.append(weight.double() if batch <= 2 else keeps * found[-1] + (1 - keeps) * weight.double())
    return found


def flat(tensors: Any) -> torch.Tensor:
    return torch.cat([x.detach().reshape(-1) for x in tensors]).clone()


def of(average: Any) -> torch.Tensor:
    return flat(state["average"] for state in average.state.values())


# transformers


class Weights(TrainerCallback):
    """The weights after each step, those that the next one begins with, and what was evaluated and saved."""

    def __init__(self) -> None:
        self.after: dict[int, torch.Tensor] = {}
        self.before: dict[int, torch.Tensor] = {}
        self.losses: dict[int, float] = {}

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.before[state.global_step] = flat(model.parameters())

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.after[state.global_step] = flat(model.parameters())

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        self.losses[state.global_step] = metrics["eval_loss"]


def new_model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    size = {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 8, "vocab_size": 50}
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return GPT2LMHeadModel(GPT2Config(**size, **dropouts, bos_token_id=None, eos_token_id=None))


def new_trainer(folder: Path, *, eval_dataset: Any = SAMPLES[:6], **options: Any) -> tuple[Trainer, Weights]:
    settings = {
        **{"max_steps": STEPS, "per_device_train_batch_size": SIZE, "learning_rate": 0.01, "weight_decay": 0.0},
        **{"save_strategy": "no", "report_to": "none", "use_cpu": True, "disable_tqdm": True, "logging_steps": 1},
    }
    arguments = TrainingArguments(str(folder), **{**settings, **options})
    weights = Weights()
    model = new_model()
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    data = {"train_dataset": SAMPLES, "eval_dataset": eval_dataset}
    return Trainer(model, arguments, optimizers=(optimizer, None), callbacks=[weights], **data), weights


EVERY_4_STEPS = {"eval_strategy": "steps", "eval_steps": 4, "save_strategy": "steps", "save_steps": 4}


def test_transformers(tmp_path: Path) -> None:
    """Evaluated every third of the run, with the average."""
    trainer, weights = new_trainer(tmp_path, **EVERY_4_STEPS)
    transformers.schedule(trainer, LinearScheduler(), average=AVERAGE, evaluate_averaged=True)
    trainer.train()
    expected = averaged(list(weights.after.values()))
    average = trainer.lr_scheduler.average
    torch.testing.assert_close(of(average).double(), expected[-1], rtol=0, atol=ROUNDED)
    assert list(weights.losses) == [4, 8, 12]
    assert sorted(int(path.name.split("-")[1]) for path in tmp_path.iterdir()) == [4, 8, 12]
    for step, loss in weights.losses.items():
        plain, _ = new_trainer(tmp_path)
        torch.nn.utils.vector_to_parameters(expected[step - 1].float(), plain.model.parameters())
        assert loss == pytest.approx(plain.evaluate()["eval_loss"], rel=1e-5)
    for i in range(1, STEPS):  # the weights after an evaluation are those before it
        assert torch.equal(weights.before[i], weights.after[i])

    resumed, again = new_trainer(tmp_path, **EVERY_4_STEPS)
    transformers.schedule(resumed, LinearScheduler(), average=AVERAGE, evaluate_averaged=True)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    assert torch.equal(of(resumed.lr_scheduler.average), of(average))
    assert again.losses == {12: weights.losses[12]}


def test_transformers_casts_the_model(tmp_path: Path) -> None:
    """`bf16_full_eval` casts the model within an evaluation, and leaves it so: what stays are the weights."""
    trainer, weights = new_trainer(tmp_path, bf16_full_eval=True)
    transformers.schedule(trainer, LinearScheduler(), average=AVERAGE, evaluate_averaged=True)
    trainer.train()
    average = of(trainer.lr_scheduler.average)
    trainer.evaluate()
    assert torch.equal(flat(trainer.model.parameters()), weights.after[STEPS].bfloat16())
    assert torch.equal(of(trainer.lr_scheduler.average), average)


def test_transformers_without_it(tmp_path: Path) -> None:
    trainer, _ = new_trainer(tmp_path, save_strategy="steps", save_steps=6)
    transformers.schedule(trainer, LinearScheduler())
    trainer.train()
    path = str(tmp_path / "checkpoint-6")
    resumed, _ = new_trainer(tmp_path)
    transformers.schedule(resumed, LinearScheduler(), average=AVERAGE)
    with pytest.raises(ValueError, match="average: the state has no average"):
        resumed.train(resume_from_checkpoint=path)
    resumed, weights = new_trainer(tmp_path)
    transformers.schedule(resumed, LinearScheduler(), average=AVERAGE, on_change="new")
    resumed.train(resume_from_checkpoint=path)
    (group,) = resumed.lr_scheduler.average.param_groups
    assert (group["start_batch"], group["last_batch"]) == (6, STEPS)
    assert not torch.equal(of(resumed.lr_scheduler.average), weights.after[STEPS])


def test_transformers_refuses(tmp_path: Path) -> None:
    trainer, _ = new_trainer(tmp_path, eval_dataset=None)
    with pytest.raises(ValueError, match="evaluate_averaged=True: there is no"):
        transformers.schedule(trainer, LinearScheduler(), evaluate_averaged=True)
    best = {"load_best_model_at_end": True, "eval_strategy": "no"}
    trainer, _ = new_trainer(tmp_path)
    trainer.args.load_best_model_at_end = best["load_best_model_at_end"]
    with pytest.warns(UserWarning, match="load_best_model_at_end=True: the average"):
        transformers.schedule(trainer, LinearScheduler(), average=AVERAGE, evaluate_averaged=True)


# Lightning


class Module(LightningModule):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net, self.options = torch.nn.Linear(8, 1), options
        self.before: list[torch.Tensor] = []
        self.after: list[torch.Tensor] = []
        self.validated: list[torch.Tensor] = []

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return (self.net(batch / 50) - 1).square().mean()

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.validated.append(flat(self.net.parameters()))
        if self.options.get("fails") and not self.trainer.sanity_checking:
            raise KeyError("in a validation")

    def on_train_batch_start(self, *arguments: Any) -> None:
        self.before.append(flat(self.net.parameters()))

    def on_train_batch_end(self, *arguments: Any) -> None:
        self.after.append(flat(self.net.parameters()))

    def configure_optimizers(self) -> Any:
        optimizer = optim.AdamW(self.net.parameters(), lr=0.05)
        ours = {name: value for name, value in self.options.items() if name in ("average", "max_duration")}
        options: Any = {"average": AVERAGE, "evaluate_averaged": True, **ours}
        return lightning.schedule(self, optimizer, LinearScheduler(), **options)


QUIET: dict[str, Any] = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
LOADER = torch.utils.data.DataLoader(IDS[:24].float(), SIZE)  # two epochs are STEPS batches
VALIDATION = torch.utils.data.DataLoader(IDS[:4].float(), SIZE)


def fitted(folder: Path, path: str | None = None, **options: Any) -> tuple[Module, Any]:
    module = Module(**options)
    trainer = LightningTrainer(
        **QUIET,
        callbacks=[ModelCheckpoint(folder, filename="{step}", save_top_k=-1, monitor=None)],
        **{"accelerator": "cpu", "max_epochs": 2, "num_sanity_val_steps": 1},
    )
    trainer.fit(module, LOADER, VALIDATION, ckpt_path=path)
    return module, trainer


def test_lightning(tmp_path: Path) -> None:
    """Validated with the average; the checkpoints of these moments hold the weights."""
    module, trainer = fitted(tmp_path)
    expected = averaged(module.after)
    average = trainer.lr_scheduler_configs[0].scheduler.average
    torch.testing.assert_close(of(average).double(), expected[-1], rtol=0, atol=ROUNDED)
    for validated, batch in zip(module.validated[1:], (6, 12), strict=True):
        torch.testing.assert_close(validated.double(), expected[batch - 1], rtol=0, atol=ROUNDED)
    for batch in (6, 12):
        saved = torch.load(tmp_path / f"step={batch}.ckpt", weights_only=True)
        assert torch.equal(flat(saved["state_dict"].values()), module.after[batch - 1])
    resumed, again = fitted(tmp_path, str(tmp_path / "step=6.ckpt"))
    assert torch.equal(of(again.lr_scheduler_configs[0].scheduler.average), of(average))
    assert torch.equal(resumed.after[-1], module.after[-1])


@pytest.mark.parametrize("first", ["fit", "lr_find"])
def test_lightning_fits_again(tmp_path: Path, first: str) -> None:
    """Each fit evaluates its own average: every batch begins with the weights that the batch before ended with."""
    module = Module()
    options = {"accelerator": "cpu", "max_epochs": 1, "num_sanity_val_steps": 0, "enable_checkpointing": False}
    trainer = LightningTrainer(**QUIET, **options, default_root_dir=tmp_path)
    if first == "fit":
        trainer.fit(module, LOADER, VALIDATION)
    else:
        Tuner(trainer).lr_find(module, LOADER, VALIDATION, num_training=4, update_attr=False)
    module.before, module.after, module.validated = [], [], []
    trainer.fit_loop.max_epochs = 3 if first == "fit" else 2
    module.options["max_duration"] = f"{STEPS}ba"
    trainer.fit(module, LOADER, VALIDATION)
    assert len(module.after) == STEPS
    assert all(torch.equal(x, y) for x, y in zip(module.before[1:], module.after[:-1], strict=True))
    assert torch.equal(flat(module.net.parameters()), module.after[-1])
    assert not torch.equal(module.validated[-1], module.after[-1])


def test_lightning_validates_a_checkpoint(tmp_path: Path) -> None:
    """`trainer.validate()` runs on the weights of the checkpoint, or on those of the model; the average stays."""
    module, trainer = fitted(tmp_path)
    average = trainer.lr_scheduler_configs[0].scheduler.average
    held = of(average)
    trainer.validate(module, VALIDATION, verbose=False)
    assert torch.equal(module.validated[-1], module.after[-1])
    trainer.validate(module, VALIDATION, ckpt_path=str(tmp_path / "step=6.ckpt"), verbose=False)
    assert torch.equal(module.validated[-1], module.after[5])
    with average.swapped():
        trainer.validate(module, VALIDATION, verbose=False)
    assert torch.equal(module.validated[-1], held) and torch.equal(of(average), held)
    assert torch.equal(flat(module.net.parameters()), module.after[5])


def test_lightning_restores_after_an_error(tmp_path: Path) -> None:
    module = Module(fails=True)
    trainer = LightningTrainer(
        **QUIET,
        **{
            "accelerator": "cpu",
            "max_epochs": 1,
            "val_check_interval": 4,
            "num_sanity_val_steps": 0,
            "enable_checkpointing": False,
        },
    )
    loader = torch.utils.data.DataLoader(IDS.float(), SIZE)
    with pytest.raises(KeyError, match="in a validation"):
        trainer.fit(module, loader, loader)
    assert torch.equal(flat(module.net.parameters()), module.after[-1])
    assert not torch.equal(module.validated[-1], module.after[-1])


def test_lightning_refuses_tokens_that_nobody_counts(tmp_path: Path) -> None:
    with pytest.raises(ValueError) as error:
        fitted(tmp_path, average=IN_TOKENS)
    assert str(error.value) == (
        "tokens: the run counts them, and this batch has no count. Pass schedule(..., count=lambda batch: "
        "{'tokens': ...})."
    )


# accelerate


def test_accelerate_refuses_tokens_that_nobody_counts() -> None:
    accelerator, model = Accelerator(cpu=True), torch.nn.Linear(8, 1)
    optimizer = accelerator.prepare(optim.AdamW(model.parameters(), lr=0.05))
    scheduler = accelerate.schedule(accelerator, optimizer, LinearScheduler(), max_duration="9ba", average=IN_TOKENS)
    with pytest.raises(ValueError, match=r"tokens: the run .* Call step\(tokens="):
        scheduler.step(samples=4)
    assert scheduler.clock.timestamp.batch == 0
    scheduler.step(tokens=4)
    assert scheduler.clock.timestamp.batch == 1


def test_accelerate(tmp_path: Path) -> None:
    def made() -> tuple[Any, Any, Any, Any]:
        accelerator = Accelerator(cpu=True)
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 1)
        model, optimizer = accelerator.prepare(model, optim.AdamW(model.parameters(), lr=0.05))
        options = {"max_duration": f"{STEPS}ba", "average": AVERAGE}
        return accelerator, model, optimizer, accelerate.schedule(accelerator, optimizer, LinearScheduler(), **options)

    def train(run: tuple[Any, Any, Any, Any], first: int, last: int) -> list[torch.Tensor]:
        accelerator, model, optimizer, scheduler = run
        after = []
        for i in range(first, last):
            accelerator.backward((model(IDS[SIZE * i : SIZE * (i + 1)] / 50) - 1).square().mean())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            after.append(flat(model.parameters()))
        return after

    run = made()
    after = train(run, 0, 5)
    run[0].save_state(str(tmp_path))
    after += train(run, 5, STEPS)
    average = run[-1].average
    torch.testing.assert_close(of(average).double(), averaged(after)[-1], rtol=0, atol=ROUNDED)
    with average.swapped():
        assert torch.equal(flat(run[1].parameters()), of(average))
    assert torch.equal(flat(run[1].parameters()), after[-1])
    resumed = made()
    resumed[0].load_state(str(tmp_path))
    train(resumed, 5, STEPS)
    assert torch.equal(of(resumed[-1].average), of(average))
