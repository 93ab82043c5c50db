"""What has weight decay: the parameter groups, and the norms and biases in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from timesched.binding import Bound
from timesched.types import ParamGroup

from .parameters import NamedParameter

_SHOWN_NAMES = 3  # of parameters


def norm_and_bias_names(parameters: Iterable[NamedParameter], groups: Sequence[ParamGroup]) -> dict[int, list[str]]:
    """The names of the norms and biases in each group, by the indices of the groups that have any.

    A parameter may be a norm or a bias if its modules are not known.
    """
    names = {id(p.tensor): p.name for p in parameters if not (p.owners and p.decays)}
    names_by_group = {}
    for i, group in enumerate(groups):
        names_by_group[i] = [names[id(tensor)] for tensor in group["params"] if id(tensor) in names]
    return {i: own_names for i, own_names in names_by_group.items() if own_names}


def scheduled_groups(scheduler: object) -> set[int]:
    """The indices of the groups to which a scheduler gives weight decay. A multiple of 0 does not count."""
    if not isinstance(scheduler, Bound) or scheduler.key != "weight_decay":
        return set()
    return {i for i, factor in zip(scheduler.indices, scheduler.factors) if factor}


def decaying_groups(groups: Sequence[ParamGroup], schedulers: Iterable[object]) -> set[int]:
    """The indices of the groups that have weight decay, now or by a scheduler."""
    indices = {i for i, group in enumerate(groups) if group.get("weight_decay")}
    return indices.union(*map(scheduled_groups, schedulers))


def find_decaying_norms(names: Sequence[str], group: int) -> str | None:
    """The finding that a group with weight decay has norms and biases of these names."""
    if not names:
        return None
    shown = ", ".join(names[:_SHOWN_NAMES]) + (", ..." if len(names) > _SHOWN_NAMES else "")
    return (
        f"norms and biases of group {group} decay ({len(names)}: {shown}). Write no_decay: true, and give a scheduler "
        f"of the weight decay the tags of the other groups (decay_tag)."
    )
