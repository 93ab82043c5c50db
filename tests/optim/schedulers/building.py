"""Schedulers from the rows of the table, in each of the three families, and the optimizers under them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

import optim
from optim import lr_scheduler, scheduler, weight_decay_scheduler
from tests.optim.schedulers.parts import Nested

KEYS = {"lr": "lr", "wd": "weight_decay", "generic": "momentum"}  # what each family writes here
RATES = {
    "val": "learning_rate",
    "vals": "learning_rates",
    "initial_val": "initial_learning_rate",
    "end_val": "end_learning_rate",
    "base_val": "base_lr",
    "max_val": "max_lr",
}
KINDS = ("numbers", "tensors", "ours")


def optimizer(kind: str = "numbers", *groups: Mapping[str, Any], lr: float = 0.5) -> torch.optim.Optimizer:
    """SGD with one parameter a group: torch's with numbers or with float64 tensors, or ours, which holds tensors."""
    dealt = [{"params": [Parameter(torch.zeros(3))], **group} for group in groups or ({},)]
    cls = optim.SGD if kind == "ours" else torch.optim.SGD
    made = cls(dealt, lr=lr, momentum=0.9, weight_decay=0.02)
    if isinstance(made, optim.SGD):
        made.hold_tensors()
    if kind == "tensors":
        for group in made.param_groups:
            for key in KEYS.values():
                group[key] = torch.tensor(group[key], dtype=torch.float64)
    return made


@cache
def lambda_class(base: Any, functions: Any, method: str) -> Any:
    return type(base.__name__, (base,), {method: lambda self: list(functions), "__module__": __name__})


@cache
def generic_class(name: str) -> Any:
    base = getattr(scheduler, name)
    return type(name, (base,), {"param_group_key": "momentum", "__module__": __name__})


def name_of(stem: str, family: str) -> str:
    if family == "generic":
        return "ChainedScheduler" if stem == "Chained" else f"{stem}Scheduler"
    if stem == "CosineAnnealingWarmRestarts" and family == "lr":
        return stem
    return stem + family.upper()


def class_of(stem: str, family: str = "lr") -> Any:
    name = name_of(stem, family)
    if family == "generic":
        return generic_class(name)
    return getattr(lr_scheduler if family == "lr" else weight_decay_scheduler, name)


def make(stem: str, given: Mapping[str, Any], on: torch.optim.Optimizer, family: str = "lr", **more: Any) -> Any:
    """The scheduler of a row on an optimizer; `more` also goes to those inside it."""
    cls = class_of(stem, family)
    arguments: dict[str, Any] = {}
    for key, value in given.items():
        if key == "functions":
            cls = lambda_class(cls, value, "set_lr_lambda" if family == "lr" else "set_value_lambda")
        elif isinstance(value, Nested):
            arguments[key] = make(*value, on, family, **more)
        elif key == "schedulers":
            arguments[key] = [make(*one, on, family, **more) for one in value]
        else:
            arguments[RATES.get(key, key) if family == "lr" else key] = value
    return cls(**arguments, **more) if stem == "Chained" else cls(on, **arguments, **more)


def value(one: Any, group: int = 0) -> float:
    """What the group holds."""
    return float(one.optimizer.param_groups[group][one.param_group_key])


def stepped(one: Any, steps: int) -> list[float]:
    """The values in force at the steps 0 to `steps` - 1, a training step before each but the first."""
    seen = [value(one)]
    for _ in range(steps - 1):
        one.optimizer.step()
        one.step()
        seen.append(value(one))
    return seen


def moved(one: Any, t: int) -> Any:
    """The scheduler at another step, by a load."""
    one.load_state_dict({**one.state_dict(), "last_epoch": t})
    return one


def count(one: Any) -> int:
    assert isinstance(one.last_epoch, Tensor) and one.last_epoch.dtype == torch.int64 and one.last_epoch.dim() == 0
    return int(one.last_epoch)


def close(mine: float, other: float, scale: float, bound: float) -> bool:
    """|mine - other| <= bound * the largest of |other| and `scale`."""
    return abs(mine - other) <= bound * max(abs(other), scale)
