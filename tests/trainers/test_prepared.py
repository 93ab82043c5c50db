"""A ScheduleLR in `accelerator.prepare`, in the loop of docs/trainers/accelerate.md: one process, and two with gloo.

As a program under torchrun: `FOLDER` checks the ranks.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from tests.docs.tables import page_code
from tests.torchrun import Report, launch
from timesched import Clock, ScheduleLR, WarmupStableDecayScheduler, bind

LR, SAMPLES = 0.1, 64


@pytest.fixture(autouse=True)
def own_state() -> Iterator[None]:
    """accelerate keeps one state for the process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def test_the_loop_of_the_page() -> None:
    accelerator, model = Accelerator(cpu=True, gradient_accumulation_steps=2), torch.nn.Linear(4, 1)
    code = page_code("trainers/accelerate.md", "# prepared").replace('"1e6sp"', f'"{SAMPLES}sp"')
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    names = {"accelerator": accelerator, "model": model, "optimizer": optimizer, "ScheduleLR": ScheduleLR}
    exec(code, {**names, "batch_size": 4, "loader": torch.utils.data.DataLoader(torch.ones(200, 4), 4)})
    assert optimizer.param_groups[0]["lr"] == 0
    assert optimizer.state[model.weight]["step"] == SAMPLES // 8


def test_two_processes(tmp_path: Path) -> None:
    found, said = launch(Path(__file__), 2, tmp_path, 120)
    assert found == {check.__name__: "" for check in CHECKS}, "\n".join([*found.values(), said])


# In processes of their own


class Run:
    """The loop of the page with data of its own, which can stop and resume. A batch has two microbatches."""

    def __init__(self, size: int, length: str, samples_per_batch: int | None) -> None:
        self.accelerator, self.size = Accelerator(cpu=True, gradient_accumulation_steps=2), size
        torch.manual_seed(1)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
        schedule = "WSD('0.25dur', t_decay='0.5dur')"
        scheduler = ScheduleLR(optimizer, schedule, length, samples_per_batch=samples_per_batch)
        prepared: tuple[Any, ...] = self.accelerator.prepare(model, optimizer, scheduler)
        self.model, self.optimizer, self.scheduler = prepared

    def train(self, start: int, end: int) -> list[float]:
        """Train these microbatches, until the clock is done. Returns the learning rate of each batch."""
        used = []
        for k in range(start, end):
            batch = torch.linspace(-1, 1, self.size * 4).reshape(self.size, 4) * (k + self.accelerator.process_index)
            with self.accelerator.accumulate(self.model):
                self.accelerator.backward(self.model(batch).square().mean())
                if self.accelerator.sync_gradients:
                    used.append(self.optimizer.param_groups[0]["lr"])
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()
            if self.scheduler.scheduler.clock.done:
                break
        return used


def plain(samples_per_batch: int) -> list[float]:
    """The learning rate of each batch, of `bind` in a plain loop."""
    optimizer = torch.optim.AdamW(torch.nn.Linear(4, 1).parameters(), lr=LR)
    clock = Clock(f"{SAMPLES}sp", samples_per_batch=samples_per_batch)
    scheduler = bind(WarmupStableDecayScheduler("0.25dur", t_decay="0.5dur"), optimizer, clock)
    used = []
    while not clock.done:
        used.append(optimizer.param_groups[0]["lr"])
        clock.tick()
        scheduler.step()
    return used


def samples_of_one_process_add_up_and_a_run_resumes() -> None:
    for size in (4, 2):
        batch_size, length = 4 * size, f"{SAMPLES}sp"
        microbatches = 2 * SAMPLES // batch_size
        whole = Run(size, length, 2 * size)
        used = whole.train(0, 2 * microbatches)
        torch.testing.assert_close(used, plain(batch_size), rtol=1e-12, atol=0)
        half, folder = Run(size, length, 2 * size), Path(sys.argv[1]) / f"size-{size}"
        first = half.train(0, microbatches // 2)
        half.accelerator.save_state(folder)
        half.accelerator.wait_for_everyone()
        resumed = Run(size, length, 2 * size)
        resumed.accelerator.load_state(folder)
        assert first + resumed.train(microbatches // 2, microbatches) == used
        torch.testing.assert_close(resumed.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)


def a_length_in_batches_ends_early() -> None:
    assert len(Run(4, "8ba", None).train(0, 16)) == 4  # of 8 batches


CHECKS = (samples_of_one_process_add_up_and_a_run_resumes, a_length_in_batches_ends_early)


def ranks(folder: Path) -> None:
    Accelerator(cpu=True)
    report = Report(folder)
    for check in CHECKS:
        report.check(check.__name__, check)
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.filterwarnings("error", module="timesched")
    ranks(Path(sys.argv[1]))
