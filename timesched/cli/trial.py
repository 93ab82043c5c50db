"""A config made on trial: without its model, and on after an error, so that all of them are found at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch

from optim.config.build import (
    GroupedOptimizer,
    check_learning_rates,
    check_schedules,
    make_optimizer,
    make_schedulers,
    resolve_entries,
)
from optim.config.problems import Problems
from optim.config.resolve import TAGS, Spec
from optim.config.sections import CLOCK_KEYS, read_sections


@dataclass
class Trial:
    """What could be made of a config, and the errors of the rest.

    `schedulers`: one for each entry by its place, None where it could not be made. `optimizer`: None where none could
    be made of the model.
    """

    optimizer: Any = None
    clock: Any = None
    schedulers: dict[str, Any] = field(default_factory=dict)
    problems: Problems = field(default_factory=Problems)


def trial(
    config: Mapping[str, Any],
    model: Any = None,
    run: Mapping[str, Any] = MappingProxyType({}),
    place: str = "schedulers[{}]",
    only: int | None = None,
) -> Trial:
    """Make what a config describes.

    Without a model the optimizer has a small parameter without tags, and one for each tag that a scheduler names.
    `run`: keys of the run that replace those of the config. `place`: what messages call an entry, by its number.
    `only`: the number of the one entry that is made. Raises `TypeError` where a config is no mapping, and `ValueError`
    where it has no entry of that number, or says nothing of the length of a `run`.
    """
    given = read_sections(config) | dict(run)
    given.pop("process_group", None)  # there is one rank
    if run and given.get("max_duration") is None:
        raise ValueError("the options of a run need its length: give --max-duration, such as --max-duration 90ep.")
    entries = {place.format(i): each for i, each in enumerate(given["schedulers"]) if only in (None, i)}
    if only is not None and not entries:
        raise ValueError(f"'schedulers' has no entry {only}: they count from 0.")
    made = Trial()
    spec, made.clock, specs = resolve_entries(given, entries, None, made.problems)
    grouped = None
    if spec is not None and model is None:
        tags: list[set[str]] = [set(), *({tag} for tag in sorted(set().union(*map(_tags, specs.values()))))]
        groups = [{"params": [torch.nn.Parameter(torch.zeros(2, 2))], "tags": each} for each in tags]
        grouped = made.problems.attempt(lambda: GroupedOptimizer(spec.cls(groups, **spec.arguments)))
    elif spec is not None:
        grouped = made.problems.attempt(make_optimizer, spec, model)
    clock_failed = made.clock is None and not given.keys().isdisjoint(CLOCK_KEYS)
    if grouped is None or clock_failed:
        check_schedules(specs, made.problems)
        made.schedulers = dict.fromkeys(specs)
    else:
        made.schedulers = make_schedulers(specs, grouped, made.clock, made.problems)
        if only is None and not made.problems:
            check_learning_rates(spec, grouped, made.schedulers, made.problems)
    made.optimizer = getattr(grouped, "optimizer", None)
    return made


def _tags(value: Any) -> set[str]:
    """All tags that a scheduler and its children name."""
    if isinstance(value, list):
        return set().union(*map(_tags, value))
    if not isinstance(value, Spec):
        return set()
    tags = value.options.get("tags", value.arguments.get(TAGS))
    own = {each for each in (tags if isinstance(tags, list) else [tags]) if isinstance(each, str)}
    return own.union(*map(_tags, value.arguments.values()))
