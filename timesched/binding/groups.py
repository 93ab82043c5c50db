"""The tags, learning-rate factors and names of parameter groups. Tags select groups."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence

from timesched.binding.keys import Key
from timesched.types import ParamGroup, Tags

FACTOR_KEYS = ("adjust_learning_rate", "adjust_val")  # the keys of a learning-rate factor, the first one first
APPLIED_FACTOR = "lr_factor"  # the key of a factor that the learning rate of a group contains already


def select_groups(groups: Iterable[ParamGroup], tags: Tags) -> list[int]:
    """The indices of the groups that have one of `tags`. None selects all groups; a None in a list, the untagged.

    `"!head"` excludes the groups with the tag `head`. If all of `tags` exclude, all other groups are selected.
    """
    if tags is None:
        return [i for i, _ in enumerate(groups)]
    names = read_tags(tags)
    for tag in names:
        if tag is not None and not isinstance(tag, str):
            raise ValueError(f"tags={tags!r}: {tag!r} is not a tag. Pass strings, or None for the groups without tags.")
    excluded = excluded_tags(tags)
    included = {name for name in names if not is_exclusion(name)}
    indices = []
    for i, group in enumerate(groups):
        own = group_tags(group) or {None}
        is_included = bool(own & included) or (not included and bool(excluded))
        if is_included and not own & excluded:
            indices.append(i)
    return indices


def require_groups(groups: Sequence[ParamGroup], tags: Tags, name: str = "tags") -> list[int]:
    """The indices of the groups that have one of `tags`, as `select_groups`. Raises `ValueError` if there are none.

    It also raises if no group has a tag that is excluded. `name` is the argument that the message names.
    """
    indices = select_groups(groups, tags)
    advice = "Pass tags of the groups, or None for all groups."
    for tag in sorted(excluded_tags(tags)):
        if not any(tag in group_tags(group) for group in groups):
            raise ValueError(
                f"{name}={tags!r}: no parameter group has the excluded tag {tag!r}, and {describe_tags(groups)}. "
                f"{advice}"
            )
    if not indices:
        raise ValueError(f"{name}={tags!r}: no parameter group has such a tag, and {describe_tags(groups)}. {advice}")
    return indices


def is_exclusion(tag: Hashable) -> bool:
    """Whether an entry of `tags` excludes groups, as `"!head"` does."""
    return isinstance(tag, str) and tag.startswith("!")


def excluded_tags(tags: Tags) -> set[str]:
    """The tags that `tags` excludes, without their `!`."""
    return {str(tag)[1:] for tag in read_tags(tags) if is_exclusion(tag)}


def group_tags(group: ParamGroup) -> set[Hashable]:
    """The tags of a group: a name, or a list or set of names. Raises `ValueError` if one begins with `!`."""
    tags = set(read_tags(group.get("tags")))
    check_own_tags(tags)
    return tags


def check_own_tags(tags: Iterable[Hashable], where: str = "") -> None:
    """Raise `ValueError` if a tag of a group or a rule begins with `!`. The message begins with `where`."""
    for tag in tags:
        if is_exclusion(tag):
            raise ValueError(
                f"{where}tags={tag!r}: the tag of a group must not begin with '!', which excludes groups. Rename it."
            )


def read_tags(tags: Tags) -> list[Hashable]:
    """The tags as a list, from None, a name or several names. Raises `ValueError` for anything else."""
    if tags is None:
        return []
    if isinstance(tags, str):
        return [tags]
    if not isinstance(tags, Iterable):
        raise ValueError(f"tags={tags!r}: it is not a tag. Pass a tag, a list of tags, or None.")
    return list(tags)


def has_learning_rate_factor(group: ParamGroup) -> bool:
    """Whether a group has a learning-rate factor other than 1 that its learning rate does not contain."""
    return any(group.get(key) not in (None, 1.0) for key in FACTOR_KEYS)


def loses_learning_rate_factor(group: ParamGroup) -> bool:
    """Whether a group loses a factor other than 1 if a scheduler replaces its learning rate."""
    return has_learning_rate_factor(group) or group.get(APPLIED_FACTOR, 1.0) != 1.0


def learning_rate_factor(group: ParamGroup, group_name: str, keys: Iterable[str] = FACTOR_KEYS) -> float:
    """The learning-rate factor of a group, under the first of the keys that it has; 1 if it has none of them.

    Raises `ValueError` if it is not a finite number.
    """
    for key in keys:
        factor = group.get(key)
        if factor is None:
            continue
        if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not math.isfinite(factor):
            raise ValueError(f"{key}={factor!r}: {group_name} needs a finite factor. Pass an int or a float.")
        return float(factor)
    return 1.0


def describe_tags(groups: Iterable[ParamGroup]) -> str:
    """The tags of the groups, as a text for messages."""
    tags = set[Hashable]().union(*map(group_tags, groups))
    return f"the tags are {', '.join(sorted(map(repr, tags)))}" if tags else "no group has any"


def named_values(groups: Sequence[ParamGroup], keys: Iterable[tuple[str, int]]) -> dict[str, float]:
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
