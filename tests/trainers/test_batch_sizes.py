"""A data loader whose batches grow, in the real trainers: the samples of each step, also after any resume.

As a program, under torchrun: `FOLDER` checks two ranks.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DataLoaderConfiguration
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch.utils.data import DataLoader, DistributedSampler
from transformers import Trainer as HuggingFaceTrainer
from transformers import TrainingArguments

import optim
from tests.building import batches_of_loop
from tests.torchrun import Report, launch
from timesched import BatchSizeSampler, BatchSizeSchedule, Clock, LinearScheduler
from timesched.integrations import accelerate, lightning, transformers

# Lightning's own: deprecations in torch that it meets, and advice to its users.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}Warning:lightning") for kind in ("Deprecation", "Future", "User")
]
SAMPLES, LENGTH = 31, "80sp"  # two epochs, and more
SIZES = BatchSizeSchedule("0sp:2 10sp:4 40sp:8")
DATA = [(torch.full((3,), i / SAMPLES), i) for i in range(SAMPLES)]


def order() -> DistributedSampler:
    return DistributedSampler(range(SAMPLES), num_replicas=1, rank=0)


ROWS = batches_of_loop(order(), SIZES, Clock(LENGTH))


# Lightning


class Model(LightningModule):
    """A small model that notes the samples of each step. It has the loader, or the Trainer gets it."""

    def __init__(self, has_loader: bool, num_workers: int = 0) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net, self.rows = torch.nn.Linear(3, 1), []
        sampler = BatchSizeSampler(order(), SIZES, lambda: self.lr_schedulers().clock)
        self.loader = DataLoader(DATA, batch_sampler=sampler, num_workers=num_workers)
        if has_loader:
            self.train_dataloader = lambda: self.loader

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        self.rows.append(self.all_gather(batch[1]).flatten().tolist())  # of all ranks
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self) -> Any:
        optimizer = optim.AdamW(self.parameters(), lr=0.1)
        return lightning.schedule(self, optimizer, LinearScheduler(alpha_f=0.1), max_duration=LENGTH)


class Saving(Callback):
    """Saves after each batch, and at the end of the first epoch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_batch_end(self, trainer, module, outputs, data, batch_idx):
        trainer.save_checkpoint(self.folder / f"{trainer.global_step}.ckpt")

    def on_train_epoch_end(self, trainer, module):
        if trainer.current_epoch == 0:
            trainer.save_checkpoint(self.folder / "epoch.ckpt")


def fit(
    folder: Path, has_loader: bool = True, saves: bool = False, num_workers: int = 0, ranks: int = 1, **options: Any
) -> Model:
    model = Model(has_loader, num_workers)
    usual = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    usual |= {"accelerator": "cpu", "devices": ranks, "max_epochs": -1, "use_distributed_sampler": False}
    trainer = Trainer(**usual, default_root_dir=folder, callbacks=[Saving(folder)] if saves else [])
    trainer.fit(model, None if has_loader else model.loader, **options)
    return model


@pytest.mark.parametrize(("has_loader", "num_workers"), [(True, 0), (False, 0), (True, 2)])
def test_lightning_after_any_batch(has_loader: bool, num_workers: int, tmp_path: Path) -> None:
    """Each run continues with the batches of a plain loop, and ends with the same weights."""
    before = fit(tmp_path, has_loader, saves=True, num_workers=num_workers)
    assert before.rows == ROWS
    for step in range(1, len(ROWS), 5 if num_workers else 1):
        after = fit(tmp_path, has_loader, num_workers=num_workers, ckpt_path=tmp_path / f"{step}.ckpt")
        assert after.rows == ROWS[step:], step
        assert torch.equal(after.net.weight, before.net.weight)


def test_lightning_after_an_epoch(tmp_path: Path) -> None:
    fit(tmp_path, saves=True)
    step = torch.load(tmp_path / "epoch.ckpt", weights_only=False)["global_step"]
    assert sum(map(len, ROWS[:step])) == SAMPLES
    assert fit(tmp_path, ckpt_path=tmp_path / "epoch.ckpt").rows == ROWS[step:]


