"""States that this code must load for ever: schedulers, clocks, averages and optimizers, with what comes after them.

    python -m tests.golden.states NAME

writes tests/golden/states/NAME.pt with the code of the checkout. A file of an earlier version is never written again: a
change of the format adds a file. tests/golden/test_states.py loads all of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import optim
import timesched
from tests.laws.rows import EXAMPLE_CALLS
from tests.optim import problems
from tests.optim.rows import FULLEST
from tests.optim.schedulers import building
from tests.optim.schedulers.rows import EXAMPLES as FORMULAS
from timesched import BatchSizeSchedule, Clock, LinearScheduler, ScheduleLR, bind
from timesched.reading import read_schedule

STATES = Path(__file__).with_name("states")
BEFORE, AFTER = 7, 5  # the steps before a state is saved, and after it
FACTORS: dict[str, Any] = {"batches_per_epoch": 6, "samples_per_batch": 4, "tokens_per_sample": 8}


@dataclass
class Loop:
    """A training loop whose parts are saved: `step` makes a batch, and `read` returns what a user sees."""

    parts: dict[str, Any]
    step: Callable[[], object]
    read: Callable[[], Any]

    def run(self, steps: int) -> list[Any]:
        """What is seen after each step."""
        seen = []
        for _ in range(steps):
            self.step()
            seen.append(deepcopy(self.read()))
        return seen

    def state(self) -> dict[str, Any]:
        return {name: deepcopy(part.state_dict()) for name, part in self.parts.items()}

    def load(self, state: dict[str, Any]) -> None:
        for name, part in self.parts.items():
            part.load_state_dict(state[name])


# Schedulers


def make_adamw() -> optim.AdamW:
    groups = [{"params": [torch.zeros(2, requires_grad=True)], "tags": tag} for tag in ("body", "head")]
    return optim.AdamW(groups, lr=0.3, weight_decay=0.2)


def read_values(optimizer: Any) -> list[list[float]]:
    return [
        [float(group["lr"]), float(group["weight_decay"]), float(group["betas"][1])] for group in optimizer.param_groups
    ]


def follow(scheduler: Any, step: Callable[[], object] | None = None) -> Loop:
    """A loop with one scheduler."""
    optimizer = scheduler.optimizer
    return Loop({"scheduler": scheduler}, step or scheduler.step, lambda: read_values(optimizer))


def follow_clock(schedule: Any, length: str = "2000tok", key: str = "lr", tags: Any = None, **arguments: Any) -> Loop:
    clock = Clock(length, **FACTORS | arguments)
    scheduler = bind(schedule, make_adamw(), clock, key=key, tags=tags)

    def step() -> None:
        clock.tick()
        scheduler.step()

    return follow(scheduler, step)


def by_batch(clock: Any) -> float:
    return 1 / (1 + float(clock.timestamp.batch.value))


def make_bound() -> dict[str, Callable[[], Loop]]:
    """Schedules of `bind` and `ScheduleLR`, by the names of the cases."""
    cases: dict[str, Callable[[], Loop]] = {}
    for text in EXAMPLE_CALLS:
        if "] * 2" not in text:
            schedule = read_schedule(text, {}, "EXAMPLE_CALLS")
            key = "betas[1]" if text.startswith("HalfLife") else "lr"
            cases[text] = lambda schedule=schedule, key=key: follow_clock(schedule, key=key)
    line = LinearScheduler(alpha_f=0.1)
    return cases | {
        "a list": lambda: follow_clock([line, timesched.StepScheduler("20sp")]),
        "a function": lambda: follow_clock(by_batch),
        "tags": lambda: follow_clock(line, tags=["head"]),
        "weight decay": lambda: follow_clock(line, key="weight_decay", tags="!head"),
        "epochs": lambda: follow_clock(LinearScheduler(t_max="2ep"), "3ep"),
        "a ratio": lambda: follow_clock(line, "60ba", ssr=0.5),
        "no factors": lambda: follow(ScheduleLR(make_adamw(), line, 30)),
        "ScheduleLR": lambda: follow(ScheduleLR(make_adamw(), "WSD('0.1dur', t_decay='0.2dur')", "2000tok", **FACTORS)),
        "ScheduleLR in epochs": lambda: follow(ScheduleLR(make_adamw(), line, 30, unit="ep")),
    }


def make_absolute() -> dict[str, Callable[[], Loop]]:
    """The schedulers of values, of the learning rate and of the weight decay."""
    cases: dict[str, Callable[[], Loop]] = {}
    for stem, examples in FORMULAS.items():
        for i, arguments in enumerate(examples):
            if "functions" in arguments:
                continue
            for family in ("lr", "wd"):

                def make(stem: str = stem, arguments: Any = arguments, family: str = family) -> Loop:
                    return follow(building.make(stem, arguments, make_adamw(), family))

                cases[f"{building.name_of(stem, family)} {i}"] = make
    return cases


# Clocks, averages and optimizers


def make_clocks() -> dict[str, Callable[[], Loop]]:
    def follow_one(clock: Clock, **counts: Any) -> Loop:
        names = ("epoch", "batch", "sample", "token", "batch_in_epoch", "sample_in_epoch")
        return Loop(
            {"clock": clock},
            lambda: clock.tick(**counts),
            lambda: [int(getattr(clock.timestamp, name)) for name in names],
        )

    growing = BatchSizeSchedule({"0sp": 2, "10sp": 4})
    return {
        "no factors": lambda: follow_one(Clock("30ba")),
        "all factors": lambda: follow_one(Clock("2000tok", **FACTORS)),
        "growing batches": lambda: follow_one(Clock("200sp", samples_per_batch=growing)),
        "counts": lambda: follow_one(Clock("2000tok"), samples=3, tokens=17),
        "a ratio": lambda: follow_one(Clock("4ep", **FACTORS, ssr=0.5)),
    }


def make_averages() -> dict[str, Callable[[], Loop]]:
    def follow_one(**arguments: Any) -> Loop:
        clock, parameter = Clock("30ba"), torch.zeros(3, requires_grad=True)
        average = optim.WeightAverage([parameter], clock, **arguments)

        def step() -> None:
            clock.tick()
            with torch.no_grad():
                parameter.copy_(torch.tensor([1.0, -2.0, 0.5]) * clock.timestamp.batch.value)
            average.step()

        def read() -> list[float]:
            with average.swapped():
                return parameter.tolist()

        return Loop({"clock": clock, "average": average}, step, read)

    return {
        "mean": follow_one,
        "half-life": lambda: follow_one(half_life="3ba", start="2ba"),
        "fraction": lambda: follow_one(half_life=0.5),
    }


def make_optimizers() -> dict[str, Callable[[], Loop]]:
    """Each with as much state as it can have. Its parameters are saved, too."""

    def follow_one(row: Any) -> Loop:
        optimizer = problems.ours(row, problems.parameters(row.name))
        parameters, done = problems.flat(optimizer), {"steps": 0}

        def step() -> None:
            done["steps"] += 1
            problems.give_gradients(parameters, done["steps"], missing={})
            optimizer.step()

        saved = SavedParameters(parameters, done)
        return Loop({"optimizer": optimizer, "parameters": saved}, step, saved.read)

    return {row.name: lambda row=row: follow_one(row) for row in FULLEST}


@dataclass
class SavedParameters:
    """The parameters and the number of steps, as a part of a loop."""

    parameters: list[Tensor]
    done: dict[str, int]

    def state_dict(self) -> dict[str, Any]:
        return {"parameters": self.read(), **self.done}

    def read(self) -> Tensor:
        """All parameters in one tensor."""
        return torch.cat([p.detach().flatten() for p in self.parameters])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done["steps"] = state["steps"]
        parts = state["parameters"].split([p.numel() for p in self.parameters])
        for parameter, part in zip(self.parameters, parts):
            parameter.data.copy_(part.view(parameter.shape))


KINDS: dict[str, Callable[[], dict[str, Callable[[], Loop]]]] = {
    "bound": make_bound,
    "absolute": make_absolute,
    "clocks": make_clocks,
    "averages": make_averages,
    "optimizers": make_optimizers,
}


def load_all(path: Path) -> int:
    """Load each state of a file into objects made here. Returns their number."""
    kinds = torch.load(path, weights_only=True)
    for kind, cases in kinds.items():
        make_cases = KINDS[kind]()
        for name, case in cases.items():
            make_cases[name]().load(case["state"])
    return sum(map(len, kinds.values()))


def make_states() -> dict[str, dict[str, Any]]:
    """For each kind and case: the state, and what is seen after each later step."""
    made: dict[str, dict[str, Any]] = {}
    for kind, make_cases in KINDS.items():
        made[kind] = {}
        for name, make in make_cases().items():
            loop = make()
            loop.run(BEFORE)
            made[kind][name] = {"state": loop.state(), "seen": loop.run(AFTER)}
    return made


if __name__ == "__main__":
    path = STATES / f"{sys.argv[1]}.pt"
    if path.exists():
        raise SystemExit(f"{path} exists. A file of an earlier version is never written again.")
    STATES.mkdir(exist_ok=True)
    torch.save(make_states(), path)
    print(path, path.stat().st_size)
