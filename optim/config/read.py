"""Step 1, read: a config as dicts and lists, from a mapping, from a YAML file, or from YAML text."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import torch

from timesched.time.value import Time

_PLAIN = (str, int, float, bool, type(None))


def read(config: Any) -> Any:
    """The config as dicts and lists of its own, which the caller may change.

    A mapping is copied, and may hold any Python objects. A path, or a text of one line that ends in `.yaml` or `.yml`,
    names a file; another text with a colon or a line end is YAML itself. YAML is read as version 1.2 and never
    evaluated: `1e-3` is a number, `on` and `no` are texts.

    Raises `TypeError` for another type, `ImportError` without ruamel.yaml, `OSError` where the file cannot be read, and
    `ValueError` for text that is not one valid YAML document of plain data, for keys that are there twice, and for
    keys that are no texts.

    >>> read({"optimizer": {"SGD": {"lr": 0.1}}})
    {'optimizer': {'SGD': {'lr': 0.1}}}
    """
    if isinstance(config, Mapping):
        return _copied(config, "", (), False)
    if not isinstance(config, (str, os.PathLike)):
        raise TypeError(f"config={config!r}: pass a mapping, the path of a YAML file, or YAML text.")
    if isinstance(config, str) and ("\n" in config or not config.endswith((".yaml", ".yml"))):
        if ":" not in config and "\n" not in config:
            raise ValueError(f"config={config!r} is neither YAML nor the name of a .yaml file: pass Path(...) for one.")
        return _parsed(config, "the text")
    try:
        text = Path(config).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{os.fspath(config)} is no text: {error}; save it as UTF-8.") from None
    return _parsed(text, os.fspath(config))


def _parsed(text: str, source: str) -> Any:
    try:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import MarkedYAMLError
    except ImportError as error:
        raise ImportError(
            "Reading a config from YAML needs ruamel.yaml: pip install 'torch-timesched[config]', or pass a mapping."
        ) from error
    reader = YAML(typ="safe", pure=True)  # plain data only; pure: the one that follows YAML 1.2
    try:
        found = reader.load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        where = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        problem = (error.problem or "").partition(" with value ")[0]  # of a key that is there twice
        said = ", ".join(filter(None, [error.context, problem]))
        hint = " A text that begins with * is to be in quotes, as in '*bias'." if "alias" in said else ""
        raise ValueError(f"{source}{where}: {said}.{hint}") from error
    except Exception as error:  # the reader stumbles over values that do not fit their tags, such as `!!int x`
        raise ValueError(f"{source} cannot be read as YAML: {type(error).__name__}: {error}.") from error
    return _copied(found, "", (), True)


def _copied(value: Any, path: str, within: tuple[int, ...], plain: bool) -> Any:
    """Containers as dicts, lists and tuples. With `plain`, they may hold texts, numbers, booleans and None alone."""
    if id(value) in within:
        raise ValueError(f"{path} contains itself: an alias (*) cannot stand inside its own anchor (&).")
    within = (*within, id(value))
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) and (plain or not isinstance(key, type)):  # a layer type may be one
                raise ValueError(f"{path or 'config'}: the key {key!r} is of type {type(key).__name__}: write a text.")
        start = f"{path}." if path else ""
        return {key: _copied(each, f"{start}{key}", within, plain) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        copies = [_copied(each, f"{path}[{i}]", within, plain) for i, each in enumerate(value)]
        return tuple(copies) if isinstance(value, tuple) else copies
    if plain and not isinstance(value, _PLAIN):
        raise ValueError(
            f"{path or 'config'}: {value!r} is of type {type(value).__name__}: write a text in quotes, a number, true, "
            f"false or null."
        )
    return value


def plain(value: Any) -> Any:
    """What was read as dicts, lists, numbers and strings; times and layer types as text.

    Anything that is not data (a function, a scheduler, a tensor) stays as it is, so that it builds the same again.
    """
    if isinstance(value, dict):
        return {plain(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, type) and issubclass(value, torch.nn.Module):
        return value.__name__
    if isinstance(value, Time) or hasattr(value, "to_timestring"):
        return str(Time.from_input(value))
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    return float(value) if isinstance(value, float) else value  # of numpy, too
