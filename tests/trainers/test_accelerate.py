"""Schedules in real loops of accelerate, which note what each step of the optimizer was run with.

As a program: `resume FOLDER` goes on from a saved state, and under torchrun `FOLDER` checks two ranks.
"""

from __future__ import annotations

import sys
import warnings
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
        state, counts = self.optimizer.state_dict()["state"], self.scheduler.clock.state_dict()
        counts = {name: count for name, count in counts.items() if not name.endswith("wct")}
        return {"used": self.used, "parameters": self.model.state_dict(), "state": state, "counts": counts}


@pytest.fixture(autouse=True)
def own_state():
    """accelerate keeps one state for the process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def test_two_ranks(tmp_path):
    found, said = launch(Path(__file__), 2, tmp_path, 120)
    assert found == {check.__name__: "" for check in CHECKS}, "\n".join([*found.values(), said])


@pytest.mark.parametrize("accumulate", [1, 2])
def test_each_step_runs_with_the_values_of_its_moment(accumulate):
    run = Run(accumulate)
    run.train(0, BATCHES)
    assert run.used == expected(accumulate)
    assert run.scheduler.clock.timestamp.batch == BATCHES // accumulate
    (group,) = run.optimizer.param_groups
    assert run.scheduler.named_values() == {"lr": group["lr"], "weight_decay": group["weight_decay"]}


def test_resumed_in_a_fresh_process(tmp_path):
    whole = Run()
    whole.train(0, 6)
    whole.accelerator.save_state(tmp_path / "middle")
    whole.train(6, BATCHES)
    python_output(__file__, "resume", tmp_path)
    resumed, wanted = torch.load(tmp_path / "resumed.pt"), whole.outcome()
    assert resumed.pop("used") == wanted.pop("used")[3:]
    torch.testing.assert_close(resumed, wanted, rtol=0, atol=0)


def test_what_is_counted_between_two_microbatches_is_saved(tmp_path):
    whole, resumed = Run(), Run()
    whole.train(0, 5)
    whole.accelerator.save_state(tmp_path)
    whole.train(5, BATCHES)
    resumed.accelerator.load_state(tmp_path)
    resumed.train(5, BATCHES)
    assert whole.used == expected(2) and resumed.used == expected(2)[2:]
    whole.scheduler.counts = {"tokens": torch.tensor(3)}
    assert type(whole.scheduler.state_dict()["counts"]["tokens"]) is int


def prepared(*entries, length="9ba", **options):
    """The accelerator, an optimizer, and its scheduler."""
    accelerator = Accelerator(cpu=True)
    optimizer = accelerator.prepare(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1))
    made = schedule(accelerator, optimizer, *entries or [LinearScheduler()], max_duration=length, **options)
    return accelerator, optimizer, made


def test_wrong_use_is_refused():
    accelerator, optimizer, scheduler = prepared(LinearScheduler(t_max="99tok"))
    with pytest.raises(TypeError) as error:
        schedule(accelerator, optimizer.optimizer, LinearScheduler(), max_duration="9ba")
    assert str(error.value) == (
        "schedule.optimizer: it is of type SGD, and may be replaced. Pass the one that accelerator.prepare() returned."
    )
    with pytest.raises(TypeError, match=r"entries=\(\): there is no schedule"):
        schedule(accelerator, optimizer, max_duration="9ba")
    optimizer.step()
    with pytest.raises(ValueError) as error:
        scheduler.step()
    assert str(error.value) == (
        "tokens: the run counts them, and this batch has no count. Call step(tokens=...), or pass the conversion "
        "factors to schedule()."
    )
    assert scheduler.clock.timestamp.batch == 0 and scheduler.counts is None
    scheduler.counts = {"samples": 3}  # of earlier microbatches
    with pytest.raises(ValueError, match="tokens: the run counts them"):
        scheduler.step(samples=4)
    scheduler.step(samples=4, tokens=9)
    assert (scheduler.clock.timestamp.sample, scheduler.clock.timestamp.token) == (7, 9) and scheduler.counts is None
    optimizer.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))], "lr": float("nan")})
    scheduler.counts = {"samples": 3}
    with pytest.raises(ValueError, match="nan"):  # the write fails, and the microbatches are counted once
        scheduler.step(samples=4, tokens=9)
    assert (scheduler.clock.timestamp.sample, scheduler.counts) == (14, None)
    optimizer.optimizer.param_groups.pop()
    again = accelerator.prepare(schedule(accelerator, optimizer, LinearScheduler(), max_duration="9ba"))
    with pytest.raises(ValueError) as error:
        again.step()
    assert str(error.value) == (
        "This scheduler was prepared, and it counts the processes itself. Leave it out of accelerator.prepare()."
    )


def test_on_change_says_which_schedule_of_two_runs_goes_on():
    _, optimizer, scheduler = prepared(length="10ba")
    optimizer.step()
    scheduler.step()
    with pytest.raises(ValueError, match=r"\[0\.9\] saved, \[0\.95\] now"):
        prepared(length="20ba")[2].load_state_dict(scheduler.state_dict())
    resumed = prepared(length="20ba", on_change="new")[2]
    resumed.load_state_dict(scheduler.state_dict())
    assert resumed.get_last_lr() == [0.1 * 0.95]


def test_the_example():
    said = python_output(ROOT / "examples" / "accelerate_run.py", "--tokens", "3000tok")
    assert "Done: 2 steps of the optimizer" in said


# In processes of their own


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
    accelerator, linear, model, calls = Accelerator(cpu=True), LinearScheduler(), torch.nn.Linear(2, 1), []
    optimizer, clock = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.4), Clock("8ba", process_group=True)
    bound = bind(linear, optimizer, clock, "weight_decay")
    theirs = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: calls.append(k) or 1.0)
    model, optimizer, bound, theirs = accelerator.prepare(model, optimizer, bound, theirs)
    for k in range(8):
        assert optimizer.param_groups[0]["weight_decay"] == 0.4 * linear.at(f"{k}ba", Horizon("8ba"))
        accelerator.backward(model(torch.ones(1, 2)).sum())
        optimizer.step()
        clock.tick()
        bound.step()
        theirs.step()
    assert calls == list(range(17))  # what torch's own counts in eight steps


def optimizers_follow_their_parameters_into_shards() -> None:
    """accelerate has no FSDP on CPUs, so it is told that this is one; what `prepare` then does is real."""

    def trained(kind: Any, sharded: bool) -> list[torch.Tensor]:
        torch.manual_seed(2)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
        made = kind(model.parameters(), lr=0.1)
        if sharded:
            model, wrapped = accelerator.prepare(model, made)
            scheduler = schedule(accelerator, wrapped, LinearScheduler(), max_duration="4ba")
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


def what_the_first_rank_has_counted_is_loaded_on_all() -> None:
    saved, run = Path(sys.argv[1]) / "between", Run()
    run.train(0, 5)
    run.accelerator.save_state(saved)
    run.accelerator.wait_for_everyone()
    run.accelerator.load_state(saved)
    run.train(5, 6)
    ranks = {k: (0, 0) if k == 4 else (0, 1) for k in range(6)}
    assert run.scheduler.clock.timestamp.token == sum(batch(k, rank).numel() for k in ranks for rank in ranks[k])


CHECKS = (
    values_are_those_of_the_sum,
    what_the_first_rank_has_counted_is_loaded_on_all,
    a_prepared_scheduler_stays_right_though_it_is_stepped_for_each_process,
    optimizers_follow_their_parameters_into_shards,
)


def ranks(folder: Path) -> None:
    Accelerator(cpu=True)
    report = Report(folder)
    for check in CHECKS:
        report.check(check.__name__, check)
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.filterwarnings("error", module="timesched")
    resume(Path(sys.argv[2])) if sys.argv[1] == "resume" else ranks(Path(sys.argv[1]))
