"""The sections of a config under our keys: from a plain config, a Trainer's file, or the old form of such a file."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from timesched.clock import Clock
from timesched.hints import argument_hint, nearest_names
from timesched.time.value import Time

from .problems import prefix_errors
from .read import read_numbers

CLOCK_KEYS = tuple(inspect.signature(Clock).parameters)  # the keys of a config that are the arguments of its clock
KEYS = ("optimizer", "schedulers", *CLOCK_KEYS)
LENGTH_KEYS = ("num_steps", "max_steps")  # steps of a Trainer's loop, in batches; the first that is present counts
# Keys in the optimizer's section of the old form that configure other parts of the Trainer.
OTHER_KEYS = (
    "loss_scaling_factor", "initial_loss_scale", "steps_per_increase", "min_loss_scale", "max_loss_scale",
    "max_gradient_norm", "max_gradient_value", "log_summaries", "grad_accum_steps",
)  # fmt: skip


@dataclass(frozen=True)
class OldLearningRate:
    """The `learning_rate` of an optimizer in the old form, which takes the place of an entry of `schedulers`."""

    value: Any


def read_sections(config: Any, has_clock: bool = False) -> dict[str, Any]:
    """The values of a config under our keys. `check_keys` finds unknown keys among them.

    A Trainer's file has these keys under `trainer` and `init`, and the old form has them at the top. All other keys of
    such files are ignored, unless they resemble one of ours. The steps of the file's loop become the `max_duration`,
    unless the file has one or the run has a clock (`has_clock`).

    Raises `TypeError` for a config that is not a mapping, and `ValueError` for several trainers and for contradictions
    in the old form.
    """
    trainer = config.get("trainer") if isinstance(config, dict) and config.keys().isdisjoint(KEYS) else None
    if isinstance(trainer, list):
        if len(trainer) != 1:
            raise ValueError(f"config has {len(trainer)} trainers. Pass one of them, as in config['trainer'][0].")
        return read_sections(trainer[0], has_clock)
    if isinstance(trainer, dict):
        config = trainer.get("init")
    if not isinstance(config, dict):
        raise TypeError(f"config={config!r:.80}: this is not a mapping. Write one with 'optimizer' and 'schedulers'.")
    result, is_trainers = config, isinstance(trainer, dict)
    is_old = isinstance(config.get("optimizer"), dict) and "optimizer_type" in config["optimizer"]
    if is_trainers or is_old:
        result = {name: value for name, value in config.items() if nearest_names(name, KEYS, 1, 0.8)}
        if result.get("max_duration") is None and not has_clock:
            result |= _read_max_duration(config, "loop" if is_trainers else "runconfig")
    if is_old:
        result |= _read_old_form(config["optimizer"], config.get("schedulers"))
    entries = result.get("schedulers")
    entries = [] if entries is None else entries if isinstance(entries, list) else [entries]
    return {"optimizer": None, **result, "schedulers": entries}


def check_keys(config: Mapping[str, Any]) -> None:
    """Raise `ValueError` for the unknown keys of a config, with a line for each."""
    unknown = [name for name in config if name not in KEYS]
    if unknown:
        lines = (f"config has the unknown key {name!r}{argument_hint(name, KEYS)}" for name in unknown)
        raise ValueError("\n".join(lines))


def _read_max_duration(config: Mapping[str, Any], section: str) -> dict[str, Any]:
    """Read the `max_duration` from the steps in a Trainer's loop, if it has any."""
    loop: Any = config.get(section)
    for name in LENGTH_KEYS if isinstance(loop, dict) else ():
        if loop.get(name) is not None:
            with prefix_errors(f"{section}.{name}={loop[name]!r}"):
                return {"max_duration": Time.from_input(loop[name], "ba")}
    return {}


def _read_old_form(optimizer: Mapping[str, Any], schedulers: Any) -> dict[str, Any]:
    """Turn the optimizer and schedulers of the old form, `{optimizer_type: Name, ...}`, into entries."""
    arguments = dict(optimizer)
    optimizer_type = arguments.pop("optimizer_type")
    other_keys = [key for key in OTHER_KEYS if key in arguments]
    for key in other_keys:
        del arguments[key]
    if "learning_rate" in arguments:
        if "lr" in arguments:
            raise ValueError("optimizer: 'learning_rate' and 'lr' mean the same. Leave out one of them.")
        if schedulers:
            raise ValueError("optimizer has 'learning_rate', and config has 'schedulers'. Leave out one of them.")
        learning_rate = read_numbers(arguments.pop("learning_rate"))
        schedulers = [OldLearningRate(learning_rate)]
        if isinstance(learning_rate, Real):
            arguments["lr"] = learning_rate
    if other_keys:
        warnings.warn(
            f"optimizer: ignored {', '.join(map(repr, other_keys))}, because no optimizer has such an argument. Set "
            f"loss scales, gradient clipping and accumulation in your training loop.",
            stacklevel=4,  # the caller of build
        )
    return {"optimizer": {optimizer_type: arguments}, "schedulers": schedulers}
