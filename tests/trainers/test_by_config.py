"""ScheduleLR, named by the config of a framework, has the learning rates of `bind` in a plain loop: docs/by_config.md.

Hydra, Lightning, its command line and accelerate run as they are. The other frameworks need a GPU or packages that do
not install next to this torch. The line of their source that makes the scheduler is restated here, from:

    lightning-hydra-template  ashleve/lightning-hydra-template, src/models/mnist_module.py
    sd-scripts                kohya-ss/sd-scripts, library/train_util.py
    OneTrainer                Nerogar/OneTrainer, modules/util/create.py
    RF-DETR                   roboflow/rf-detr, src/rfdetr/training/module_model.py
    anemoi                    ecmwf/anemoi-core, training/src/anemoi/training/train/methods/base.py
    NeMo                      NVIDIA/NeMo, nemo/core/optim/lr_scheduler.py
    verl                      volcengine/verl, verl/workers/config/optimizer.py
    NeMo Automodel            NVIDIA-NeMo/Automodel, nemo_automodel/components/optim/optimizer.py
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from hydra.utils import instantiate
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import LightningCLI
from omegaconf import OmegaConf

import optim
from tests.docs.tables import DOCS
from timesched import Clock, Horizon, ScheduleLR, Time, WarmupStableDecayScheduler, bind
from timesched.reading import read_schedule

pytestmark = [  # Lightning's own
    pytest.mark.filterwarnings(f"ignore::{kind}Warning:lightning") for kind in ("Deprecation", "Future", "User")
]
SAMPLES, EPOCHS, LR = 64, 4, 0.1
DATA = torch.linspace(-1.0, 1.0, SAMPLES * 4).reshape(SAMPLES, 4)
BATCH_SIZES = 8, 16
SCHEDULES: dict[str, dict[str, Any]] = {
    "WSD": {"t_warmup": "0.1dur", "t_decay": "0.25dur"},
    "CosineAnnealingWithWarmup": {"t_warmup": "128tok", "alpha_f": 0.1},
    "MultiStep": {"milestones": ["100sp", "3ep"], "gamma": 0.1},
}
QUIET: dict[str, Any] = {
    **{"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False},
    "enable_model_summary": False,
}
PAGE = DOCS / "by_config.md"


@dataclass(frozen=True)
class Case:
    """A schedule and a batch size."""

    schedule: str
    batch_size: int

    @property
    def text(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in SCHEDULES[self.schedule].items())
        return f"{self.schedule}({arguments})"

    @property
    def factors(self) -> dict[str, int]:
        return {
            "samples_per_batch": self.batch_size,
            "tokens_per_sample": 2,
            "batches_per_epoch": SAMPLES // self.batch_size,
        }

    @property
    def with_text(self) -> dict[str, Any]:
        """The arguments of ScheduleLR with the schedule as a call."""
        return {"schedule": self.text, "max_duration": f"{EPOCHS}ep", **self.factors}

    @property
    def flat(self) -> dict[str, Any]:
        """The arguments of ScheduleLR with the schedule as a name."""
        arguments = {"schedule": self.schedule, **SCHEDULES[self.schedule]}
        return {**arguments, "max_duration": f"{EPOCHS}ep", **self.factors}


CASES = [Case(schedule, batch_size) for schedule in SCHEDULES for batch_size in BATCH_SIZES]


@dataclass
class Part:
    """The epochs of a run that one process trains, and where it saves and loads its checkpoint."""

    start: int
    end: int
    checkpoint: Path


@dataclass
class Outcome:
    used: list[float]  # the learning rate of each batch
    state: dict[str, Any]  # of the model and the optimizer, at the end


def make_model() -> torch.nn.Linear:
    torch.manual_seed(1)
    return torch.nn.Linear(4, 1)


def plain(case: Case, per_epoch: bool) -> list[float]:
    """The learning rate of each batch, of `bind` in a plain loop."""
    optimizer = torch.optim.AdamW(make_model().parameters(), lr=LR)
    clock = Clock(f"{EPOCHS}ep", **case.factors)
    scheduler = bind(read_schedule(case.text, {}, "schedule"), optimizer, clock)
    used = []
    while not clock.done:
        for _ in range(case.factors["batches_per_epoch"] if per_epoch else 1):
            used.append(optimizer.param_groups[0]["lr"])
            clock.tick()
        scheduler.step()
    return used


# Loops that step the scheduler after each batch


class Loop:
    """A loop with a scheduler that a framework makes; its checkpoint holds the scheduler's state."""

    def __init__(self, case: Case) -> None:
        self.case, self.model = case, make_model()
        self.optimizer: Any = torch.optim.AdamW(self.model.parameters(), lr=LR)
        self.scheduler: Any = self.make(0)

    def make(self, steps: int) -> Any:
        """The scheduler, as the framework makes it after so many steps."""
        raise NotImplementedError

    def backward(self, batch: torch.Tensor) -> None:
        self.model(batch).square().mean().backward()

    def run(self, part: Part) -> Outcome:
        if part.start > 0:
            self.load(part.checkpoint, part.start * self.case.factors["batches_per_epoch"])
        used = []
        for _ in range(part.start, part.end):
            for batch in DATA.split(self.case.batch_size):
                used.append(self.optimizer.param_groups[0]["lr"])
                self.backward(batch)
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()
        self.save(part.checkpoint)
        return Outcome(used, {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()["state"]})

    def save(self, checkpoint: Path) -> None:
        torch.save([part.state_dict() for part in (self.model, self.optimizer, self.scheduler)], checkpoint)

    def load(self, checkpoint: Path, steps: int) -> None:
        for part, state in zip((self.model, self.optimizer, self.scheduler), torch.load(checkpoint)):
            part.load_state_dict(state)


