"""Schedules in torchtitan's own containers and checkpoints. Its Trainer needs a GPU: `Run` does what that does.

As a program under torchrun, `FOLDER` checks two ranks, and leaves their checkpoints there.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.fsdp import fully_shard
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig
from torchtitan.config import ConfigManager, Configurable, TrainingConfig

import optim
from tests.torchrun import Report, launch
from timesched import CosineAnnealingWithWarmupScheduler, HalfLife, Horizon, LinearScheduler
from timesched.integrations.torchtitan import Binding, Schedules

STEPS, BATCH, SEQ_LEN = 12, 4, 8
LR, HEAD_LR, WEIGHT_DECAY = 0.1, 0.02, 0.3
RATES = {"samples_per_batch": BATCH, "tokens_per_sample": SEQ_LEN}
HORIZON = Horizon(f"{STEPS}ba", **RATES)
COSINE = CosineAnnealingWithWarmupScheduler("90tok", alpha_f=0.1)
DECAY = LinearScheduler(alpha_f=0.2, t_max="9ba")
ENTRIES = [COSINE, Binding(DECAY, "weight_decay", tags="head")]


class Optimizers(OptimizersContainer):
    """torchtitan's, as its users extend it: with an optimizer of `optim`."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(OptimizersContainer.Config):
        """One optimizer, or two."""

    @staticmethod
    def _resolve_optimizer_factory(name: str) -> Any:
        return optim.Lion if name == "Lion" else OptimizersContainer._resolve_optimizer_factory(name)


def optimizers(body: str = "AdamW") -> Any:
    """A config with a group for the heads, and one for all else."""
    kwargs = {"lr": LR, "weight_decay": WEIGHT_DECAY}
    groups = [
        ParamGroupConfig(
            pattern="head", optimizer_name="AdamW", optimizer_kwargs={**kwargs, "lr": HEAD_LR, "tags": "head"}
        ),
        ParamGroupConfig(pattern=".*", optimizer_name=body, optimizer_kwargs=kwargs),
    ]
    return Optimizers.Config(
        param_groups=groups, implementation="for-loop", optimizer_factory_kwargs_by_name={"Lion": {"lr": LR}}
    )


class Stage(torch.nn.Module):
    def __init__(self, layers: dict[str, torch.nn.Module]) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.children():
            x = layer(x)
        return x


def stages(number: int) -> list[torch.nn.Module]:
    """A model, whole or cut in two; each part has a head."""
    torch.manual_seed(1)
    layers = {name: torch.nn.Linear(4, 4) for name in ("body_0", "head_0", "body_1", "head_1")}
    names = list(layers)
    if number == 1:
        return [Stage(layers)]
    return [Stage({name: layers[name] for name in each}) for each in (names[:2], names[2:])]


class State:
    """The state of a Trainer."""

    step = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


class Run:
    """What torchtitan's Trainer builds, in its order, and does in each step."""

    def __init__(
        self, folder: Path | None = None, entries: Any = ENTRIES, number: int = 1, body: str = "AdamW", **config: Any
    ) -> None:
        self.parts = stages(number)
        if config.pop("pipelined", False):
            self.parts = [self.parts[dist.get_rank()]]
        elif dist.get_world_size() > 1:
            for part in self.parts:
                fully_shard(part)
        self.optimizers = optimizers(body).build(model_parts=self.parts)
        exclude = config.pop("exclude_from_loading", [])
        built = config.pop("built", None) or Schedules.Config(entries=entries, **{**RATES, **config})
        self.schedules = built.build(optimizers=self.optimizers, training_steps=STEPS)
        self.state = State()
        self.used: list[dict[str, float]] = []
        settings = CheckpointManager.Config(
            enable=folder is not None, interval=1, keep_latest_k=0, exclude_from_loading=exclude
        )
        self.checkpointer = settings.build(
            dataloader=None,
            model_parts=self.parts,
            optimizers=self.optimizers,
            lr_schedulers=self.schedules,
            states={"train_state": self.state},
            sd_adapter=None,
            base_folder=str(folder),
        )

    def train(self, until: int) -> Run:
        while self.state.step < until:
            self.state.step += 1
            self.optimizers.zero_grad()
            self.used.append(self.schedules.get_metrics())
            x = torch.randn(BATCH, 4, generator=torch.Generator().manual_seed(self.state.step))
            for part in self.parts:
                x = part(x)
            x.square().sum().backward()
            self.optimizers.step()
            self.schedules.step()
        return self

    def save(self) -> Run:
        assert self.checkpointer.save(self.state.step)
        return self

    def load(self) -> Run:
        assert self.checkpointer.load()
        return self

    def weights(self) -> list[list[float]]:
        tensors = {name: p for part in self.parts for name, p in part.named_parameters()}
        full = [p.full_tensor() if hasattr(p, "full_tensor") else p for _, p in sorted(tensors.items())]
        return [p.detach().flatten().tolist() for p in full]


