"""What is not the same in two nested values, to the bit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten_with_path

from ..base.sharding import local_shard

Path = tuple[Any, ...]  # where a leaf is in nested dicts, lists and tuples


def leaves(values: Any) -> dict[Path, Any]:
    """What is in nested dicts, lists and tuples, by where it is."""
    return dict(tree_flatten_with_path(values)[0])


def differences(mine: Any, other: Any) -> dict[Path, tuple[str, str]]:
    """What is not the same in two values, as a pair of short texts by where it is."""
    a, b = leaves(mine), leaves(other)
    found = {}
    for path in dict.fromkeys([*a, *b]):
        if path not in a or path not in b or not same(a[path], b[path]):
            found[path] = (shortened(a.get(path, "absent")), shortened(b.get(path, "absent")))
    return found


def same(first: Any, *others: Any) -> bool:
    """Whether all leaves are equal to the bit, but for the sign of zeros."""
    return all(equal(first, other) for other in others)


def equal(mine: Any, other: Any) -> bool:
    if mine is other or type(mine) is not type(other):
        return mine is other
    if isinstance(mine, Tensor):
        alike = mine.shape == other.shape and mine.dtype == other.dtype and mine.device == other.device
        return alike and torch.equal(local_shard(mine, mine), local_shard(other, other))
    if hasattr(mine, "__dict__") and type(mine).__eq__ is object.__eq__:  # type: ignore[comparison-overlap]  # for mypy, two kinds of callables
        return not differences(vars(mine), vars(other))
    return bool(mine == other)


def shortened(x: Any) -> str:
    """A value in one short line."""
    return " ".join(str(x).split())[:50]
