"""What a scheduler writes: one key in the selected parameter groups of an optimizer.

A target selects its groups, follows them into new dicts, reads them, and writes all values or none. It keeps their
initial values. It knows whether its scheduler may write. The scheduler, its cursor and its saved state know nothing of
parameter groups.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from math import inf, nan
from operator import is_
from typing import Any

from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer

from timesched.binding.groups import (
    APPLIED_FACTOR,
    FACTOR_KEYS,
    group_tags,
    learning_rate_factor,
    read_tags,
    require_groups,
    select_groups,
)
from timesched.binding.keys import Key, require_finite
from timesched.binding.owner import Refusal
from timesched.types import ParamGroup, Tags


@dataclasses.dataclass(slots=True)
class SelectedGroup:
    """A parameter group that a scheduler writes."""

    index: int
    group: ParamGroup
    initial_value: Any  # a number or a tensor, which the group also has, as `initial_lr`
    base_value: float  # the factor that multiplies the value of the schedule


class GroupTarget:
    """A key in the parameter groups of an optimizer that have some tags, also if the groups are added later.

    The value of the schedule is multiplied by the initial value of a group, if `relative`, and by the learning-rate
    factor of the group to the power `factor_power`.
    """

    def __init__(self, optimizer: Optimizer, key: Key, tags: Tags, relative: bool, factor_power: int) -> None:
        self.optimizer = optimizer
        self.key = key
        self.tags = tags
        self.relative = relative
        self.factor_power = factor_power
        # An absolute learning rate replaces the initial value, which may contain a factor: then it applies that factor.
        self.factor_keys = FACTOR_KEYS if relative or key.name != "lr" else (APPLIED_FACTOR, *FACTOR_KEYS)
        self.initial_key = f"initial_{key.name}"  # the key of the initial value in a group
        self.selected: list[SelectedGroup] = []
        self.known_count = 0  # how many groups the optimizer had when its groups were selected last
        self.refusal: Refusal | None = None  # why its scheduler may not write
        self.cause = ""  # of the refusal
        self.may_be_lazy = False  # whether torch_xla was imported when `hold_tensors` was called last

    @property
    def indices(self) -> list[int]:
        """The indices of the selected groups."""
        return [selected.index for selected in self.selected]

    @property
    def base_values(self) -> list[float]:
        """The base value of each selected group."""
        return [selected.base_value for selected in self.selected]

    def set_base_values(self, base_values: Sequence[float]) -> None:
        """Replace the base values. The groups keep their initial values."""
        for selected, base_value in zip(self.selected, base_values):
            selected.base_value = base_value

    def identity(self) -> dict[str, object]:
        """The entries of a saved state that say what it is of."""
        tags = None if self.tags is None else sorted(read_tags(self.tags), key=str)
        return {"key": self.key.name, "tags": tags}

    # Whether the scheduler may write

    def is_ready(self) -> bool:
        """Whether a step can write at once: it may write, into the same dicts as before, on the host, in no graph."""
        groups = self.optimizer.param_groups
        if self.refusal is not None or self.may_be_lazy or len(groups) != self.known_count or is_dynamo_compiling():
            return False
        for selected in self.selected:  # noqa: SIM110 (all() would make a call for each group, in each step)
            if groups[selected.index] is not selected.group:
                return False
        return True

    def refuse(self, refusal: Refusal, cause: str = "") -> None:
        """Let the scheduler write no more. `cause` is for the text of the error."""
        self.refusal, self.cause = refusal, cause

    def shared_indices(self, other: GroupTarget) -> set[int]:
        """The indices of the groups in which both targets have the same key."""
        return self._present_indices() & other._present_indices() if self.key.name == other.key.name else set()

    def _present_indices(self) -> set[int]:
        """The indices of the selected groups, with groups that were added and not selected yet."""
        new = select_groups(self.optimizer.param_groups[self.known_count :], self.tags) if self.has_new_groups() else []
        return {*self.indices, *(self.known_count + i for i in new)}

    # Groups that were added

    def has_new_groups(self) -> bool:
        """Whether the optimizer has groups that it did not have before, of any tags."""
        return len(self.optimizer.param_groups) > self.known_count

    def extended_selection(self) -> list[SelectedGroup]:
        """The selected groups, and the new groups with the tags. Nothing is changed.

        Raises `ValueError` if no group has the tags, if a group lacks the key, or if it shares its tensor with a group
        that gets a different value.
        """
        indices = require_groups(self.optimizer.param_groups, self.tags)
        new = [self._select_group(i) for i in indices if i >= self.known_count]
        selection = [*self.selected, *new]
        self._check_shared_tensors({selected.index: selected.base_value for selected in selection})
        return selection

    def _select_group(self, index: int) -> SelectedGroup:
        group, name = self.optimizer.param_groups[index], f"parameter group {index}"
        group_tags(group)  # raises for a tag that begins with "!", also if `tags` is None
        value = self.key.require_number(group, name)
        initial = group.get(self.initial_key, value)
        initial_value = initial.detach().clone() if isinstance(initial, Tensor) else initial
        return SelectedGroup(index, group, initial_value, self._base_value(group, initial, name))

    def _base_value(self, group: ParamGroup, initial: object, name: str) -> float:
        """The base value of a group that has this initial value."""
        factor = learning_rate_factor(group, name, self.factor_keys) ** self.factor_power if self.factor_power else 1.0
        return factor * require_finite(initial, self.initial_key) if self.relative else factor

    def adopt(self, selection: list[SelectedGroup]) -> None:
        """Write into these groups from now on."""
        self.selected, self.known_count = selection, len(self.optimizer.param_groups)
        self.keep_initial_values()

    def keep_initial_values(self, replace: bool = False) -> None:
        """Write the initial value into each group that has none; with `replace` into all groups."""
        for selected in self.selected:
            if replace or self.initial_key not in selected.group:
                selected.group[self.initial_key] = selected.initial_value

    def read_base_values(self, saved: Sequence[object], class_name: str) -> list[float]:
        """The base values of a saved state. Raises `ValueError` if they do not fit these groups."""
        base_values = [require_finite(value, f"the initial {self.key.name}") for value in saved]
        indices = select_groups(self.optimizer.param_groups, self.tags)  # with the added groups, which a load selects
        if len(base_values) != len(indices):
            raise ValueError(
                f"{class_name}: the state has {len(base_values)} initial values, and {len(indices)} parameter groups "
                f"are selected. Load it into the groups that were saved."
            )
        self._check_shared_tensors(dict(zip(indices, base_values)))
        return base_values

    def _check_shared_tensors(self, base_values: dict[int, float]) -> None:
        """Raise `ValueError` if a selected group shares its tensor with a group that gets a different value.

        `base_values`: by the index of the group.
        """
        first_index: dict[int, int] = {}
        for i, group in enumerate(self.optimizer.param_groups):
            value = self.key.peek(group)
            if isinstance(value, Tensor):
                other = first_index.setdefault(id(value), i)
                if base_values.get(other) != base_values.get(i):
                    raise ValueError(
                        f"key={self.key.name!r}: parameter groups {other} and {i} share one tensor, but get different "
                        f"values. Give each group its own tensor."
                    )

    # Groups that are selected already

    def follow_groups(self) -> None:
        """Follow the selected groups into new dicts of the optimizer, and write the initial values that these lack.

        A group is the same as long as its dict is the same object, or its parameters are, one by one. An optimizer that
        loads a state makes new dicts around the old lists, and a parameter wrapper puts new lists into the old dicts.
        Raises `ValueError` if groups were removed, or if a selected group was replaced or moved to a different index.
        """
        groups = self.optimizer.param_groups
        if len(groups) < self.known_count:
            raise ValueError(
                f"key={self.key.name!r}: the optimizer has {len(groups)} parameter groups, and had {self.known_count} "
                f"when it was scheduled. Call unbind() on the scheduler, and make another one."
            )
        for selected in self.selected:
            group = groups[selected.index]
            if group is not selected.group and not _has_same_parameters(group, selected.group):
                raise ValueError(
                    f"key={self.key.name!r}: parameter group {selected.index} was replaced or moved after it was "
                    f"scheduled. Call unbind() on the scheduler, and make another one."
                )
        for selected in self.selected:
            selected.group = groups[selected.index]
        self.keep_initial_values()

    def values(self) -> list[Any]:
        """The value in each group of the optimizer; NaN if a group lacks the key. Tensors are copies."""
        values = [self.key.peek(group) for group in self.optimizer.param_groups]
        return [nan if x is None else x.detach().clone() if isinstance(x, Tensor) else x for x in values]

    def values_at(self, value: Any) -> list[Any]:
        """The same, with the value that each selected group gets from a value of the schedule."""
        values = self.values()
        for selected in self.selected:
            values[selected.index] = selected.base_value * value
        return values

    def values_on_host(self) -> list[tuple[ParamGroup, float | None]]:
        """Each selected group with its value. None for a tensor of a device, which is not read."""
        groups = [selected.group for selected in self.selected]
        return [(group, None if self.may_be_lazy else self.key.read_on_host(group)) for group in groups]

    def write_floats(self, value: Any) -> bool:
        """Write a float of the schedule times the base values, if the groups have floats, and if all are finite.

        Otherwise nothing is written, and the result is False. `write` writes the same numbers, and any others.
        """
        key = self.key.key
        if type(value) is not float:
            return False
        for selected in self.selected:
            if type(selected.group[key]) is not float or not -inf < selected.base_value * value < inf:
                return False
        for selected in self.selected:
            selected.group[key] = selected.base_value * value
        return True

    def write(self, values: Sequence[Any]) -> None:
        """Write one value into each selected group. The values were checked, so that all are written."""
        for selected, value in zip(self.selected, values):
            self.key.write(self.optimizer.param_groups[selected.index], value)

    # Values that are tensors

    def tensors(self) -> list[Tensor]:
        """The values of the selected groups that are tensors: the tensors themselves."""
        values = [self.key.peek(self.optimizer.param_groups[i]) for i in self.indices]
        return [value for value in values if isinstance(value, Tensor)]

    def hold_tensors(self) -> None:
        """On a lazy device (XLA), turn the values of an optimizer of `optim` into tensors."""
        self.may_be_lazy = "torch_xla" in sys.modules  # the user may import it at any time before
        hold = getattr(self.optimizer, "hold_tensor", None)
        if self.may_be_lazy and hold is not None:
            for selected in self.selected:
                if any(p.device.type == "xla" for p in selected.group["params"][:1]):
                    hold(selected.group, self.key.key)


def _has_same_parameters(group: ParamGroup, other: ParamGroup) -> bool:
    """Whether two groups have the same parameters, in the same order. After a load, ZeRO 3 leaves a group empty."""
    params, others = group["params"], other["params"]
    return not params or (len(params) == len(others) and all(map(is_, params, others)))
