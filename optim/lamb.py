"""LAMB."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .core.common_steps import adam_step_, add_over_root_
from .core.eager import blocks_by_tensor, two_passes
from .core.hyperparameters import BETAS, SWITCH, Number, table
from .core.sharding import Placement, sum_over_ranks
from .core.tensor_lists import Tensors, add_, by_shape, is_zero, mul_, norms, on_gpu
from .core.update_rule import RuleOptimizer
from .core.work import Factors

LARGEST_NORM = 10.0  # a parameter's norm counts up to this


class Lamb(RuleOptimizer):
    """LAMB: Adam's direction, as long as the parameter; without bias correction.

        m = β1*m + (1 - β1)*g
        v = β2*v + (1 - β2)*g*g
        r = m / (sqrt(v) + ε) + λ*θ
        φ = min(norm(θ), 10)
        q = φ / norm(r)
        q = 1                                       if adam or norm(θ) == 0 or norm(r) == 0
        θ = θ - η*q*r

    where θ is a parameter, g its gradient, η is `lr`, (β1, β2) is `betas`, ε is `eps`, and λ is `weight_decay`. The
    ratio q of the two norms is called the trust ratio.

    State of a parameter of shape S:
        exp_avg: S, m = 0
        exp_avg_sq: S, v = 0

    Args:
        params: parameters or groups.
        lr: learning rate, at least 0.
        betas: decay rates of the two moments, each in [0, 1).
        eps: added to the root of the second moment, at least 0.
        weight_decay: how much of the parameter is added to the direction, at least 0.
        adam: leave the length of the direction as it is.
        enable_global_step: keep the state `step`.

    Raises:
        ValueError, TypeError: a hyperparameter breaks its rule.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> optimizer = Lamb([weight], lr=0.1)
    >>> weight.grad = torch.tensor([1.0, 0.0])
    >>> optimizer.step()
    >>> round(weight[0].item(), 4)
    2.5

    Source: https://arxiv.org/abs/1904.00962, algorithm 2, without its bias correction. tests/optim/reference.py has the
    plain code.
    """

    hyper = table(lr=Number(low=0.0), betas=BETAS, eps=Number(low=0.0), weight_decay=Number(low=0.0), adam=SWITCH)
    elementwise = False
    reads = ()

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float | Tensor = 0,
        adam: bool = False,
        *,
        enable_global_step: bool = False,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "adam": adam}
        super().__init__(params, defaults, enable_global_step)

    def scalar_states(self, group: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def tensor_states(self, group: Mapping[str, Any], p: Tensor) -> tuple[str | None, ...]:
        return ("exp_avg", "exp_avg_sq")

    @staticmethod
    def factors(h: dict[str, Any], s: dict[str, Any], stored: Callable[[Any], Any]) -> Factors:
        beta1, beta2 = h["betas"]
        return {
            "one_minus_beta1": 1 - beta1,
            "beta2": beta2,
            "one_minus_beta2": 1 - beta2,
            "eps": h["eps"],
            "weight_decay": h["weight_decay"],
            "minus_lr": -h["lr"],
        }

    @staticmethod
    def update(h: dict[str, Any], k: Factors, p: Tensors, g: Tensors, *states: Tensors) -> None:
        for blocks in blocks_by_tensor([p, g, *states], k["placement"]):
            if len(blocks) > 1:  # a large tensor, in an eager step on the CPU
                factor = k["minus_lr"] if h["adam"] else partial(_scaled, k)
                two_passes(blocks, partial(_direction, k), factor, partial(_descend, k))
                continue
            (block,) = blocks
            if on_gpu(block[0]):
                _in_stacks(h, k, *block)
                continue
            direction, factor = _direction(k, *block), k["minus_lr"]
            if not h["adam"]:
                lengths = [_full_norms(xs, k["placement"]) for xs in (block[0], direction)]
                factor = list(_scaled(k, *lengths).unbind())
            add_(block[0], direction, factor)


def _in_stacks(h: dict[str, Any], k: Factors, *columns: Tensors) -> None:
    """The update on a CUDA GPU, where the directions of contiguous parameters of one shape are views of one tensor."""
    stacks = by_shape(columns[0])
    p, g, m, v = ([column[i] for chosen in stacks for i in chosen] for column in columns)
    firsts = [columns[0][chosen[0]] for chosen in stacks]
    directions = [
        torch.zeros_like(x)[None] if len(chosen) == 1 else x.new_zeros((len(chosen), *x.shape))
        for x, chosen in zip(firsts, stacks)
    ]
    direction = _direction(k, p, g, m, v, [x for stack in directions for x in stack.unbind()])
    if h["adam"]:
        add_(p, direction, k["minus_lr"])
        return
    factors = _scaled(k, *[_full_norms(xs, k["placement"]) for xs in (p, direction)])
    at = 0
    for stack in directions:
        stack.mul_(factors[at : at + len(stack)].view(-1, *[1] * (stack.dim() - 1)))
        at += len(stack)
    add_(p, direction)


def _direction(k: Factors, p: Tensors, g: Tensors, m: Tensors, v: Tensors, direction: Tensors | None = None) -> Tensors:
    """Update the moments, and give r = m / (sqrt(v) + eps) + weight_decay * p, in the given tensors of zeros."""
    direction = direction or [torch.zeros_like(x) for x in p]
    adam_step_(direction, g, m, v, k["one_minus_beta1"], k["beta2"], k["one_minus_beta2"], 1.0, k["eps"])
    if not is_zero(k["weight_decay"]):
        add_(direction, p, k["weight_decay"])
    return direction


def _scaled(k: Factors, norms_of_p: Tensor, norms_of_direction: Tensor) -> Tensor:
    """-lr times the trust ratios."""
    capped = norms_of_p.clamp(max=LARGEST_NORM)
    ratio = torch.where((capped > 0) & (norms_of_direction > 0), capped / norms_of_direction, 1.0)
    scaled: Tensor = ratio * k["minus_lr"]
    return scaled


def _descend(k: Factors, factor: float, p: Tensors, g: Tensors, m: Tensors, v: Tensors) -> None:
    """p += factor * r, where r is computed from moments that have been updated."""
    if not is_zero(k["weight_decay"]):
        mul_(p, 1 + factor * k["weight_decay"])
    add_over_root_(p, m, v, factor, k["eps"])


def _full_norms(xs: Tensors, placement: Placement | None) -> Tensor:
    """The norms of tensors as one tensor; of distributed tensors, those of the full ones."""
    local = torch.stack(norms(xs))
    return local if placement is None else sum_over_ranks(local.square(), placement).sqrt()
