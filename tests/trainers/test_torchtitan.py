"""What only the adapter for torchtitan promises, in its own containers and checkpoints.

As a program under torchrun, `FOLDER` checks two ranks, and leaves their checkpoints there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torchtitan.components.optimizer import LRSchedulersContainer
from torchtitan.config import ConfigManager, Configurable, TrainingConfig

import optim
from tests.torchrun import Report, launch
from tests.trainers.rows.torchtitan import Loop, process_group, train
from tests.trainers.runs import COSINE, DECAY, EQUAL, LR, Run, Task, flat, plain_loop
from timesched import HalfLife, LinearScheduler
from timesched.integrations.torchtitan import Binding, Schedules

ENTRIES = (COSINE, Binding(DECAY, "weight_decay", tags="head"), Binding(HalfLife("5ba"), "betas[1]", tags="head"))
TASK = Task(ENTRIES, save_after=[5])
PLAIN = plain_loop(EQUAL, Task(ENTRIES[:2]))
FACTORS = {"samples_per_batch": 3, "tokens_per_sample": EQUAL[0]}


@pytest.fixture(autouse=True, scope="module")
def one_rank() -> Iterator[None]:
    with process_group():
        yield


def weights(run: Run) -> torch.Tensor:
    return flat(run.trainer.model.parameters())


def assert_continues(rest: Run, whole: Run) -> None:
    assert rest.logs == whole.logs[5:]
    assert torch.equal(weights(rest), weights(whole))


def test_two_optimizers() -> None:
    """Each has the schedules that select a group of it, and is logged as torchtitan's own containers log it."""
    run = train(None, TASK, parts="cut", of_embedding="Adam")
    assert [type(scheduler.optimizer).__name__ for scheduler in run.trainer.schedules] == ["Adam", "AdamW"] * 2
    assert [row["lr/AdamW"] for row in run.logs] == [row["lr/Adam"] for row in run.logs] == PLAIN.of("lr", 1)
    assert [row["weight_decay/AdamW"] for row in run.logs] == PLAIN.of("weight_decay", 1)
    assert [row["betas[1]/AdamW"] for row in run.logs] == pytest.approx([0.5 ** (1 / 5)] * len(run.logs), rel=1e-12)
    assert len(run.logs[0]) == 4
    own = LRSchedulersContainer(run.trainer.optimizers, lambda step: 1.0)
    assert set(own.get_metrics()) == {"lr/AdamW", "lr/Adam"}


def test_an_optimizer_that_no_schedule_selects() -> None:
    run = train(None, Task((Binding(COSINE, "lr", tags="head"),)), of_embedding="Adam")
    assert run.logs == [{"lr/AdamW": value} for value in PLAIN.of("lr")]
    assert next(iter(run.trainer.optimizers)).param_groups[0]["lr"] == LR


def test_rates_on_the_host() -> None:
    """If CUDA graphs hold them in tensors, torchtitan logs what was written, and does not read the tensors."""
    loop = Loop(None, TASK)
    (optimizer,), (scheduler,) = loop.optimizers, loop.schedules
    for group in optimizer.param_groups:
        group["lr"] = torch.tensor(group["lr"], dtype=torch.float64)
    loop.schedules.step()
    rates = [PLAIN.of("lr")[1]] * 2
    assert scheduler.get_last_host_lrs() == scheduler.get_last_lr() == rates
    optimizer.param_groups[0]["lr"].fill_(9.0)
    assert scheduler.get_last_host_lrs() == rates


# Saving and loading


@pytest.mark.parametrize(("then", "now"), [("whole", "cut"), ("cut", "whole")])
@pytest.mark.parametrize("name", ["AdamW", "Adam"])
def test_a_run_is_resumed_in_other_parts(tmp_path: Path, then: str, now: str, name: str) -> None:
    whole = train(None, TASK, parts=now, of_embedding=name)
    train(tmp_path, TASK, parts=then, of_embedding=name)
    assert_continues(train(None, replace(TASK, load=(tmp_path, 5)), parts=now, of_embedding=name), whole)


