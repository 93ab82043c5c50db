"""The schedulers of a config: their entries are read and checked, and then the schedulers are made, children first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from numbers import Real
from typing import Any

import torch

from timesched.binding import Bound, bind
from timesched.binding.owner import Refusal
from timesched.reading import SCHEDULE, Family, prefix_errors
from timesched.run.horizon import Horizon, State
from timesched.schedulers.schedule import Schedule
from timesched.time.units import TimeError, TimeUnit
from timesched.time.value import Time
from timesched.types import Tags

from .. import lr_scheduler
from ..groups.decay import scheduled_groups
from .entries import Entry, Given, is_given, read_constructor, read_entry, rename_argument
from .names import CLOSED_FORM, LR, MAIN_LR, SCHEDULER
from .read import TAGS, OldLearningRate, read_numbers

# Keys of a schedule's entry that are arguments of bind().
BIND_KEYS = {TAGS: "tags", "key": "key", "on_change": "on_change"}
# The argument that is a child, the argument that is a list of children, and the classes of the children.
_CHILDREN_OF_SCHEDULES = ("schedule", "schedules", SCHEDULE)
_CHILDREN_OF_SCHEDULERS = ("scheduler", "schedulers", CLOSED_FORM)

_Named = tuple[Any, dict[str, Any], str]  # a class that an entry names, its arguments as they are written, its path

# Names: the classes and their arguments, before the optimizer is made


def resolve_scheduler(value: object, path: str, clock: State | None) -> Entry | Given:
    """The entry of a scheduler or schedule, or the scheduler or function that is in its place."""
    if is_given(value):
        return Given(path, value)
    if isinstance(value, OldLearningRate):
        return resolve_learning_rate(value.value, "optimizer.learning_rate", clock)
    cls, arguments, path = _find_class(read_numbers(value), path, SCHEDULER)
    options = {}
    if issubclass(cls, Schedule):
        if "tags" in arguments and "tags" not in read_constructor(cls).parameters:
            arguments = rename_argument(arguments, "tags", TAGS, path)
        options = {option: arguments.pop(key) for key, option in BIND_KEYS.items() if key in arguments}
    return replace(_resolve(cls, arguments, path, clock), options=options)


def resolve_learning_rate(learning_rate: Any, path: str, clock: State | None = None) -> Entry:
    """The entry of the scheduler for a learning rate: a number, a dict, or a list of dicts.

    A dict has the name of a class under `scheduler`. Its other keys are arguments of the class.
    """
    if isinstance(learning_rate, Real) and not isinstance(learning_rate, bool):
        return _resolve(lr_scheduler.ConstantLR, {"learning_rate": learning_rate}, path, clock)
    is_list = isinstance(learning_rate, (list, tuple))
    dicts = [dict(x) if isinstance(x, Mapping) else {} for x in (learning_rate if is_list else [learning_rate])]
    if not all("scheduler" in arguments for arguments in dicts):
        raise TypeError(
            f"{path}={learning_rate!r:.80}: this is no learning rate. Pass a number, or dicts with 'scheduler'."
        )
    if not is_list:
        return _resolve(LR.find(dicts[0].pop("scheduler"), path), dicts[0], path, clock)
    main_schedulers = [MAIN_LR.find(arguments.pop("main_scheduler", "SequentialLR"), path) for arguments in dicts]
    children = [(LR.find(x.pop("scheduler"), f"{path}[{i}]"), x, f"{path}[{i}]") for i, x in enumerate(dicts)]
    if lr_scheduler.ChainedLR in main_schedulers:
        entries = [_resolve(*child, clock) for child in children]
        return Entry(path, read_constructor(lr_scheduler.ChainedLR), {"schedulers": entries})
    return Entry(path, read_constructor(lr_scheduler.SequentialLR), _resolve_phases(children, clock))


def _find_class(value: object, path: str, family: Family) -> _Named:
    """The class of an entry `{Name: {arguments}}`, the arguments, and the path with the name."""
    name, arguments = read_entry(value, path)
    path = f"{path}.{name}"
    return family.find(name, path), arguments, path


def _resolve(cls: Any, arguments: dict[str, Any], path: str, clock: State | None) -> Entry:
    """The entry of a class with its arguments, in which the children become entries, too."""
    constructor, is_schedule = read_constructor(cls), issubclass(cls, Schedule)
    if "tags" in arguments and TAGS in constructor.parameters and "tags" not in constructor.parameters:
        arguments = rename_argument(arguments, "tags", TAGS, path)
    child_key, list_key, family = _CHILDREN_OF_SCHEDULES if is_schedule else _CHILDREN_OF_SCHEDULERS
    if child_key in arguments and not isinstance(arguments[child_key], Entry):  # `_resolve_phase` makes an entry of it
        arguments[child_key] = _resolve(*_find_class(arguments[child_key], f"{path}.{child_key}", family), clock)
    if list_key in arguments:
        values = arguments[list_key]
        if not isinstance(values, list):
            raise TypeError(f"{path}.{list_key}={values!r}: this is no list. Write each {family.kind} after a dash.")
        children = [_find_class(value, f"{path}.{list_key}[{i}]", family) for i, value in enumerate(values)]
        if is_schedule or "milestones" in arguments or "milestones" not in constructor.parameters:
            arguments[list_key] = [_resolve(*child, clock) for child in children]
        else:
            arguments |= _resolve_phases(children, clock)
    return Entry(path, constructor, constructor.read_arguments(arguments, path))


# A sequence without milestones: the lengths of its children, which are its phases, add up to the milestones


def _resolve_phases(children: Sequence[_Named], clock: State | None) -> dict[str, Any]:
    """The arguments `schedulers` and `milestones` of a sequence."""
    phases = [_resolve_phase(*child, clock) for child in children]
    return {"schedulers": [entry for entry, _ in phases], "milestones": _sum_lengths(phases[:-1], clock)}


def _resolve_phase(cls: Any, arguments: dict[str, Any], path: str, clock: State | None) -> tuple[Entry, Any]:
    """The entry of a phase, and its length, which is its `total_iters`. The class may have no such argument.

    A phase that scales a scheduler, and has no `total_iters`, is as long as this scheduler. The length may be None.
    """
    length = arguments.get("total_iters")
    if "total_iters" not in read_constructor(cls).parameters:
        arguments.pop("total_iters", None)
    child_key, _, family = _CHILDREN_OF_SCHEDULERS
    if length is None and child_key in arguments:
        child = _find_class(arguments[child_key], f"{path}.{child_key}", family)
        arguments[child_key], length = _resolve_phase(*child, clock)
    return _resolve(cls, arguments, path, clock), length


def _sum_lengths(phases: Sequence[tuple[Entry, Any]], clock: State | None) -> list[Any]:
    """The steps or times at which these phases end: running sums of their lengths."""
    horizon = Horizon(None) if clock is None else Horizon.of(clock)
    milestones: list[Time] = []
    for entry, length in phases:
        if length is None:
            raise ValueError(f"{entry.path}: the sequence needs its 'total_iters'. Write it, or give 'milestones'.")
        with prefix_errors(f"{entry.path}: total_iters={length!r}"):
            time = Time.from_input(length, "ba")
            milestones.append(horizon.add(milestones[-1], time) if milestones else time)
    return [milestone.value if milestone.unit is TimeUnit.BATCH else milestone for milestone in milestones]


# Objects: the schedulers, of which the optimizer has the groups


def make_scheduler(entry: Entry | Given, optimizer: Any, clock: State | None) -> Any:
    """Make the scheduler of an entry, and bind a schedule."""
    if isinstance(entry, Given):
        scheduler = entry.make(optimizer, "scheduler")
        if getattr(scheduler, "optimizer", optimizer) is not optimizer:
            name = type(scheduler).__name__
            raise ValueError(f"this {name} has a different optimizer. Create it with the optimizer of the config.")
        return scheduler
    scheduler = make_entry(entry, optimizer, clock if _has_time(entry) else None)
    if isinstance(scheduler, Schedule):
        if clock is None:
            raise ValueError(
                "a schedule needs a clock. Write 'max_duration' at the top of the config, or pass "
                "clock=timesched.Clock(...)."
            )
        return bind(scheduler, optimizer, clock, **entry.options)
    if scheduler.refusal is Refusal.UNUSED_FACTOR:
        return lr_scheduler.ScalePerParamLR(optimizer, scheduler, on_change=scheduler.on_change)
    return scheduler


def _has_time(value: object) -> bool:
    """Whether a value is a time, or an entry has a time in its arguments, so that it needs a clock."""
    if isinstance(value, Entry):
        values = [argument for name, argument in value.arguments.items() if name != TAGS]
        return issubclass(value.constructor.cls, Schedule) or _has_time(values)
    if isinstance(value, (list, tuple)):
        return any(map(_has_time, value))
    try:
        return isinstance(value, Time) or (isinstance(value, str) and Time.from_timestring(value) is not None)
    except TimeError:
        return False


def make_entry(entry: Entry, optimizer: torch.optim.Optimizer, clock: State | None = None, tags: Tags = None) -> Any:
    """Make the scheduler or schedule of an entry, and first its children.

    `tags`: the tags of its parent, which it uses if it has none of its own.
    """
    constructor, arguments = entry.constructor, dict(entry.arguments)
    tags = arguments.get(TAGS, tags)
    for name, value in arguments.items():
        if isinstance(value, Entry):
            arguments[name] = make_entry(value, optimizer, clock, tags)
        elif isinstance(value, list) and any(isinstance(item, Entry) for item in value):
            arguments[name] = [make_entry(child, optimizer, clock, tags) for child in value]
    if tags is not None and TAGS in constructor.parameters:
        arguments[TAGS] = tags
    if constructor.takes_clock and clock is not None:
        arguments["clock"] = clock
    positional = [optimizer] if constructor.takes_optimizer else []
    with prefix_errors(entry.path):
        return constructor.cls(*positional, **arguments)


def check_written(scheduler: object, no_decay_groups: Set[int]) -> None:
    """Raise `ValueError` if a later scheduler owns the key, or if this scheduler sets weight decay that must stay 0."""
    if isinstance(scheduler, Bound):
        scheduler.catch_up()
    if indices := no_decay_groups & scheduled_groups(scheduler):
        raise ValueError(
            f"this gives weight decay to parameter group {min(indices)}, which has none because of 'no_decay'. Give "
            f"the optimizer a 'decay_tag', and write the same tag as the scheduler's 'param_group_tags'."
        )
