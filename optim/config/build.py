"""Build the optimizer and the schedulers of a config: read it, find the classes and their arguments, make the objects.

`build` calls the steps in order. The schedulers are resolved before the optimizer, since they may set its learning
rate, and are made after it, since they write into its groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from timesched.batch_size.schedule import BatchSizeSchedule
from timesched.binding import Bound
from timesched.binding.groups import APPLIED_FACTOR, has_learning_rate_factor
from timesched.drawing.schedulers import sources
from timesched.drawing.table import Table, values_table
from timesched.run.clock import Clock
from timesched.run.horizon import State
from timesched.time.value import TimeLike

from .. import lr_scheduler
from ..groups.decay import decaying_groups, norm_and_bias_names, scheduled_groups
from ..groups.rules import FACTOR, read_factors
from ..state.optimizer import Optimizer
from .entries import Entry, Given, Problems, read_constructor
from .names import optimizers
from .optimizer import GroupedOptimizer, make_optimizer, resolve_optimizer
from .read import CLOCK_KEYS, find_unknown_keys, read, read_sections
from .schedulers import check_written, make_entry, make_scheduler, resolve_learning_rate, resolve_scheduler


@dataclass(frozen=True, eq=False)
class Built:
    """The optimizer and the schedulers that `build` made. It unpacks into the optimizer and the list of schedulers.

    `clock` is the clock that was passed to `build` or made from the config, or None. `config` is the config as it was
    read: plain data if it was YAML, and otherwise a copy of the mapping. `build(model, built.config)` makes the same
    again.
    """

    optimizer: Any
    schedulers: list[Any]
    clock: Any = None
    config: dict[str, Any] = field(default_factory=dict, repr=False)
    _note: str = field(default="", repr=False)  # below the table

    def __iter__(self) -> Iterator[Any]:
        return iter((self.optimizer, self.schedulers))

    def table(self, every: TimeLike = "0.1dur") -> Table:
        """The values that the schedulers write over the run: a row for each multiple of `every`, and one for the end.

        A scheduler has a column for each initial value or factor among its groups. If a group has weight decay, the
        line below the table says whether norms and biases have it. The clock gives the length of the run. Without a
        clock, the run has as many steps as the first scheduler. Raises `ValueError` if the length is unknown, and
        `TypeError` for a scheduler of torch or a scheduler made of functions.

        >>> import torch
        >>> decay = {
        ...     "LinearLR": {
        ...         "initial_learning_rate": 0.1,
        ...         "end_learning_rate": 0.0,
        ...         "total_iters": 4,
        ...     }
        ... }
        >>> config = {"optimizer": {"SGD": {"lr": 1.0}}, "schedulers": [decay]}
        >>> print(build(torch.nn.Linear(2, 2), config).table(every="0.5dur"))
        dur  ba    lr
          0   0   0.1
        0.5   2  0.05
          1   4     0
        """
        lines = []
        for scheduler in self.schedulers:
            lines += sources(scheduler, self.clock)
        return replace(values_table(lines, every), note=self._note)


def configure_optimizer(optimizer_type: str, params: ParamsT, **kwargs: object) -> Optimizer:
    """An optimizer by the name of its class.

    Args:
        optimizer_type: the name of a class of `optim`, or of a subclass of `optim.Optimizer` that has been imported.
            Upper and lower case do not matter. If two classes have the same name, write the name with its module.
        params: parameters, named parameters, or groups.
        kwargs: the arguments of the class. A list becomes a tuple if the default is a tuple.

    Raises:
        ValueError: no class or argument has that name (the error suggests similar names); an argument is missing; a
            value is out of range.
        TypeError: a value has the wrong type.

    >>> import torch
    >>> optimizer = configure_optimizer(
    ...     "SGD", [torch.nn.Parameter(torch.ones(2))], lr=0.001, momentum=0.5
    ... )
    >>> type(optimizer).__name__, optimizer.param_groups[0]["momentum"]
    ('SGD', 0.5)
    """
    constructor = read_constructor(optimizers().find(optimizer_type, "optimizer_type"))
    arguments = constructor.read_arguments(kwargs, "configure_optimizer")
    optimizer: Optimizer = constructor.cls(params, **arguments)
    return optimizer


def configure_lr_scheduler(
    optimizer: torch.optim.Optimizer, learning_rate: object, adjust_learning_rate: Mapping[Any, float] | None = None
) -> Any:
    """A learning-rate scheduler from a number, a dict, or a list of dicts.

    Args:
        optimizer: the optimizer to schedule.
        learning_rate: a number (for a `ConstantLR`), a dict, or a list of dicts (for a `SequentialLR`). A dict has the
            name of a class under the key `scheduler`, and the arguments of the class. Upper and lower case do not
            matter in the name, and the `LR` at its end may be left out. Each dict of a list except the last must have
            `total_iters`, the number of steps after which the next scheduler begins. If one of the dicts has the key
            `main_scheduler` with the value `ChainedLR`, the schedulers are chained instead. The only other value is
            `SequentialLR`.
        adjust_learning_rate: learning-rate factors. If the dict is not empty, the scheduler is wrapped in a
            `ScalePerParamLR`, which multiplies by the factors of the groups. Make the groups by
            `configure_param_groups(model, adjust_learning_rate=...)` with the same dict.

    Raises:
        ValueError: no class or argument has that name (the error suggests similar names); an argument is missing; a
            value is out of range; the groups do not have the factors. All names are checked before a scheduler is
            made. If a value is out of range, earlier schedulers of the list have already written their first values.
        TypeError: a value has the wrong type.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=1.0)
    >>> warmup = {
    ...     "scheduler": "LinearLR",
    ...     "initial_learning_rate": 0.0,
    ...     "end_learning_rate": 0.1,
    ...     "total_iters": 2,
    ... }
    >>> decay = {
    ...     "scheduler": "CosineDecayLR",
    ...     "initial_learning_rate": 0.1,
    ...     "end_learning_rate": 0.0,
    ...     "total_iters": 4,
    ... }
    >>> configure_lr_scheduler(optimizer, [warmup, decay]).values(5)
    [0.0, 0.05, 0.1, 0.08535533905932738, 0.05]
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer={optimizer!r:.80}: this is not a torch.optim.Optimizer. Pass the one to schedule.")
    entry = resolve_learning_rate(learning_rate, "learning_rate")
    if adjust_learning_rate:
        missing = {claim.settings[FACTOR] for claim in read_factors(adjust_learning_rate)}
        for group in optimizer.param_groups:
            missing.discard(group.get(APPLIED_FACTOR, group.get(FACTOR, group.get("adjust_val"))))
        has_width_factors = any("base_rule" in group for group in optimizer.param_groups)  # which multiply them
        if missing and not has_width_factors:
            raise ValueError(
                f"adjust_learning_rate={dict(adjust_learning_rate)!r:.80}: no parameter group has the factor "
                f"{min(missing)}. Make the groups by configure_param_groups(model, adjust_learning_rate=...)."
            )
    scheduler = make_entry(entry, optimizer)
    if not adjust_learning_rate:
        return scheduler
    return lr_scheduler.ScalePerParamLR(optimizer, scheduler, on_change=scheduler.on_change)