class HydraLoop(Loop):
    def make(self, steps: int) -> Any:
        config = OmegaConf.create({"_target_": "timesched.ScheduleLR", "_convert_": "all", **self.case.flat})
        return instantiate(config, optimizer=self.optimizer)


class HydraPartialLoop(Loop):
    def make(self, steps: int) -> Any:
        config = {"_target_": "timesched.ScheduleLR", "_partial_": True, **self.case.with_text}
        return instantiate(OmegaConf.create(config))(self.optimizer)


class SdScriptsLoop(Loop):
    """`get_scheduler_fix` of sd-scripts, and its `accelerator.prepare`. accelerate is real."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        AcceleratorState._reset_state(reset_partial_state=True)
        self.accelerator = Accelerator(cpu=True)
        prepared = self.accelerator.prepare(self.model, self.optimizer, self.scheduler)
        self.model, self.optimizer, self.scheduler = prepared

    def make(self, steps: int) -> Any:
        command_line = [f"{name}={value!r}" for name, value in self.case.flat.items()]
        return make_as_sd_scripts(self.optimizer, "timesched.ScheduleLR", command_line)

    def backward(self, batch: torch.Tensor) -> None:
        self.accelerator.backward(self.model(batch).square().mean())

    def save(self, checkpoint: Path) -> None:
        self.accelerator.save_state(checkpoint)

    def load(self, checkpoint: Path, steps: int) -> None:
        self.accelerator.load_state(checkpoint)


def make_as_sd_scripts(optimizer: Any, scheduler_type: str, scheduler_args: list[str]) -> Any:
    """`--lr_scheduler_type` and `--lr_scheduler_args`."""
    arguments = {}
    for argument in scheduler_args:
        key, value = argument.split("=")
        arguments[key] = ast.literal_eval(value)
    return import_path(scheduler_type)(optimizer, **arguments)


def import_path(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


class OneTrainerLoop(Loop):
    """`create_lr_scheduler` of OneTrainer, which makes the scheduler again when a run resumes."""

    def make(self, steps: int) -> Any:
        parameters = {name: repr(value) for name, value in self.case.flat.items()}
        parameters["max_duration"] = "%TOTAL_STEPS%"
        total_steps = EPOCHS * self.case.factors["batches_per_epoch"]
        return make_as_onetrainer(self.optimizer, "timesched.ScheduleLR", parameters, total_steps, steps)

    def load(self, checkpoint: Path, steps: int) -> None:
        for part, state in zip((self.model, self.optimizer), torch.load(checkpoint)):
            part.load_state_dict(state)
        self.scheduler = self.make(steps)


def make_as_onetrainer(optimizer: Any, path: str, parameters: dict[str, str], total_steps: int, steps: int) -> Any:
    """A custom scheduler with `scheduler_params`."""
    arguments: dict[str, Any] = {}
    for key, value in parameters.items():
        arguments[key] = total_steps if value == "%TOTAL_STEPS%" else ast.literal_eval(value)
    return import_path(path)(optimizer=optimizer, last_epoch=steps - 1, **arguments)


class NemoLoop(Loop):
    """`get_scheduler` and `prepare_lr_scheduler` of `nemo.core.optim`, which drop `max_steps` if no class names it."""

    def make(self, steps: int) -> Any:
        arguments = {**self.case.with_text, "max_steps": EPOCHS * self.case.factors["batches_per_epoch"]}
        if "max_steps" not in inspect.signature(ScheduleLR).parameters:
            arguments.pop("max_steps")
        return partial(ScheduleLR, **arguments)(self.optimizer)


# Lightning's Trainer, whose module or command line makes the scheduler


class Module(LightningModule):
    """A module with data, which notes the learning rate of each batch."""

    def __init__(self, batch_size: int) -> None:
        super().__init__()
        self.layer, self.batch_size = make_model(), batch_size
        self.used: list[float] = []

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        return self.layer(batch).square().mean()

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(DATA, self.batch_size)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.used.append(optimizer.param_groups[0]["lr"])

    def outcome(self) -> Outcome:
        return Outcome(self.used, {"model": self.state_dict(), "optimizer": self.optimizers().state_dict()["state"]})


class Configured(Module):
    """A module that makes its scheduler by a function of the optimizer, and steps it after a batch or an epoch."""

    def __init__(self, batch_size: int, make: Callable[[Any], Any], interval: str) -> None:
        super().__init__(batch_size)
        self.make, self.interval = make, interval

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=LR)
        return [optimizer], [{"scheduler": self.make(optimizer), "interval": self.interval}]


class OldAnemoi(Configured):
    """A module of an earlier anemoi-training, which passes the step."""

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        scheduler.step(epoch=self.trainer.global_step)


def fit(model: Module, part: Part) -> Outcome:
    trainer = Trainer(max_epochs=part.end, **QUIET)
    trainer.fit(model, ckpt_path=part.checkpoint if part.start > 0 else None)
    trainer.save_checkpoint(part.checkpoint)
    return model.outcome()


def run_template(case: Case, part: Part) -> Outcome:
    """The module of lightning-hydra-template: partials by Hydra, and an interval of an epoch."""
    config = {"_target_": "timesched.ScheduleLR", "_partial_": True, **case.with_text, "unit": "ep"}
    make = instantiate(OmegaConf.create(config))
    return fit(Configured(case.batch_size, lambda optimizer: make(optimizer=optimizer), "epoch"), part)


def run_rf_detr(case: Case, part: Part) -> Outcome:
    """`configure_optimizers` of RF-DETR, with `lr_scheduler_interval="step"`."""
    make = partial(import_path("timesched.ScheduleLR"), **case.flat)
    return fit(Configured(case.batch_size, make, "step"), part)


def run_anemoi(kind: type[Configured], case: Case, part: Part) -> Outcome:
    """`configure_optimizers` of anemoi, with `pl_lr_scheduler: {interval: step}`."""
    config = OmegaConf.create({"_target_": "timesched.ScheduleLR", **case.with_text})
    return fit(kind(case.batch_size, lambda optimizer: instantiate(config, optimizer=optimizer), "step"), part)


def run_command_line(schedule: object, case: Case, part: Part) -> Outcome:
    """Lightning's command line, which makes the scheduler of a module that configures none."""
    config = {
        "model": {"batch_size": case.batch_size},
        "trainer": {"max_epochs": part.end},
        "optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"lr": LR}},
        "lr_scheduler": {
            "class_path": "timesched.ScheduleLR",
            "init_args": {**case.with_text, "schedule": schedule, "unit": "ep"},
        },
    }
    path = part.checkpoint.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(config))
    arguments = ["fit", "--config", str(path)]
    arguments += ["--ckpt_path", str(part.checkpoint)] if part.start > 0 else []
    cli = LightningCLI(Module, args=arguments, trainer_defaults=QUIET, save_config_callback=None)
    cli.trainer.save_checkpoint(part.checkpoint)
    return cli.model.outcome()