def test_a_run_that_had_torchtitans_own(tmp_path: Path) -> None:
    train(tmp_path, TASK, schedules=LRSchedulersContainer.Config(warmup_steps=2))
    task = Task((COSINE,), load=(tmp_path, 5))
    with pytest.raises(CheckpointException, match=r"Missing key .*lr_scheduler\.schedules"):
        Loop(None, task)
    loop = Loop(None, replace(task, on_change="new"), exclude=["lr_scheduler"])
    loop.schedules.begin_at(5)
    assert [row["lr/AdamW/0"] for row in loop.train().model.run.logs] == PLAIN.of("lr")[5:]
    with pytest.raises(ValueError, match='on_change="new"'):
        Loop(None, TASK).schedules.begin_at(5)


def test_a_run_that_was_loaded_keeps_its_position(tmp_path: Path) -> None:
    """A script that gives the position in each start changes nothing."""
    train(tmp_path, TASK)
    loop = Loop(None, replace(TASK, load=(tmp_path, 5)))
    loop.schedules.begin_at(2)
    assert loop.schedules.clock.timestamp.batch == 5


def test_a_hyperparameter_that_was_not_scheduled_before(tmp_path: Path) -> None:
    """torchtitan saves each key of a group, and looks for all of them: also the initial values."""
    train(tmp_path, replace(TASK, entries=(COSINE,)))
    with pytest.raises(CheckpointException, match=r"Missing key .*initial_weight_decay"):
        train(None, replace(TASK, load=(tmp_path, 5), on_change="new"))


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ((COSINE,), r"here is \[\"'lr' with tags=None\"\]"),
        ((*ENTRIES, Binding(DECAY, "weight_decay", tags="embedding")), r"here is .*'weight_decay' with tags=\['embed"),
    ],
)
def test_a_load_that_is_refused_changes_nothing(entries: Any, words: str) -> None:
    def read(loop: Loop) -> Any:
        return str(loop.schedules.state_dict()), loop.schedules.get_metrics()

    saved, other = Loop(None, TASK), Loop(None, Task(entries))
    saved.schedules.step()
    before = read(other)
    with pytest.raises(ValueError, match=words):
        other.schedules.load_state_dict(saved.schedules.state_dict())
    assert read(other) == before


def test_all_schedules_are_new() -> None:
    saved, new = Loop(None, replace(TASK, entries=ENTRIES[1:2])), Loop(None, Task((COSINE,), on_change="new"))
    for _ in range(5):
        saved.schedules.step()
    new.schedules.load_state_dict(saved.schedules.state_dict())
    assert new.schedules.get_metrics()["lr/AdamW/1"] == PLAIN.of("lr")[5]


def test_state_before_the_first_step(tmp_path: Path) -> None:
    """torchtitan's own step with zero gradients would leave Adam's count at 1."""
    count = "state.head.0.weight.step"
    assert Loop(None, TASK).optimizers.state_dict()[count] == 1
    loop = Loop(tmp_path, TASK)
    for optimizer in loop.optimizers:
        optim.preinitialize(optimizer)
    assert loop.optimizers.state_dict()[count] == 0
    assert loop.checkpointer.save(0)
    rest = train(None, replace(TASK, load=(tmp_path, 0)))
    assert torch.equal(weights(rest), weights(train(None, TASK)))


# The config


@dataclass(kw_only=True, slots=True)
class Job(Configurable.Config):
    """The part of the Trainer's config that is used here. The module of the Trainer needs triton."""

    lr_scheduler: LRSchedulersContainer.Config = field(default_factory=LRSchedulersContainer.Config)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    hf_assets_path: str = "."


def from_the_registry() -> Job:
    """A config as torchtitan's registries have them."""
    return Job(lr_scheduler=Schedules.Config(entries=list(ENTRIES), **FACTORS))


