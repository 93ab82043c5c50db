"""Parameter groups: their tags, their learning-rate factors, and the names of their values in logs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from timesched.binding.keys import Key

FACTOR_KEYS = ("adjust_learning_rate", "adjust_val")  # the keys of a learning-rate factor, the first one first


def select_groups(groups: Iterable[Mapping[str, Any]], tags: Any) -> list[int]:
    """The indices of the groups that have one of `tags`. None selects all groups; a None in a list, the untagged."""
    if tags is None:
        return [i for i, _ in enumerate(groups)]
    names = read_tags(tags)
    for name in names:
        if name is not None and not isinstance(name, str):
            raise ValueError(
                f"tags={tags!r}: {name!r} is not a tag. Pass strings, or None for the groups without tags."
            )
    return [i for i, group in enumerate(groups) if (group_tags(group) or {None}).intersection(names)]


def require_groups(
    groups: Sequence[Mapping[str, Any]],
    tags: Any,
    name: str = "tags",
    advice: str = "Pass tags of the groups, or None for all groups.",
) -> list[int]:
    """The indices of the groups that have one of `tags`, as `select_groups`. Raises `ValueError` if there are none.

    `name` is the argument that the message names, and `advice` its last sentence.
    """
    indices = select_groups(groups, tags)
    if not indices:
        raise ValueError(f"{name}={tags!r}: no parameter group has such a tag, and {describe_tags(groups)}. {advice}")
    return indices


def group_tags(group: Mapping[str, Any]) -> set[Any]:
    """The tags of a group, which holds a name, or a list or set of names."""
    return set(read_tags(group.get("tags")))


def read_tags(tags: Any) -> list[Any]:
    """The tags as a list, from None, a name or several names. Raises `ValueError` for anything else."""
    if tags is None:
        return []
    if isinstance(tags, str):
        return [tags]
    if not isinstance(tags, Iterable):
        raise ValueError(f"tags={tags!r}: it is not a tag. Pass a tag, a list of tags, or None.")
    return list(tags)


def has_learning_rate_factor(group: Mapping[str, Any]) -> bool:
    """Whether a group has a learning-rate factor other than 1."""
    return any(group.get(key) not in (None, 1.0) for key in FACTOR_KEYS)


def learning_rate_factor(group: Mapping[str, Any], group_name: str) -> float:
    """The learning-rate factor of a group: its `adjust_learning_rate`, else its `adjust_val`, else 1."""
    for key in FACTOR_KEYS:
        factor = group.get(key)
        if factor is not None:
            if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not math.isfinite(factor):
                raise ValueError(f"{key}={factor!r}: {group_name} needs a finite factor. Pass an int or a float.")
            return float(factor)
    return 1.0


def describe_tags(groups: Iterable[Mapping[str, Any]]) -> str:
    """The tags of the groups, as a text for messages."""
    tags: set[Any] = set()
    for group in groups:
        tags |= group_tags(group)
    return f"the tags are {', '.join(sorted(map(repr, tags)))}" if tags else "no group has any"


def named_values(groups: Sequence[Mapping[str, Any]], keys: Iterable[tuple[str, int]]) -> dict[str, float]:
    """The values of some keys in the groups, by names for logs, such as `betas[0]` and `weight_decay/head`.

    `keys` has pairs of a key and the index of a group. A name is the key, the tags of the group, and its index if other
    groups have the same tags.
    """
    tags = [",".join(sorted(map(str, group_tags(group)))) for group in groups]
    values = {}
    for key, i in keys:
        index = f"group{i}" if tags.count(tags[i]) > 1 else ""
        name = "/".join(filter(None, (key, tags[i], index)))
        values[name] = float(Key(key).peek(groups[i]))
    return values