def check_lightning(folder: Path) -> None:
    """Two ranks have the batches of accelerate's two ranks."""
    before, rows = fit(folder, saves=True, ranks=2), Loop().train().rows
    assert before.rows == rows
    for step in (1, 5, 9, 10, 14):
        after = fit(folder, ranks=2, ckpt_path=folder / f"{step}.ckpt")
        assert after.rows == rows[step:], step
        assert torch.equal(after.net.weight, before.net.weight)


# accelerate


class Loop:
    """A loop of accelerate, whose loader is not prepared, and the samples of its batches on all ranks."""

    def __init__(self) -> None:
        self.accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(even_batches=False))
        torch.manual_seed(1)
        net = torch.nn.Linear(3, 1)
        self.net, self.optimizer = self.accelerator.prepare(net, optim.AdamW(net.parameters(), lr=0.1))
        self.scheduler = accelerate.schedule(
            self.accelerator, self.optimizer, LinearScheduler(alpha_f=0.1), max_duration=LENGTH
        )
        self.loader = DataLoader(DATA, batch_sampler=BatchSizeSampler(order(), SIZES, self.scheduler.clock))
        self.rows: list[list[int]] = []

    def train(self, folder: Path | None = None) -> Loop:
        """Train to the end, and save after each batch."""
        clock = self.scheduler.clock
        while not clock.done:
            for inputs, indices in self.loader:
                parts: list[Any] = [indices.tolist()]
                if self.accelerator.num_processes > 1:
                    dist.all_gather_object(parts := [None, None], indices.tolist())
                self.rows.append([index for part in parts for index in part])
                self.accelerator.backward(self.net(inputs.to(self.accelerator.device)).square().mean())
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.scheduler.step(samples=len(inputs))
                if folder is not None:
                    self.accelerator.save_state(folder / str(len(self.rows)))
                if clock.done:
                    return self
            clock.next_epoch()
        return self


def check_resumes(folder: Path, world_size: int, stride: int) -> None:
    whole = Loop().train(folder)
    shared = SAMPLES - SAMPLES % world_size  # samples of an epoch
    assert [index for row in whole.rows for index in row][:shared] == [*order()][:shared]
    assert {len(row) for row in whole.rows} == {2, 4, 8} | {len(row) for row in ROWS if world_size == 1}
    for step in range(1, len(whole.rows), stride):
        resumed = Loop()
        resumed.accelerator.load_state(folder / str(step))
        assert resumed.train().rows == whole.rows[step:], step
        for name, value in resumed.net.state_dict().items():
            assert torch.equal(value, whole.net.state_dict()[name])


def test_accelerate_after_any_batch(tmp_path: Path) -> None:
    check_resumes(tmp_path, 1, 1)
    AcceleratorState._reset_state(reset_partial_state=True)


def test_two_ranks(tmp_path: Path) -> None:
    results, output = launch(Path(__file__), 2, tmp_path, 120)
    assert results == {"accelerate": "", "prepared": "", "lightning": ""}, "\n".join([*results.values(), output])


def check_prepared() -> None:
    """A step would use two batches."""
    loop = Loop()
    loop.loader = loop.accelerator.prepare(loop.loader)
    with pytest.raises(ValueError, match=r"BatchSizeSampler was prepared.*Leave it out of accelerator\.prepare\(\)"):
        loop.train()
    assert loop.scheduler.clock.timestamp.batch == 0


# Hugging Face


class GrowingTrainer(HuggingFaceTrainer):
    def get_train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(DATA, batch_sampler=BatchSizeSampler(order(), SIZES, Clock(LENGTH)))


def test_hugging_face_raises(tmp_path: Path) -> None:
    arguments = TrainingArguments(str(tmp_path), max_steps=5, use_cpu=True, report_to="none", disable_tqdm=True)
    trainer = GrowingTrainer(torch.nn.Linear(3, 1), arguments, train_dataset=DATA)
    transformers.schedule(trainer, LinearScheduler())
    with pytest.raises(ValueError, match=r"has a BatchSizeSampler.*Use a loop of your own, or accelerate"):
        trainer.train()


if __name__ == "__main__":
    warnings.filterwarnings("error", module="timesched")
    Accelerator(cpu=True)
    report = Report(Path(sys.argv[1]))
    report.check("accelerate", lambda: check_resumes(Path(sys.argv[1]), 2, 4))
    report.check("prepared", check_prepared)
    report.check("lightning", lambda: check_lightning(Path(sys.argv[1])))
    dist.destroy_process_group()
