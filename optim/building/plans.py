"""Plans: the schedulers of a config, checked as far as possible before anything is built, and then made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from typing import Any

import torch

import timesched.composition
import timesched.schedulers  # noqa: F401  # what is imported can be found
from timesched.binding import bind
from timesched.horizon import Horizon
from timesched.schedule import Schedule
from timesched.time.units import TimeError, TimeUnit
from timesched.time.value import Time

from ..lr_scheduler import ChainedScheduler, LRScheduler
from ..schedules.closed_form import Scheduler
from ..weight_decay_scheduler import WeightDecayScheduler
from .registry import Known, catalogue, checked, find, is_ours, located, named, owner, parameters

TAGS = "param_group_tags"
_SEQUENCE = {"schedulers", "milestones"}


@dataclass(frozen=True)
class Plan:
    """A scheduler or a schedule to be made. Plans among the arguments are its parts."""

    path: str
    cls: type
    arguments: Mapping[str, Any]
    total: Any = None  # its `total_iters`
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

    def length(self, clock: Any) -> Any:
        """The steps, or the time, after which the next one of a sequence begins; None where nothing says it."""
        inner = self.arguments.get("scheduler")
        if self.total is not None:
            return self.total
        if isinstance(inner, Plan):
            return inner.length(clock)
        begins = self.arguments.get("milestones")
        if not (isinstance(begins, list) and self.parts) or (last := self.parts[-1].length(clock)) is None:
            return None
        with located(self.path):
            return _sum(begins[-1] if begins else 0, last, clock)

    def follows_time(self) -> bool:
        """Whether it is a function of times, and so needs a clock."""
        return (
            issubclass(self.cls, Schedule)
            or any(_is_time(value) for name, value in self.arguments.items() if name != TAGS)
            or any(part.follows_time() for part in self.parts)
        )

    def make(self, optimizer: torch.optim.Optimizer, clock: Any, tags: Any = None) -> Any:
        """The scheduler, or the schedule if it is a part of another."""
        tags = self.arguments.get(TAGS, tags)
        arguments = dict(self.arguments)
        for name, value in arguments.items():
            if isinstance(value, Plan):
                arguments[name] = value.make(optimizer, clock, tags)
            elif isinstance(value, list):
                arguments[name] = [v.make(optimizer, clock, tags) if isinstance(v, Plan) else v for v in value]
        with located(self.path):
            if not issubclass(self.cls, Schedule):
                takes, _ = parameters(self.cls)
                shared = {TAGS: tags, "clock": clock}
                shared = {name: value for name, value in shared.items() if value is not None and name in takes}
                first = [optimizer] if _takes_optimizer(takes) else []
                return self.cls(*first, **(shared | arguments))
            schedule = self.cls(**arguments)
            return schedule if self.binding is None else bind(schedule, optimizer, clock, **self.binding)


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


def planned(
    entry: Any, path: str, known: Known, kind: str, clock: Any = None, part: bool = False, counted: bool = False
) -> Plan:
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
    total = given.get("total_iters")
    if counted and "total_iters" not in takes and not open_ended:
        given.pop("total_iters", None)
    sequence = takes.keys() >= _SEQUENCE and "milestones" not in given
    for argument, value in given.items():
        where = f"{inner}.{argument}"
        ours = argument in takes and is_ours(owner(cls, argument)) and _is_data(value)
        if argument in _several(timed) and (ours or _holds_entries(value)):
            given[argument] = planned_parts(value, where, family, kind, clock, sequence)
        elif argument in _one(timed) and (ours or isinstance(value, Mapping)):
            given[argument] = planned(value, where, family, kind, clock, True, counted)
    parts = given.get("schedulers")
    if sequence and isinstance(parts, list) and parts and all(isinstance(each, Plan) for each in parts):
        given["milestones"] = milestones(parts, inner, clock)
    return Plan(inner, cls, checked(cls, given, inner, () if timed else not_given(cls)), total, binding)


def planned_parts(entries: Any, path: str, known: Known, kind: str, clock: Any, counted: bool) -> list[Plan]:
    """The plans of a list of entries."""
    if isinstance(entries, Sequence) and not entries:
        raise ValueError(f"{path} is an empty list: write at least one {kind}.")
    if isinstance(entries, (str, Mapping)) or not isinstance(entries, Sequence):
        raise TypeError(f"{path}={entries!r:.80}: write a list, with each {kind} after a dash.")
    return [planned(each, f"{path}[{i}]", known, kind, clock, True, counted) for i, each in enumerate(entries)]


def milestones(parts: Sequence[Plan], path: str, clock: Any) -> list[Any]:
    """Where each part but the first begins, by the lengths of those before it."""
    found: list[Any] = []
    for part in parts[:-1]:
        length = part.length(clock)
        if length is None:
            raise ValueError(
                f"{part.path} has no 'total_iters', after which the next one begins: give it, or give {path} "
                f"'milestones'."
            )
        with located(f"{part.path}: total_iters={length!r}"):
            found.append(_sum(found[-1] if found else 0, length, clock))
    return found


def _sum(total: Any, length: Any, clock: Any) -> Any:
    """The sum of two numbers of steps or times: a number if both are, else the text of a time."""
    if not _is_time(length) and not _is_count(length):
        raise ValueError("it has to be a number of steps, 0 or more, or a time such as '10ba'.")
    if not _is_time(total) and not _is_time(length):
        return total + int(length)
    one, other = (Time.from_input(each, "ba") for each in (total, length))
    if one.exact == 0 or other.exact == 0:
        return str(other if one.exact == 0 else one)
    if one.unit is other.unit:
        return str(one + other)
    if clock is None:
        raise ValueError(f"{one} and {other} add up on a clock alone: pass one, or give 'milestones'.")
    run, ends = Horizon.of(clock), (one, other)
    if TimeUnit.DURATION in (one.unit, other.unit):  # a share of the run stays one when the ratio stretches the other
        whole, unit = run.locate("1dur")
        share = sum(Fraction(run.change(*run.locate(end), unit)) for end in ends) / whole
        return str(Time._of(Fraction(share), TimeUnit.DURATION))
    fine = max((run.locate(end, scale=False)[1] for end in ends), key=list(TimeUnit).index)
    return str(Time._of(sum(run.change(*run.locate(end, scale=False), fine) for end in ends), fine))


def _takes_optimizer(takes: Mapping[str, Any]) -> bool:
    return next(iter(takes), "") not in ("scheduler", "schedulers")


def not_given(cls: type) -> tuple[str, ...]:
    """The arguments of a closed-form scheduler that are not for a config to give."""
    takes, _ = parameters(cls)
    own = {name for name in ("clock", "schedule") if name in takes and not is_ours(owner(cls, name))}
    return (*{"clock", "schedule"} - own, *([next(iter(takes))] if takes and _takes_optimizer(takes) else ()))


def _one(timed: bool) -> tuple[str, ...]:
    """The arguments that are entries themselves."""
    return ("scheduler", "schedule") if timed else ("scheduler",)


def _several(timed: bool) -> tuple[str, ...]:
    return ("schedulers", "schedules") if timed else ("schedulers",)


def _holds_entries(value: Any) -> bool:
    return isinstance(value, Mapping) or (
        isinstance(value, (list, tuple)) and all(isinstance(each, (Mapping, str)) for each in value)
    )


def _is_data(value: Any) -> bool:
    """Whether there is no object in it that may be a scheduler."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_data, value))
    return value is None or isinstance(value, (str, Real, Mapping))


def _is_count(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and float(value) >= 0 and float(value).is_integer()


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
