"""Step 2, names: find the classes that a config names, and check their arguments before the model is used.

The records of a build, in the order in which they are made:

| record | what it holds |
|---|---|
| `OldLearningRate` (`read.py`) | the `learning_rate` of an optimizer in the old form |
| `Problems` | the errors so far, which are raised together |
| `Entry` | one `{Name: {arguments}}` of the config, as it is written |
| `Given` | an object or function that the config has in place of an entry |
| `Constructor` | the class of an entry, and the arguments that it takes |
| `OptimizerSpec` | the class of the optimizer, its arguments, and the arguments that make its groups |
| `Spec` | the class of a scheduler, its arguments, and its children |
| `Plan` | the specifications of the whole config, its clock, and its problems |
| `GroupedOptimizer` (`build.py`) | the optimizer that was made, and what the config says of its groups |
| `Built` (`build.py`) | the result of `build`: the optimizer, the schedulers and the clock |
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from numbers import Real
from typing import Any

from timesched.batch_size.schedule import BatchSizeSchedule
from timesched.binding.groups import FACTOR_KEYS
from timesched.hints import argument_hint, arguments_of
from timesched.reading import SCHEDULE, Family, add_path, begins_with_path, prefix_errors
from timesched.run.clock import Clock
from timesched.run.horizon import Horizon, State
from timesched.schedulers.schedule import Schedule
from timesched.time.units import TimeError, TimeUnit
from timesched.time.value import Time

from .. import lr_scheduler
from ..algorithms.adam import Adam
from ..base.hyperparameters import comparable_value
from ..groups.rules import FACTOR, RULE_KEYS, Claim, read_rule, require_rules
from ..muon.muon import ALGORITHMS, Muon
from .names import CLOSED_FORM, LR, MAIN_LR, SCHEDULER, optimizers
from .read import CLOCK_KEYS, TAGS, OldLearningRate, find_unknown_keys, read_numbers

DEPTH_KEYS = ("layer_decay", "layers")
# Keys of an optimizer's entry that are arguments of configure_param_groups.
GROUPING_KEYS = ("no_decay", FACTOR, "decay_tag", "matrices", "output_head", "frozen", *DEPTH_KEYS)
LEARNING_RATE = ("lr", "learning_rate")  # the names that classes have for this argument
UNKNOWN_LR = 0.1  # the reference's value for a class without a default: the schedulers replace it
# Keys of a schedule's entry that are arguments of bind().
BIND_KEYS = {TAGS: "tags", "key": "key", "on_change": "on_change"}


class Problems(list[TypeError | ValueError]):
    """The errors of entries that do not depend on each other, which are raised together.

    Pass to `attempt` each function that may raise `TypeError` or `ValueError` for one entry. A function that knows the
    path of the entry begins its errors with it. For any other function, pass the path to `attempt`, which adds it.
    """

    def attempt(self, function: Callable[..., object], *arguments: object, path: str = "") -> Any:
        """Call a function and return its result. If it fails, keep its error and return None.

        `path` is put before an error that does not begin with it. Without `path`, the error is kept as it is.
        """
        try:
            return function(*arguments)
        except (TypeError, ValueError) as error:
            self.append(add_path(error, path) if path and not begins_with_path(error, path) else error)
            return None

    def lines(self) -> list[str]:
        """The lines of the errors' messages."""
        return [line for error in self for line in str(error).splitlines()]

    def raise_all(self) -> None:
        """Raise the error if there is one. Several errors become one `ValueError` with a line for each."""
        if len(self) == 1:
            raise self[0]
        if self:
            raise ValueError("\n".join(self.lines()))


@dataclass(frozen=True)
class Constructor:
    """A class that a config may name, and the arguments of its constructor that a config may set."""

    cls: Any
    parameters: Mapping[str, inspect.Parameter]
    required: Sequence[str]  # those without a default
    takes_optimizer: bool  # no config sets the first argument: the optimizer, or the parameters
    takes_clock: bool

    def read_arguments(
        self, arguments: dict[str, object], path: str, other_keys: Sequence[str] = (), require_all: bool = True
    ) -> dict[str, Any]:
        """Read the arguments for the constructor: a list becomes a tuple if the default is a tuple.

        Raises `ValueError` for arguments that the constructor does not name, with a line for each. The error lists the
        arguments that it has, and `other_keys`, which are the keys of an optimizer's groups. With `require_all`, a
        missing argument is an error, too.
        """
        errors, result = [], dict(arguments)
        for name, value in arguments.items():
            if name not in self.parameters:
                hint = argument_hint(name, [*self.parameters, *other_keys])
                errors.append(f"{path}: {self.cls.__name__} has no argument {name!r}{hint}")
            elif isinstance(value, list) and isinstance(self.parameters[name].default, tuple):
                result[name] = tuple(value)
        if errors:
            raise ValueError("\n".join(errors))
        missing = " and ".join(repr(name) for name in self.required if name not in arguments)
        if missing and require_all:
            raise ValueError(
                f"{path}: {self.cls.__name__} needs {missing}. An argument without a default must have a value."
            )
        return result


