"""What only the adapter for accelerate promises, in real loops.

Under torchrun, `FOLDER` checks two ranks.
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
from accelerate import Accelerator, FullyShardedDataParallelPlugin, PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType

import optim
from tests.torchrun import ROOT, Report, launch, python_output
from tests.trainers.rows.accelerate import Loop
from tests.trainers.runs import UNEVEN, Task, of_all_ranks, plain_loop
from timesched import BatchSizeSchedule, Clock, Horizon, LinearScheduler, bind
from timesched.integrations.accelerate import schedule

LINE, FOLDER = LinearScheduler(), Path(sys.argv[-1])
NO_COUNT = r"this batch has no count\. Call step\(tokens=\.\.\.\), or pass the conversion factors to schedule\(\)\."


@pytest.fixture(autouse=True)
def own_state() -> Iterator[None]:
    """accelerate keeps one state for the process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def test_counts_between_two_microbatches_are_saved(tmp_path: Path) -> None:
    task = Task(accumulate=2)
    whole, rest = Loop(tmp_path, task).train(5), Loop(tmp_path, task)
    whole.accelerator.save_state(tmp_path)
    whole.train()
    rest.accelerator.load_state(tmp_path)
    rest.train()
    values = plain_loop(UNEVEN, task).values
    assert whole.run.values == values and rest.run.values == values[2:]
    whole.scheduler.counts = {"tokens": torch.tensor(3)}
    assert type(whole.scheduler.state_dict()["counts"]["tokens"]) is int


def prepared(*entries: Any) -> tuple[Any, Any, Any]:
    """The accelerator, an optimizer, and its scheduler."""
    accelerator = Accelerator(cpu=True)
    optimizer = accelerator.prepare(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1))
    return accelerator, optimizer, schedule(accelerator, optimizer, *entries or [LINE], max_duration="9ba")


def test_a_step_that_fails_counts_nothing_or_once() -> None:
    _, optimizer, scheduler = prepared(LinearScheduler(t_max="99tok"))
    scheduler.counts = {"samples": 3}  # of earlier microbatches
    optimizer.step()
    with pytest.raises(ValueError, match=NO_COUNT):
        scheduler.step(samples=4)
    assert scheduler.clock.timestamp.batch == 0
    scheduler.step(samples=4, tokens=9)
    assert (scheduler.clock.timestamp.sample, scheduler.clock.timestamp.token, scheduler.counts) == (7, 9, None)
    optimizer.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))], "lr": float("nan")})
    with pytest.raises(ValueError, match="nan"):  # the write fails, and the microbatches are counted once
        scheduler.step(samples=7, tokens=9)
    assert (scheduler.clock.timestamp.sample, scheduler.counts) == (14, None)


def test_wrong_use() -> None:
    accelerator, optimizer, scheduler = prepared()
    with pytest.raises(TypeError, match=r"type SGD, and may be replaced\. Pass the one that accelerator\.prepare\(\)"):
        schedule(accelerator, optimizer.optimizer, LINE, max_duration="9ba")
    with pytest.raises(TypeError, match=r"entries=\(\): there is no schedule"):
        schedule(accelerator, optimizer, max_duration="9ba")
    accelerator.prepare(scheduler)
    with pytest.raises(ValueError, match=r"it counts the processes itself\. Leave it out of accelerator\.prepare\(\)"):
        scheduler.step()


def test_the_example() -> None:
    said = python_output(ROOT / "examples" / "accelerate_run.py", "--tokens", "3000tok")
    assert "Done: 2 steps of the optimizer" in said


# On two ranks


def check_counts_of_the_first_rank() -> None:
    """They are loaded on all."""
    loop = Loop(FOLDER, Task(accumulate=2, batch_size=1)).train(5)
    loop.accelerator.save_state(FOLDER)
    loop.accelerator.wait_for_everyone()
    loop.accelerator.load_state(FOLDER)
    loop.train(1)
    first, second = of_all_ranks(loop.run.seen)
    counted = [*first[:4], *second[:4], first[4], first[4], first[5], second[5]]
    assert loop.clock.timestamp.token == sum(UNEVEN[i] for (i,) in counted)


def check_a_prepared_scheduler_of_bind() -> None:
    """It has the value of its clock, although it is stepped for each process."""
    accelerator, model, calls = Accelerator(cpu=True), torch.nn.Linear(2, 1), []
    optimizer, clock = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.4), Clock("8ba", process_group=True)
    bound = bind(LINE, optimizer, clock, "weight_decay")
    theirs = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: calls.append(k) or 1.0)
    model, optimizer, bound, theirs = accelerator.prepare(model, optimizer, bound, theirs)
    for k in range(8):
        assert optimizer.param_groups[0]["weight_decay"] == 0.4 * LINE.at(f"{k}ba", Horizon("8ba"))
        accelerator.backward(model(torch.ones(1, 2)).sum())
        optimizer.step()
        clock.tick()
        bound.step()
        theirs.step()
    assert calls == list(range(17))  # what torch's own counts in eight steps


def check_a_prepared_loader_of_growing_batches() -> None:
    """A step would use two batches."""
    loop = Loop(FOLDER, Task((LINE,), "80sp", sizes=BatchSizeSchedule("0sp:2 10sp:4")))
    loop.loader = loop.accelerator.prepare(loop.loader)
    with pytest.raises(ValueError, match=r"BatchSizeSampler was prepared.*Leave it out of accelerator\.prepare\(\)"):
        loop.train()
    assert loop.clock.timestamp.batch == 0


def check_optimizers_follow_their_parameters_into_shards() -> None:
    """accelerate has no FSDP on CPUs, so it is told that this is one; what `prepare` then does is real."""

    def trained(kind: Any, sharded: bool) -> list[torch.Tensor]:
        torch.manual_seed(2)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
        made = kind(model.parameters(), lr=0.1)
        if sharded:
            model, wrapped = accelerator.prepare(model, made)
            scheduler = schedule(accelerator, wrapped, LINE, max_duration="4ba")
        else:
            scheduler = torch.optim.lr_scheduler.LambdaLR(made, lambda k: 1 - k / 4)
        for _ in range(3):
            model(torch.ones(2, 4)).square().sum().backward()
            made.step()
            made.zero_grad()
            scheduler.step()
        assert set(made.state) == set(model.parameters())
        assert all(isinstance(p, torch.distributed.tensor.DTensor) is sharded for p in model.parameters())
        return [p.full_tensor().detach() if sharded else p.detach() for p in model.parameters()]

    accelerator, kinds = Accelerator(cpu=True), (optim.AdamW, torch.optim.AdamW)
    wanted = [trained(kind, sharded=False) for kind in kinds]
    PartialState().distributed_type = accelerator.state.distributed_type = DistributedType.FSDP
    accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    assert accelerator.is_fsdp2
    torch.testing.assert_close([trained(kind, sharded=True) for kind in kinds], wanted)


CHECKS = (
    check_counts_of_the_first_rank,
    check_a_prepared_scheduler_of_bind,
    check_a_prepared_loader_of_growing_batches,
    check_optimizers_follow_their_parameters_into_shards,
)


def test_two_ranks(tmp_path: Path) -> None:
    results, output = launch(Path(__file__), 2, tmp_path, 120)
    assert results == {check.__name__: "" for check in CHECKS}, "\n".join([*results.values(), output])


if __name__ == "__main__":
    warnings.filterwarnings("error", module="timesched")
    Accelerator(cpu=True)
    report = Report(FOLDER)
    for check in CHECKS:
        report.check(check.__name__, check)
    dist.destroy_process_group()
