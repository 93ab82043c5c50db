"""Step 2, resolve: the classes that a config names, and their arguments, checked before the model is looked at."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch

from timesched.clock import Clock
from timesched.horizon import Horizon
from timesched.schedule import Schedule
from timesched.time.units import TimeError
from timesched.time.value import Time

from ..groups.rules import FACTOR, FACTORS, RULE_KEYS, claims_of_rules
from ..names import SCHEDULE, SCHEDULER, Family, closed_forms, nearest, optimizers
from ..scheduler import Scheduler

RUN = tuple(inspect.signature(Clock).parameters)  # the keys of a config that make its clock
KEYS = ("optimizer", "schedulers", *RUN)
GROUPING = ("no_decay", FACTOR, "decay_tag", "frozen")  # of an optimizer's entry, for configure_param_groups
TAGS = "param_group_tags"


@dataclass(frozen=True)
class Spec:
    """An object to be made: a class and its arguments. Specs among the arguments are the schedulers inside it."""

    path: str
    cls: type
    arguments: Mapping[str, Any]
    total_iters: Any = None  # of the entry, also where the class has no such argument
    options: Mapping[str, Any] | None = None  # of a schedule's bind(); of the groups of an optimizer

    @property
    def children(self) -> list[Spec]:
        several = (value if isinstance(value, list) else [value] for value in self.arguments.values())
        return [each for values in several for each in values if isinstance(each, Spec)]

    def follows_time(self) -> bool:
        """Whether it is a function of times, and so needs a clock."""
        times = (is_time(value) for name, value in self.arguments.items() if name != TAGS)
        return issubclass(self.cls, Schedule) or any(times) or any(child.follows_time() for child in self.children)


# Entries and their arguments


def sections(given: Any) -> dict[str, Any]:
    """What a config says by our keys. In a Trainer's file they stand under `trainer` and `init`, beside its own."""
    foreign: set[Any] = set()
    if isinstance(given, dict) and isinstance(given.get("trainer"), dict) and not set(KEYS).intersection(given):
        given = given["trainer"].get("init")
        foreign = {name for name in given or () if not difflib.get_close_matches(str(name), KEYS, 1, 0.8)}
    if not isinstance(given, dict):
        raise TypeError(f"config={given!r:.80}: write a mapping with 'optimizer' and 'schedulers'.")
    found = {name: value for name, value in given.items() if name not in foreign}
    for name in found:
        if name not in KEYS:
            raise ValueError(f"config has the key {name!r}{nearest(name, KEYS)} It takes {', '.join(KEYS)}.")
    if found.get("optimizer") is None:
        raise ValueError("config has no 'optimizer': write its name with the arguments under it.")
    entries = found.get("schedulers")
    entries = [] if entries is None else list(entries) if isinstance(entries, (list, tuple)) else [entries]
    return {**found, "schedulers": entries}


def _named(entry: Any, path: str, flat: str) -> tuple[Any, dict[str, Any], str]:
    """The name, the arguments and the path of an entry `{name: {arguments}}`, `{flat: name, arguments}` or `name`."""
    if isinstance(entry, str):
        return entry, {}, path
    if not isinstance(entry, Mapping):
        raise TypeError(f"{path}={entry!r:.80}: write the name of a class, with its arguments under it.")
    if flat in entry:
        return entry[flat], {name: value for name, value in entry.items() if name != flat}, path
    if len(entry) != 1:
        keys = f"the keys {', '.join(map(repr, entry))}" if entry else "no key"
        raise ValueError(f"{path} has {keys}: write one name, its arguments under it, or the name as {flat!r}.")
    ((name, given),) = entry.items()
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"{path}.{name}={given!r:.80}: write the arguments under the name, as in 'lr: 0.1'.")
    return name, dict(given or {}), f"{path}.{name}"


def arguments_of(cls: type, path: str) -> dict[str, inspect.Parameter]:
    """The arguments that a config may give: all but the parameters or the optimizer, and the clock."""
    found = dict(inspect.signature(cls).parameters)
    for name, each in found.items():
        if each.kind is each.VAR_KEYWORD:
            raise ValueError(
                f"{path}: {cls.__name__} takes **{name}, so that a misspelled key would pass unseen: write out the "
                f"arguments in its constructor, or pass a function that makes it."
            )
    if issubclass(cls, Schedule):
        return found
    first = next(iter(found), "")  # ChainedLR takes no optimizer, but that of its schedulers
    left_out = ("clock",) if first in ("scheduler", "schedulers") else ("clock", first)
    return {name: each for name, each in found.items() if name not in left_out and each.kind is not each.VAR_POSITIONAL}


