"""`--set PATH=VALUE`, which sets a key of a config."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any

from optim.config.read import read_value
from timesched.hints import argument_hint
from timesched.reading import prefix_errors


def add_set_option(command: argparse.ArgumentParser) -> None:
    """Add the option that sets keys of a config."""
    about = "set a key of the config, as in --set optimizer.AdamW.lr=5e-4; may be repeated"
    command.add_argument("--set", action="append", default=[], dest="settings", metavar="PATH=VALUE", help=about)


def set_keys(config: Any, settings: Sequence[str]) -> None:
    """Set keys of a config, in place. A setting is the path of a key, as messages write it, `=`, and a value in YAML.

    Raises `ValueError` for a path that is not in the config. Only its last key may be new.
    """
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not (path and equals):
            raise ValueError(f"--set {setting}: there is no value. Write it as in optimizer.AdamW.lr=5e-4.")
        with prefix_errors(f"--set {path}"):
            _set_key(config, path, "", read_value(text))


def _set_key(container: Any, path: str, place: str, value: object) -> None:
    """Set the key at a path in a container. `place`: the path of the container, which is empty for the config."""
    key, name = _find_key(container, path, place)
    rest = path[len(name) :].removeprefix(".")
    if not rest:
        container[key] = value
        return
    if container[key] is None:  # a name without arguments
        container[key] = {}
    place = f"{place}{name}" if name.startswith("[") or not place else f"{place}.{name}"
    _set_key(container[key], rest, place, value)


def _find_key(container: Any, path: str, place: str) -> tuple[str | int, str]:
    """The first key of a path in a container, and the key as the path writes it.

    A key with dots counts as one key if the container has it.
    """
    first = re.match(r"\[?[^.\[]*", path)
    name, place = first[0] if first else "", place or "config"
    if isinstance(container, list):
        entries = {f"[{i}]": i for i in range(len(container))}
        if name not in entries:
            raise ValueError(f"{place} has no entry {name!r}: there are {', '.join(entries)}.")
        return entries[name], name
    if not isinstance(container, dict):
        raise ValueError(f"{place}={container!r:.80}: this value has no keys. Set the value itself.")
    present = [key for key in container if path == key or path.startswith((f"{key}.", f"{key}["))]
    if present:
        key = max(present, key=len)
        return key, key
    if name != path:
        raise ValueError(f"{place} has no key {name!r}{argument_hint(name, container)}")
    return name, name
