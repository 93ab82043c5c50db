"""Step 1, read: turn a mapping, a YAML file or YAML text into dicts and lists."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PLAIN = (str, int, float, bool, type(None))
# A decimal number: https://yaml.org/spec/1.2.2, section 10.3.2. In YAML 1.1, `1e-6` is a string.
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_TEXT_KEYS = ("params", "tag", "tags", "param_group_tags", "decay_tag", "key")  # keys whose values are never numbers


def read(config: Any) -> Any:
    """The config as new dicts and lists, which the caller may change.

    A mapping is copied, and may hold any Python objects. A path, or a string of one line that ends in `.yaml` or
    `.yml`, names a file. Any other string with a colon or a line end is YAML text. YAML is read as version 1.2 and
    never evaluated: `1e-3` is a number, `on` and `no` are strings.

    Raises `TypeError` for any other type, `ImportError` without ruamel.yaml, and `OSError` if the file cannot be read.
    Raises `ValueError` for text that is not one valid YAML document of plain data, for duplicate keys, for keys that
    are not strings, for a config that contains itself, and for integers above 1.8e308.

    >>> read({"optimizer": {"SGD": {"lr": 0.1}}})
    {'optimizer': {'SGD': {'lr': 0.1}}}
    """
    if isinstance(config, Mapping):
        return _copy_containers(config, "config", object)
    if not isinstance(config, (str, os.PathLike)):
        raise TypeError(
            f"config={config!r:.80}: this is no config. Pass a mapping, the path of a YAML file or its text."
        )
    if isinstance(config, str) and ("\n" in config or not config.endswith((".yaml", ".yml"))):
        if ":" not in config and "\n" not in config:
            raise ValueError(f"config={config!r}: this is not YAML. Pass the path of a file as pathlib.Path(...).")
        return _parse_yaml(config, "the text")
    return _parse_yaml(Path(config).read_text(encoding="utf-8-sig"), os.fspath(config))


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
    return _copy_containers(content, "config", _PLAIN)


def _copy_containers(value: Any, path: str, types: Any, parents: tuple[Any, ...] = ()) -> Any:
    """A copy of the mappings and lists as dicts and lists, whose values must be of `types`.

    `parents`: the containers around the value.
    """
    if any(value is container for container in parents):
        raise ValueError(f"{path}: the config contains itself here. Write the values out, without this alias.")
    parents = (*parents, value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"{path}: the key {key!r} is of type {type(key).__name__}. Write it as a string.")
        return {
            key: _copy_containers(item, f"{path}.{key}".removeprefix("config."), types, parents)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_copy_containers(item, f"{path}[{i}]", types, parents) for i, item in enumerate(value)]
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        raise ValueError(f"{path}: an integer above 1.8e308 is no floating-point number. Write a smaller one.")
    if not isinstance(value, types):
        raise ValueError(
            f"{path}={value!r:.80}: the type {type(value).__name__} is not allowed. Write a string in quotes, a "
            f"number, true, false or null."
        )
    return value


def read_numbers(value: Any) -> Any:
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