def checked(cls: type, given: dict[str, Any], path: str, also: Sequence[str] = (), full: bool = True) -> dict[str, Any]:
    """The arguments as the constructor takes them: a list becomes a tuple where the default is one.

    Raises `ValueError` for arguments that the class does not have, with the nearest one that it has (or one of `also`,
    which make the groups of an optimizer); and where one is missing and all are to be there (`full`).
    """
    takes = arguments_of(cls, path)
    for name in given:
        if name not in takes:
            near, rest = nearest(name, [*takes, *also]), f"; {', '.join(also)} make its groups" if also else ""
            has = f"{cls.__name__} has no argument {name!r}"
            raise ValueError(f"{path}: {has}{near} It takes {', '.join(takes) or 'none'}{rest}.")
    missing = [name for name, each in takes.items() if each.default is each.empty and name not in given]
    if missing and full:
        raise ValueError(f"{path}: {cls.__name__} needs {' and '.join(map(repr, missing))}.")
    tuples = {name for name, each in takes.items() if isinstance(each.default, tuple)}
    return {name: tuple(v) if name in tuples and isinstance(v, list) else v for name, v in given.items()}


def is_function(entry: Any, path: str, argument: str) -> bool:
    """Whether an entry is a function of the model or the optimizer. Raises `TypeError` for a class or a schedule."""
    if isinstance(entry, Schedule):
        raise TypeError(f"{path}: {entry!r} is a schedule: put it into the list 'schedulers'.")
    if isinstance(entry, type):
        raise TypeError(f"{path}: {entry.__name__} is a class: write its name, or pass a function of the {argument}.")
    return callable(entry)


def is_scheduler(value: Any) -> bool:
    """Whether an object is a scheduler: torch's, ours, or one that has the same three methods."""
    methods = (getattr(value, name, None) for name in ("step", "state_dict", "load_state_dict"))
    return not isinstance(value, (type, torch.optim.Optimizer)) and all(map(callable, methods))


