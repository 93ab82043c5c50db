"""The arguments of `schedule(trainer, ...)` as plain data: a section of a framework's config. Nothing is evaluated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer
from transformers import Trainer

from timesched.binding import Bound
from timesched.binding.bound import OnChange
from timesched.hints import argument_hint
from timesched.packages import check_optim
from timesched.reading import prefix_errors, read_schedule
from timesched.run.clock import Clock
from timesched.run.horizon import State

from .common import Binding, MakeAverage
from .transformers import schedule

__all__ = ["schedule_by_section"]

_OPTIONS = ("max_duration", "tokens_per_sample", "ssr", "on_change", "log", "evaluate_averaged")
_KEYS = ("schedules", *_OPTIONS, "average")
_EXAMPLE = "[\"WSD('0.02dur', t_decay='0.2dur')\"]"


@dataclass(frozen=True)
class _Entry(Binding):
    """A `Binding` whose errors begin with its path in the config."""

    path: str = ""

    def bind(self, optimizer: Optimizer, clock: State, on_change: OnChange = "same") -> Bound:
        with prefix_errors(self.path):
            return super().bind(optimizer, clock, on_change)


def schedule_by_section(trainer: Trainer, section: object, path: str) -> None:
    """Have a Trainer run the schedules of a section, as `schedule` does.

    `schedules` is a list of entries: a text, as for `ScheduleLR`, or `{schedule: text, key: ..., tags: ...}`. `average`
    has the arguments of `optim.WeightAverage`. The other keys are arguments of `schedule`. `path`: the place of the
    section in the framework's config, with which errors begin.

    Raises `TypeError` for a section or an entry of another type, and `ValueError` for unknown keys and for texts that
    are not schedules. Raises `ImportError` for an `average` if another `optim` hides ours, and as `schedule` does.
    """
    values = _read_mapping(section, _KEYS, path)
    entries = values.get("schedules")
    if not isinstance(entries, list) or not entries:
        raise TypeError(f"{path}.schedules={entries!r:.80}: this is not a list of schedules. Write {_EXAMPLE}.")
    bindings = [_read_entry(entry, f"{path}.schedules[{i}]") for i, entry in enumerate(entries)]
    options = {name: values[name] for name in _OPTIONS if name in values}
    if "average" in values:
        options["average"] = _read_average(values["average"], f"{path}.average")
    with prefix_errors(path):
        schedule(trainer, *bindings, **options)


def _read_mapping(value: object, known: tuple[str, ...], path: str) -> dict[str, Any]:
    """A copy of a mapping, without the keys that are None. Raises errors for other values and for unknown keys."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{path}={value!r:.80}: this is not a mapping. Write one with {', '.join(known)}.")
    for name in value:
        if name not in known:
            raise ValueError(f"{path} has no key {name!r}{argument_hint(str(name), known)}")
    return {name: item for name, item in value.items() if item is not None}


def _read_entry(entry: object, path: str) -> Binding:
    values = {"schedule": entry} if isinstance(entry, str) else _read_mapping(entry, ("schedule", "key", "tags"), path)
    text = values.get("schedule")
    if not isinstance(text, str):
        raise TypeError(f"{path}.schedule={text!r:.80}: this is not a string. Write a schedule, as in {_EXAMPLE}.")
    with prefix_errors(path):
        return _Entry(read_schedule(text, {}, path), values.get("key", "lr"), values.get("tags"), path)


def _read_average(arguments: object, path: str) -> MakeAverage:
    values = _read_mapping(arguments, ("half_life", "start"), path)
    check_optim()
    from optim import WeightAverage

    def make(params: Any, clock: Clock) -> WeightAverage:
        with prefix_errors(path):
            return WeightAverage(params, clock, **values)

    return make
