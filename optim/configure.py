"""Optimizers and schedulers from names and plain data: from arguments, a mapping, YAML, or functions."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from timesched.binding import Bound, bind
from timesched.clock import Clock
from timesched.schedule import Schedule

from .building.checks import check_clock, check_decay, check_rates
from .building.plans import Plan, all_schedulers, planned
from .building.rates import give_factors, planned_rate
from .building.reading import read
from .building.recipes import called, calling, is_function, not_given, optimizer_maker, optimizers
from .building.registry import Known, checked, find, located, nearest
from .building.undoing import undone
from .core.optimizer import Optimizer
from .lr_scheduler import ScalePerParamLR
from .schedules.driving import settle

RUN = tuple(inspect.signature(Clock).parameters)  # keys of a config that make the clock


@dataclass(frozen=True, eq=False)
class Built:
    """What `build` made. It unpacks into the optimizer and the list of schedulers.

    `clock` is what was passed, or made from the config, or None. `origin` is for `to_config`: what of the config the
    objects do not keep.
    """

    optimizer: Any
    schedulers: list[Any]
    clock: Any = None
    origin: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.optimizer, self.schedulers))


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
    cls = find(optimizer_type, optimizers(), "optimizer_type", "optimizer")
    arguments = checked(cls, kwargs, "configure_optimizer", not_given(cls))
    optimizer: Optimizer = cls(params, **arguments)
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
            letter case, the `LR` at its end may be left out), and its arguments, with parts written likewise; or a list
            of such dicts, for a `SequentialLR`, in which each but the last has `total_iters`, the steps after which the
            next one begins. If one of the dicts has the key `main_scheduler` with the value `ChainedLR`, they are
            chained instead.
        adjust_learning_rate: if there is something in it, `split_groups` puts these factors into the groups, and the
            scheduler is wrapped in a `ScalePerParamLR`. What is there already stays, so that the dict may be that of
            `configure_param_groups`. Without `model`, the groups need to have the factors of layer types, and all of
            them where the optimizer has no names of its parameters; which parameters have them is not looked at.
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
        raise TypeError(f"optimizer={optimizer!r:.80} is no torch.optim.Optimizer: pass the one to schedule.")
    if adjust_learning_rate is not None and not isinstance(adjust_learning_rate, Mapping):
        raise TypeError(f"adjust_learning_rate={adjust_learning_rate!r:.80}: pass a dict from layers to factors.")
    plan = planned_rate(learning_rate, "learning_rate")
    with undone(optimizer):
        if adjust_learning_rate:
            give_factors(optimizer, adjust_learning_rate, model)
        scheduler = plan.make(optimizer, None)
        return ScalePerParamLR(optimizer, scheduler) if adjust_learning_rate else scheduler


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
            name as `scheduler`. Parts of a scheduler are written likewise, and take over its `param_group_tags`.
            `milestones` may be left out: they follow from the `total_iters` of the parts, of which those in other
            units add up by the rates of the clock. Schedules of `timesched`
            multiply the value that the optimizer is built with, of the key `key` (the learning rate).

            `max_duration`, `batches_per_epoch`, `samples_per_batch`, `tokens_per_sample`, `ssr`: those of a `Clock`.

            A Trainer's file has them under `trainer` and `init`, between keys of the Trainer, which are passed over.

            A class of one's own goes by its name, once it is imported. In a mapping, an optimizer or a function
            `model -> optimizer` may stand for the optimizer, and a scheduler, a schedule of `timesched` or a function
            `optimizer -> scheduler` for each scheduler.
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
    given = _unwrapped(read(config))
    make_optimizer, groups, arguments = optimizer_maker(given["optimizer"])
    entries = given.get("schedulers")
    entries = [] if entries is None else list(entries) if isinstance(entries, (list, tuple)) else [entries]
    known = all_schedulers()
    clock = _clock(given, clock)
    plans = [_planned_scheduler(entry, f"schedulers[{i}]", known, clock) for i, entry in enumerate(entries)]
    for i, plan in enumerate(plans):
        check_clock(plan, f"schedulers[{i}]", clock)
    optimizer, spared = make_optimizer(model)
    schedulers: list[Any] = []
    with undone(optimizer):
        for i, plan in enumerate(plans):
            schedulers.append(_scheduler(plan, optimizer, clock, f"schedulers[{i}]"))
            with located(f"schedulers[{i}]"):
                settle(schedulers[-1:])
                check_decay(optimizer, schedulers, spared)
        check_rates(optimizer, schedulers, groups)
    run = {name: given[name] for name in RUN if name in given}
    origin = {"run": run, "groups": groups, "number": len(optimizer.param_groups), "arguments": arguments}
    return Built(optimizer, schedulers, clock, origin)


def _unwrapped(given: Any) -> dict[str, Any]:
    """The part of a config that is ours, its keys checked."""
    keys = ("optimizer", "schedulers", *RUN)
    passed: set[Any] = set()
    if isinstance(given, dict) and isinstance(given.get("trainer"), dict) and not set(keys).intersection(given):
        given = given["trainer"].get("init")  # as the Trainer's own files have it
        passed = {
            name for name in (given if isinstance(given, dict) else ()) if not get_close_matches(name, keys, 1, 0.8)
        }
    if not isinstance(given, dict):
        raise TypeError(f"config={given!r:.80}: write a mapping with 'optimizer' and 'schedulers'.")
    found: dict[str, Any] = {name: value for name, value in given.items() if name not in passed}
    for name in found:
        if name not in keys:
            raise ValueError(f"config has the key {name!r}: {nearest(name, keys)} It takes {', '.join(keys)}.")
    if found.get("optimizer") is None:
        raise ValueError("config has no 'optimizer': write its name with the arguments under it.")
    return found


def _planned_scheduler(entry: Any, path: str, known: Known, clock: Any) -> Any:
    """A plan; or the entry itself, where it is a scheduler, a schedule or a function."""
    if isinstance(entry, Schedule) or _is_scheduler(entry) or is_function(entry, path, "optimizer"):
        return entry
    return planned(entry, path, known, "scheduler", clock)


def _scheduler(plan: Any, optimizer: torch.optim.Optimizer, clock: Any, path: str) -> Any:
    if isinstance(plan, Plan):
        return plan.make(optimizer, clock if plan.follows_time() else None)
    if isinstance(plan, Schedule):
        with located(path):
            return bind(plan, optimizer, clock)
    scheduler = plan
    if not _is_scheduler(plan):
        with calling(plan, "optimizer", path):
            scheduler = plan(optimizer)
        if not _is_scheduler(scheduler):
            kind = type(scheduler).__name__
            hint = ": write the schedule itself, or return bind(...) of it" if isinstance(scheduler, Schedule) else ""
            raise TypeError(f"{path}: {called(plan, 'optimizer')} returned a {kind}, and no scheduler{hint}.")
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise ValueError(f"{path}: {type(scheduler).__name__} has another optimizer than the one that is built here.")
    return scheduler


def _clock(given: Mapping[str, Any], clock: Any) -> Any:
    run = {name: given[name] for name in RUN if name in given}
    if not run:
        return clock
    if clock is not None:
        raise ValueError(f"config has {', '.join(map(repr, run))}, and a clock is passed: leave out one of them.")
    if "max_duration" not in run:
        raise ValueError(f"config has {', '.join(map(repr, run))} and no 'max_duration': write how long the run is.")
    with located("config"):
        return Clock(**run)


def _is_scheduler(value: Any) -> bool:
    if isinstance(value, (type, torch.optim.Optimizer)):
        return False
    methods = ("step", "state_dict", "load_state_dict")
    return isinstance(value, (LRScheduler, Bound)) or all(callable(getattr(value, name, None)) for name in methods)
