"""Configs from objects: what `build` needs to make an optimizer and schedulers that equal the ones there are."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from timesched.binding import Bound
from timesched.schedule import Schedule
from timesched.slots import Slot
from timesched.targets import targets_of
from timesched.time.value import Time

from ..configure import Built
from ..schedules.closed_form import Scheduler
from ..schedules.formulas import Constant
from .plans import TAGS, closed_forms, not_given, planned, schedules
from .recipes import optimizers, own_arguments
from .registry import Known, full_name, is_ours, name_of
from .selectors import FACTORS, as_factor
from .undoing import living_targets


def to_config(optimizer: Any, schedulers: Iterable[Any] = ()) -> dict[str, Any]:
    """The config of an optimizer and its schedulers, in types that YAML and JSON have.

    For the same model, `build` makes equal objects of it: classes, arguments, groups with their tags, at step 0.
    Arguments that have their default values are left out, unless they were in the config of `build`. The counts of
    a scheduler that follows a clock are times, and all there.

    Args:
        optimizer: what `build` returned, of which the config then also has the rules of the groups and the keys of the
            run; or an optimizer of `optim` with one parameter group, or of a subclass of one's own that keeps its
            arguments among its `defaults` or as attributes.
        schedulers: all its schedulers: closed-form ones, and schedules of `timesched` bound to it.

    Raises:
        ValueError: a class that `build` would not find, an argument that no config can hold or that the object does
            not keep; several groups, or one with tags or values of its own, that no config was the origin of; a
            scheduler that drives the optimizer and was not passed, or that follows a clock and has no times.
        TypeError: an argument has another type.

    >>> from optim import SGD
    >>> from optim.lr_scheduler import LinearLR
    >>> optimizer = SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1, momentum=0.9)
    >>> config = to_config(optimizer, [LinearLR(optimizer, 0.1, 0.0, total_iters=100)])
    >>> config["optimizer"]
    {'SGD': {'lr': 0.1, 'momentum': 0.9}}
    >>> config["schedulers"]
    [{'LinearLR': {'initial_learning_rate': 0.1, 'end_learning_rate': 0.0, 'total_iters': 100}}]
    """
    origin: Mapping[str, Any] = {}
    if isinstance(optimizer, Built):
        origin, schedulers, optimizer = optimizer.origin, [*optimizer.schedulers, *schedulers], optimizer.optimizer
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer={optimizer!r:.80}: pass what build() returned, or an optimizer.")
    schedulers = list(schedulers)
    entries = [_entry(each, f"schedulers[{i}]") for i, each in enumerate(schedulers)]
    _refuse_others(optimizer, schedulers)
    name = _name(type(optimizer), optimizers(), "optimizer")
    arguments = _arguments(optimizer, origin.get("arguments", ()))
    if not origin.get("groups") or len(optimizer.param_groups) != origin["number"]:
        _refuse_groups(optimizer)
    groups = data(_with_factors(origin.get("groups", {})), "optimizer")
    config: dict[str, Any] = {"optimizer": {name: arguments | groups}}
    if entries:
        config["schedulers"] = entries
    run: dict[str, Any] = data(origin.get("run", {}), "config")
    return config | run


def data(value: Any, where: str) -> Any:
    """A value in plain types. Raises `ValueError` for one that has none."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, Time) or hasattr(value, "to_timestring"):
        return str(Time.from_input(value))
    if isinstance(value, (Scheduler, Schedule)):
        return _entry(value, where)
    if isinstance(value, type) and issubclass(value, torch.nn.Module):
        return value.__name__  # a layer type, which its name selects as well
    if isinstance(value, Mapping) and all(isinstance(key, (str, type)) for key in value):
        return {data(key, where): data(each, f"{where}.{key}") for key, each in value.items()}
    if isinstance(value, (set, frozenset)):
        return [data(each, where) for each in sorted(value, key=lambda each: (each is not None, each))]
    if isinstance(value, (list, tuple, range)):
        return [data(each, f"{where}[{i}]") for i, each in enumerate(value)]
    if callable(getattr(value, "tolist", None)):  # an array of numpy
        return data(value.tolist(), where)
    raise ValueError(f"{where}={value!r:.80} is of type {type(value).__name__}, which a config cannot hold.")


