"""Step 1, read: a config as dicts and lists, from a mapping, from a YAML file, or from YAML text."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PLAIN = (str, int, float, bool, type(None))
# A decimal number: https://yaml.org/spec/1.2.2, section 10.3.2. YAML 1.1 takes `1e-6` for a string.
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_TEXT_KEYS = ("params", "tag", "tags", "param_group_tags", "decay_tag", "key")  # keys whose values are never numbers


def read(config: Any) -> Any:
    """The config as dicts and lists of its own, which the caller may change.

    A mapping is copied, and may hold any Python objects. A path, or a string of one line that ends in `.yaml` or
    `.yml`, names a file; another string with a colon or a line end is YAML itself. YAML is read as version 1.2 and
    never evaluated: `1e-3` is a number, `on` and `no` are strings.

    Raises `TypeError` for another type, `ImportError` without ruamel.yaml, `OSError` where the file cannot be read, and
    `ValueError` for text that is not one valid YAML document of plain data, for keys that are there twice, for keys
    that are no texts, for a config that contains itself, and for integers above 1.8e308.

    >>> read({"optimizer": {"SGD": {"lr": 0.1}}})
    {'optimizer': {'SGD': {'lr': 0.1}}}
    """
    if isinstance(config, Mapping):
        return _copy_containers(config, "config", object)
    if not isinstance(config, (str, os.PathLike)):
        raise TypeError(f"config={config!r}: pass a mapping, the path of a YAML file, or YAML text.")
    if isinstance(config, str) and ("\n" in config or not config.endswith((".yaml", ".yml"))):
        if ":" not in config and "\n" not in config:
            raise ValueError(f"config={config!r} is neither YAML nor the name of a .yaml file: pass Path(...) for one.")
        return _parse_yaml(config, "the text")
    return _parse_yaml(Path(config).read_text(encoding="utf-8-sig"), os.fspath(config))


def _parse_yaml(text: str, source: str) -> Any:
    try:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import MarkedYAMLError
    except ImportError as error:
        raise ImportError(
            "Reading a config from YAML needs ruamel.yaml: pip install ruamel.yaml, or pass a mapping."
        ) from error
    reader = YAML(typ="safe", pure=True)  # plain data only; pure: the one that follows YAML 1.2
    try:
        content = reader.load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        location = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        description = ", ".join(filter(None, [error.context, error.problem]))
        hint = " A string that begins with * is to be in quotes, as in '*bias'." if "alias" in description else ""
        raise ValueError(f"{source}{location}: {description}.{hint}") from error
    except Exception as error:  # the reader stumbles over values that do not fit their tags, such as `!!int x`
        raise ValueError(f"{source} cannot be read as YAML: {type(error).__name__}: {error}.") from error
    return _copy_containers(content, "config", _PLAIN)


def _copy_containers(value: Any, path: str, types: Any, parents: tuple[Any, ...] = ()) -> Any:
    """Containers as dicts and lists of their own, which may hold values of `types`; `parents`: those around it."""
    if any(value is container for container in parents):
        raise ValueError(f"{path}: the config contains itself here. Write the values out, without this alias.")
    parents = (*parents, value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"{path}: the key {key!r} is of type {type(key).__name__}: write a string.")
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
            f"{path}: {value!r} is of type {type(value).__name__}: write a string in quotes, a number, true, false or "
            f"null."
        )
    return value


def read_numbers(value: Any) -> Any:
    """A value in which texts that are decimal numbers by YAML 1.2 are numbers, also inside lists and mappings.

    Under the keys for globs, tags and hyperparameters they stay texts.

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
