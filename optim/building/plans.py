"""Plans: the schedulers of a config, checked as far as possible before anything is built, and then made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import timesched.composition
import timesched.schedulers  # noqa: F401  # what is imported can be found
from timesched.binding import bind
from timesched.schedule import Schedule
from timesched.timevalue import Time
from timesched.units import TimeError

from ..lr_scheduler import ChainedScheduler, LRScheduler
from ..schedules.closed_form import Scheduler
from ..weight_decay_scheduler import WeightDecayScheduler
from .registry import Known, catalogue, checked, find, located, named, parameters

TAGS = "param_group_tags"
_ONE, _SEVERAL = ("scheduler", "schedule"), ("schedulers", "schedules")  # arguments that are entries themselves
_SEQUENCE = {"schedulers", "milestones"}


@dataclass(frozen=True)
class Plan:
    """A scheduler or a schedule to be made. Plans among the arguments are its parts."""

    path: str
    cls: type
    arguments: Mapping[str, Any]
    length: Any = None  # the steps, or the time, after which the next one of a sequence begins
    binding: Mapping[str, Any] | None = None  # of a schedule of timesched: `key` and `tags`

    @property
    def parts(self) -> list[Plan]:
        """The plans among the arguments."""
        several = (value if isinstance(value, list) else [value] for value in self.arguments.values())
        return [each for values in several for each in values if isinstance(each, Plan)]

    @property
    def key(self) -> str:
        """What it schedules."""
        return getattr(self.cls, "param_group_key", "") if self.binding is None else self.binding.get("key", "lr")

    @property
    def tags(self) -> Any:
        """The tags of its groups, or those of its parts."""
        own = self.arguments.get(TAGS)
        return next((part.tags for part in self.parts if part.tags is not None), None) if own is None else own

    def follows_time(self) -> bool:
        """Whether it is a function of times, and so needs a clock."""
        return (
            issubclass(self.cls, Schedule)
            or any(_is_time(value) for name, value in self.arguments.items() if name != TAGS)
            or any(part.follows_time() for part in self.parts)
        )

    def make(self, optimizer: torch.optim.Optimizer, clock: Any, made: list[Any], tags: Any = None) -> Any:
        """The scheduler, or the schedule if it is a part of another; `made` gets all schedulers, also the parts."""
        tags = self.arguments.get(TAGS, tags)
        arguments = dict(self.arguments)
        for name, value in arguments.items():
            if isinstance(value, Plan):
                arguments[name] = value.make(optimizer, clock, made, tags)
            elif isinstance(value, list):
                arguments[name] = [v.make(optimizer, clock, made, tags) if isinstance(v, Plan) else v for v in value]
        with located(self.path):
            if not issubclass(self.cls, Schedule):
                takes, _ = parameters(self.cls)
                shared = {TAGS: tags, "clock": clock}
                arguments |= {name: value for name, value in shared.items() if value is not None and name in takes}
                first = [optimizer] if _takes_optimizer(takes) else []
                scheduler = self.cls(*first, **arguments)
            elif self.binding is None:
                return self.cls(**arguments)
            else:
                scheduler = bind(self.cls(**arguments), optimizer, clock, **self.binding)
        made.append(scheduler)
        return scheduler


def closed_forms(key: str | None = None) -> dict[str, list[type]]:
    """The closed-form schedulers there are, by name; only those of one key, if it is given."""

    def accepted(cls: type) -> bool:
        own = getattr(cls, "param_group_key", "")
        return bool(own) and key in (None, own) and cls not in (LRScheduler, WeightDecayScheduler)

    known = catalogue(Scheduler, accepted)
    if accepted(ChainedScheduler):
        known.setdefault("ChainedScheduler", []).append(ChainedScheduler)  # its other name
    return known


def schedules() -> dict[str, list[type]]:
    """The schedules over times there are, by name."""
    return catalogue(Schedule, lambda cls: not cls.__name__.startswith("_") and not cls.__module__.startswith("optim."))


def all_schedulers() -> Known:
    """What may stand in a list of schedulers."""
    known = closed_forms()
    for name, classes in schedules().items():
        known.setdefault(name, []).extend(classes)
    return known


def planned(entry: Any, path: str, known: Known, kind: str, part: bool = False, counted: bool = False) -> Plan:
    """The plan of an entry. A `part` of a sequence without milestones is `counted`: its `total_iters` is its length.

    Raises `TypeError` and `ValueError`, which begin with the path, for all that can be found without an optimizer.
    """
    name, given, inner = named(entry, path, "scheduler")
    cls = find(name, known, path, kind)
    takes, open_ended = parameters(cls)
    binding: dict[str, Any] | None = None
    timed = issubclass(cls, Schedule)
    if timed and not part:
        binding = {new: given.pop(old) for old, new in (("key", "key"), (TAGS, "tags")) if old in given}
    key = getattr(cls, "param_group_key", "")
    family, kind = (schedules(), "schedule") if timed else (closed_forms(key), f"{key} scheduler")
    length = given.get("total_iters")
    if counted and "total_iters" not in takes and not open_ended:
        given.pop("total_iters", None)
    sequence = takes.keys() >= _SEQUENCE and "milestones" not in given
    for argument, value in given.items():
        where = f"{inner}.{argument}"
        if argument in _SEVERAL and _holds_entries(value):
            given[argument] = planned_parts(value, where, family, kind, sequence)
        elif argument in _ONE and isinstance(value, Mapping):
            given[argument] = planned(value, where, family, kind, part=True, counted=counted)
            length = given[argument].length if length is None else length
    parts = given.get("schedulers")
    if sequence and isinstance(parts, list) and parts and all(isinstance(each, Plan) for each in parts):
        given["milestones"] = milestones(parts, inner)
        if length is None and parts[-1].length is not None:
            length = milestones([*parts, parts[-1]], inner)[-1]
    return Plan(inner, cls, checked(cls, given, inner, () if timed else not_given(takes)), length, binding)


def planned_parts(entries: Any, path: str, known: Known, kind: str, counted: bool) -> list[Plan]:
    """The plans of a list of entries."""
    if isinstance(entries, (str, Mapping)) or not isinstance(entries, Sequence):
        raise TypeError(f"{path}={entries!r:.80}: write a list, with each {kind} after a dash.")
    return [planned(each, f"{path}[{i}]", known, kind, True, counted) for i, each in enumerate(entries)]


def milestones(parts: Sequence[Plan], path: str) -> list[Any]:
    """Where each part but the first begins, by the lengths of those before it."""
    found: list[Any] = []
    for part in parts[:-1]:
        if part.length is None:
            raise ValueError(
                f"{part.path} has no 'total_iters', after which the next one begins: give it, or give {path} "
                f"'milestones'."
            )
        with located(f"{part.path}: total_iters={part.length!r}"):
            found.append(_sum(found[-1], part.length) if found else _sum(0, part.length))
    return [str(each) if isinstance(each, Time) else each for each in found]


def _sum(total: Any, length: Any) -> Any:
    if not _is_time(length) and not _is_count(length):
        raise ValueError("it has to be a number of steps, 0 or more, or a time such as '10ba'.")
    if not _is_time(total) and not _is_time(length):
        return total + int(length)
    several = [Time.from_input(each, "ba") for each in (total, length) if each != 0]
    return several[0] if len(several) == 1 else several[0] + several[1]


@contextmanager
def undone(optimizer: torch.optim.Optimizer, made: list[Any]) -> Iterator[None]:
    """On an error, take the schedulers in `made` off the optimizer, and give its groups back what they held."""
    before = [dict(group) for group in optimizer.param_groups]
    held = [(tensor, tensor.detach().clone()) for group in before for tensor in _tensors(group)]
    try:
        yield
    except BaseException:
        for scheduler in reversed(made):
            unbind = getattr(scheduler, "unbind", None)
            if unbind is not None:
                unbind()
        with torch.no_grad():
            for tensor, value in held:
                tensor.copy_(value)
        for group, values in zip(optimizer.param_groups, before):
            group.clear()
            group.update(values)
        raise


def _tensors(group: Mapping[str, Any]) -> Iterator[Tensor]:
    for name, value in group.items():
        if name != "params":
            for each in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(each, Tensor):
                    yield each


def _takes_optimizer(takes: Mapping[str, Any]) -> bool:
    return next(iter(takes), "") not in (*_ONE, *_SEVERAL)


def not_given(takes: Mapping[str, Any]) -> tuple[str, ...]:
    """The arguments of a closed-form scheduler that are not for a config to give."""
    return ("clock", "schedule", *([next(iter(takes))] if takes and _takes_optimizer(takes) else ()))


def _holds_entries(value: Any) -> bool:
    return isinstance(value, Mapping) or (
        isinstance(value, (list, tuple)) and all(isinstance(each, (Mapping, str)) for each in value)
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0 and float(value).is_integer()


def _is_time(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_is_time, value))
    if not isinstance(value, str) and not hasattr(value, "to_timestring") and not isinstance(value, Time):
        return False
    try:
        Time.from_input(value)
    except TimeError:
        return False
    return True
