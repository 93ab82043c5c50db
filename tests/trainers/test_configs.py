"""The configs of docs/trainers/lightning.md, by the real LightningCLI and the real Hydra: both train as they say."""

from __future__ import annotations

import re
import sys
from types import ModuleType

import pytest
import torch
from hydra.utils import instantiate
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import LightningCLI
from omegaconf import OmegaConf

import optim
from tests.docs.tables import DOCS
from tests.trainers.runs import IGNORE_LIGHTNING
from timesched import CosineAnnealingWithWarmupScheduler, Horizon, LinearScheduler
from timesched.integrations.lightning import Binding, schedule

SECTION = (DOCS / "trainers/lightning.md").read_text("utf-8").split("## LightningCLI and Hydra")[1].split("\n## ")[0]
(MODEL,) = re.findall("```python\n(.*?)```", SECTION, re.DOTALL)
FOR_THE_CLI, FOR_HYDRA = re.findall("```yaml\n(.*?)```", SECTION, re.DOTALL)
pytestmark = IGNORE_LIGHTNING
LR, WEIGHT_DECAY, RUN = 3e-4, 0.1, Horizon("64sp")
QUIET = {
    **{"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False},
    **{"enable_model_summary": False, "max_epochs": 9},
}


@pytest.fixture
def model(monkeypatch):
    """The page's model, in a module that a config may name, with data and a note of what each batch ran with."""
    module = ModuleType("program")
    monkeypatch.setitem(sys.modules, "program", module)
    names = {"torch": torch, "LightningModule": LightningModule, "Binding": Binding, "schedule": schedule}
    vars(module).update(names)
    exec(MODEL, vars(module))

    class Model(module.Model):
        used: list[tuple[float, float]]

        def training_step(self, batch):
            return self.layer(batch).square().mean()

        def train_dataloader(self):
            return torch.utils.data.DataLoader(torch.ones(32, 4), 8)

        def on_fit_start(self):
            self.used = []

        def on_before_optimizer_step(self, optimizer):
            (group,) = optimizer.param_groups
            self.used.append((group["lr"], group["weight_decay"]))

    Model.__module__ = "program"
    module.Model = Model
    return Model


def check(trained):
    """Eight batches of eight samples, by the schedules of the page."""
    cosine, decay = CosineAnnealingWithWarmupScheduler("0.1dur", alpha_f=0.1), LinearScheduler(alpha_f=0.1)
    times = [f"{8 * k}sp" for k in range(8)]
    assert trained.used == [(LR * cosine.at(t, RUN), WEIGHT_DECAY * decay.at(t, RUN)) for t in times]
    assert type(trained.optimizers().optimizer) is optim.AdamW


def test_lightning_cli(model, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(FOR_THE_CLI)
    cli = LightningCLI(model, args=["fit", "--config", str(config)], trainer_defaults=QUIET, save_config_callback=None)
    check(cli.model)


def test_hydra(model):
    config = OmegaConf.create(FOR_HYDRA.replace("__main__", "program"))
    made = instantiate(config.model)
    Trainer(**QUIET).fit(made)
    check(made)


def test_a_list_of_schedules_in_hydra():
    config = OmegaConf.create({"entries": [{"_target_": "timesched.LinearScheduler", "alpha_f": 0.1}]})
    assert instantiate(config, _convert_="all") == {"entries": [LinearScheduler(alpha_f=0.1)]}
