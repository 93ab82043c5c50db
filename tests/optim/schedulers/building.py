"""Schedulers from the examples of rows.py, of learning rates and of weight decays, and the optimizers under them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import optim
import timesched
from optim import lr_scheduler, weight_decay_scheduler
from tests.optim.schedulers.rows import Nested

RATES = dict(val="learning_rate", initial_val="initial_learning_rate", end_val="end_learning_rate")
RATES |= dict(vals="learning_rates", base_val="base_lr", max_val="max_lr")
GROUPS = ({}, {"tags": "a"}, {"tags": ["a", "b"]}, {"tags": ["c"]})
KIND = pytest.mark.parametrize("kind", ("numbers", "tensors", "ours", "our tensors"))


def optimizer(kind: str = "numbers", *groups: Mapping[str, Any], lr: Any = 0.5) -> torch.optim.Optimizer:
    """SGD with one parameter a group: torch's or ours, with numbers or with float64 tensors."""
    with_params = [{"params": [Parameter(torch.zeros(3))], **group} for group in groups or ({},)]
    cls = optim.SGD if kind in ("ours", "our tensors") else torch.optim.SGD
    made = cls(with_params, lr=lr, momentum=0.9, weight_decay=0.02)
    if isinstance(made, optim.SGD) and kind == "our tensors":
        made.hold_tensors()
    elif kind == "tensors":
        for group in made.param_groups:
            for key in ("lr", "weight_decay", "momentum"):
                group[key] = torch.tensor(float(group[key]), dtype=torch.float64)
    return made


def one_group(tags: Any = None, **values: Any) -> dict[str, Any]:
    """A parameter group to add to an optimizer, or to put in the place of another one."""
    tagged = {} if tags is None else {"tags": tags}
    return {"params": [Parameter(torch.zeros(3))], **tagged, **values}


@cache
def with_functions(base: Any, functions: Any) -> Any:
    return type(base.__name__, (base,), {"set_lr_lambda": lambda self: list(functions), "__module__": __name__})


class Ramp(lr_scheduler.LRScheduler):
    """A closed form of the user's own: a tenth of the step."""

    def _get_closed_form_lr(self) -> Tensor:
        return self.last_epoch.double() * 0.1


def name_of(stem: str, family: str) -> str:
    if stem == "CosineAnnealingWarmRestarts" and family == "lr":
        return stem
    return stem + family.upper()


def class_of(stem: str, family: str = "lr") -> Any:
    return getattr(lr_scheduler if family == "lr" else weight_decay_scheduler, name_of(stem, family))


def make(stem: str, given: Mapping[str, Any], on: torch.optim.Optimizer, family: str = "lr", **more: Any) -> Any:
    """A scheduler of the table on an optimizer; `more` also goes to those inside it."""
    cls = class_of(stem, family)
    arguments: dict[str, Any] = {}
    for key, value in given.items():
        if key == "functions":
            cls = with_functions(cls, value)
        elif isinstance(value, Nested):
            arguments[key] = make(*value, on, family, **more)
        elif key == "schedulers":
            arguments[key] = [make(*each, on, family, **more) if isinstance(each, Nested) else each for each in value]
        else:
            arguments[RATES.get(key, key) if family == "lr" else key] = value
    return cls(**arguments, **more) if stem == "Chained" else cls(on, **arguments, **more)


def constant(on: torch.optim.Optimizer, rate: float = 0.1, tags: Any = None) -> Any:
    return lr_scheduler.ConstantLR(on, rate, param_group_tags=tags)


def line(on: torch.optim.Optimizer, clock: Any = None, tags: Any = None) -> Any:
    return lr_scheduler.LinearLR(on, 1.0, 0.0, 10, param_group_tags=tags, clock=clock)


# What owns a key and writes it, whatever it is: made of an optimizer, a clock and tags.
MAKERS: dict[str, Callable[..., Any]] = {
    "bind": lambda on, clock=None, tags=None: timesched.bind(
        timesched.LinearScheduler(), on, clock or timesched.Clock("10ba"), tags=tags
    ),
    "closed": lambda on, clock=None, tags=None: line(on, tags=tags),
    "clock": lambda on, clock=None, tags=None: line(on, clock or timesched.Clock("10ba"), tags),
    "custom": lambda on, clock=None, tags=None: Ramp(on, param_group_tags=tags),
    "composed": lambda on, clock=None, tags=None: lr_scheduler.ScalePerParamLR(on, line(on, tags=tags)),
}
EACH_MAKER = pytest.mark.parametrize("new", MAKERS.values(), ids=MAKERS)


def floats(several: Any) -> list[float]:
    return [float(each) for each in several]


def rates(on: torch.optim.Optimizer, key: str = "lr") -> list[float]:
    """What the groups hold."""
    return floats(group[key] for group in on.param_groups)


def value(one: Any, group: int = 0) -> float:
    """What the group holds."""
    return float(one.optimizer.param_groups[group][one.key])


def stepped(one: Any, steps: int) -> list[float]:
    """The values in force at the steps 0 to `steps` - 1, a training step before each but the first."""
    seen = [value(one)]
    for _ in range(steps - 1):
        one.optimizer.step()
        one.step()
        seen.append(value(one))
    return seen


def ticked(one: Any, clock: Any, steps: int) -> list[float]:
    """The same with a clock, and with one value more."""
    seen = [value(one)]
    for _ in range(steps):
        clock.tick()
        one.step()
        seen.append(value(one))
    return seen


def moved(one: Any, t: int) -> Any:
    """The scheduler at another step."""
    one.last_epoch = t
    one.refresh()
    return one


def count(one: Any) -> int:
    assert isinstance(one.last_epoch, Tensor) and one.last_epoch.dtype == torch.int64 and one.last_epoch.dim() == 0
    return int(one.last_epoch)
