"""`clip_grad_norm_` clips gradients by their norm, except for Muon, whose steps do not depend on the norm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from timesched.binding.groups import require_groups
from timesched.types import ParamGroup, Tags


def clip_grad_norm_(optimizer: Any, max_norm: float, norm_type: float = 2.0, *, tags: Tags = None) -> Tensor:
    """Scale the gradients of some parameter groups so that their norm is at most `max_norm`.

    `torch.nn.utils.clip_grad_norm_` computes the norm of all these gradients as one vector. By default the groups of
    Muon are left out: their gradients neither count in the norm nor are scaled. A Muon step does not depend on the
    scale of its gradients, so clipping could only change how much each batch weighs in the momentum. Call this function
    after the backward pass and before `optimizer.step()`. Nothing is read from an accelerator.

    Args:
        optimizer: an optimizer, or any object that has `param_groups`.
        max_norm: the largest norm that is not scaled.
        norm_type: the p of the p-norm; `inf` for the largest absolute element.
        tags: one or several tags of the groups whose gradients are clipped, as in `bind`. A None among them selects the
            groups without tags. None alone selects all groups except groups whose `algorithm` is "muon" and groups of
            `torch.optim.Muon`.

    Returns:
        the norm before clipping, as a tensor: 0 without gradients, and a DTensor where the gradients are DTensors.

    Raises:
        ValueError: no group has one of the tags.

    >>> import torch
    >>> from optim import Muon
    >>> matrix, bias = torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(2))
    >>> optimizer = Muon([{"params": [matrix]}, {"params": [bias], "algorithm": "adamw"}], lr=0.01)
    >>> matrix.grad, bias.grad = torch.full((2, 2), 100.0), torch.tensor([3.0, 4.0])
    >>> clip_grad_norm_(optimizer, max_norm=1.0).item()
    5.0
    >>> bias.grad, matrix.grad[0]
    (tensor([0.6000, 0.8000]), tensor([100., 100.]))
    """
    groups = optimizer.param_groups
    if tags is None:
        selected = [group for group in groups if not _is_muon_group(optimizer, group)]
    else:
        advice = "Pass tags that are in optimizer.param_groups."
        selected = [groups[i] for i in require_groups(groups, tags, "clip_grad_norm_.tags", advice)]
    parameters: list[Tensor] = []
    for group in selected:
        parameters += group["params"]
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)


def _is_muon_group(optimizer: object, group: ParamGroup) -> bool:
    """Whether Muon updates a group of an optimizer, which a trainer may have wrapped."""
    if "algorithm" in group:
        return bool(group["algorithm"] == "muon")
    wrapped = getattr(optimizer, "optimizer", optimizer)  # the attribute of accelerate's wrapper
    return isinstance(wrapped, getattr(torch.optim, "Muon", ()))  # since torch 2.9