def build(model: object, config: Any, clock: State | None = None) -> Built:
    """The optimizer and the schedulers of a config, for a model.

    Args:
        model: the model, or its `named_parameters()`.
        config: a mapping; or the path of a YAML file; or YAML text. Its keys are:

            `optimizer`: the name of a class with its arguments under it. `learning_rate` and `lr` mean the same. If
            schedulers of `optim.lr_scheduler` set the learning rate of all groups, a class without a default may leave
            it out. The keys `params` (a rule or a list of rules with globs, `tags` or `tag`, and values), `no_decay`,
            `decay_tag`, `matrices`, `output_head` and `frozen` are the arguments of `configure_param_groups`. Without
            the key, `no_decay` is True if the optimizer has weight decay or there is a `decay_tag`, and otherwise
            False. `Muon` with `adamw` or `lion` under it has `matrices: muon`. So are `layer_decay` and `layers`. With
            them, the `lr` of the entry (and for `Muon` with `matrices: muon`, the `lr` under `adamw` and `lion`) is
            the argument `lr`, and may not be left out. A key of `adjust_learning_rate` is the
            name of a group in the model's `lr_adjustment_groups`, or a glob or layer type. A model without this
            attribute has the groups `embedding` and `decoder_kernel`.

            `schedulers`: a list of schedulers, each the name of a class with its arguments under it. Children are
            written in the same way, and use the `param_group_tags` of their parent. `milestones` may be left out: they
            are the running sums of the children's `total_iters`, which the clock converts if their units differ. A
            learning-rate scheduler of `optim` is wrapped in a `ScalePerParamLR` if one of its groups has a factor. A
            schedule of `timesched` multiplies the initial value of its `key` (by default the learning rate).

            `max_duration`, `batches_per_epoch`, `samples_per_batch`, `tokens_per_sample`, `ssr`, `process_group`,
            `stop_at`: the arguments of a `Clock`. A mapping from thresholds to sizes under `samples_per_batch` is a
            `BatchSizeSchedule`.

            A Trainer's file has these keys under `trainer` and `init`; the keys of the Trainer are ignored. The steps
            of its `loop` are the `max_duration` in batches, unless the file has one or a clock is passed. The old form
            of such files is `optimizer: {optimizer_type: Name, ...}`, with schedulers under its `learning_rate` as in
            `configure_lr_scheduler`.

            Text that is a decimal number counts as a number in arguments, rules and factors.

            A class of your own is known by its name once it is imported. In a mapping, an optimizer or a function
            `model -> optimizer` may take the place of the optimizer. A scheduler or a function
            `optimizer -> scheduler` may take the place of a scheduler.
        clock: a `Clock` or Composer's `State`. Schedules of `timesched`, and schedulers whose counts are times, follow
            it. All other schedulers count their own steps.

    Returns:
        A `Built`, which unpacks into the optimizer and the list of schedulers.

    Raises:
        ValueError: an unknown name (the error suggests similar names); a missing or wrong value; two schedulers for
            the same hyperparameter of a group; a missing clock; weight decay in a group that the config's `no_decay`
            leaves without; factors that no scheduler uses; a missing learning rate that no scheduler sets. Each error
            begins with its path in the config. Errors of several entries are raised together, a line each. All names
            are checked before a scheduler is made. If a scheduler fails later, the others have already written their
            first values.
        TypeError: a value has the wrong type, or a function returns the wrong kind of object.
        ImportError: the config is YAML, and ruamel.yaml is not installed.

    >>> import torch
    >>> optimizer, schedulers = build(
    ...     torch.nn.Linear(2, 2),
    ...     {
    ...         "optimizer": {
    ...             "AdamW": {
    ...                 "lr": 0.1,
    ...                 "params": [{"params": "*bias", "tags": "bias_params"}],
    ...             }
    ...         },
    ...         "schedulers": [
    ...             {
    ...                 "LinearWD": {
    ...                     "initial_val": 0.1,
    ...                     "end_val": 0.0,
    ...                     "total_iters": 2,
    ...                     "param_group_tags": "bias_params",
    ...                 }
    ...             }
    ...         ],
    ...     },
    ... )
    >>> schedulers[0].step()
    >>> [float(group["weight_decay"]) for group in optimizer.param_groups]
    [0.0, 0.05]
    """
    config = read(config)
    sections = read_sections(config, clock is not None)
    values = {f"schedulers[{i}]": value for i, value in enumerate(sections["schedulers"])}
    plan = resolve_config(sections, values, clock, is_partial=False)
    grouped = plan.attempt(make_optimizer, plan.optimizer, model)
    plan.problems.raise_all()
    schedulers = make_schedulers(plan, grouped)
    plan.problems.raise_all()
    check_learning_rates(grouped, schedulers)
    note = _describe_weight_decay(grouped, schedulers)
    return Built(grouped.optimizer, list(schedulers.values()), plan.clock, config, note)