def run_command_line_with_text(case: Case, part: Part) -> Outcome:
    return run_command_line(case.text, case, part)


def run_command_line_with_class(case: Case, part: Part) -> Outcome:
    cls = type(read_schedule(case.text, {}, "schedule"))
    nested = {"class_path": f"timesched.{cls.__name__}", "init_args": SCHEDULES[case.schedule]}
    return run_command_line(nested, case, part)


# The frameworks


@dataclass(frozen=True)
class Framework:
    run: Callable[[Case, Part], Outcome]
    per_epoch: bool = False


def loop(kind: type[Loop]) -> Framework:
    return Framework(lambda case, part: kind(case).run(part))


FRAMEWORKS = {
    "Hydra": loop(HydraLoop),
    "Hydra, `_partial_`": loop(HydraPartialLoop),
    "lightning-hydra-template, restated": Framework(run_template, per_epoch=True),
    "Lightning command line, text": Framework(run_command_line_with_text, per_epoch=True),
    "Lightning command line, `class_path`": Framework(run_command_line_with_class, per_epoch=True),
    "sd-scripts, restated": loop(SdScriptsLoop),
    "OneTrainer, restated": loop(OneTrainerLoop),
    "RF-DETR, restated": Framework(run_rf_detr),
    "anemoi, restated": Framework(partial(run_anemoi, Configured)),
    "anemoi that passes the step, restated": Framework(partial(run_anemoi, OldAnemoi)),
    "NeMo, restated": loop(NemoLoop),
}


