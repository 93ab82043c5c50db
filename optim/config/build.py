"""Step 3, build: optimizers and schedulers from what was resolved, and what can be checked only when they are there."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from timesched.binding import Bound, bind, unchanged_on_error
from timesched.clock import Clock
from timesched.drawing.table import Table, values_table
from timesched.keys import known_tags
from timesched.schedule import Schedule
from timesched.time.value import TimeLike

from .. import lr_scheduler, weight_decay_scheduler
from ..closed_form.preview import sources
from ..core.optimizer import Optimizer
from ..groups import configure_param_groups
from ..groups.rules import FACTOR, comparable
from ..groups.splitting import give_factors
from ..names import optimizers
from ..scheduler import Scheduler
from . import resolve
from .read import plain, read
from .resolve import RUN, TAGS, Spec, is_scheduler, located

_SCALING = (lr_scheduler.ScalePerParamLR, weight_decay_scheduler.ScalePerParamWD)


@dataclass(frozen=True, eq=False)
class Built:
    """What `build` made. It unpacks into the optimizer and the list of schedulers.

    `clock` is what was passed, or made from the config, or None. `config` is the config that was read, in plain data:
    dicts, lists, numbers and strings, and whatever object was given in place of an entry. `build(model, built.config)`
    makes the same again.
    """

    optimizer: Any
    schedulers: list[Any]
    clock: Any = None
    config: dict[str, Any] = field(default_factory=dict, repr=False)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.optimizer, self.schedulers))

    def table(self, every: TimeLike = "0.1dur") -> Table:
        """What the schedulers write over the run: a row for each multiple of a time, and one for the end.

        A scheduler has a column for each initial value or factor among its groups. The run is that of the clock, or
        without one as many steps as the first scheduler is made for. Raises `ValueError` where neither says how long
        that is, and `TypeError` for a scheduler of torch's or one of functions.

        >>> import torch
        >>> decay = {"LinearLR": {"initial_learning_rate": 0.1, "end_learning_rate": 0.0, "total_iters": 4}}
        >>> config = {"optimizer": {"SGD": {"lr": 1.0}}, "schedulers": [decay]}
        >>> print(build(torch.nn.Linear(2, 2), config).table(every="0.5dur"))
        dur  ba    lr
          0   0   0.1
        0.5   2  0.05
          1   4     0
        """
        return values_table([source for each in self.schedulers for source in sources(each, self.clock)], every)


def configure_optimizer(optimizer_type: str, params: Any, **kwargs: Any) -> Optimizer:
    """An optimizer by the name of its class.

    Args:
        optimizer_type: the name of a class of `optim`, or of a subclass of `optim.Optimizer` that has been imported; in
            any letter case. Where two classes share the name, write it with its module.
        params: parameters, named parameters, or groups.
        kwargs: the arguments of the class. Lists stand for tuples.

    Raises:
        ValueError: no class or argument of that name, with the nearest there is; a missing argument; a value out of
            range.
        TypeError: a value of another type.

    >>> import torch
    >>> optimizer = configure_optimizer("SGD", [torch.nn.Parameter(torch.ones(2))], lr=0.001, momentum=0.5)
    >>> type(optimizer).__name__, optimizer.param_groups[0]["momentum"]
    ('SGD', 0.5)
    """
    cls: Any = optimizers().find(optimizer_type, "optimizer_type")
    optimizer: Optimizer = cls(params, **resolve.checked(cls, kwargs, "configure_optimizer"))
    return optimizer


def configure_lr_scheduler(
    optimizer: torch.optim.Optimizer,
    learning_rate: Any,
    adjust_learning_rate: Mapping[Any, float] | None = None,
    model: torch.nn.Module | None = None,
) -> Any:
    """A learning-rate scheduler from a number, a dict, or a list of dicts.

    Args:
        optimizer: the optimizer to schedule.
        learning_rate: a number, for a `ConstantLR`; or a dict with the key `scheduler`, the name of a class (in any
            letter case, the `LR` at its end may be left out), and its arguments (children likewise); or a list
            of such dicts, for a `SequentialLR`, in which each but the last has `total_iters`, the steps after which the
            next one begins. If one of the dicts has the key `main_scheduler` with the value `ChainedLR`, they are
            chained instead.
        adjust_learning_rate: if there is something in it, `split_groups` puts these factors into the groups, and the
            scheduler is wrapped in a `ScalePerParamLR`. What is there already stays, so that the dict may be that of
            `configure_param_groups`. Without `model`, a key that is a plain word counts as a layer type, and the
            groups need to have the factors of layer types, and all of them where the optimizer has no names of its
            parameters; which parameters have them is not looked at.
        model: the model whose parameters these are, to put in factors of layer types, and where there are no names.

    Raises:
        ValueError: no class or argument of that name, with the nearest there is; a missing argument; a value out of
            range; factors that the groups neither have nor can get. The optimizer is left as it was.
        TypeError: a value of another type.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=1.0)
    >>> warmup = {"scheduler": "LinearLR", "initial_learning_rate": 0.0, "end_learning_rate": 0.1, "total_iters": 2}
    >>> decay = {"scheduler": "CosineDecayLR", "initial_learning_rate": 0.1, "end_learning_rate": 0.0, "total_iters": 4}
    >>> configure_lr_scheduler(optimizer, [warmup, decay]).values(5)
    [0.0, 0.05, 0.1, 0.08535533905932738, 0.05]
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer={optimizer!r:.80} is not a torch.optim.Optimizer: pass the one to schedule.")
    spec = resolve.rate(learning_rate, "learning_rate")
    with unchanged_on_error(optimizer):
        if adjust_learning_rate:
            give_factors(optimizer, adjust_learning_rate, model)
        scheduler = _made(spec, optimizer, None)
        return lr_scheduler.ScalePerParamLR(optimizer, scheduler) if adjust_learning_rate else scheduler