def test_the_command_line_and_json() -> None:
    sys.modules.setdefault("config_of_the_test", sys.modules[__name__])
    args = "--module config_of_the_test --config from_the_registry"
    more = "--lr_scheduler.on_change new --lr_scheduler.max_duration 1000tok --training.steps 7"
    given = ConfigManager().parse_args([*args.split(), *more.split()]).lr_scheduler
    assert (given.entries, given.on_change, given.max_duration) == (list(ENTRIES), "new", "1000tok")
    assert json.loads(json.dumps(given.to_dict()))["entries"] == [repr(entry) for entry in ENTRIES]
    assert given.to_dict()["max_duration"] == "1000tok"
    assert Loop(None, TASK, schedules=given).schedules.clock.max_duration == "1000tok"


def test_one_entry() -> None:
    several, one = (Schedules.Config(entries=entries, **FACTORS) for entries in ([COSINE], COSINE))
    assert one.to_dict()["entries"] == several.to_dict()["entries"] == [repr(COSINE)]
    assert train(None, TASK, schedules=one).logs == train(None, TASK, schedules=several).logs


def test_newer_releases_have_the_containers_in_another_module() -> None:
    """The main branch of torchtitan moved them from `components.optimizer` to `components.optim`."""
    moved = (
        "import sys, torchtitan.components.optimizer as module;"
        "sys.modules['torchtitan.components.optim'] = module;"
        "sys.modules['torchtitan.components.optimizer'] = None;"  # whose import raises
        "from timesched.integrations.torchtitan import Schedules;"
        "print(issubclass(Schedules, module.LRSchedulersContainer))"
    )
    done = subprocess.run([sys.executable, "-c", moved], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"samples_per_batch": None}, "without samples_per_batch"),
        ({"samples_per_batch": -1}, "samples_per_batch"),
        ({"entries": [LinearScheduler(t_max="2ep")]}, "batches_per_epoch"),
        ({"entries": [LinearScheduler()], "max_duration": "2ep"}, "batches_per_epoch"),
        ({"warmup_steps": 20, "decay_type": "sqrt"}, "warmup_steps=20, decay_type='sqrt' has no"),
        ({"on_change": "newest"}, "on_change='newest'"),
    ],
)
def test_refused(config: dict[str, Any], message: str) -> None:
    schedules = Schedules.Config(**{"entries": COSINE, **FACTORS, **config})
    with pytest.raises((TypeError, ValueError), match=message):
        Loop(None, TASK, schedules=schedules)


# Two ranks


def test_two_ranks(tmp_path: Path) -> None:
    results, output = launch(Path(__file__), 2, tmp_path, 240)
    assert results == {"whole": "", "pipelined": ""}, "\n".join([*results.values(), output])
    assert_continues(train(None, replace(TASK, load=(tmp_path / "whole", 5))), train(None, TASK))
    lion = {"of_embedding": "Adam"}
    rest = train(None, replace(TASK, load=(tmp_path / "pipelined", 5)), **lion)
    assert rest.logs == train(None, TASK, **lion).logs[5:]


def resume_on_ranks(folder: Path, parts: str) -> None:
    """With shards of the model, or with a stage of it on each rank."""
    options = {"parts": parts, "of_embedding": "Adam" if parts == "pipelined" else "AdamW"}
    whole = train(folder / parts, TASK, **options)
    assert_continues(train(None, replace(TASK, load=(folder / parts, 5)), **options), whole)
    assert [row.get("lr/head", row.get("lr/AdamW", row.get("lr/Adam"))) for row in whole.logs] == PLAIN.of("lr")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    report = Report(Path(sys.argv[1]))
    for parts in ("whole", "pipelined"):
        report.check(parts, partial(resume_on_ranks, Path(sys.argv[1]), parts))
    dist.destroy_process_group()
