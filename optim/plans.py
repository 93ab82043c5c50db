"""Plans: entries of a config, checked before anything is built, and then made into schedules and schedulers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

from timesched.binding import bind
from timesched.schedule import Schedule
from timesched.timevalue import Time
from timesched.units import TimeError

from .closed_form import Scheduler
from .lr_scheduler import ChainedLR, LRScheduler
from .registry import Known, catalogue, checked, find, located, nearest, parameters
from .weight_decay_scheduler import WeightDecayScheduler

_OWN = ("optimizer", "clock", "schedule")  # what a closed-form scheduler is not given by a config
_PARTS = ("scheduler", "schedulers", "schedule", "schedules")  # arguments that are entries themselves
_TAGS = "param_group_tags"
_BASES = (LRScheduler, WeightDecayScheduler)
_ALIASES = {"ChainedScheduler": ChainedLR}


def closed_forms(key: str | None = None) -> Known:
    """The closed-form schedulers there are, by name; those of one key, if it is given."""
    known = catalogue(Scheduler, lambda cls: partial_key(cls) not in ("", None) and cls not in _BASES)
    for alias, cls in _ALIASES.items():
        known.setdefault(alias, [cls])
    of_key = {name: [cls for cls in classes if key in (None, partial_key(cls))] for name, classes in known.items()}
    return {name: classes for name, classes in of_key.items() if classes}


def partial_key(cls: type) -> Any:
    return getattr(cls, "param_group_key", None)


def schedules() -> Known:
    """The schedules of `timesched`, and those of its users, by name."""
    return catalogue(Schedule, lambda cls: not cls.__name__.startswith("_") and not cls.__module__.startswith("optim."))