@contextmanager
def located(path: str) -> Iterator[None]:
    """Put the place in the config before the message of a `TypeError` or `ValueError`."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if str(error).startswith(path):
            raise
        raise (ValueError if isinstance(error, ValueError) else TypeError)(f"{path}: {error}") from error


# What the entries mean


def optimizer(entry: Any) -> Any:
    """The specification of an optimizer; or the entry itself, where it is an optimizer or a function."""
    if isinstance(entry, torch.optim.Optimizer) or is_function(entry, "optimizer", "model"):
        return entry
    name, given, path = _named(entry, "optimizer", "optimizer_type")
    cls = optimizers().find(name, "optimizer")
    rules = given.pop("params", None)
    rules = [] if rules is None else rules
    rules = [rules] if isinstance(rules, Mapping) else rules
    options = {"no_decay": False} | {key: given.pop(key) for key in GROUPING if key in given}
    arguments = checked(cls, given, path, ("params", *GROUPING))
    if isinstance(rules, list):
        rules = [_rule(rule, f"{path}.params[{i}]", cls) for i, rule in enumerate(rules)]
    if options["no_decay"] is not False and "weight_decay" not in arguments_of(cls, path):
        raise ValueError(f"{path}: {cls.__name__} has no weight decay: leave out 'no_decay'.")
    return Spec(path, cls, arguments, options={"rules": claims_of_rules(rules, f"{path}.params"), **options})


def _rule(rule: Any, path: str, cls: type) -> Any:
    """A rule for parameters, its hyperparameters checked as arguments of the optimizer are."""
    if not isinstance(rule, Mapping):
        return rule
    keys = (*RULE_KEYS, *FACTORS)
    return {**rule, **checked(cls, {k: v for k, v in rule.items() if k not in keys}, path, keys, full=False)}


def scheduler(entry: Any, path: str, clock: Any) -> Any:
    """The specification of a scheduler; or the entry itself, where it is a scheduler, a schedule or a function."""
    timed = isinstance(entry, Schedule)
    if not timed and (is_scheduler(entry) or is_function(entry, path, "optimizer")):
        return entry
    spec = entry if timed else _spec(entry, path, SCHEDULER, clock, bound=True)
    if clock is None and (timed or spec.options is not None):
        raise ValueError(
            f"{path if timed else spec.path} is a schedule over the time of a run: pass clock=timesched.Clock(...), or "
            f"write the length of the run as 'max_duration' into the config."
        )
    return spec


def _spec(entry: Any, path: str, family: Family, clock: Any, *, bound: bool = False, counted: bool = False) -> Any:
    """The specification of an entry; inside another entry, a scheduler or schedule passes through.

    `bound`: a schedule is to be bound, and may have a key and tags. `counted`: it stands in a sequence without
    milestones, so that its `total_iters` may be there for its length alone.
    """
    if isinstance(entry, (Schedule, Scheduler)):
        return entry
    name, given, inner = _named(entry, path, "scheduler")
    cls = family.find(name, path)
    takes, length, options = arguments_of(cls, inner), given.get("total_iters"), None
    timed = issubclass(cls, Schedule)
    if timed and bound:
        options = {
            new: given.pop(old)
            for old, new in (("key", "key"), (TAGS, "tags"), ("on_change", "on_change"))
            if old in given
        }
    if counted and "total_iters" not in takes:
        given.pop("total_iters", None)
    children = SCHEDULE if timed else closed_forms(getattr(cls, "param_group_key", ""))
    single, several = ("schedule", "schedules") if timed else ("scheduler", "schedulers")
    sequence = {"schedulers", "milestones"} <= takes.keys() and "milestones" not in given
    if several in given and several in takes:
        given[several] = _specs(given[several], f"{inner}.{several}", children, clock, sequence)
        if sequence:
            given["milestones"] = milestones(given[several], inner, clock)
    if single in given and single in takes:
        given[single] = _spec(given[single], f"{inner}.{single}", children, clock, counted=counted)
    return Spec(inner, cls, checked(cls, given, inner), length, options)


def _specs(entries: Any, path: str, family: Family, clock: Any, counted: bool) -> list[Any]:
    if isinstance(entries, (str, Mapping)) or not isinstance(entries, Sequence):
        raise TypeError(f"{path}={entries!r:.80}: write a list, with each {family.kind} after a dash.")
    if not entries:
        raise ValueError(f"{path} is an empty list: write at least one {family.kind}.")
    return [_spec(each, f"{path}[{i}]", family, clock, counted=counted) for i, each in enumerate(entries)]


def rate(given: Any, path: str) -> Spec:
    """The specification of a learning rate: of a number, a dict, or a list of dicts."""
    family = closed_forms("lr")
    sequence, chain = family.own["SequentialLR"], family.own["ChainedLR"]
    if isinstance(given, Real) and not isinstance(given, bool):
        return Spec(path, family.own["ConstantLR"], {"learning_rate": given})
    if isinstance(given, Mapping):
        return _spec(given, path, family, None)  # type: ignore[no-any-return]  # a mapping is not an object
    if not isinstance(given, (list, tuple)):
        raise TypeError(f"{path}={given!r:.80}: pass a number, a dict with 'scheduler', or a list of such dicts.")
    names = {"SequentialLR": sequence, "ChainedLR": chain, "ChainedScheduler": chain}
    main = Family("main scheduler", names, suffix="LR")
    entries, mains = [], set()
    for i, entry in enumerate(given):
        entries.append(dict(entry) if isinstance(entry, Mapping) else entry)
        if isinstance(entry, Mapping) and "main_scheduler" in entry:
            mains.add(main.find(entries[i].pop("main_scheduler"), f"{path}[{i}].main_scheduler"))
    inside = _specs(entries, path, family, None, counted=chain not in mains)
    if chain in mains:
        return Spec(path, chain, {"schedulers": inside})
    return Spec(path, sequence, {"schedulers": inside, "milestones": milestones(inside, path, None)})


def milestones(specs: Sequence[Any], path: str, clock: Any) -> list[Any]:
    """Where each scheduler of a sequence but the first begins, by the lengths of those before it: steps, or times."""
    found: list[Time[Any]] = []
    timed = False
    for i, spec in enumerate(specs[:-1]):
        where, length = getattr(spec, "path", f"{path}.schedulers[{i}]"), getattr(spec, "total_iters", None)
        if length is None:
            raise ValueError(f"{where} has no 'total_iters', after which the next one begins: give it or 'milestones'.")
        timed = timed or is_time(length)
        with located(f"{where}: total_iters={length!r}"):
            time = Time.from_input(length, "ba")
            begin = found[-1] if found else time * 0
            if begin.unit is not time.unit and clock is None:
                raise ValueError(f"{begin} and {time} add up on a clock alone: pass one, or give 'milestones'.")
            found.append(begin + time if begin.unit is time.unit else Horizon.of(clock).add(begin, time))
    return [str(each) if timed else each.value for each in found]


def is_time(value: Any) -> bool:
    """Whether a value is a time, as an object or a text, or has one in it."""
    if isinstance(value, (list, tuple)):
        return any(map(is_time, value))
    if not isinstance(value, str):
        return isinstance(value, Time) or hasattr(value, "to_timestring")
    try:
        return isinstance(Time.from_input(value), Time)
    except TimeError:
        return False
