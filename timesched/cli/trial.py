"""Make a config on trial, without its model. It continues after an error, to find all errors at once."""

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
    """The objects that could be made from a config, and the errors of the rest.

    `schedulers`: one for each entry by its place, None where the scheduler could not be made. `optimizer`: None if it
    could not be made for the model.
    """

    optimizer: Any = None
    clock: Any = None
    schedulers: dict[str, Any] = field(default_factory=dict)
    problems: Problems = field(default_factory=Problems)


def make_trial(
    config: Mapping[str, Any],
    model: Any = None,
    run: Mapping[str, Any] = MappingProxyType({}),
    place: str = "schedulers[{}]",
    only: int | None = None,
) -> Trial:
    """Make the optimizer, the clock and the schedulers of a config.

    Without a model the optimizer has a small parameter without tags, and one for each tag that a scheduler names.
    `run`: keys of the run that replace the keys of the config. `place`: how messages name an entry, by its number.
    `only`: the number of the one entry that is made. Raises `TypeError` if a config is not a mapping. Raises
    `ValueError` if the config has no entry of that number, or if a `run` has no length.
    """
    sections = read_sections(config) | dict(run)
    sections.pop("process_group", None)  # there is one rank
    if run and sections.get("max_duration") is None:
        raise ValueError("max_duration: the options of a run need its length. Pass it, such as --max-duration 90ep.")
    entries = {place.format(i): entry for i, entry in enumerate(sections["schedulers"]) if only in (None, i)}
    if only is not None and not entries:
        raise ValueError(f"schedulers[{only}]: there is no such entry. The first entry is 0.")
    trial = Trial()
    spec, trial.clock, specs = resolve_entries(sections, entries, None, trial.problems)
    grouped = None
    if spec is not None and model is None:
        tags: list[set[str]] = [set(), *({tag} for tag in sorted(set().union(*map(_find_tags, specs.values()))))]
        groups = [{"params": [torch.nn.Parameter(torch.zeros(2, 2))], "tags": group_tags} for group_tags in tags]
        grouped = trial.problems.attempt(lambda: GroupedOptimizer(spec.cls(groups, **spec.arguments)))
    elif spec is not None:
        grouped = trial.problems.attempt(make_optimizer, spec, model)
    clock_failed = trial.clock is None and not sections.keys().isdisjoint(CLOCK_KEYS)
    if grouped is None or clock_failed:
        check_schedules(specs, trial.problems)
        trial.schedulers = dict.fromkeys(specs)
    else:
        trial.schedulers = make_schedulers(specs, grouped, trial.clock, trial.problems)
        if only is None and not trial.problems:
            check_learning_rates(spec, grouped, trial.schedulers, trial.problems)
    trial.optimizer = getattr(grouped, "optimizer", None)
    return trial


def _find_tags(value: Any) -> set[str]:
    """Return all tags that a scheduler and its children name."""
    if isinstance(value, list):
        return set().union(*map(_find_tags, value))
    if not isinstance(value, Spec):
        return set()
    tags = value.options.get("tags", value.arguments.get(TAGS))
    own = {tag for tag in (tags if isinstance(tags, list) else [tags]) if isinstance(tag, str)}
    return own.union(*map(_find_tags, value.arguments.values()))
