"""The objects of a config that may be wrong, for the command line: what can be made, and the errors of the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from timesched.run.horizon import State

from .build import check_learning_rates, make_schedulers, resolve_config
from .entries import Entry, Problems
from .optimizer import GroupedOptimizer, make_optimizer
from .read import CLOCK_KEYS, TAGS


class Trial(NamedTuple):
    """The objects that could be made from a config, and the errors of the rest.

    `schedulers`: one for each entry by its place, None where the scheduler could not be made. `optimizer`: None if it
    could not be made for the model.
    """

    optimizer: Any
    clock: State | None
    schedulers: dict[str, Any]
    problems: Problems


def make_trial(sections: Mapping[str, Any], values: dict[str, object], model: object = None) -> Trial:
    """Make the optimizer, the clock and some schedulers of a config.

    `sections`: the result of `read_sections`. `values`: the schedulers to make, by the names that messages give them.
    Without a model the optimizer has a small parameter without tags, and one for each tag that a scheduler names.
    """
    sections = {name: value for name, value in sections.items() if name != "process_group"}  # there is one rank
    is_partial = len(values) < len(sections["schedulers"])
    plan = resolve_config(sections, values, None, is_partial)
    if model is None:
        grouped = plan.attempt(_make_trial_optimizer, plan.optimizer, plan.schedulers)
    else:
        grouped = plan.attempt(make_optimizer, plan.optimizer, model)
    clock_failed = plan.clock is None and not sections.keys().isdisjoint(CLOCK_KEYS)
    if grouped is None or clock_failed:
        return Trial(getattr(grouped, "optimizer", None), plan.clock, dict.fromkeys(plan.schedulers), plan.problems)
    schedulers = make_schedulers(plan, grouped)
    if not is_partial and not plan.problems:
        plan.problems.attempt(check_learning_rates, grouped, schedulers)
    return Trial(grouped.optimizer, plan.clock, schedulers, plan.problems)


def _make_trial_optimizer(entry: Entry, schedulers: Mapping[str, object]) -> GroupedOptimizer:
    tags: list[set[str]] = [set(), *({tag} for tag in sorted(_find_tags(list(schedulers.values()))))]
    groups = [{"params": [nn.Parameter(torch.zeros(2, 2))], "tags": group_tags} for group_tags in tags]
    return GroupedOptimizer(entry, entry.constructor.cls(groups, **entry.arguments))


def _find_tags(value: object) -> set[str]:
    """Return all tags that a scheduler and its children name."""
    if isinstance(value, list):
        return set().union(*map(_find_tags, value))
    if not isinstance(value, Entry):
        return set()
    tags = value.options.get("tags", value.arguments.get(TAGS))
    own = {tag.removeprefix("!") for tag in (tags if isinstance(tags, list) else [tags]) if isinstance(tag, str)}
    return own.union(*map(_find_tags, value.arguments.values()))
