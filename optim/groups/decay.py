"""What has weight decay: the parameters that get it, the groups that have it, and the norms and biases in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from timesched.binding import Bound
from timesched.types import ParamGroup

from ..base.hyperparameters import comparable_value
from .parameters import NamedParameter, remove_wrappers

_SHOWN_NAMES = 3  # of parameters


def set_weight_decay(
    parameters: Sequence[NamedParameter], model: object, weight_decay: object, no_decay: object, decay_tags: set[str]
) -> None:
    """Set the weight decay of each parameter: the arguments `weight_decay`, `no_decay` and `decay_tag`.

    These parameters get 0, unless `no_decay` is False:

    * Biases, by their names.
    * The parameters of norm layers: torch's classes, and classes with similar names (`LlamaRMSNorm`,
      `MambaRMSNormGated`). A tied parameter is a norm or bias if it is one in all of its modules.
    * Parameters with the attribute `_no_weight_decay`, as in Mamba, and the names in a module's `no_weight_decay()`, as
      in timm.

    All others get `weight_decay`. If it is None, they leave it to the optimizer. A value in a rule wins. A glob or a
    layer type in `no_decay` gives 0 to the parameters that it selects by any of their names and modules. Parameters
    whose weight decay is not 0 get the tag.
    """
    excluded = set() if no_decay is False else _find_excluded(model, parameters)
    for parameter in parameters:
        default = 0.0 if id(parameter.tensor) in excluded else weight_decay
        if default is not None:
            parameter.settings.setdefault("weight_decay", default)
        if decay_tags and comparable_value(parameter.settings.get("weight_decay")) != 0:
            parameter.tags |= decay_tags


def _find_excluded(model: object, parameters: Iterable[NamedParameter]) -> set[int]:
    """The ids of norms and biases, and of the parameters that their model excludes from weight decay."""
    excluded = {id(parameter.tensor) for parameter in parameters if not parameter.decays}
    for module in model.modules() if isinstance(model, nn.Module) else ():
        excluded |= {id(p) for p in module.parameters(recurse=False) if getattr(p, "_no_weight_decay", False)}
        own_names: Any = getattr(module, "no_weight_decay", None)
        if callable(own_names):
            names = set(own_names())
            for name, p in module.named_parameters(remove_duplicate=False):
                if remove_wrappers(name) in names:
                    excluded.add(id(p))
    return excluded


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


def describe_decaying_norms(names: Sequence[str], group: int) -> str:
    """Describe the norms and biases, of these names, in a group with weight decay."""
    shown = ", ".join(names[:_SHOWN_NAMES]) + (", ..." if len(names) > _SHOWN_NAMES else "")
    return (
        f"norms and biases of group {group} decay ({len(names)}: {shown}). Write no_decay: true, and give a scheduler "
        f"of the weight decay the tags of the other groups (decay_tag)."
    )