def _with_factors(value: Any) -> Any:
    """What made the groups, with each factor as the number that the groups have."""
    if isinstance(value, (list, tuple)):
        return [_with_factors(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    found = {name: _with_factors(each) for name, each in value.items()}
    for name in (name for name in FACTORS if name in found):
        given = found[name]
        several = isinstance(given, Mapping)
        found[name] = {key: as_factor(name, each) for key, each in given.items()} if several else as_factor(name, given)
    return found


def _name(cls: type, known: Known, kind: str) -> str:
    """What a config calls a class."""
    name = name_of(cls, known)
    if name is None:
        raise ValueError(f"{full_name(cls)} is no {kind} that build() finds by its name, so no config can name it.")
    return name


def _arguments(optimizer: torch.optim.Optimizer, given: Iterable[str]) -> dict[str, Any]:
    """The arguments of an optimizer that were given, or are not their defaults."""
    found = {}
    for name, parameter in own_arguments(type(optimizer)).items():
        where = f"{type(optimizer).__name__}.{name}"
        if name in optimizer.defaults:
            value = optimizer.defaults[name]
        elif hasattr(optimizer, name):
            value = getattr(optimizer, name)
        else:
            raise ValueError(f"{where} is an argument that the optimizer does not keep: put it into its defaults.")
        plain = data(value, where)
        if name in given or parameter.default is parameter.empty or plain != data(parameter.default, where):
            found[name] = plain
    return found


def _refuse_groups(optimizer: torch.optim.Optimizer) -> None:
    """Raise `ValueError` unless all parameters are in one group that has nothing but the arguments of the optimizer."""
    several = len(optimizer.param_groups) > 1
    group, defaults = optimizer.param_groups[0], optimizer.defaults
    driven = {target.slot.key for target in targets_of(optimizer)}
    own = {"tags"} if group.get("tags") else set()
    for key, value in group.items():
        first = key.removeprefix("initial_")  # what a bound schedule multiplies
        if key.startswith("initial_") and first.partition("[")[0] in defaults:
            if data(value, key) != data(Slot(first).read(defaults, "defaults"), key):
                own.add(first)
        elif key not in ("params", "param_names", "tags", *driven) and (
            key not in defaults or data(value, key) != data(defaults[key], key)
        ):
            own.add(key)
    if several or own:
        has = f"{len(optimizer.param_groups)} parameter groups" if several else f"{', '.join(sorted(own))} of its own"
        raise ValueError(
            f"{type(optimizer).__name__} has {has}{' in its parameter group' if not several else ''}, and build() did "
            f"not make that: write the groups as rules under 'params' of a config, and pass what build() returns."
        )


def _refuse_others(optimizer: torch.optim.Optimizer, schedulers: list[Any]) -> None:
    """Raise `ValueError` where a scheduler drives the optimizer that is not among those given."""
    for other in living_targets(optimizer, tuple(each._target for each in schedulers)):
        raise ValueError(
            f"A scheduler of {other.name!r} (tags: {other.tags!r}) drives the optimizer, and was not passed: pass all "
            f"schedulers, or call unbind() on it."
        )


def _entry(scheduler: Any, where: str, tags: Any = None, clocked: bool = False) -> dict[str, Any]:
    """The entry of a scheduler or schedule; as a part of another, without the `tags` that it takes over from that.

    A part is `clocked` where the whole follows a clock.
    """
    if isinstance(scheduler, Bound):
        schedule = scheduler.schedule
        if not isinstance(schedule, Schedule):
            raise ValueError(f"{where} is bound to functions, or to several schedules: make them one ProductScheduler.")
        (entry,) = _entry(schedule, where).items()
        more = {"key": scheduler.key} if scheduler.key != "lr" else {}
        more |= {} if scheduler.tags is None else {TAGS: data(scheduler.tags, where)}
        return {entry[0]: entry[1] | more}
    if isinstance(scheduler, Schedule):
        name = _name(type(scheduler), schedules(), "schedule")
        values = {}
        for field in dataclasses.fields(scheduler):  # type: ignore[arg-type]  # every schedule is a dataclass
            place, read = f"{where}.{name}.{field.name}", field.metadata.get("read", lambda _, default: default)
            value = data(getattr(scheduler, field.name), place)
            if field.default is dataclasses.MISSING or value != data(read(field.name, field.default), place):
                values[field.name] = value
        return {name: values}
    if not isinstance(scheduler, Scheduler):
        raise TypeError(f"{where}={scheduler!r:.80} is no scheduler of this package: a config cannot name it.")
    name = _name(type(scheduler), closed_forms(), "scheduler")
    part, clocked = clocked, clocked or scheduler.clock is not None
    arguments = _given(scheduler, clocked)
    own = arguments.pop(TAGS, None)
    whole = tags if own is None else own
    found: dict[str, Any] = {}
    for key, value in arguments.items():
        place = f"{where}.{name}.{key}"
        several = isinstance(value, (list, tuple)) and any(isinstance(each, Scheduler) for each in value)
        if several:
            found[key] = [_entry(each, f"{place}[{i}]", whole, clocked) for i, each in enumerate(value)]
        else:
            found[key] = _entry(value, place, whole, clocked) if isinstance(value, Scheduler) else data(value, place)
    if own is not None and _listed(own) != _listed(tags):
        found[TAGS] = data(own, where)
    written, timeless = {name: found}, getattr(scheduler, "formula", None) is Constant
    if clocked and not (part or timeless or planned(written, where, closed_forms(), "scheduler").follows_time()):
        raise ValueError(
            f"{where}: this {name} follows a clock, and has no argument that is a time: build() would make one that "
            f"counts its own steps. Leave it out of the config, and make it after build()."
        )
    return written


def _given(scheduler: Scheduler, clocked: bool) -> dict[str, Any]:
    """The arguments that a scheduler was given, as it has them.

    A constructor of this package keeps under each name what it made of it; by a clock, its numbers of steps are times
    in batches, also those by default, as only times make `build` pass one. What a constructor of somebody else's did
    with its arguments nobody knows: they are as they were given.
    """
    cls = type(scheduler)
    given = {key: value for key, value in scheduler.arguments.items() if key not in not_given(cls)}
    if not is_ours(next(each for each in cls.__mro__ if "__init__" in vars(each))):
        return given
    kept = {name: _timed(value) if clocked else value for name, value in getattr(scheduler, "effective", {}).items()}
    kept[TAGS] = scheduler.param_group_tags
    lengths = {key: value for key, value in kept.items() if isinstance(value, Time)} if clocked else {}
    return lengths | {key: value if value is None else kept.get(key, value) for key, value in given.items()}


def _timed(value: Any) -> Any:
    """A value in which numbers of steps, the only ones that are kept as an int, are times."""
    if isinstance(value, (list, tuple)):
        return [_timed(each) for each in value]
    return Time(value, "ba") if type(value) is int else value


def _listed(tags: Any) -> list[Any]:
    return sorted([tags] if isinstance(tags, str) else tags or (), key=str)