@cache
def read_constructor(cls: type) -> Constructor:
    """Read which arguments the constructor of a class takes."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = {name: parameter for name, parameter in arguments_of(cls).items() if parameter.kind not in variadic}
    first, is_schedule = next(iter(parameters), ""), issubclass(cls, Schedule)
    takes_optimizer = not is_schedule and first != "schedulers"  # a ChainedLR has the optimizer of its children
    if takes_optimizer:
        parameters.pop(first, None)
    takes_clock = parameters.pop("clock", None) is not None and not is_schedule
    required = [name for name, parameter in parameters.items() if parameter.default is parameter.empty]
    return Constructor(cls, parameters, required, takes_optimizer=takes_optimizer, takes_clock=takes_clock)


@dataclass(frozen=True)
class Entry:
    """One `{Name: {arguments}}` of a config.

    `family`: the classes that it may name. `is_phase`: a sequence without milestones reads its length from its
    `total_iters`, even if the class has no such argument.
    """

    name: Any
    arguments: Mapping[str, Any]
    path: str
    family: Family
    is_phase: bool = False


@dataclass(frozen=True)
class Given:
    """An optimizer, a scheduler, or a function that makes one, in place of an entry."""

    path: str
    value: Any


@dataclass(frozen=True)
class Spec:
    """The specification of a scheduler: a class and its arguments. Specs among the arguments are its children."""

    path: str
    constructor: Constructor
    arguments: dict[str, Any]
    options: Mapping[str, Any]  # arguments of bind()


@dataclass(frozen=True)
class OptimizerSpec:
    """The specification of an optimizer: a class, its arguments, and the arguments that make its groups."""

    path: str
    constructor: Constructor
    arguments: dict[str, Any]
    grouping: Mapping[str, Any]  # arguments of configure_param_groups()
    excludes_decay: bool  # the config's `no_decay` leaves parameters without weight decay
    lacks_lr: bool  # neither the entry nor the class has a learning rate: the schedulers must set it


# The whole config


@dataclass(frozen=True)
class Plan:
    """The specifications of a config. None is in the place of an entry that fails; its error is among the problems."""

    optimizer: OptimizerSpec | Given | None
    clock: State | None
    schedulers: Mapping[str, Spec | Given | None]  # by their paths
    problems: Problems

    def attempt(self, make: Callable[..., object], spec: Any, *arguments: object) -> Any:
        """Make the object of a specification. If this fails, keep the error, which begins with its path."""
        return None if spec is None else self.problems.attempt(make, spec, *arguments, path=spec.path)


def resolve_config(sections: Mapping[str, Any], entries: Mapping[str, object], clock: State | None) -> Plan:
    """The specifications of a config. `entries`: the entries of the schedulers that are made, by their paths."""
    problems, later = Problems(find_unknown_keys(sections)), Problems()
    clock = later.attempt(make_clock, sections, clock, path="config")
    specs = {path: later.attempt(resolve_scheduler, entry, path, clock) for path, entry in entries.items()}
    is_lr_scheduled = len(entries) < len(sections["schedulers"])  # the entries left out may set the learning rate
    for spec in specs.values():
        is_lr_scheduled |= isinstance(spec, Spec) and issubclass(spec.constructor.cls, lr_scheduler.LRScheduler)
    optimizer = problems.attempt(resolve_optimizer, sections["optimizer"], is_lr_scheduled)
    return Plan(optimizer, clock, specs, Problems(problems + later))


def make_clock(sections: Mapping[str, Any], clock: State | None) -> Any:
    """The clock that is passed, or a clock made from the config, or None."""
    arguments = {name: sections[name] for name in CLOCK_KEYS if name in sections}
    if arguments and clock is not None:
        keys = ", ".join(map(repr, arguments))
        raise ValueError(f"a clock is passed, and the config has {keys}. Leave out one of them.")
    if isinstance(arguments.get("samples_per_batch"), dict):
        arguments["samples_per_batch"] = BatchSizeSchedule(arguments["samples_per_batch"])
    return Clock(**{"max_duration": None, **arguments}) if arguments else clock


# One entry


def read_entry(value: object, path: str, family: Family, is_phase: bool = False) -> Entry:
    """Read `{Name: {arguments}}`. Raises `TypeError` for anything else."""
    if isinstance(value, Entry):
        return value
    if not isinstance(value, Mapping) or len(value) != 1:
        raise TypeError(f"{path}={value!r:.80}: this is no entry. Write it as {{Name: {{argument: value}}}}.")
    ((name, arguments),) = value.items()
    if arguments is not None and not isinstance(arguments, Mapping):
        raise TypeError(f"{path}.{name}={arguments!r:.80}: this is not a mapping. Write arguments, as in {{lr: 0.1}}.")
    return Entry(name, arguments or {}, f"{path}.{name}", family, is_phase)


def _is_object_or_function(value: object) -> bool:
    """Whether an optimizer, a scheduler, or a function that makes one takes the place of an entry."""
    return not isinstance(value, (type, Schedule)) and (callable(value) or hasattr(value, "step"))


# The optimizer


def resolve_optimizer(value: object, is_lr_scheduled: bool) -> OptimizerSpec | Given:
    """The specification of an optimizer, or the optimizer or function that is in its place.

    `is_lr_scheduled`: the config has a scheduler of `optim.lr_scheduler`, so the learning rate may be missing. Raises
    the errors of its arguments and of the rules for its groups together.
    """
    if value is None:
        raise ValueError("config has no 'optimizer'. Write one, as in optimizer: {AdamW: {lr: 0.1}}.")
    if _is_object_or_function(value):
        return Given("optimizer", value)
    entry = read_entry(read_numbers(value), "optimizer", optimizers())
    constructor = read_constructor(entry.family.find(entry.name, "optimizer"))
    path, problems = entry.path, Problems()
    rules = entry.arguments.get("params")
    claims = _read_claims(rules, f"{path}.params", constructor, problems) if rules else []
    own_arguments, grouping = _split_entry(entry, constructor, problems)
    # The learning rate. Factors by depth apply to the learning rate of the groups.
    has_depth = any(grouping.get(key) is not None for key in DEPTH_KEYS)
    group_lr = problems.attempt(_require_group_lr, constructor, own_arguments, grouping, path) if has_depth else None
    missing = [name for name in constructor.required if name in LEARNING_RATE and name not in own_arguments]
    unused_lr = dict.fromkeys(missing, UNKNOWN_LR) if is_lr_scheduled or has_depth else {}
    # The arguments of the class
    entry_keys = ("params", *GROUPING_KEYS)
    arguments = problems.attempt(constructor.read_arguments, own_arguments | unused_lr, path, entry_keys)
    problems.raise_all()
    # The arguments of the groups. Without weight decay, a default of True would only make more groups.
    excludes_decay = entry.arguments.get("no_decay", False) is not False
    default = "no_decay" not in grouping and ("decay_tag" in grouping or _has_weight_decay(constructor, arguments))
    grouping = {"no_decay": default, **grouping, "rules": claims, "lr": group_lr}
    return OptimizerSpec(path, constructor, arguments, grouping, excludes_decay=excludes_decay, lacks_lr=bool(missing))


def _read_claims(rules: Any, path: str, constructor: Constructor, problems: Problems) -> list[Claim]:
    """Read the rules for the groups of an optimizer. The errors of wrong rules are added to the problems."""
    rules = [rules] if isinstance(rules, Mapping) else problems.attempt(require_rules, rules, path) or []
    return [problems.attempt(_read_claim, rule, f"{path}[{i}]", constructor) for i, rule in enumerate(rules)]


def _read_claim(rule: object, path: str, constructor: Constructor) -> Claim:
    """Read a rule for the groups of an optimizer, and check that the optimizer has its hyperparameters."""
    rule = read_numbers(rule)
    if isinstance(rule, dict) and "tag" in rule:
        rule = _rename(rule, "tag", "tags", path)
    claim = read_rule(rule, path)
    settings = {key: value for key, value in claim.settings.items() if key not in FACTOR_KEYS}
    if issubclass(constructor.cls, Muon):
        algorithm = ALGORITHMS.get(settings.pop("algorithm", "muon"))
        constructor = constructor if algorithm is None else read_constructor(algorithm)
    constructor.read_arguments(settings, claim.source, (*RULE_KEYS, *FACTOR_KEYS), require_all=False)
    return claim


def _rename(arguments: Mapping[str, Any], alias: str, name: str, path: str) -> dict[str, Any]:
    """The arguments with the name `name` in place of `alias`. Raises `ValueError` if both are present."""
    if name in arguments:
        raise ValueError(f"{path}: {alias!r} and {name!r} mean the same. Leave out one of them.")
    return {name if key == alias else key: value for key, value in arguments.items()}


def _split_entry(entry: Entry, constructor: Constructor, problems: Problems) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of an optimizer's entry: for its class, and for `configure_param_groups` except the rules.

    An entry may write `lr` or `learning_rate`. The arguments for the class have the name that the class has for it.
    """
    grouping = {key: value for key, value in entry.arguments.items() if key in GROUPING_KEYS}
    arguments = {key: value for key, value in entry.arguments.items() if key not in ("params", *grouping)}
    if issubclass(constructor.cls, Muon) and not arguments.keys().isdisjoint(ALGORITHMS):
        grouping = {"matrices": "muon", **grouping}
    if constructor.cls is Adam and arguments.get("correct_bias") is True:
        del arguments["correct_bias"]  # Adam always corrects the bias
    for name, alias in (LEARNING_RATE, LEARNING_RATE[::-1]):
        if alias in arguments and name in constructor.parameters and alias not in constructor.parameters:
            arguments = problems.attempt(_rename, arguments, alias, name, entry.path) or arguments
    return arguments, grouping


