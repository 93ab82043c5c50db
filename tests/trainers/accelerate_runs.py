"""Small loops of accelerate that note what each step of the optimizer was run with.

As a program: `resume FOLDER` goes on from a saved state, and under torchrun `FOLDER` checks two ranks.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator, FullyShardedDataParallelPlugin, PartialState
from accelerate.utils import DistributedType

import optim
from tests.torchrun import Report
from tests.trainers.batches import BATCHES, COSINE, DECAY, LR, TOKENS, WEIGHT_DECAY, batch, expected
from timesched import Clock, Horizon, LinearScheduler, bind
from timesched.integrations.accelerate import Binding, schedule


class Run:
    """A loop with everything that accelerate asks of one."""

    def __init__(self, accumulate: int = 2) -> None:
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 1))
        optimizer = optim.AdamW(model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        entries = COSINE, Binding(DECAY, "weight_decay")
        self.scheduler = schedule(self.accelerator, self.optimizer, *entries, max_duration=TOKENS)
        self.used: list[tuple[float, float]] = []

    def train(self, start: int, end: int) -> None:
        for k in range(start, end):
            ids = batch(k, self.accelerator.process_index)
            with self.accelerator.accumulate(self.model):
                self.accelerator.backward(self.model(ids).square().mean())
                self.accelerator.clip_grad_norm_(self.model.parameters(), 0.5)
                if self.accelerator.sync_gradients:
                    (group,) = self.optimizer.param_groups
                    self.used.append((group["lr"], group["weight_decay"]))
                self.optimizer.step()
                self.scheduler.step(tokens=ids.numel())
                self.optimizer.zero_grad()

    def outcome(self) -> dict[str, Any]:
        """What two runs that are the same have in common."""
        counts = self.scheduler.clock.state_dict().items()
        return {
            "used": self.used,
            "parameters": self.model.state_dict(),
            "state": self.optimizer.state_dict()["state"],
            "counts": {name: count for name, count in counts if not name.endswith("wct")},
        }


def resume(folder: Path) -> None:
    run = Run()
    run.accelerator.load_state(folder / "middle")
    run.train(6, BATCHES)
    torch.save(run.outcome(), folder / "resumed.pt")


def values_are_those_of_the_sum() -> None:
    run = Run()
    run.train(0, BATCHES)
    assert run.used == expected(2, ranks=2)


def a_prepared_scheduler_stays_right_though_it_is_stepped_for_each_process() -> None:
    accelerator, linear = Accelerator(cpu=True), LinearScheduler()
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
    clock = Clock("8ba", process_group=True)
    bound, calls = bind(linear, optimizer, clock), []
    plain = torch.optim.lr_scheduler.LambdaLR(
        torch.optim.SGD(model.parameters(), lr=0.4), lambda k: calls.append(k) or 1.0
    )
    model, optimizer, _, bound, plain = accelerator.prepare(model, optimizer, plain.optimizer, bound, plain)
    for k in range(8):
        assert optimizer.param_groups[0]["lr"] == 0.4 * linear.at(f"{k}ba", Horizon("8ba"))
        accelerator.backward(model(torch.ones(1, 2)).sum())
        optimizer.step()
        clock.tick()
        bound.step()
        plain.step()
    assert calls == list(range(17))  # what torch's own counts in eight steps


def optimizers_follow_their_parameters_into_shards() -> None:
    """accelerate has no FSDP on CPUs, so it is told that this is one; what `prepare` then does is real."""

    def trained(optimizer: Any, sharded: bool) -> list[torch.Tensor]:
        torch.manual_seed(2)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
        made = optimizer(model.parameters(), lr=0.1)
        if sharded:
            model, wrapped = accelerator.prepare(model, made)
            scheduler = schedule(accelerator, wrapped, LinearScheduler(), max_duration="4ba")
            assert all(isinstance(p, torch.distributed.tensor.DTensor) for p in model.parameters())
        else:
            clock = Clock("4ba", process_group=False)
            scheduler = bind(LinearScheduler(), made, clock)
        for _ in range(3):
            model(torch.ones(2, 4)).square().sum().backward()
            made.step()
            made.zero_grad()
            None if sharded else clock.tick()
            scheduler.step()
        assert set(made.state) == {p for group in made.param_groups for p in group["params"]}
        return [p.full_tensor().detach() if sharded else p.detach() for p in model.parameters()]

    accelerator = Accelerator(cpu=True)
    plain = [trained(kind, sharded=False) for kind in (optim.AdamW, torch.optim.AdamW)]
    PartialState().distributed_type = accelerator.state.distributed_type = DistributedType.FSDP
    accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    assert accelerator.is_fsdp2
    for kind, wanted in zip((optim.AdamW, torch.optim.AdamW), plain):
        torch.testing.assert_close(trained(kind, sharded=True), wanted)


def ranks(folder: Path) -> None:
    Accelerator(cpu=True)
    report = Report(folder)
    for check in (
        values_are_those_of_the_sum,
        a_prepared_scheduler_stays_right_though_it_is_stepped_for_each_process,
        optimizers_follow_their_parameters_into_shards,
    ):
        report.check(check.__name__, check)
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.filterwarnings("error", module="timesched")
    resume(Path(sys.argv[2])) if sys.argv[1] == "resume" else ranks(Path(sys.argv[1]))