@dataclass(frozen=True)
class Plan:
    """The entries of a config. None is in the place of an entry that fails; its error is among the problems."""

    optimizer: Entry | Given | None
    clock: State | None
    schedulers: Mapping[str, Entry | Given | None]  # by their paths
    problems: Problems

    def attempt(self, make: Callable[..., object], entry: Any, *arguments: object) -> Any:
        """Make the object of an entry. If this fails, keep the error, which begins with its path."""
        return None if entry is None else self.problems.attempt(make, entry, *arguments, path=entry.path)


def resolve_config(sections: dict[str, Any], values: dict[str, object], clock: State | None, is_partial: bool) -> Plan:
    """Find the classes and read the arguments of a config.

    `values`: the schedulers to make, by their paths. `is_partial`: they are only some of the config's schedulers.
    """
    problems, later = Problems(find_unknown_keys(sections)), Problems()
    clock = later.attempt(make_clock, sections, clock, path="config")
    entries = {path: later.attempt(resolve_scheduler, value, path, clock) for path, value in values.items()}
    classes = [entry.constructor.cls for entry in entries.values() if isinstance(entry, Entry)]
    # The schedulers that are left out may set the learning rate, too.
    is_lr_scheduled = is_partial or any(issubclass(cls, lr_scheduler.LRScheduler) for cls in classes)
    optimizer = problems.attempt(resolve_optimizer, sections["optimizer"], is_lr_scheduled)
    return Plan(optimizer, clock, entries, Problems(problems + later))