def _require_group_lr(constructor: Constructor, arguments: dict[str, Any], grouping: dict[str, Any], path: str) -> Any:
    """The learning rate of the groups, to which factors by depth apply. For Muon with `matrices`, one by algorithm."""
    learning_rate = _require_learning_rate(arguments, path)
    if grouping.get("matrices") is None or not issubclass(constructor.cls, Muon):
        return learning_rate
    learning_rates = {"muon": learning_rate}
    for name in ALGORITHMS:
        if isinstance(arguments.get(name), Mapping):
            learning_rates[name] = _require_learning_rate(arguments[name], f"{path}.{name}")
    return learning_rates


def _require_learning_rate(arguments: Mapping[str, Any], path: str) -> Any:
    """The learning rate among these arguments."""
    for name in LEARNING_RATE:
        if arguments.get(name) is not None:
            return arguments[name]
    raise ValueError(f"{path}: {DEPTH_KEYS[0]!r} needs a learning rate. Write 'lr'.")


def _has_weight_decay(constructor: Constructor, arguments: Mapping[str, object]) -> bool:
    """Whether the arguments, or else the defaults of the class, have weight decay. For Muon, its algorithms count."""
    for name, algorithm in ALGORITHMS.items() if issubclass(constructor.cls, Muon) else ():
        own_arguments = arguments.get(name)
        if isinstance(own_arguments, Mapping) and _has_weight_decay(read_constructor(algorithm), own_arguments):
            return True
    default = constructor.parameters.get("weight_decay")
    return bool(comparable_value(arguments.get("weight_decay", default.default if default else 0.0)))