def build(model: Any, config: Any, clock: Any = None) -> Built:
    """The optimizer and the schedulers of a config, for a model.

    Args:
        model: the model, or its `named_parameters()`.
        config: a mapping; or the path of a YAML file; or YAML text. Its keys are:

            `optimizer`: the name of a class with its arguments under it; or these with the name as `optimizer_type`.
            The keys `params` (a list of rules with globs, tags and values), `no_decay`, `adjust_learning_rate`,
            `decay_tag` and `frozen` are those of `configure_param_groups`; weight decay is only split if `no_decay`
            says so.

            `schedulers`: a list of schedulers, each the name of a class with its arguments under it; or these with the
            name as `scheduler`. The children of one are written likewise, and take over its `param_group_tags`.
            `milestones` may be left out: they follow from the `total_iters` of the children, of which those in other
            units add up by the rates of the clock. Schedules of `timesched` multiply the value that the optimizer is
            built with, of the key `key` (the learning rate).

            `max_duration`, `batches_per_epoch`, `samples_per_batch`, `tokens_per_sample`, `ssr`, `process_group`,
            `stop_at`: those of a `Clock`.

            A Trainer's file has them under `trainer` and `init`, between keys of the Trainer, which are passed over.

            A class of your own goes by its name, once it is imported; its constructor takes no `**kwargs`. In a
            mapping, an optimizer or a function `model -> optimizer` may stand for the optimizer, and a scheduler, a
            schedule of `timesched` or a function `optimizer -> scheduler` for each scheduler.
        clock: what schedules of `timesched`, and schedulers whose counts are times, follow: a `Clock` or Composer's
            `State`. All other schedulers count their own steps.

    Returns:
        A `Built`, which unpacks into the optimizer and the list of schedulers.

    Raises:
        ValueError: an unknown name, with the nearest there is, a missing or wrong value, two schedulers for the same
            number of a group, a missing clock, weight decay for what `no_decay` leaves without, factors that no
            scheduler makes use of: all with their place in the config. Nothing is built then, and an optimizer that was
            passed is left as it was.
        TypeError: a value of another type; a function that returns something else.
        ImportError: YAML is to be read, and ruamel.yaml is not there.

    >>> import torch
    >>> optimizer, schedulers = build(torch.nn.Linear(2, 2), {
    ...     "optimizer": {"AdamW": {"lr": 0.1, "params": [{"params": "*bias", "tags": "bias_params"}]}},
    ...     "schedulers": [{"LinearWD": {"initial_val": 0.1, "end_val": 0.0, "total_iters": 2,
    ...                                  "param_group_tags": "bias_params"}}],
    ... })
    >>> schedulers[0].step()
    >>> [float(group["weight_decay"]) for group in optimizer.param_groups]
    [0.0, 0.05]
    """
    config = read(config)
    given = resolve.sections(config)
    entry = resolve.optimizer(given["optimizer"])
    clock = clock_of({name: given[name] for name in RUN if name in given}, clock)
    entries = [resolve.scheduler(each, f"schedulers[{i}]", clock) for i, each in enumerate(given["schedulers"])]
    optimizer, spared = optimizer_of(entry, model)
    schedulers: list[Any] = []
    with unchanged_on_error(optimizer):
        for i, each in enumerate(entries):
            schedulers.append(scheduler_of(each, optimizer, clock, f"schedulers[{i}]"))
            check_written(schedulers, spared)
        if isinstance(entry, Spec) and (entry.options or {}).get(FACTOR) and not any(map(_scales, schedulers)):
            raise ValueError(
                "optimizer: 'adjust_learning_rate' does nothing by itself: wrap the LR scheduler in a "
                "ScalePerParamLR, or give the parameters an 'lr' in 'params'."
            )
    return Built(optimizer, schedulers, clock, plain(config))


def clock_of(run: Mapping[str, Any], clock: Any) -> Any:
    if not run:
        return clock
    if clock is not None:
        raise ValueError(f"config has {', '.join(map(repr, run))}, and a clock is passed: leave out one of them.")
    with located("config"):
        return Clock(**{"max_duration": None, **run})


