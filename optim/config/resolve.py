"""Step 2, names: find the classes that a config names, and check their arguments before the model is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from timesched.batch_size_schedule import BatchSizeSchedule
from timesched.binding.groups import FACTOR_KEYS
from timesched.clock import Clock
from timesched.horizon import Horizon, State
from timesched.reading import SCHEDULE, Family, prefix_errors
from timesched.schedule import Schedule
from timesched.time.units import TimeError, TimeUnit
from timesched.time.value import Time

from .. import lr_scheduler
from ..algorithms.adam import Adam
from ..base.hyperparameters import comparable_value
from ..groups.rules import FACTOR, RULE_KEYS, Claim, read_rule, require_rules
from ..muon.muon import ALGORITHMS, Muon
from .names import CLOSED_FORM, LR, SCHEDULER, Constructor, optimizers, read_constructor
from .problems import Problems
from .read import CLOCK_KEYS, OldLearningRate, check_keys, read_numbers

DEPTH_KEYS = ("layer_decay", "layers")
# Keys of an optimizer's entry that are arguments of configure_param_groups.
GROUPING_KEYS = ("no_decay", FACTOR, "decay_tag", "matrices", "output_head", "frozen", *DEPTH_KEYS)
TAGS = "param_group_tags"
LEARNING_RATE = ("lr", "learning_rate")  # the names that classes have for this argument
UNKNOWN_LR = 0.1  # the reference's value for a class without a default: the schedulers replace it
# Keys of a schedule's entry that are arguments of bind().
BIND_KEYS = {TAGS: "tags", "key": "key", "on_change": "on_change"}


@dataclass(frozen=True)
class Spec:
    """The specification of an object: a class and its arguments. Specs among the arguments are its children."""

    path: str
    constructor: Constructor
    arguments: dict[str, Any]
    total_iters: Any = None  # the value in the entry, even if the class has no such argument
    options: Mapping[str, Any] = field(default_factory=dict)  # arguments of bind(), or of configure_param_groups()


@dataclass(frozen=True)
class OptimizerSpec(Spec):
    """The specification of an optimizer."""

    has_no_decay: bool = False  # the config has the key `no_decay`
    lacks_lr: bool = False  # neither the entry nor the class has a learning rate: the schedulers must set it


# The whole config


def resolve_entries(
    sections: Mapping[str, Any], entries: Mapping[str, object], clock: State | None, problems: Problems
) -> tuple[Any, Any, dict[str, Any]]:
    """The specification of the optimizer, the clock, and the specifications of the schedulers by their paths.

    `entries`: the entries of the schedulers, by their paths. Where one of them fails, its error is among the problems,
    and None takes its place.
    """
    problems.attempt(check_keys, sections)
    later = Problems()  # the schedulers are resolved before the optimizer, and their errors come after its errors
    clock = later.attempt(make_clock, sections, clock)
    specs = {path: later.attempt(resolve_scheduler, entry, path, clock) for path, entry in entries.items()}
    is_lr_scheduled = len(entries) < len(sections["schedulers"])  # the entries left out may set the learning rate
    for spec in specs.values():
        is_lr_scheduled |= isinstance(spec, Spec) and issubclass(spec.constructor.cls, lr_scheduler.LRScheduler)
    optimizer = problems.attempt(resolve_optimizer, sections["optimizer"], is_lr_scheduled)
    problems.errors += later.errors
    return optimizer, clock, specs


def make_clock(sections: Mapping[str, Any], clock: State | None) -> Any:
    """The clock that is passed, or a clock made from the config, or None."""
    arguments = {name: sections[name] for name in CLOCK_KEYS if name in sections}
    if arguments and clock is not None:
        keys = ", ".join(map(repr, arguments))
        raise ValueError(f"config: a clock is passed, and the config has {keys}. Leave out one of them.")
    with prefix_errors("config"):
        if isinstance(arguments.get("samples_per_batch"), dict):
            arguments["samples_per_batch"] = BatchSizeSchedule(arguments["samples_per_batch"])
        return Clock(**{"max_duration": None, **arguments}) if arguments else clock


# One entry


def _read_entry(entry: object, path: str) -> tuple[Any, dict[str, Any], str]:
    """Read the name, the arguments and the path of an entry `{Name: {arguments}}`."""
    if not isinstance(entry, Mapping) or len(entry) != 1:
        raise TypeError(f"{path}={entry!r:.80}: this is no entry. Write it as {{Name: {{argument: value}}}}.")
    ((name, arguments),) = entry.items()
    if arguments is not None and not isinstance(arguments, Mapping):
        raise TypeError(f"{path}.{name}={arguments!r:.80}: this is not a mapping. Write arguments, as in {{lr: 0.1}}.")
    return name, dict(arguments or {}), f"{path}.{name}"


def resolve_optimizer(entry: object, is_lr_scheduled: bool) -> Any:
    """The specification of an optimizer; or the entry itself, if it is an optimizer or a function.

    `is_lr_scheduled`: the config has a scheduler of `optim.lr_scheduler`, so the learning rate may be missing. Raises
    the errors of its arguments and of the rules for its groups together.
    """
    if entry is None:
        raise ValueError("config has no 'optimizer'. Write one, as in optimizer: {AdamW: {lr: 0.1}}.")
    if _is_object_or_function(entry):
        return entry
    name, arguments, path = _read_entry(read_numbers(entry), "optimizer")
    constructor = read_constructor(optimizers().find(name, "optimizer"))
    cls = constructor.cls
    problems = Problems()
    rules = arguments.pop("params", None) or []
    rules = [rules] if isinstance(rules, Mapping) else problems.attempt(require_rules, rules, f"{path}.params") or []
    claims = [problems.attempt(_claim, rule, f"{path}.params[{i}]", constructor) for i, rule in enumerate(rules)]
    options = {key: arguments.pop(key) for key in GROUPING_KEYS if key in arguments}
    if issubclass(cls, Muon) and not arguments.keys().isdisjoint(ALGORITHMS):
        options.setdefault("matrices", "muon")
    for name, alias in (LEARNING_RATE, LEARNING_RATE[::-1]):  # a config may use either name
        if name in constructor.parameters and alias not in constructor.parameters:
            problems.attempt(_rename, arguments, alias, name, path)
    value = arguments.pop("correct_bias", True) if cls is Adam else True
    if value is not True:
        message = f"{path}.correct_bias={value!r}: Adam always corrects the bias. Use AdamW instead."
        problems.errors.append(ValueError(message))
    missing = [name for name in constructor.missing_arguments(arguments) if name in LEARNING_RATE]
    if any(options.get(key) is not None for key in DEPTH_KEYS):
        has_algorithms = issubclass(cls, Muon) and options.get("matrices") is not None
        options["lr"] = problems.attempt(_require_learning_rates, arguments, has_algorithms, path)
    if is_lr_scheduled or "lr" in options:
        arguments |= dict.fromkeys(missing, UNKNOWN_LR)
    arguments = problems.attempt(constructor.read_arguments, arguments, path, ("params", *GROUPING_KEYS))
    problems.raise_all()
    has_no_decay = "no_decay" in options
    # without weight decay, a split would only make more groups
    default = "decay_tag" in options or _has_weight_decay(constructor, arguments)
    options = {"no_decay": default, "rules": claims, **options}
    return OptimizerSpec(
        path, constructor, arguments, options=options, has_no_decay=has_no_decay, lacks_lr=bool(missing)
    )


def _rename(arguments: dict[str, object], alias: str, name: str, path: str) -> None:
    """Rename the key `alias` to `name`. Raises `ValueError` if both keys are present."""
    if alias in arguments:
        if name in arguments:
            raise ValueError(f"{path}: {alias!r} and {name!r} mean the same. Leave out one of them.")
        arguments[name] = arguments.pop(alias)


def _require_learning_rates(arguments: Mapping[str, Any], has_algorithms: bool, path: str) -> Any:
    """The learning rate that the entry has, to which factors by depth apply; or a dict by algorithm."""
    entries = {"muon": arguments}
    for name in ALGORITHMS if has_algorithms else ():
        if isinstance(arguments.get(name), Mapping):
            entries[name] = arguments[name]
    rates = {}
    for name, entry in entries.items():
        values = [entry[key] for key in LEARNING_RATE if entry.get(key) is not None]
        if not values:
            where = path if entry is arguments else f"{path}.{name}"
            raise ValueError(f"{where}: {DEPTH_KEYS[0]!r} needs a learning rate. Write 'lr'.")
        rates[name] = values[0]
    return rates if has_algorithms else rates["muon"]


def _has_weight_decay(constructor: Constructor, arguments: Mapping[str, object]) -> bool:
    """Whether the arguments, or else the defaults of the class, have weight decay. For Muon, its algorithms count."""
    for name, algorithm in ALGORITHMS.items() if issubclass(constructor.cls, Muon) else ():
        own_arguments = arguments.get(name)
        if isinstance(own_arguments, Mapping) and _has_weight_decay(read_constructor(algorithm), own_arguments):
            return True
    default = constructor.parameters.get("weight_decay")
    return bool(comparable_value(arguments.get("weight_decay", default.default if default else 0.0)))


def _claim(rule: object, path: str, constructor: Constructor) -> Claim:
    """Read a rule for the groups of an optimizer, and check that the optimizer has its hyperparameters."""
    rule = read_numbers(rule)
    if isinstance(rule, dict):
        _rename(rule, "tag", "tags", path)
    claim = read_rule(rule, path)
    settings = {key: value for key, value in claim.settings.items() if key not in FACTOR_KEYS}
    if issubclass(constructor.cls, Muon):
        algorithm = ALGORITHMS.get(settings.pop("algorithm", "muon"))
        constructor = constructor if algorithm is None else read_constructor(algorithm)
    constructor.read_arguments(settings, claim.source, (*RULE_KEYS, *FACTOR_KEYS), require_all=False)
    return claim


def resolve_scheduler(entry: object, path: str, clock: State | None) -> Any:
    """The specification of a scheduler; or the entry itself, if it is a scheduler or a function."""
    if _is_object_or_function(entry):
        return entry
    if isinstance(entry, OldLearningRate):
        return resolve_learning_rate(entry.value, "optimizer.learning_rate")
    return _resolve_named(*_read_entry(read_numbers(entry), path), family=SCHEDULER, clock=clock)


def _is_object_or_function(entry: object) -> bool:
    """Whether an entry is an optimizer, a scheduler, or a function that makes one."""
    return not isinstance(entry, (type, Schedule)) and (callable(entry) or hasattr(entry, "step"))


def _resolve_named(
    name: object,
    arguments: dict[str, object],
    path: str,
    *,
    family: Family,
    clock: State | None,
    in_sequence: bool = False,
) -> Spec:
    """The specification of a named scheduler or schedule, and of its children.

    `in_sequence`: it is in a sequence without milestones. There, `total_iters` is its length, even if the class has no
    such argument.
    """
    constructor = read_constructor(family.find(name, path))
    parameters, total_iters = constructor.parameters, arguments.get("total_iters")
    is_bound = constructor.is_schedule and family is SCHEDULER  # and not a child
    if "tags" not in parameters and (is_bound or TAGS in parameters):
        _rename(arguments, "tags", TAGS, path)
    options = {option: arguments.pop(key) for key, option in BIND_KEYS.items() if is_bound and key in arguments}
    if in_sequence and "total_iters" not in parameters:
        arguments.pop("total_iters", None)
    arguments |= _resolve_children(constructor, arguments, path, clock, in_sequence)
    return Spec(path, constructor, constructor.read_arguments(arguments, path), total_iters, options)


def _resolve_children(
    constructor: Constructor, arguments: Mapping[str, object], path: str, clock: State | None, in_sequence: bool
) -> dict[str, Any]:
    """The specifications of a scheduler's children, by the names of its arguments.

    A sequence without milestones gets the milestones that follow from the lengths of its children.
    """
    is_schedule, updates = constructor.is_schedule, dict[str, Any]()
    family = SCHEDULE if is_schedule else CLOSED_FORM
    single_key, list_key = ("schedule", "schedules") if is_schedule else ("scheduler", "schedulers")
    if single_key in arguments:
        entry = _read_entry(arguments[single_key], f"{path}.{single_key}")
        updates[single_key] = _resolve_named(*entry, family=family, clock=clock, in_sequence=in_sequence)
    if list_key in arguments:
        entries = arguments[list_key]
        if not isinstance(entries, list):
            raise TypeError(
                f"{path}.{list_key}={entries!r:.80}: this is no list. Write each {family.kind} after a dash."
            )
        named_entries = [_read_entry(entry, f"{path}.{list_key}[{i}]") for i, entry in enumerate(entries)]
        no_milestones = not is_schedule and "milestones" in constructor.parameters and "milestones" not in arguments
        updates[list_key] = [
            _resolve_named(*entry, family=family, clock=clock, in_sequence=no_milestones) for entry in named_entries
        ]
        if no_milestones:
            updates["milestones"] = _default_milestones(updates[list_key], clock)
    return updates


def resolve_learning_rate(learning_rate: Any, path: str) -> Spec:
    """The specification of the scheduler for a learning rate: a number, a dict, or a list of dicts."""
    if isinstance(learning_rate, Real) and not isinstance(learning_rate, bool):
        return Spec(path, read_constructor(lr_scheduler.ConstantLR), {"learning_rate": learning_rate})
    is_list = isinstance(learning_rate, (list, tuple))
    values = learning_rate if is_list else [learning_rate]
    entries = [dict(value) if isinstance(value, Mapping) else {} for value in values]
    if not all("scheduler" in entry for entry in entries):
        raise TypeError(
            f"{path}={learning_rate!r:.80}: this is no learning rate. Pass a number, or dicts with 'scheduler'."
        )
    if not is_list:
        (entry,) = entries
        return _resolve_named(entry.pop("scheduler"), entry, path, family=LR, clock=None)
    main_schedulers = [LR.find(entry.pop("main_scheduler"), path) for entry in entries if "main_scheduler" in entry]
    is_chained = lr_scheduler.ChainedLR in main_schedulers
    children = []
    for i, entry in enumerate(entries):
        name = entry.pop("scheduler")
        children.append(_resolve_named(name, entry, f"{path}[{i}]", family=LR, clock=None, in_sequence=not is_chained))
    if is_chained:
        return Spec(path, read_constructor(lr_scheduler.ChainedLR), {"schedulers": children})
    arguments = {"schedulers": children, "milestones": _default_milestones(children, None)}
    return Spec(path, read_constructor(lr_scheduler.SequentialLR), arguments)


def _default_milestones(specs: Sequence[Spec], clock: State | None) -> list[Any]:
    """The steps or times at which the schedulers of a sequence begin, except the first: running sums of the lengths."""
    horizon = Horizon(None) if clock is None else Horizon.of(clock)
    milestones: list[Time] = []
    for spec in specs[:-1]:
        length = spec.total_iters
        if length is None:
            raise ValueError(f"{spec.path}: the sequence needs its 'total_iters'. Write it, or give 'milestones'.")
        with prefix_errors(f"{spec.path}: total_iters={length!r}"):
            time = Time.from_input(length, "ba")
            milestones.append(horizon.add(milestones[-1], time) if milestones else time)
    return [milestone.value if milestone.unit is TimeUnit.BATCH else milestone for milestone in milestones]


def has_time(value: object) -> bool:
    """Whether a value is a time, or a specification has a time in its arguments, so that it needs a clock."""
    if isinstance(value, Spec):
        values = [argument for name, argument in value.arguments.items() if name != TAGS]
        return value.constructor.is_schedule or has_time(values)
    if isinstance(value, (list, tuple)):
        return any(map(has_time, value))
    try:
        return isinstance(value, Time) or (isinstance(value, str) and Time.from_timestring(value) is not None)
    except TimeError:
        return False
