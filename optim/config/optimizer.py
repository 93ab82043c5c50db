"""The optimizer of a config: its entry is read and checked, and then the groups and the optimizer are made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

from timesched.binding.groups import FACTOR_KEYS
from timesched.types import ParamGroup

from ..algorithms.adam import Adam
from ..base.hyperparameters import comparable_value
from ..groups import configure_param_groups
from ..groups.parameters import NamedParameter, find_parameters
from ..groups.rules import FACTOR, RULE_KEYS, Claim, apply_claims, read_factor_claims, read_rule, require_rules
from ..muon.muon import ALGORITHMS, Muon
from .entries import Constructor, Entry, Given, Problems, is_given, read_constructor, read_entry, rename_argument
from .names import optimizers
from .read import read_numbers

DEPTH_KEYS = ("layer_decay", "layers")
# Keys of an optimizer's entry that are arguments of configure_param_groups.
GROUPING_KEYS = ("no_decay", FACTOR, "decay_tag", "matrices", "output_head", "frozen", *DEPTH_KEYS)
LEARNING_RATE = ("lr", "learning_rate")  # the names that classes have for this argument
UNKNOWN_LR = 0.1  # the reference's value for a class without a default: the schedulers replace it

# Names: the class and its arguments, before the model is used


def resolve_optimizer(value: object, is_lr_scheduled: bool) -> Entry | Given:
    """The entry of an optimizer, or the optimizer or function that is in its place.

    `is_lr_scheduled`: the config has a scheduler of `optim.lr_scheduler`, so the learning rate may be missing. Raises
    the errors of its arguments and of the rules for its groups together.
    """
    if value is None:
        raise ValueError("config has no 'optimizer'. Write one, as in optimizer: {AdamW: {lr: 0.1}}.")
    if is_given(value):
        return Given("optimizer", value)
    name, arguments = read_entry(read_numbers(value), "optimizer")
    constructor = read_constructor(optimizers().find(name, "optimizer"))
    path, problems = f"optimizer.{name}", Problems()
    rules = arguments.pop("params", None)
    claims = _read_claims(rules, f"{path}.params", constructor, problems) if rules else []
    options = {key: arguments.pop(key) for key in GROUPING_KEYS if key in arguments}
    if issubclass(constructor.cls, Muon) and not arguments.keys().isdisjoint(ALGORITHMS):
        options = {"matrices": "muon", **options}
    if constructor.cls is Adam and arguments.get("correct_bias") is True:
        del arguments["correct_bias"]  # Adam always corrects the bias
    arguments = _rename_lr(arguments, constructor, path, problems)
    has_depth = any(options.get(key) is not None for key in DEPTH_KEYS)
    if has_depth:  # factors by depth apply to the learning rate of the groups
        options["lr"] = problems.attempt(_require_group_lr, constructor, arguments, options, path)
    missing = [name for name in LEARNING_RATE if name in constructor.required and name not in arguments]
    if is_lr_scheduled or has_depth:
        arguments |= dict.fromkeys(missing, UNKNOWN_LR)
    arguments = problems.attempt(constructor.read_arguments, arguments, path, ("params", *GROUPING_KEYS))
    problems.raise_all()
    return Entry(path, constructor, arguments, {**options, "rules": claims}, lacks_lr=bool(missing))


def _read_claims(rules: Any, path: str, constructor: Constructor, problems: Problems) -> list[Claim]:
    """Read the rules for the groups of an optimizer. The errors of wrong rules are added to the problems."""
    rules = [rules] if isinstance(rules, Mapping) else problems.attempt(require_rules, rules, path) or []
    return [problems.attempt(_read_claim, rule, f"{path}[{i}]", constructor) for i, rule in enumerate(rules)]


def _read_claim(rule: object, path: str, constructor: Constructor) -> Claim:
    """Read a rule for the groups of an optimizer, and check that the optimizer has its hyperparameters."""
    rule = read_numbers(rule)
    if isinstance(rule, dict) and "tag" in rule:
        rule = rename_argument(rule, "tag", "tags", path)
    claim = read_rule(rule, path)
    settings = {key: value for key, value in claim.settings.items() if key not in FACTOR_KEYS}
    if issubclass(constructor.cls, Muon):
        algorithm = ALGORITHMS.get(settings.pop("algorithm", "muon"))
        constructor = constructor if algorithm is None else read_constructor(algorithm)
    constructor.read_arguments(settings, claim.source, (*RULE_KEYS, *FACTOR_KEYS), require_all=False)
    return claim


def _rename_lr(arguments: dict[str, Any], constructor: Constructor, path: str, problems: Problems) -> dict[str, Any]:
    """The arguments with the learning rate under its name in the class: an entry may write `lr` or `learning_rate`.

    For Muon, also in the arguments of its other algorithms.
    """
    for name, alias in (LEARNING_RATE, LEARNING_RATE[::-1]):
        if alias in arguments and name in constructor.parameters and alias not in constructor.parameters:
            arguments = problems.attempt(rename_argument, arguments, alias, name, path) or arguments
    if issubclass(constructor.cls, Muon):
        for name, algorithm, own_arguments in _nested_arguments(arguments):
            arguments[name] = _rename_lr(own_arguments, algorithm, f"{path}.{name}", problems)
    return arguments


def _nested_arguments(arguments: Mapping[str, Any]) -> list[tuple[str, Constructor, dict[str, Any]]]:
    """The other algorithms that an entry of Muon configures: the name of each, its constructor, and its arguments."""
    nested = {name: arguments[name] for name in ALGORITHMS if isinstance(arguments.get(name), dict)}
    return [(name, read_constructor(ALGORITHMS[name]), own_arguments) for name, own_arguments in nested.items()]


def _require_group_lr(constructor: Constructor, arguments: dict[str, Any], grouping: dict[str, Any], path: str) -> Any:
    """The learning rate of the groups, to which factors by depth apply. For Muon with `matrices`, one by algorithm."""
    learning_rate = _require_learning_rate(arguments, path)
    if grouping.get("matrices") is None or not issubclass(constructor.cls, Muon):
        return learning_rate
    nested = _nested_arguments(arguments)
    return {"muon": learning_rate, **{name: _require_learning_rate(own, f"{path}.{name}") for name, _, own in nested}}


def _require_learning_rate(arguments: Mapping[str, Any], path: str) -> Any:
    """The learning rate among these arguments."""
    for name in LEARNING_RATE:
        if arguments.get(name) is not None:
            return arguments[name]
    raise ValueError(f"{path}: {DEPTH_KEYS[0]!r} needs a learning rate. Write 'lr'.")


def _has_weight_decay(constructor: Constructor, arguments: Mapping[str, object]) -> bool:
    """Whether the arguments, or else the defaults of the class, have weight decay. For Muon, its algorithms count."""
    nested = _nested_arguments(arguments) if issubclass(constructor.cls, Muon) else []
    if any(_has_weight_decay(algorithm, own_arguments) for _, algorithm, own_arguments in nested):
        return True
    default = constructor.parameters.get("weight_decay")
    return bool(comparable_value(arguments.get("weight_decay", default.default if default else 0.0)))


# Objects: the groups and the optimizer


class GroupedOptimizer(NamedTuple):
    """An optimizer, and what its config says of its parameter groups, by their indices."""

    entry: Entry | Given
    optimizer: Any
    no_decay: Any = False  # the argument of configure_param_groups
    no_decay_groups: Set[int] = frozenset()  # the config's `no_decay` leaves them without weight decay
    unset_lr_groups: Set[int] = frozenset()  # neither the optimizer's entry nor its class has a learning rate for them
    parameters: Sequence[NamedParameter] = ()


def make_optimizer(entry: Entry | Given, model: Any) -> GroupedOptimizer:
    """Make the optimizer of an entry, for a model."""
    if isinstance(entry, Given):
        return GroupedOptimizer(entry, entry.make(model, "optimizer"))
    if isinstance(model, Iterator):
        model = list(model)  # it is read more than once
    parameters, options = find_parameters(model), dict(entry.options)
    claims = [*options.pop("rules"), *read_factor_claims(model, parameters, options.pop(FACTOR, None))]
    excludes_decay = options.get("no_decay", False) is not False
    # Without weight decay, a default of True would only make more groups.
    options.setdefault("no_decay", "decay_tag" in options or _has_weight_decay(entry.constructor, entry.arguments))
    groups = configure_param_groups(model, claims, **options)
    # Before the optimizer is made, since it adds its defaults to the groups:
    no_decay_groups = _find_no_decay_groups(groups, parameters, claims) if excludes_decay else set()
    unset_lr_groups = {i for i, group in enumerate(groups) if entry.lacks_lr and "lr" not in group}
    optimizer = entry.constructor.cls(groups, **entry.arguments)
    return GroupedOptimizer(entry, optimizer, options["no_decay"], no_decay_groups, unset_lr_groups, parameters)


def _find_no_decay_groups(groups: list[ParamGroup], parameters: list[NamedParameter], claims: list[Claim]) -> set[int]:
    """The indices of the groups without weight decay in which `no_decay` excludes a parameter, and no rule does.

    The rules are applied here once more, because a group does not say what has set its weight decay.
    """
    apply_claims(parameters, claims)
    undecided = {parameter.name for parameter in parameters if "weight_decay" not in parameter.settings}
    without_decay = {i for i, group in enumerate(groups) if comparable_value(group.get("weight_decay")) == 0}
    return {i for i in without_decay if not undecided.isdisjoint(dict(groups[i]["params"]))}