def make_clock(sections: Mapping[str, Any], clock: State | None) -> Any:
    """The clock that is passed, or a clock made from the config, or None."""
    arguments = {name: sections[name] for name in CLOCK_KEYS if name in sections}
    if arguments and clock is not None:
        keys = ", ".join(map(repr, arguments))
        raise ValueError(f"a clock is passed, and the config has {keys}. Leave out one of them.")
    if isinstance(arguments.get("samples_per_batch"), dict):
        arguments["samples_per_batch"] = BatchSizeSchedule(arguments["samples_per_batch"])
    return Clock(**{"max_duration": None, **arguments}) if arguments else clock


def make_schedulers(plan: Plan, grouped: GroupedOptimizer) -> dict[str, Any]:
    """Make the schedulers, by their paths in the config, and check each when all are made. A failed one is None."""
    schedulers = {}
    for path, entry in plan.schedulers.items():
        schedulers[path] = plan.attempt(make_scheduler, entry, grouped.optimizer, plan.clock)
    for path, scheduler in schedulers.items():
        if scheduler is not None:
            plan.problems.attempt(check_written, scheduler, grouped.no_decay_groups, path=path)
    return schedulers


def check_learning_rates(grouped: GroupedOptimizer, schedulers: Mapping[str, object]) -> None:
    """Raise `ValueError` unless schedulers set the learning rates that the optimizer's entry leaves out.

    Also unless they use the factors of the entry.
    """
    if isinstance(grouped.entry, Given):
        return
    lr_schedulers = [value for value in schedulers.values() if isinstance(value, lr_scheduler.LRScheduler)]
    unset = set(grouped.unset_lr_groups).difference(*(scheduler.indices for scheduler in lr_schedulers))
    if unset:
        raise ValueError(
            f"{grouped.entry.path}: no scheduler sets the learning rate of parameter group {min(unset)}. Give the "
            f"optimizer an 'lr'."
        )
    has_factors = any(map(has_learning_rate_factor, grouped.optimizer.param_groups))
    if has_factors and not any(map(_is_scaled_by_factors, schedulers.values())):
        raise ValueError(
            f"{grouped.entry.path}: no scheduler uses the factors of 'adjust_learning_rate'. Add a learning-rate "
            f"scheduler of timesched or optim, or write an 'lr' for these parameters under 'params'."
        )


def _is_scaled_by_factors(scheduler: object) -> bool:
    """Whether a scheduler multiplies by the factors of the groups. A schedule of the learning rate always does."""
    return isinstance(scheduler, Bound) and scheduler._target.factor_power > 0


def _describe_weight_decay(grouped: GroupedOptimizer, schedulers: Mapping[str, Any]) -> str:
    """Text that says whether norms and biases have weight decay; empty if no group has any, or without an entry."""
    groups = grouped.optimizer.param_groups
    if isinstance(grouped.entry, Given) or not (decaying := decaying_groups(groups, schedulers.values())):
        return ""
    no_decay = grouped.no_decay
    key = f"no_decay: {str(no_decay).lower() if isinstance(no_decay, bool) else no_decay}"
    norm_groups = norm_and_bias_names(grouped.parameters, groups)
    if decaying.isdisjoint(norm_groups):
        return f"{key} (norms and biases have no weight decay)"
    if no_decay is False:
        return f"{key} (norms and biases have weight decay, too)"
    scheduled = {path: scheduled_groups(scheduler) & norm_groups.keys() for path, scheduler in schedulers.items()}
    causes = [path for path, indices in scheduled.items() if indices and not schedulers[path].relative]
    verb = "give" if len(causes) > 1 else "gives"
    return f"{key}, but {' and '.join(causes or ['params'])} {verb} norms and biases weight decay, too"