# The schedulers


def resolve_scheduler(value: object, path: str, clock: State | None) -> Spec | Given:
    """The specification of a scheduler, or the scheduler or function that is in its place."""
    if _is_object_or_function(value):
        return Given(path, value)
    if isinstance(value, OldLearningRate):
        return resolve_learning_rate(value.value, "optimizer.learning_rate", clock)
    return _resolve_named(read_entry(read_numbers(value), path, SCHEDULER), clock)


def _resolve_named(entry: Entry, clock: State | None = None) -> Spec:
    """The specification of a named scheduler or schedule, and of its children."""
    constructor = read_constructor(entry.family.find(entry.name, entry.path))
    path, arguments, parameters = entry.path, dict(entry.arguments), constructor.parameters
    is_schedule = issubclass(constructor.cls, Schedule)
    is_bound = is_schedule and entry.family is SCHEDULER  # and not a child
    if "tags" in arguments and "tags" not in parameters and (is_bound or TAGS in parameters):
        arguments = _rename(arguments, "tags", TAGS, path)
    options = {option: arguments.pop(key) for key, option in BIND_KEYS.items() if is_bound and key in arguments}
    if entry.is_phase and "total_iters" not in parameters:
        arguments.pop("total_iters", None)
    _resolve_children(entry, constructor, arguments, clock)
    return Spec(path, constructor, constructor.read_arguments(arguments, path), options)


