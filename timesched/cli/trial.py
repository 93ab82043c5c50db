"""A config made on trial: without its model, and on after an error, so that all of them are found at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from optim.config import resolve
from optim.config.build import check_written, clock_of, optimizer_of, scheduler_of
from optim.config.resolve import RUN, TAGS, Spec
from timesched.clock import Clock


@dataclass
class Trial:
    """What could be made of a config, and the errors of the rest.

    `schedulers`: one for each entry, None where it could not be made. `optimizer`: None where there is no model, or
    where none could be made of it.
    """

    optimizer: Any = None
    clock: Any = None
    schedulers: list[Any] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def trial(config: Mapping[str, Any], model: Any = None, clock: Clock | None = None) -> Trial:
    """Make what a config describes, each scheduler by itself.

    Without a model each scheduler has a small optimizer of one group, which has all its tags. `clock`: in place of
    what the config says of one. Raises `ValueError` and `TypeError` where a config is no mapping with an optimizer.
    """
    given = resolve.sections(config)
    entry = resolve.optimizer(given["optimizer"])
    own = {name: given[name] for name in RUN if name in given and name != "process_group"}  # there is one rank
    made = Trial(clock=clock or clock_of(own, None))
    spared: frozenset[int] = frozenset()
    if model is not None:
        try:
            made.optimizer, spared = optimizer_of(entry, model)
        except (TypeError, ValueError) as error:
            made.problems.append(str(error))
    written: dict[tuple[str, str], str] = {}
    for i, each in enumerate(given["schedulers"]):
        path = f"schedulers[{i}]"
        made.schedulers.append(None)
        try:
            spec = resolve.scheduler(each, path, made.clock)
            if made.optimizer is None:
                made.schedulers[i] = scheduler_of(spec, _stand_in(entry, _tags(spec)), made.clock, path)
                key, tags = made.schedulers[i].key, repr(made.schedulers[i].tags)
                if written.setdefault((key, tags), path) != path:
                    raise ValueError(f"{path}: {key!r} is bound already, by {written[key, tags]}: make them one.")
            else:
                made.schedulers[i] = scheduler_of(spec, made.optimizer, made.clock, path)
                check_written(made.schedulers, spared)
        except (TypeError, ValueError) as error:
            made.problems.append(str(error))
    return made


def _tags(spec: Any) -> set[str]:
    """All tags that a scheduler and its children name."""
    if not isinstance(spec, Spec):
        return set()
    tags = (spec.options or {}).get("tags", spec.arguments.get(TAGS))
    own = {each for each in (tags if isinstance(tags, list) else [tags]) if isinstance(each, str)}
    return own.union(*map(_tags, spec.children))


def _stand_in(entry: Any, tags: set[str]) -> torch.optim.Optimizer:
    if not isinstance(entry, Spec):
        raise TypeError("optimizer: an object in place of an entry cannot be made without its model: pass the model.")
    group = {"params": [torch.nn.Parameter(torch.zeros(2, 2))], **({"tags": tags} if tags else {})}
    made: torch.optim.Optimizer = entry.cls([group], **entry.arguments)
    return made
