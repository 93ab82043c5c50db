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
            _set_key(config, "", path, read_value(text))


def _set_key(container: Any, container_path: str, path: str, value: object) -> None:
    """Set the key at a path in a container, whose own path is empty for the config."""
    key, key_text = _find_key(container, container_path or "config", path)
    rest = path[len(key_text) :].removeprefix(".")
    if not rest:
        container[key] = value
        return
    if container[key] is None:  # a name without arguments
        container[key] = {}
    dot = "" if key_text.startswith("[") or not container_path else "."
    _set_key(container[key], f"{container_path}{dot}{key_text}", rest, value)


def _find_key(container: Any, container_path: str, path: str) -> tuple[str | int, str]:
    """The first key of a path in a container, and the key as the path writes it.

    A key with dots counts as one key if the container has it.
    """
    key_text = re.findall(r"\[?[^.\[]*", path)[0]
    if isinstance(container, list):
        indices = {f"[{i}]": i for i in range(len(container))}
        if key_text not in indices:
            raise ValueError(f"{container_path} has no entry {key_text!r}: there are {', '.join(indices)}.")
        return indices[key_text], key_text
    if not isinstance(container, dict):
        raise ValueError(f"{container_path}={container!r:.80}: this value has no keys. Set the value itself.")
    present = [key for key in container if path == key or path.startswith((f"{key}.", f"{key}["))]
    if present:
        key = max(present, key=len)
        return key, key
    if key_text != path:
        raise ValueError(f"{container_path} has no key {key_text!r}{argument_hint(key_text, container)}")
    return key_text, key_text
