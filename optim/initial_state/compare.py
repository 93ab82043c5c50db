"""Compares nested values bit for bit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten_with_path

from ..base.sharding import local_shard

Path = tuple[Any, ...]  # where a leaf is in nested dicts, lists and tuples


def leaves(values: object) -> dict[Path, Any]:
    """The leaves of nested dicts, lists and tuples, by path."""
    return dict(tree_flatten_with_path(values)[0])


def differences(first: object, second: object) -> dict[Path, tuple[str, str]]:
    """The leaves that differ in two nested values: a pair of short texts for each path."""
    a, b = leaves(first), leaves(second)
    texts = {}
    for path in dict.fromkeys([*a, *b]):
        if path not in a or path not in b or not are_equal(a[path], b[path]):
            texts[path] = (short_text(a.get(path, "absent")), short_text(b.get(path, "absent")))
    return texts


def are_equal(first: object, *others: object) -> bool:
    """Whether all leaves are bit-identical, except for the sign of zeros."""
    return all(is_equal(first, other) for other in others)


def is_equal(first: Any, second: Any) -> bool:
    if first is second or type(first) is not type(second):
        return first is second
    if isinstance(first, Tensor):
        alike = first.shape == second.shape and first.dtype == second.dtype and first.device == second.device
        return alike and torch.equal(local_shard(first, first), local_shard(second, second))
    if hasattr(first, "__dict__") and type(first).__eq__ is object.__eq__:  # type: ignore[comparison-overlap]  # for mypy, two kinds of callables
        return not differences(vars(first), vars(second))
    return bool(first == second)


def short_text(x: object) -> str:
    """Describe a value in one short line."""
    return " ".join(str(x).split())[:50]
