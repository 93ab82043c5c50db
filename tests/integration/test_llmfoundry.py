"""Names in a YAML of llm-foundry: our entry points, made as llm-foundry makes them, in Composer's real Trainer.

llm-foundry does not install here. `make_scheduler` and `make_optimizer` restate what its `build_scheduler` and
`build_optimizer` (0.22) do with an entry of the YAML.
"""

from __future__ import annotations

import ast
import copy
import inspect
import json
import pickle
import re
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from composer import Event
from composer.optim.scheduler import ComposerScheduler
from ruamel.yaml import YAML

import optim
import timesched
from optim.config.names import optimizers
from tests.docs.tables import page_yaml
from tests.integration import training
from tests.laws.rows import EXAMPLE_CALLS
from tests.torchrun import ROOT, run_python
from timesched import Clock, bind, schedulers
from timesched.integrations import llmfoundry

MODULE = "timesched.integrations.llmfoundry"


def read_entry_points(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group in pyproject.toml, by name. (Python 3.10 has no reader of TOML.)"""
    table = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition(f"[project.entry-points.{group}]\n")[2]
    lines = re.findall(r'^"(.*)" = "(.*)"$', table.partition("\n\n")[0], re.MULTILINE)
    return {name: EntryPoint(name, value, group) for name, value in lines}


SCHEDULERS, OPTIMIZERS = read_entry_points("llmfoundry_schedulers"), read_entry_points("llmfoundry_optimizers")


def make_scheduler(text: str) -> Any:
    name, arguments = read_entry(text)
    cls = SCHEDULERS[name].load()
    assert issubclass(cls, ComposerScheduler)
    return cls(**arguments)


def make_optimizer(text: str, model: torch.nn.Module) -> Any:
    name, arguments = read_entry(text)
    cls = OPTIMIZERS[name].load()
    assert issubclass(cls, torch.optim.Optimizer)
    return cls(**arguments, params=model.parameters())


def read_entry(text: str) -> tuple[str, dict[str, Any]]:
    arguments = YAML(typ="safe", pure=True).load(text)
    return arguments.pop("name"), arguments


def write_entry(call: str) -> str:
    """The entry of a YAML that makes the same schedule as a call with plain arguments."""
    node: Any = ast.parse(call, mode="eval").body
    values = [ast.literal_eval(value) for value in node.args]
    named = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords}
    arguments = inspect.signature(getattr(timesched, node.func.id)).bind(*values, **named).arguments
    return json.dumps({"name": f"timesched.{node.func.id}", **arguments})  # which is YAML, too


# Entries as a YAML has them, and one for each example of a schedule that takes no other schedule.
ENTRIES = {
    "{name: timesched.InverseSquareRootWithWarmupScheduler, t_warmup: 3ba, t_scale: 3ba, t_cooldown: 0ba}": (
        timesched.InverseSquareRootWithWarmupScheduler("3ba", t_scale="3ba", t_cooldown="0ba")
    ),
    "{name: timesched.LinearScheduler, t_max: 1dur}": timesched.LinearScheduler(),
    "{name: timesched.MultiStepScheduler, milestones: [5ba, 40sp], gamma: 0.5}": (
        timesched.MultiStepScheduler(["5ba", "40sp"], 0.5)
    ),
    "{name: timesched.PiecewiseScheduler, points: [[0ba, 1.0], [5ba, 0.2]]}": (
        timesched.PiecewiseScheduler([["0ba", 1.0], ["5ba", 0.2]])
    ),
    **{
        write_entry(call): eval(call, vars(timesched))
        for call in EXAMPLE_CALLS
        if call.partition("(")[0] in schedulers.__all__
    },
}


def test_the_yaml_of_the_page() -> None:
    config = YAML(typ="safe", pure=True).load(page_yaml("by_config.md", "# llm-foundry"))
    texts = {section: json.dumps(entry) for section, entry in config.items()}  # which is YAML, too
    schedule = timesched.WarmupStableDecayScheduler("200ba", t_decay="0.2dur")
    assert repr(make_scheduler(texts["scheduler"])) == repr(schedule)
    (group,) = make_optimizer(texts["optimizer"], training.NextByte()).param_groups
    assert (group["lr"], list(group["betas"]), group["eps"], group["weight_decay"]) == (3e-4, [0.9, 0.95], 1e-8, 0.1)


def test_there_is_a_name_for_each_schedule_and_each_optimizer() -> None:
    assert list(SCHEDULERS) == [f"timesched.{name}" for name in schedulers.__all__]
    assert list(OPTIMIZERS) == [f"optim.{name}" for name in sorted(optimizers().public_classes)]
    assert {read_entry(text)[0] for text in ENTRIES} == set(SCHEDULERS)
    for name, point in OPTIMIZERS.items():
        assert point.load() is getattr(optim, name.removeprefix("optim."))


@pytest.mark.parametrize("text", ENTRIES)
def test_a_class_is_the_schedule_in_all_but_its_base(text: str) -> None:
    made, ours = make_scheduler(text), ENTRIES[text]
    assert isinstance(made, type(ours)) and repr(made) == repr(ours) and made.__doc__ == ours.__doc__
    assert type(made).__module__ == MODULE and getattr(llmfoundry, type(made).__name__) is type(made)
    for copied in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert type(copied) is type(made) and copied == made and hash(copied) == hash(made)


def run(text: str, batch_size: int, **options: Any) -> dict[str, Any]:
    """What Composer's Trainer did for two epochs with the scheduler of an entry."""
    settings = {"max_duration": "2ep", "train_dataloader": training.data(batch_size=batch_size), **options}
    return training.finish(*training.make_trainer(schedulers=make_scheduler(text), **settings))


def learning_rates_of_bind(schedule: Any, batch_size: int) -> list[float]:
    """The learning rates of a plain loop, one batch later, as Composer steps its `schedulers=`."""
    batches = -(-training.WINDOWS // batch_size)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=training.BASE_LR)
    clock = Clock("2ep", batches_per_epoch=batches, samples_per_batch=batch_size)
    scheduler = bind(schedule, optimizer, clock)
    values = [optimizer.param_groups[0]["lr"]]
    while not clock.done:
        values.append(optimizer.param_groups[0]["lr"])
        rest = training.WINDOWS - batch_size * clock.timestamp.batch_in_epoch.value
        clock.tick(samples=min(batch_size, rest))
        scheduler.step()
    return values[: 2 * batches]


@pytest.mark.parametrize("batch_size", [4, 7])
@pytest.mark.parametrize("text", ENTRIES)
def test_the_trainer_writes_the_learning_rates_of_bind(text: str, batch_size: int) -> None:
    found = [row[0]["lr"] for row in run(text, batch_size)["rows"]]
    assert found == pytest.approx(learning_rates_of_bind(ENTRIES[text], batch_size), rel=1e-12, abs=0)
    assert len(found) > 8


@pytest.mark.parametrize("batch_size", [4, 7])
def test_a_run_that_stops_at_half_and_resumes(batch_size: int, tmp_path: Path) -> None:
    text = "{name: timesched.WarmupStableDecayScheduler, t_warmup: 0.1dur, t_decay: 0.5dur}"
    half = -(-training.WINDOWS // batch_size)
    whole = run(text, batch_size, **training.saving(tmp_path, (half, Event.EPOCH_CHECKPOINT)))
    resumed = run(text, batch_size, load_path=str(tmp_path / f"{half}.pt"))
    training.assert_goes_on(whole, resumed, half)
    assert len(resumed["rows"]) == half


@pytest.mark.parametrize(
    "text",
    [
        "{name: optim.AdamW, lr: 1.0e-3, betas: [0.9, 0.95], weight_decay: 0.1}",
        "{name: optim.Lion, lr: 1.0e-4}",
        "{name: optim.SGD, lr: 0.1, momentum: 0.9}",
    ],
)
def test_an_optimizer_by_name(text: str) -> None:
    name, arguments = read_entry(text)
    model, same_model = training.NextByte(), training.NextByte()
    ours = getattr(optim, name.removeprefix("optim."))(same_model.parameters(), **arguments)
    outcomes = []
    for each, optimizer in ((model, make_optimizer(text, model)), (same_model, ours)):
        outcomes.append(training.finish(*training.make_trainer((), each, optimizer, max_duration="1ep")))
    training.assert_goes_on(outcomes[1], outcomes[0], 0)


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("{name: timesched.LinearScheduler, t_mx: 3ba}", TypeError, "LinearScheduler has no argument 't_mx': did you"),
        ("{name: timesched.LinearScheduler, t_max: 3}", ValueError, "LinearScheduler.t_max: 3 has no unit"),
        ("{name: timesched.LinearScheduler, alpha_f: .nan}", ValueError, "LinearScheduler.alpha_f=nan"),
        ("{name: timesched.StepScheduler}", TypeError, "step_size"),
    ],
)
def test_wrong_entries(text: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make_scheduler(text)


def test_a_name_that_is_no_optimizer() -> None:
    with pytest.raises(AttributeError, match="has no class 'build'. It has the schedules and optimizers by their"):
        EntryPoint("optim.build", f"{MODULE}:build", "llmfoundry_optimizers").load()


def test_a_module_that_hides_optim_is_named_where_an_optimizer_is_asked_for(tmp_path: Path) -> None:
    """The schedules do not need it."""
    path = tmp_path / "optim.py"
    path.write_text("raise SystemExit(5)")
    (tmp_path / "try_it.py").write_text(f"import {MODULE} as names\nprint(names.RexScheduler())\nnames.AdamW\n")
    done = run_python("try_it.py", cwd=tmp_path)
    assert done.stdout.startswith("RexScheduler(")
    assert f"ImportError: {path} hides the package optim of torch-timesched. Rename it, or start" in done.stderr