def _resolve_children(entry: Entry, constructor: Constructor, arguments: dict[str, Any], clock: State | None) -> None:
    """Resolve the schedules or schedulers among the arguments of an entry: a single child, or a list of children.

    The lengths of the children give the `milestones` of a sequence of schedulers that has none.
    """
    is_schedule = issubclass(constructor.cls, Schedule)
    child, family = ("schedule", SCHEDULE) if is_schedule else ("scheduler", CLOSED_FORM)
    children = f"{child}s"
    path, list_path = f"{entry.path}.{child}", f"{entry.path}.{children}"
    if child in arguments:
        arguments[child] = _resolve_named(read_entry(arguments[child], path, family, entry.is_phase), clock)
    if children not in arguments:
        return
    values = arguments[children]
    if not isinstance(values, list):
        raise TypeError(f"{list_path}={values!r:.80}: this is no list. Write each {family.kind} after a dash.")
    gives_milestones = not is_schedule and "milestones" in constructor.parameters and "milestones" not in arguments
    entries = [read_entry(value, f"{list_path}[{i}]", family, gives_milestones) for i, value in enumerate(values)]
    arguments[children] = [_resolve_named(child_entry, clock) for child_entry in entries]
    if gives_milestones:
        arguments["milestones"] = _sum_lengths(entries, clock)


def _sum_lengths(phases: Sequence[Entry], clock: State | None) -> list[Any]:
    """The steps or times at which the phases of a sequence begin, except the first: running sums of the lengths."""
    horizon = Horizon(None) if clock is None else Horizon.of(clock)
    milestones: list[Time] = []
    for phase in phases[:-1]:
        length = phase.arguments.get("total_iters")
        if length is None:
            raise ValueError(f"{phase.path}: the sequence needs its 'total_iters'. Write it, or give 'milestones'.")
        with prefix_errors(f"{phase.path}: total_iters={length!r}"):
            time = Time.from_input(length, "ba")
            milestones.append(horizon.add(milestones[-1], time) if milestones else time)
    return [milestone.value if milestone.unit is TimeUnit.BATCH else milestone for milestone in milestones]


def resolve_learning_rate(learning_rate: Any, path: str, clock: State | None = None) -> Spec:
    """The specification of the scheduler for a learning rate: a number, a dict, or a list of dicts."""
    if isinstance(learning_rate, Real) and not isinstance(learning_rate, bool):
        return _resolve_named(Entry("ConstantLR", {"learning_rate": learning_rate}, path, LR))
    is_list = isinstance(learning_rate, (list, tuple))
    dicts = [dict(x) if isinstance(x, Mapping) else {} for x in (learning_rate if is_list else [learning_rate])]
    if not all("scheduler" in arguments for arguments in dicts):
        raise TypeError(
            f"{path}={learning_rate!r:.80}: this is no learning rate. Pass a number, or dicts with 'scheduler'."
        )
    if not is_list:
        return _resolve_named(Entry(dicts[0].pop("scheduler"), dicts[0], path, LR), clock)
    main_schedulers = [MAIN_LR.find(arguments.pop("main_scheduler", "SequentialLR"), path) for arguments in dicts]
    name = "ChainedLR" if lr_scheduler.ChainedLR in main_schedulers else "SequentialLR"
    is_phase = name == "SequentialLR"
    children = [Entry(x.pop("scheduler"), x, f"{path}[{i}]", LR, is_phase) for i, x in enumerate(dicts)]
    return _resolve_named(Entry(name, {"schedulers": children}, path, LR), clock)


def has_time(value: object) -> bool:
    """Whether a value is a time, or a specification has a time in its arguments, so that it needs a clock."""
    if isinstance(value, Spec):
        values = [argument for name, argument in value.arguments.items() if name != TAGS]
        return issubclass(value.constructor.cls, Schedule) or has_time(values)
    if isinstance(value, (list, tuple)):
        return any(map(has_time, value))
    try:
        return isinstance(value, Time) or (isinstance(value, str) and Time.from_timestring(value) is not None)
    except TimeError:
        return False