@pytest.fixture(autouse=True, scope="module")
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def values(schedule: Any, first: float, steps: range = range(STEPS), run: Horizon = HORIZON) -> list[float]:
    return [first * schedule.at(f"{k}ba", run) for k in steps]


def used(run: Run, name: str) -> list[float]:
    return [each[name] for each in run.used]


def test_each_step_runs_with_the_values_of_its_moment():
    run = Run().train(STEPS)
    assert used(run, "lr/AdamW/0") == values(COSINE, HEAD_LR)
    assert used(run, "lr/AdamW/1") == values(COSINE, LR)
    assert used(run, "weight_decay/AdamW/0") == values(DECAY, WEIGHT_DECAY)
    assert set(run.used[0]) == {"lr/AdamW/0", "lr/AdamW/1", "weight_decay/AdamW/0"}
    (adamw,) = run.optimizers
    assert [group["weight_decay"] for group in adamw.param_groups] == [
        WEIGHT_DECAY * DECAY.at(f"{STEPS}ba", HORIZON),
        WEIGHT_DECAY,
    ]
    clock = run.schedules.clock
    assert (clock.timestamp.sample, clock.timestamp.token) == (f"{STEPS * BATCH}sp", f"{STEPS * BATCH * SEQ_LEN}tok")
    assert clock.done


@pytest.mark.parametrize("warmup", ["3ba", "12sp", "96tok", "0.25dur", "1.5ep"])
def test_every_unit(warmup):
    run = Run(None, [CosineAnnealingWithWarmupScheduler(warmup)], batches_per_epoch=2).train(STEPS)
    assert used(run, "lr/AdamW/1") == pytest.approx(values(CosineAnnealingWithWarmupScheduler("3ba"), LR), rel=1e-12)


def test_a_length_of_its_own():
    run = Run(None, [LinearScheduler()], max_duration="768tok").train(STEPS)
    assert used(run, "lr/AdamW/1") == values(LinearScheduler(), LR, run=Horizon("24ba"))


def test_two_optimizers():
    """Each has the schedules that select a group of it, and is logged as torchtitan's own containers log it."""
    decay = Binding(HalfLife("5ba"), "betas[1]", tags="head")
    run = Run(None, [COSINE, decay], body="Lion", number=2).train(STEPS)
    assert [type(each.optimizer).__name__ for each in run.schedules] == ["AdamW", "Lion"] * 2
    assert set(run.used[0]) == {"lr/AdamW", "lr/Lion", "betas[1]/AdamW"}
    assert (used(run, "lr/AdamW"), used(run, "lr/Lion")) == (values(COSINE, HEAD_LR), values(COSINE, LR))
    assert used(run, "betas[1]/AdamW") == pytest.approx([0.5 ** (1 / 5)] * STEPS, rel=1e-12)
    own = LRSchedulersContainer(run.optimizers, lambda step: 1.0)
    assert set(own.get_metrics()) == {"lr/AdamW", "lr/Lion"}


def test_an_optimizer_that_no_schedule_selects():
    run = Run(None, [Binding(COSINE, "lr", tags="head")], body="Lion").train(STEPS)
    assert run.used[-1] == {"lr/AdamW": values(COSINE, HEAD_LR)[-1]}
    _, lion = run.optimizers
    assert lion.param_groups[0]["lr"] == LR


def test_rates_on_the_host():
    """Where CUDA graphs hold them in tensors, torchtitan logs what was written, and not what it would have to read."""
    run = Run()
    (adamw,), (scheduler,) = run.optimizers, run.schedules
    for group in adamw.param_groups:
        group["lr"] = torch.tensor(group["lr"], dtype=torch.float64)
    run.train(5)
    now = COSINE.at("5ba", HORIZON)
    assert scheduler.get_last_host_lrs() == scheduler.get_last_lr() == [HEAD_LR * now, LR * now]
    adamw.param_groups[0]["lr"].fill_(9.0)
    assert scheduler.get_last_host_lrs() == [HEAD_LR * now, LR * now]


# Saving and loading


def test_a_run_is_resumed_exactly(tmp_path):
    through = Run().train(STEPS)
    Run(tmp_path).train(5).save()
    resumed = Run(tmp_path).load().train(STEPS)
    assert resumed.used == through.used[5:]
    assert resumed.weights() == through.weights()


