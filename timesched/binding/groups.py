"""What a scheduler writes: one key in the selected parameter groups of an optimizer. Tags select the groups.

A target finds its places again, reads them, writes all values or none, and names them. It notes their initial values.
The scheduler, its counter and its saved state know nothing of parameter groups.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Hashable, Iterable, Sequence
from operator import is_
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from timesched.binding.keys import Key, require_finite
from timesched.types import ParamGroup, Tags

FACTOR_KEYS = ("adjust_learning_rate", "adjust_val")  # the keys of a learning-rate factor, the first one first
APPLIED_FACTOR = "lr_factor"  # the key of a factor that the learning rate of a group contains already


class GroupTarget:
    """A key in the parameter groups of an optimizer that have some tags, also if the groups are added later.

    `relative`: the initial value of a group multiplies the value of the schedule. `scales`: how often the learning-rate
    factor of a group multiplies it.
    """

    def __init__(self, optimizer: Optimizer, key: Key, tags: Tags, relative: bool, scales: int) -> None:
        self.optimizer = optimizer
        self.key = key
        self.tags = tags
        self.relative = relative
        self.scales = scales
        self.initial_key = f"initial_{key.name}"  # the key of the initial value in a group
        self.indexed_groups: list[tuple[int, dict[str, Any]]] = []  # the index and the group
        self.initial_values: list[Any] = []  # of each of these groups
        self.base_values: list[float] = []  # of each: the factor that multiplies the value of the schedule
        self.known_groups: list[ParamGroup] = []  # all groups that the optimizer had so far

    @property
    def indices(self) -> list[int]:
        """The indices of the selected groups."""
        return [index for index, _ in self.indexed_groups]

    def present_indices(self) -> set[int]:
        """The indices of the selected groups, with groups that were added and not selected yet."""
        return {*self.indices, *self.new_indices()}

    def overlaps(self, key: str, indices: set[int]) -> bool:
        """Whether it has this key of one of these groups, with groups that were added and not selected yet."""
        return self.key.name == key and not indices.isdisjoint(self.present_indices())

    def new_indices(self) -> set[int]:
        """The indices of the groups that were added, and have the tags."""
        known = len(self.known_groups)
        if not self.has_new_groups():
            return set()
        return {known + i for i in select_groups(self.optimizer.param_groups[known:], self.tags)}

    # Groups that were added

    def is_unchanged(self) -> bool:
        """Whether the optimizer has the groups that it had, in the same dicts."""
        groups, known = self.optimizer.param_groups, self.known_groups
        return len(groups) == len(known) and all(map(is_, groups, known))

    def has_new_groups(self) -> bool:
        """Whether the optimizer has groups that it did not have before, of any tags."""
        return len(self.optimizer.param_groups) > len(self.known_groups)

    def copy_with_new_groups(self) -> GroupTarget:
        """A copy that also has the new groups with the tags. No group is changed.

        Raises `ValueError` if no group has the tags, if a group lacks the key, or if it shares its tensor with a group
        that gets a different value.
        """
        groups = self.optimizer.param_groups
        indices = require_groups(groups, self.tags)
        result = copy.copy(self)
        result.indexed_groups, result.known_groups = list(self.indexed_groups), list(groups)
        result.initial_values, result.base_values = list(self.initial_values), list(self.base_values)
        for i in indices:
            if i >= len(self.known_groups):
                group_tags(groups[i])  # raises for a tag that begins with "!", also if `tags` is None
                value = self.key.require_number(groups[i], f"parameter group {i}")
                result.indexed_groups.append((i, groups[i]))
                initial = groups[i].get(self.initial_key, value)
                result.initial_values.append(initial.detach().clone() if isinstance(initial, Tensor) else initial)
                result.base_values.append(self._base_value(groups[i], initial, i))
        self._check_shared_tensors(indices, result.base_values)
        return result

    def _base_value(self, group: ParamGroup, initial: object, i: int) -> float:
        """The base value of group `i`, which has this initial value."""
        name = f"parameter group {i}"
        if self.scales and not self.relative and self.key.name == "lr" and APPLIED_FACTOR in group:
            factor = _read_factor(group, APPLIED_FACTOR, name) ** self.scales  # the initial value does not multiply
        else:
            factor = learning_rate_factor(group, name) ** self.scales if self.scales else 1.0
        return factor * require_finite(initial, self.initial_key) if self.relative else factor

    def note_initial_values(self, replace: bool = False) -> None:
        """Write the initial value into each group that has none; with `replace` into all groups."""
        for (_, group), initial in zip(self.indexed_groups, self.initial_values):
            if replace or self.initial_key not in group:
                group[self.initial_key] = initial

    def check_base_values(self, base_values: list[float], class_name: str) -> None:
        """Raise `ValueError` if the base values of a saved state do not fit these groups."""
        indices = select_groups(self.optimizer.param_groups, self.tags)  # with the added groups, which a load selects
        if len(base_values) != len(indices):
            raise ValueError(
                f"{class_name}: the state has {len(base_values)} initial values, and {len(indices)} parameter groups "
                f"are selected. Load it into the groups that were saved."
            )
        self._check_shared_tensors(indices, base_values)

    def _check_shared_tensors(self, indices: list[int], base_values: list[float]) -> None:
        """Raise `ValueError` if a selected group shares its tensor with a group that gets a different value."""
        base_value_by_index = dict(zip(indices, base_values))
        first_index: dict[int, int] = {}
        for i, group in enumerate(self.optimizer.param_groups):
            value = self.key.peek(group)
            if isinstance(value, Tensor):
                other = first_index.setdefault(id(value), i)
                if base_value_by_index.get(other) != base_value_by_index.get(i):
                    raise ValueError(
                        f"key={self.key.name!r}: parameter groups {other} and {i} share one tensor, but get different "
                        f"values. Give each group its own tensor."
                    )

    # Groups that are selected already

    def find_again(self) -> None:
        """Find the selected groups again, since the optimizer may have replaced their dicts.

        A group is the same as long as its dict is the same object, or its parameters are, one by one. An optimizer that
        loads a state makes new dicts around the old lists, and a parameter wrapper puts new lists into the old dicts.
        Raises `ValueError` if groups were removed, or if a selected group was replaced or moved to a different index.
        """
        groups, known = self.optimizer.param_groups, self.known_groups
        if len(groups) < len(known):
            raise ValueError(
                f"key={self.key.name!r}: the optimizer has {len(groups)} parameter groups, and had {len(known)} when "
                f"it was scheduled. Call unbind() on the scheduler, and make another one."
            )
        for i, group in self.indexed_groups:
            if groups[i] is not group and not _has_same_parameters(groups[i], group):
                raise ValueError(
                    f"key={self.key.name!r}: parameter group {i} was replaced or moved after it was scheduled. "
                    f"Call unbind() on the scheduler, and make another one."
                )
        self.indexed_groups, self.known_groups = [(i, groups[i]) for i in self.indices], groups[: len(known)]
        self.note_initial_values()  # into new dicts that lack them

    def values(self) -> list[Any]:
        """The value in each group of the optimizer; NaN if a group lacks the key. Tensors are copies."""
        values = [self.key.peek(group) for group in self.optimizer.param_groups]
        return [math.nan if x is None else x.detach().clone() if isinstance(x, Tensor) else x for x in values]

    def values_at(self, value: Any) -> list[Any]:
        """The same, with the value that each selected group gets from a value of the schedule."""
        values = self.values()
        for i, factor in zip(self.indices, self.base_values):
            values[i] = factor * value
        return values

    def named_values(self) -> dict[str, float]:
        """The value in each selected group, by its name for logs."""
        return named_values(self.optimizer.param_groups, [(self.key.name, i) for i in self.indices])

    def write(self, values: Sequence[Any]) -> None:
        """Write one value into each selected group. The values were checked, so that all are written."""
        groups, key, is_whole = self.optimizer.param_groups, self.key.key, self.key.index is None
        for (i, _), number in zip(self.indexed_groups, values):
            group = groups[i]
            if is_whole and type(group[key]) is type(number) is float:  # the usual case
                group[key] = number
            else:
                self.key.write(group, number)

    def tensors(self) -> list[Tensor]:
        """The values of the selected groups that are tensors: the tensors themselves."""
        values = [self.key.peek(self.optimizer.param_groups[i]) for i in self.indices]
        return [value for value in values if isinstance(value, Tensor)]

    def hold_tensors(self) -> None:
        """On a lazy device (XLA), turn the values of an optimizer of `optim` into tensors."""
        hold = getattr(self.optimizer, "hold_tensor", None)
        for _, group in self.indexed_groups:
            if hold is not None and any(p.device.type == "xla" for p in group["params"][:1]):
                hold(group, self.key.key)

    def identity(self) -> dict[str, object]:
        """The entries of a saved state that say what it is of."""
        tags = None if self.tags is None else sorted(read_tags(self.tags), key=str)
        return {"key": self.key.name, "tags": tags}


def _has_same_parameters(group: ParamGroup, other: ParamGroup) -> bool:
    """Whether two groups have the same parameters, in the same order. After a load, ZeRO 3 leaves a group empty."""
    params, others = group["params"], other["params"]
    return not params or (len(params) == len(others) and all(map(is_, params, others)))


# Tags, factors and names


def select_groups(groups: Iterable[ParamGroup], tags: Tags) -> list[int]:
    """The indices of the groups that have one of `tags`. None selects all groups; a None in a list, the untagged.

    `"!head"` excludes the groups with the tag `head`. If all of `tags` exclude, all other groups are selected.
    """
    if tags is None:
        return [i for i, _ in enumerate(groups)]
    names = read_tags(tags)
    for name in names:
        if name is not None and not isinstance(name, str):
            raise ValueError(
                f"tags={tags!r}: {name!r} is not a tag. Pass strings, or None for the groups without tags."
            )
    excluded = excluded_tags(tags)
    included = {name for name in names if not is_exclusion(name)}
    indices = []
    for i, group in enumerate(groups):
        own = group_tags(group) or {None}
        is_included = bool(own & included) or (not included and bool(excluded))
        if is_included and not own & excluded:
            indices.append(i)
    return indices


def require_groups(
    groups: Sequence[ParamGroup],
    tags: Tags,
    name: str = "tags",
    advice: str = "Pass tags of the groups, or None for all groups.",
) -> list[int]:
    """The indices of the groups that have one of `tags`, as `select_groups`. Raises `ValueError` if there are none.

    It also raises if no group has a tag that is excluded. `name` is the argument that the message names, and `advice`
    its last sentence.
    """
    indices = select_groups(groups, tags)
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


def learning_rate_factor(group: ParamGroup, group_name: str) -> float:
    """The learning-rate factor of a group: its `adjust_learning_rate`, else its `adjust_val`, else 1."""
    for key in FACTOR_KEYS:
        if group.get(key) is not None:
            return _read_factor(group, key, group_name)
    return 1.0


def _read_factor(group: ParamGroup, key: str, group_name: str) -> float:
    factor = group[key]
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not math.isfinite(factor):
        raise ValueError(f"{key}={factor!r}: {group_name} needs a finite factor. Pass an int or a float.")
    return float(factor)


def describe_tags(groups: Iterable[ParamGroup]) -> str:
    """The tags of the groups, as a text for messages."""
    tags: set[Hashable] = set()
    for group in groups:
        tags |= group_tags(group)
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