def optimizer_of(entry: Any, model: Any) -> tuple[torch.optim.Optimizer, frozenset[int]]:
    """The optimizer, and the indices of the groups that `no_decay` leaves without weight decay."""
    if isinstance(entry, Spec):
        options = entry.options or {}
        with located(entry.path):
            groups = configure_param_groups(model, **options)
            zero = (i for i, group in enumerate(groups) if comparable(group.get("weight_decay")) == 0)
            spared = frozenset(zero if options["no_decay"] is not False else ())
            return entry.cls(groups, **entry.arguments), spared
    if isinstance(entry, torch.optim.Optimizer):
        return entry, frozenset()
    return _called(entry, model, "optimizer: {}(model)", "optimizer"), frozenset()


def scheduler_of(entry: Any, optimizer: torch.optim.Optimizer, clock: Any, path: str) -> Any:
    if isinstance(entry, Spec):
        return _made(entry, optimizer, clock if entry.follows_time() else None)
    if isinstance(entry, Schedule):
        with located(path):
            return bind(entry, optimizer, clock)
    call = f"{path}: {{}}(optimizer)"
    scheduler = entry if is_scheduler(entry) else _called(entry, optimizer, call, "scheduler")
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise ValueError(f"{path}: {type(scheduler).__name__} has another optimizer than the one that is built here.")
    return scheduler


def _made(spec: Any, optimizer: torch.optim.Optimizer, clock: Any, tags: Any = None) -> Any:
    """The scheduler of a specification, or the schedule if it stands inside another; children take over the tags."""
    if not isinstance(spec, Spec):
        return [_made(each, optimizer, clock, tags) for each in spec] if isinstance(spec, list) else spec
    tags = spec.arguments.get(TAGS, tags)
    arguments = {name: _made(value, optimizer, clock, tags) for name, value in spec.arguments.items()}
    with located(spec.path):
        if issubclass(spec.cls, Schedule):
            schedule = spec.cls(**arguments)
            return schedule if spec.options is None else bind(schedule, optimizer, clock, **spec.options)
        takes = inspect.signature(spec.cls).parameters
        shared = {next(iter(takes)): optimizer, TAGS: tags, "clock": clock}
        return spec.cls(**{k: v for k, v in shared.items() if v is not None and k in takes} | arguments)


def _written(scheduler: Any) -> tuple[str, set[int]]:
    """The key that a scheduler writes, and the groups; torch's own write the learning rate of all groups."""
    if isinstance(scheduler, Bound):
        return scheduler.key, set(scheduler.indices)
    if isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler):
        return "lr", set(range(len(scheduler.optimizer.param_groups)))
    return "", set()  # what it writes is not known


def check_written(schedulers: list[Any], spared: frozenset[int]) -> None:
    """Raise `ValueError` where the last one writes what another does, or sets weight decay that is to stay 0."""
    last, place = schedulers[-1], f"schedulers[{len(schedulers) - 1}]"
    key, groups = _written(last)
    for i, other in enumerate(schedulers[:-1]):
        both = groups & _written(other)[1] if key == _written(other)[0] else set()
        if both and (isinstance(last, Bound) or isinstance(other, Bound)):  # torch's own may share
            raise ValueError(
                f"{place}: {key!r} of parameter group {min(both)} is bound already, by schedulers[{i}] "
                f"({type(other).__name__}): make them one, as a SequentialLR or ChainedLR; give them different tags "
                f"(there are: {known_tags(last.optimizer.param_groups)}); or leave out one."
            )
    hit = sorted(spared & groups)
    if hit and key == "weight_decay" and isinstance(last, Scheduler):  # a bound schedule multiplies the 0
        names = ", ".join(last.optimizer.param_groups[hit[0]]["param_names"][:2])
        raise ValueError(
            f"{place}: it would give weight decay to parameter group {hit[0]} ({names}, ...), which 'no_decay' leaves "
            f"without: give the optimizer a 'decay_tag', and the scheduler that tag as 'param_group_tags'."
        )


def _called(function: Any, value: Any, call: str, kind: str) -> Any:
    """What a function makes of the model or the optimizer; its name and place come before its errors."""
    call = call.format(getattr(function, "__name__", type(function).__name__))
    with located(call):
        made = function(value)
    if not (is_scheduler(made) if kind == "scheduler" else isinstance(made, torch.optim.Optimizer)):
        hint = ": write the schedule itself, or return bind(...) of it" if isinstance(made, Schedule) else ""
        raise TypeError(f"{call} returned a {type(made).__name__}, and no {kind}{hint}.")
    return made


def _scales(scheduler: Any) -> bool:
    """Whether a scheduler, or one inside it, makes use of the factors of the groups."""
    inside = [getattr(scheduler, "scheduler", None), *(getattr(scheduler, "schedulers", None) or ())]
    return isinstance(scheduler, _SCALING) or any(_scales(each) for each in inside if isinstance(each, Scheduler))