@pytest.mark.parametrize(("then", "now"), [(1, 2), (2, 1)])
@pytest.mark.parametrize("body", ["AdamW", "Lion"])
def test_a_run_is_resumed_in_other_parts(tmp_path, then, now, body):
    entries = [*ENTRIES, Binding(HalfLife("5ba"), "betas[1]", tags="head")]
    through = Run(None, entries, now, body).train(STEPS)
    Run(tmp_path, entries, then, body).train(5).save()
    resumed = Run(tmp_path, entries, now, body).load().train(STEPS)
    assert resumed.used == through.used[5:]
    assert resumed.weights() == through.weights()


def test_another_batch_size(tmp_path):
    """Times in tokens keep their meaning."""
    Run(tmp_path, [COSINE], max_duration="384tok").train(5).save()
    resumed = Run(tmp_path, [COSINE], max_duration="384tok", samples_per_batch=2 * BATCH).load().train(8)
    run = Horizon("384tok")
    assert used(resumed, "lr/AdamW/1") == [LR * COSINE.at(f"{32 * 5 + 64 * k}tok", run) for k in range(3)]


OTHERS = {
    r"state is of a different schedule": [LinearScheduler(), ENTRIES[1]],
    r"'weight_decay' with tags=\['head'\].* and here is \[.'lr' with tags=None.\]": [COSINE],
    r"here is .*'weight_decay' with tags=\['head'\].*'weight_decay' with tags=\[None\]": [
        *ENTRIES,
        Binding(DECAY, "weight_decay", tags=[None]),
    ],
}


@pytest.mark.parametrize("message", OTHERS)
def test_other_schedules_are_refused_or_continue(message):
    saved = Run().train(5).schedules.state_dict()
    other = Run(None, OTHERS[message]).train(2)
    before, groups = other.schedules.state_dict(), copy.deepcopy([o.param_groups for o in other.optimizers])
    with pytest.raises(ValueError, match=message):
        other.schedules.load_state_dict(saved)
    after = other.schedules.state_dict()
    assert str(after) == str(before)
    assert [[g["lr"] for g in o] for o in groups] == [[g["lr"] for g in o.param_groups] for o in other.optimizers]

    new = Run(None, OTHERS[message], on_change="new")
    new.schedules.load_state_dict(saved)
    assert new.schedules.clock.timestamp.token == 5 * BATCH * SEQ_LEN
    schedule = OTHERS[message][0]
    assert new.schedules.get_metrics()["lr/AdamW/1"] == LR * schedule.at("5ba", HORIZON)


def test_schedules_that_are_all_new():
    saved = Run(None, [ENTRIES[1]]).train(5).schedules.state_dict()
    new = Run(None, [COSINE], on_change="new")
    new.schedules.load_state_dict(saved)
    assert new.schedules.get_metrics() == {
        f"lr/AdamW/{i}": lr * COSINE.at("5ba", HORIZON) for i, lr in ((0, HEAD_LR), (1, LR))
    }


def test_a_run_that_had_torchtitans_own(tmp_path):
    Run(tmp_path, built=LRSchedulersContainer.Config(warmup_steps=2)).train(5).save()
    with pytest.raises(CheckpointException, match=r"Missing key .*lr_scheduler\.schedules"):
        Run(tmp_path, [COSINE]).load()
    run = Run(tmp_path, [COSINE], exclude_from_loading=["lr_scheduler"], on_change="new")
    run.schedules.begin_at(5)
    run.load().train(STEPS)
    assert used(run, "lr/AdamW/1") == values(COSINE, LR, range(5, STEPS))
    with pytest.raises(ValueError, match='on_change="new"'):
        Run().schedules.begin_at(5)


def test_a_hyperparameter_that_was_not_scheduled_before(tmp_path):
    """torchtitan saves each key of a group, and wants to find it again: also the initial value of what is scheduled."""
    Run(tmp_path, [COSINE]).train(5).save()
    with pytest.raises(CheckpointException, match=r"Missing key .*initial_weight_decay"):
        Run(tmp_path, ENTRIES, on_change="new").load()


def test_state_ahead_of_the_first_step(tmp_path):
    """torchtitan's own step with zero gradients would leave Adam's count at 1."""
    count = "state.head_0.weight.step"
    assert Run().optimizers.state_dict()[count] == 1
    run = Run(tmp_path)
    for each in run.optimizers:
        optim.preinitialize(each)
    assert run.optimizers.state_dict()[count] == 0
    run.save()
    assert Run(tmp_path).load().train(STEPS).weights() == Run().train(STEPS).weights()


