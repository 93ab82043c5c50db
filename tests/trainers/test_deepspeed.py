"""The adapter for transformers under DeepSpeed's real engine, with ZeRO 0 to 3: one process, and two with gloo.

As a program under torchrun: `FOLDER` checks the ranks. DeepSpeed keeps state for the process.
"""

from __future__ import annotations

import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import deepspeed
import pytest
import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

import optim
from tests.torchrun import Report, launch
from timesched import Clock, CosineAnnealingWithWarmupScheduler, LinearScheduler, bind
from timesched.integrations.transformers import Binding, schedule

SAMPLES, EPOCHS, LR, WEIGHT_DECAY = 64, 2, 0.1, 0.3
COSINE, DECAY = CosineAnnealingWithWarmupScheduler("32sp", alpha_f=0.1), LinearScheduler(alpha_f=0.2)


Outcome = tuple[list[tuple[float, float]], list[torch.Tensor]]  # the values of each batch, and the weights at the end


class Samples(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.linspace(-1.0, 1.0, SAMPLES * 4).reshape(SAMPLES, 4)[index]}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.layer(x).square().mean()}


class Recorder(TrainerCallback):
    """The learning rate and the weight decay of each batch."""

    def __init__(self) -> None:
        self.used: list[tuple[float, float]] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
        group = optimizer.param_groups[0]  # the second has the bias, without weight decay
        self.used.append((group["lr"], group["weight_decay"]))


def config(stage: int, **entries: Any) -> dict[str, Any]:
    sizes = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size", "gradient_clipping")
    return {**dict.fromkeys(sizes, "auto"), "zero_optimization": {"stage": stage}, **entries}


def new_trainer(folder: Path, deepspeed_config: dict[str, Any] | None, **trainer_options: Any) -> Trainer:
    AcceleratorState._reset_state()  # or else the arguments read the batch size of the run before
    args = TrainingArguments(
        str(folder),
        **{"num_train_epochs": EPOCHS, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
        **{"use_cpu": True, "report_to": "none", "disable_tqdm": True, "save_strategy": "epoch"},
        **{"train_sampling_strategy": "sequential", "learning_rate": LR, "weight_decay": WEIGHT_DECAY},
        deepspeed=deepspeed_config,
    )
    return Trainer(Model(), args, train_dataset=Samples(), **trainer_options)


def train(folder: Path, stage: int | None, resume: Path | None = None) -> Outcome:
    """The values of each batch of a run with this stage of ZeRO, or without DeepSpeed; and the weights."""
    trainer, recorder = new_trainer(folder, None if stage is None else config(stage)), Recorder()
    trainer.add_callback(recorder)
    schedule(trainer, COSINE, Binding(DECAY, "weight_decay"))
    trainer.train(resume_from_checkpoint=resume)
    with deepspeed.zero.GatheredParameters(list(trainer.model.parameters())):
        return recorder.used, [parameter.detach().clone() for parameter in trainer.model.parameters()]


def expected(batch_size: int) -> list[tuple[float, float]]:
    """The values of each batch, of `bind` in a plain loop."""
    optimizer = torch.optim.AdamW(Model().parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    clock = Clock(f"{EPOCHS * SAMPLES}sp", samples_per_batch=batch_size)
    schedulers = [bind(COSINE, optimizer, clock), bind(DECAY, optimizer, clock, "weight_decay")]
    (group,), used = optimizer.param_groups, []
    while not clock.done:
        used.append((group["lr"], group["weight_decay"]))
        clock.tick()
        for scheduler in schedulers:
            scheduler.step()
    return used


@pytest.mark.parametrize("processes", [1, 2])
def test_deepspeed(processes: int, tmp_path: Path) -> None:
    found, said = launch(Path(__file__), processes, tmp_path, 300, DS_ACCELERATOR="cpu")
    assert found == dict.fromkeys(NAMES, ""), "\n".join([*found.values(), said])


# In processes of their own


def a_run_is_as_without_deepspeed_and_resumes(stage: int, folder: Path, plain: Outcome) -> None:
    used, weights = train(folder / f"stage-{stage}", stage)
    torch.testing.assert_close(used, expected(8 * dist.get_world_size()), rtol=1e-12, atol=0)
    assert used == plain[0]
    torch.testing.assert_close(weights, plain[1])
    half = len(used) // 2
    resumed, resumed_weights = train(folder / "resumed", stage, folder / f"stage-{stage}" / f"checkpoint-{half}")
    assert resumed == used[half:]
    torch.testing.assert_close(resumed_weights, weights, rtol=0, atol=0)


def a_config_with_a_scheduler_or_an_optimizer_is_refused(folder: Path) -> None:
    entries = {
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4}},
        "optimizer": {"type": "AdamW", "params": {"lr": LR}},
    }
    for name, entry in entries.items():
        trainer = new_trainer(folder / name, config(0, **{name: entry}))
        with pytest.raises(ValueError) as error:
            schedule(trainer, COSINE)
        assert str(error.value) == (
            f"schedule.trainer: the DeepSpeed config has {name!r}, so DeepSpeed makes it, and steps the scheduler "
            f"itself. Delete {name!r} from the config, or follow docs/trainers/deepspeed.md."
        )


def an_optimizer_of_optim_and_an_average_are_refused_with_zero_1(folder: Path) -> None:
    """DeepSpeed would step each of the Trainer's two groups alone, and the optimizer would drop the other's state."""
    ours: Any = {"optimizer_cls_and_kwargs": (optim.AdamW, {"lr": LR})}
    trainer = new_trainer(folder / "ours", config(1), **ours)
    schedule(trainer, COSINE)
    with pytest.raises(ValueError) as error:
        trainer.train()
    assert str(error.value) == (
        "Trainer.optimizer: ZeRO 1 of DeepSpeed steps the parameter groups one by one, and AdamW of optim would drop "
        "the state of the others. Use an optimizer of torch, or ZeRO 0."
    )
    trainer = new_trainer(folder / "average", config(1))
    schedule(trainer, COSINE, average=partial(optim.WeightAverage, half_life="8sp"))
    with pytest.raises(ValueError) as error:
        trainer.train()
    assert str(error.value) == (
        "schedule.average: ZeRO 1 of DeepSpeed flattens and divides the parameters, which the average would read. "
        "Leave it out, or use ZeRO 0."
    )


RUN = a_run_is_as_without_deepspeed_and_resumes
REFUSALS = (
    a_config_with_a_scheduler_or_an_optimizer_is_refused,
    an_optimizer_of_optim_and_an_average_are_refused_with_zero_1,
)
NAMES = [*[f"{RUN.__name__}: stage {stage}" for stage in range(4)], *[check.__name__ for check in REFUSALS]]


def ranks(folder: Path) -> None:
    plain = train(folder / "without", None)  # first: a DeepSpeed config sets environment variables for later runs
    report = Report(folder)
    calls = [
        *[partial(RUN, stage, folder, plain) for stage in range(4)],
        *[partial(check, folder) for check in REFUSALS],
    ]
    for name, call in zip(NAMES, calls):
        report.check(name, call)
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.filterwarnings("error", module="timesched")
    ranks(Path(sys.argv[1]))
