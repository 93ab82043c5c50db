"""Step 1, read: turn a mapping, a YAML file, YAML text or a Trainer's file into dicts and lists under our keys."""

from __future__ import annotations

import inspect
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from timesched.hints import argument_hint, nearest_names
from timesched.reading import prefix_errors
from timesched.run.clock import Clock
from timesched.time.value import Time

_PLAIN = (str, int, float, bool, type(None))
_MAX_NODES, _MAX_LEVELS = 100_000, 100  # of a config
# A decimal number: https://yaml.org/spec/1.2.2, section 10.3.2. In YAML 1.1, `1e-6` is a string.
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
TAGS = "param_group_tags"
# Keys whose values are never numbers.
_TEXT_KEYS = ("params", "tag", "tags", TAGS, "decay_tag", "layers", "key")
CLOCK_KEYS = tuple(inspect.signature(Clock).parameters)  # the keys of a config that are the arguments of its clock
KEYS = ("optimizer", "schedulers", *CLOCK_KEYS)
LENGTH_KEYS = ("num_steps", "max_steps")  # steps of a Trainer's loop, in batches; the first that is present counts
# Keys in the optimizer's section of the old form that configure other parts of the Trainer.
OTHER_KEYS = (
    "loss_scaling_factor", "initial_loss_scale", "steps_per_increase", "min_loss_scale", "max_loss_scale",
    "max_gradient_norm", "max_gradient_value", "log_summaries", "grad_accum_steps",
)  # fmt: skip


def read(config: object) -> Any:
    """The config as new dicts and lists, which the caller may change.

    A mapping is copied, and may hold any Python objects. A path, or a string of one line that ends in `.yaml` or
    `.yml`, names a file. Any other string with a colon or a line end is YAML text. YAML is read as version 1.2 and
    never evaluated: `1e-3` is a number, `on` and `no` are strings.

    Raises `TypeError` for any other type, `ImportError` without ruamel.yaml, and `OSError` if the file cannot be read.
    Raises `ValueError` for text that is not one valid YAML document of plain data, for duplicate keys, for keys that
    are not strings, and for a config of more than 100,000 values or 100 levels, such as one that contains itself.

    >>> read({"optimizer": {"SGD": {"lr": 0.1}}})
    {'optimizer': {'SGD': {'lr': 0.1}}}
    """
    if isinstance(config, Mapping):
        return _Copier(object).copy(config, "config")
    if not isinstance(config, (str, os.PathLike)):
        raise TypeError(
            f"config={config!r:.80}: this is no config. Pass a mapping, the path of a YAML file or its text."
        )
    if isinstance(config, str) and ("\n" in config or not config.endswith((".yaml", ".yml"))):
        if ":" not in config and "\n" not in config:
            raise ValueError(f"config={config!r}: this is not YAML. Pass the path of a file as pathlib.Path(...).")
        return _parse_yaml(config, "the text")
    return _parse_yaml(Path(config).read_text(encoding="utf-8-sig"), os.fspath(config))


def read_value(text: str) -> Any:
    """One value of a config, from its text in YAML. Raises as `read` does."""
    return _parse_yaml(text, "the value")


def _parse_yaml(text: str, source: str) -> Any:
    try:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import MarkedYAMLError
    except ImportError as error:
        raise ImportError("A YAML config needs ruamel.yaml. Run pip install ruamel.yaml, or pass a mapping.") from error
    reader = YAML(typ="safe", pure=True)  # plain data only; the pure reader follows YAML 1.2
    try:
        content = reader.load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        location = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        description = ", ".join(filter(None, [error.context, error.problem]))
        hint = " Put a string that begins with * in quotes, as in '*bias'." if "alias" in description else ""
        raise ValueError(f"{source}{location}: {description}.{hint}") from error
    except Exception as error:  # the reader also fails on values that do not fit their tags, such as `!!int x`
        raise ValueError(f"{source}: this is not valid YAML. {type(error).__name__}: {error}.") from error
    return _Copier(_PLAIN).copy(content, "config")