# The config


@dataclasses.dataclass(kw_only=True, slots=True)
class Job(Configurable.Config):
    """What the Trainer's config has of this; its module needs triton."""

    lr_scheduler: LRSchedulersContainer.Config = dataclasses.field(default_factory=LRSchedulersContainer.Config)
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)
    hf_assets_path: str = "."


def from_the_registry() -> Job:
    """A config as torchtitan's registries have them."""
    return Job(lr_scheduler=Schedules.Config(entries=ENTRIES, **RATES))


def test_the_command_line_and_json():
    sys.modules.setdefault("config_of_the_test", sys.modules[__name__])
    args = "--module config_of_the_test --config from_the_registry"
    more = "--lr_scheduler.on_change new --lr_scheduler.max_duration 1000tok --training.steps 7"
    config = ConfigManager().parse_args([*args.split(), *more.split()])
    given = config.lr_scheduler
    assert (given.entries, given.on_change, given.max_duration) == (ENTRIES, "new", "1000tok")
    assert json.loads(json.dumps(given.to_dict()))["entries"] == [repr(each) for each in ENTRIES]
    assert given.to_dict()["max_duration"] == "1000tok"
    run = Run(None, built=given)
    assert run.schedules.clock.max_duration == "1000tok"


def test_one_entry():
    several, one = (Schedules.Config(entries=entries, **RATES) for entries in ([COSINE], COSINE))
    assert one.to_dict()["entries"] == several.to_dict()["entries"] == [repr(COSINE)]
    assert Run(None, built=one).train(3).used == Run(None, built=several).train(3).used


def test_newer_releases_have_the_containers_in_another_module():
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
    ("entries", "config", "message"),
    [
        ([], {}, "there is no schedule"),
        ([COSINE], {"samples_per_batch": None}, "without samples_per_batch"),
        ([COSINE], {"samples_per_batch": -1}, "samples_per_batch"),
        ([LinearScheduler(t_max="2ep")], {}, "batches_per_epoch"),
        ([LinearScheduler()], {"max_duration": "2ep"}, "batches_per_epoch"),
        ([Binding(DECAY, "weight_decay", tags="tail")], {}, "Binding.tags='tail': .*'head'"),
        ([DECAY, Binding(DECAY, "lr", tags="head")], {}, "lr"),
        ([COSINE], {"warmup_steps": 20, "decay_type": "sqrt"}, "warmup_steps=20, decay_type='sqrt' has no"),
        ([COSINE], {"on_change": "newest"}, "on_change='newest'"),
    ],
)
def test_refused(entries, config, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Run(None, entries, **config)


# Two ranks


def test_two_ranks(tmp_path):
    found, said = launch(Path(__file__), 2, tmp_path, 240)
    assert found == {check.__name__: "" for check in CHECKS}, "\n".join([*found.values(), said])
    through = Run().train(STEPS)
    resumed = Run(tmp_path / "sharded").load().train(STEPS)
    assert resumed.used == through.used[5:]
    assert resumed.weights() == through.weights()
    assert Run(tmp_path / "pipelined", body="Lion").load().train(STEPS).used == Run(body="Lion").train(STEPS).used[5:]


def sharded(folder: Path) -> None:
    run = Run(folder / "sharded").train(5).save()
    through, resumed = Run().train(STEPS), Run(folder / "sharded").load().train(STEPS)
    assert resumed.used == through.used[5:] and run.used == through.used[:5]
    assert resumed.weights() == through.weights()


def pipelined(folder: Path) -> None:
    """Each rank has a stage."""
    run = Run(folder / "pipelined", body="Lion", number=2, pipelined=True).train(5).save()
    assert run.used == Run(body="Lion").train(5).used
    resumed = Run(folder / "pipelined", body="Lion", number=2, pipelined=True).load().train(STEPS)
    assert resumed.weights() == run.train(STEPS).weights()


def seconds(folder: Path) -> None:
    """All ranks have those of the first."""
    run = Run(None, [LinearScheduler(t_max="1e5sec")]).train(3)
    rates: list[Any] = [None, None]
    dist.all_gather_object(rates, run.schedules.get_metrics()["lr/AdamW/1"])
    assert rates[0] == rates[1] < LR


CHECKS = [sharded, pipelined, seconds]


if __name__ == "__main__":
    dist.init_process_group("gloo")
    place = Path(sys.argv[1])
    report = Report(place)
    for check in CHECKS:
        report.check(check.__name__, partial(check, place))
    dist.destroy_process_group()