@pytest.fixture(autouse=True)
def own_state() -> Iterator[None]:
    """accelerate keeps one state for the process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_learning_rates_are_those_of_bind_in_a_plain_loop(name: str, tmp_path: Path) -> None:
    framework = FRAMEWORKS[name]
    for case in CASES:
        folder = tmp_path / case.schedule / f"{case.batch_size}"
        folder.parent.mkdir(exist_ok=True)
        outcome = framework.run(case, Part(0, EPOCHS, folder))
        assert outcome.used == pytest.approx(plain(case, framework.per_epoch), rel=0, abs=1e-12)


@pytest.mark.parametrize("batch_size", BATCH_SIZES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_run_that_stops_at_half_and_resumes(name: str, batch_size: int, tmp_path: Path) -> None:
    case, half, run = Case("CosineAnnealingWithWarmup", batch_size), EPOCHS // 2, FRAMEWORKS[name].run
    whole = run(case, Part(0, EPOCHS, tmp_path / "whole"))
    first = run(case, Part(0, half, tmp_path / "half"))
    second = run(case, Part(half, EPOCHS, tmp_path / "half"))
    assert first.used + second.used == whole.used
    torch.testing.assert_close(second.state, whole.state, rtol=0, atol=0)


# The lines of the page


def section(title: str) -> str:
    """The text of the page below a heading."""
    return PAGE.read_text("utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]


def blocks(title: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", section(title), re.MULTILINE | re.DOTALL)


def new_optimizer() -> Any:
    return torch.optim.AdamW(make_model().parameters(), lr=LR)


def check_made(scheduler: Any, length: str, unit: str) -> None:
    assert type(scheduler) is ScheduleLR and scheduler.clock.max_duration == Time.from_timestring(length)
    before = scheduler.clock.timestamp.get(unit).value
    scheduler.optimizer.step()
    scheduler.step()
    assert scheduler.clock.timestamp.get(unit).value > before


def test_the_lines_for_hydra() -> None:
    in_steps, in_epochs = (yaml.safe_load(block)["scheduler"] for block in blocks("Hydra and OmegaConf", "yaml"))
    check_made(instantiate(OmegaConf.create(in_steps))(new_optimizer()), "20Btok", "tok")
    check_made(instantiate(OmegaConf.create(in_epochs))(optimizer=new_optimizer()), "90ep", "ep")


def test_the_lines_for_lightning(tmp_path: Path) -> None:
    whole, nested = blocks("Lightning's command line", "yaml")
    (optimizer,) = re.findall(r"optimizer:\n(?:  .*\n)+", whole)
    for number, text in enumerate([whole, optimizer + nested]):
        config = tmp_path / f"{number}.yaml"
        config.write_text(f"model: {{batch_size: 8}}\ntrainer: {{max_epochs: 1}}\n{text}")
        arguments = ["fit", "--config", str(config)]
        cli = LightningCLI(Module, args=arguments, trainer_defaults=QUIET, save_config_callback=None)
        check_made(cli.trainer.lr_scheduler_configs[0].scheduler, "90ep", "ep")
        assert cli.trainer.lr_scheduler_configs[0].interval == "epoch"


def test_the_lines_for_sd_scripts() -> None:
    (command,) = blocks("sd-scripts", "")
    words = shlex.split(command.replace("\\\n", " "))
    path = words[words.index("--lr_scheduler_type") + 1]
    arguments = words[words.index("--lr_scheduler_args") + 1 :]
    check_made(make_as_sd_scripts(new_optimizer(), path, arguments), "40000sp", "sp")


def test_the_lines_for_onetrainer() -> None:
    table = re.findall(r"^\| `(.*)` \| `(.*)` \|$", section("OneTrainer"), re.MULTILINE)
    made = make_as_onetrainer(new_optimizer(), "timesched.ScheduleLR", dict(table), total_steps=100, steps=0)
    check_made(made, "100ba", "ba")


def test_the_lines_for_rf_detr() -> None:
    (call,) = blocks("RF-DETR", "python")
    found: dict[str, Any] = {}
    exec(call.replace("...,", ""), {"model": SimpleNamespace(train=found.update)})
    assert found["warmup_epochs"] == 0 and found["lr_scheduler_interval"] == "step"
    check_made(import_path(found["lr_scheduler"])(new_optimizer(), **found["lr_scheduler_kwargs"]), "500000sp", "sp")


def test_the_lines_for_anemoi() -> None:
    (text,) = blocks("anemoi", "yaml")
    config = OmegaConf.create({"training": {"max_steps": "100ba"}, "lr_scheduler": yaml.safe_load(text)})
    check_made(instantiate(config.lr_scheduler, optimizer=new_optimizer()), "100ba", "ba")
    config.training.max_steps = 100  # an int, as in anemoi's configs
    check_made(instantiate(config.lr_scheduler, optimizer=new_optimizer()), "100ba", "ba")


def test_the_lines_for_nemo() -> None:
    (text,) = blocks("NeMo", "yaml")
    arguments = yaml.safe_load(text)["sched"]
    assert arguments.pop("name") == "ScheduleLR" and arguments.pop("max_steps") == 10000
    check_made(ScheduleLR(new_optimizer(), **arguments), "10000ba", "ba")


def test_sentence_transformers_counts_the_tokens_of_all_texts_of_a_batch() -> None:
    (code,) = [block for block in blocks("transformers, TRL and sentence-transformers", "python") if "def " in block]
    names: dict[str, Any] = {}
    exec(code.partition("schedule(")[0], names)
    masks = {"anchor_attention_mask": torch.ones(2, 3), "positive_attention_mask": torch.ones(2, 5)}
    ids = {"anchor_input_ids": torch.ones(2, 3), "positive_input_ids": torch.ones(2, 5)}
    assert names["count"]({**masks, **ids, "label": torch.ones(2)}) == {"tokens": 16}


def test_the_lines_for_verl_make_our_optimizer() -> None:
    """`build_optimizer` of verl, which passes `betas` to every Adam."""
    (lines,) = [block for block in blocks("Optimizers in verl and NeMo Automodel", "") if "optimizer_impl" in block]
    values = dict(re.findall(r"([a-z_]+)=(.*)$", lines, re.MULTILINE))
    cls = getattr(importlib.import_module(values["optimizer_impl"]), values["optimizer"])
    given = {"lr": 1e-6, "weight_decay": 0.01, "betas": (0.9, 0.999), "eps": float(values["eps"])}
    made = cls(make_model().parameters(), **given)
    assert type(made) is optim.AdamW and {name: made.defaults[name] for name in given} == given


def test_the_lines_for_nemo_automodel_make_our_optimizer() -> None:
    """A config of Automodel is instantiated as Hydra's is."""
    (text,) = blocks("Optimizers in verl and NeMo Automodel", "yaml")
    made = instantiate(yaml.safe_load(text)["optimizer"], params=list(make_model().parameters()))
    assert type(made) is optim.AdamW and (made.defaults["eps"], made.defaults["weight_decay"]) == (1e-8, 0.01)


def test_the_line_for_olmo_core() -> None:
    """`get_lr(initial_lr, current, t_max)`, with the tokens so far and of the run."""
    (line,) = re.findall(r"\| OLMo-core \| `return (.*?)`,", PAGE.read_text("utf-8"))
    schedule = WarmupStableDecayScheduler("0.1dur", t_decay="0.25dur")
    case, used = Case("WSD", 16), []
    for batch in range(EPOCHS * SAMPLES // case.batch_size):
        names = {"initial_lr": LR, "current": 2 * case.batch_size * batch, "t_max": 2 * SAMPLES * EPOCHS}
        used.append(eval(line, {"schedule": schedule, "Horizon": Horizon, **names}))
    assert used == pytest.approx(plain(case, per_epoch=False), rel=1e-12, abs=0)