@dataclass
class _Copier:
    """Copies mappings and lists as dicts and lists, with values of `types`. The size of a config is limited."""

    types: Any
    nodes: int = 0  # the number of values so far

    def copy(self, value: object, path: str, level: int = 0) -> Any:
        """A copy of a value. `level`: how many containers are around it."""
        self.nodes += 1
        if self.nodes > _MAX_NODES or level > _MAX_LEVELS:
            raise ValueError(
                f"{path:.80}: the config has more than {_MAX_NODES} values, or more than {_MAX_LEVELS} levels. Aliases "
                f"in aliases may multiply its values: write it without them."
            )
        if isinstance(value, Mapping):
            copied = {}
            for key, item in value.items():
                if not isinstance(key, str):
                    raise ValueError(f"{path}: the key {key!r} is of type {type(key).__name__}. Write it as a string.")
                copied[key] = self.copy(item, f"{path}.{key}".removeprefix("config."), level + 1)
            return copied
        if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):  # also OmegaConf's lists
            return [self.copy(item, f"{path}[{i}]", level + 1) for i, item in enumerate(value)]
        if not isinstance(value, self.types):
            raise ValueError(
                f"{path}={value!r:.80}: the type {type(value).__name__} is not allowed. Write a string in quotes, a "
                f"number, true, false or null."
            )
        return value


def read_numbers(value: object) -> Any:
    """Turn text that is a decimal number by YAML 1.2 into a number, also inside lists and mappings.

    Text under the keys for globs, tags and hyperparameters stays text.

    >>> read_numbers({"lr": "1e-6", "betas": ["0.9", 0.95], "tags": "1"})
    {'lr': 1e-06, 'betas': [0.9, 0.95], 'tags': '1'}
    """
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return int(value) if value.lstrip("+-").isdecimal() else float(value)
    if isinstance(value, list):
        return [read_numbers(item) for item in value]
    if isinstance(value, dict):
        return {key: item if key in _TEXT_KEYS else read_numbers(item) for key, item in value.items()}
    return value


# The sections: from a plain config, a Trainer's file, or the old form of such a file


@dataclass(frozen=True)
class OldLearningRate:
    """The `learning_rate` of an optimizer in the old form, which takes the place of an entry of `schedulers`."""

    value: Any


def read_sections(config: object, has_clock: bool = False) -> dict[str, Any]:
    """The values of a config under our keys. `find_unknown_keys` reads the keys among them that are not ours.

    A Trainer's file has these keys under `trainer` and `init`, and the old form has them at the top. All other keys of
    such files are ignored, unless they resemble one of ours. The steps of the file's loop become the `max_duration`,
    unless the file has one or the run has a clock (`has_clock`).

    Raises `TypeError` for a config that is not a mapping, and `ValueError` for several trainers and for contradictions
    in the old form.
    """
    trainer: Any = [config]
    while isinstance(trainer, list):  # the section of a file may be a list of such files
        if len(trainer) != 1:
            raise ValueError(f"config has {len(trainer)} trainers. Pass one of them, as in config['trainer'][0].")
        config = trainer[0]
        trainer = config.get("trainer") if isinstance(config, dict) and config.keys().isdisjoint(KEYS) else None
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


def find_unknown_keys(config: Mapping[str, object]) -> list[ValueError]:
    """The errors of the unknown keys of a config."""
    unknown = [name for name in config if name not in KEYS]
    return [ValueError(f"config has the unknown key {name!r}{argument_hint(name, KEYS)}") for name in unknown]


def _read_max_duration(config: Mapping[str, object], section: str) -> dict[str, Any]:
    """Read the `max_duration` from the steps in a Trainer's loop, if it has any."""
    loop: Any = config.get(section)
    for name in LENGTH_KEYS if isinstance(loop, dict) else ():
        if loop.get(name) is not None:
            with prefix_errors(f"{section}.{name}={loop[name]!r}"):
                return {"max_duration": Time.from_input(loop[name], "ba")}
    return {}


def _read_old_form(optimizer: Mapping[str, object], schedulers: object) -> dict[str, Any]:
    """Turn the optimizer and schedulers of the old form, `{optimizer_type: Name, ...}`, into entries."""
    arguments = dict(optimizer)
    optimizer_type = arguments.pop("optimizer_type")
    if not isinstance(optimizer_type, str):
        raise ValueError(f"optimizer.optimizer_type={optimizer_type!r:.80}: this is not a name. Write it as a string.")
    other_keys = [key for key in OTHER_KEYS if key in arguments]
    arguments = {key: value for key, value in arguments.items() if key not in OTHER_KEYS}
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
