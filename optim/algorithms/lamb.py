"""LAMB."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from ..base.hyperparameters import BETAS, NON_NEGATIVE, SWITCH
from ..base.sharding import Placement, sum_over_ranks
from ..base.tensor_lists import Factor, Tensors, add_, div, is_zero, norms
from ..step.rule_optimizer import OptimizerOptions, RuleOptimizer, Unpack
from ..step.work import Factors
from .common_steps import moment_factors, root_plus_eps, update_moments

LARGEST_NORM = 10.0  # the upper limit of a parameter's norm in the trust ratio


class Lamb(RuleOptimizer):
    """LAMB: Adam's direction, scaled to the norm of the parameter; without bias correction.

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
        weight_decay: the share of the parameter that is added to the direction, at least 0.
        adam: do not scale the direction.
        enable_global_step: keep the state `step`.
        **options: `master_weights`, `stochastic_rounding`, `rounding_seed` and `state_dtype`, which say how bfloat16
            parameters are stepped: see `Precision`.

    Raises:
        ValueError, TypeError: a hyperparameter breaks its rule.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> optimizer = Lamb([weight], lr=0.1)
    >>> weight.grad = torch.tensor([1.0, 0.0])
    >>> optimizer.step()
    >>> round(weight[0].item(), 4)
    2.5

    Source: https://arxiv.org/abs/1904.00962, algorithm 2, without its bias correction.
    """

    hyper = dict(lr=NON_NEGATIVE, betas=BETAS, eps=NON_NEGATIVE, weight_decay=NON_NEGATIVE, adam=SWITCH)
    elementwise = False
    reads = ()
    states = ("exp_avg", "exp_avg_sq")
    counts_steps = False
    decouples_weight_decay = True

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float | Tensor = 0,
        adam: bool = False,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(params, locals())

    @staticmethod
    def factors(h: Factors, s: Factors) -> Factors:
        return {**moment_factors(h), "minus_lr": -h["lr"]}

    @staticmethod
    def update(
        h: Factors, f: Factors, p: Tensors, g: Tensors, placement: Placement | None = None, **states: Tensors
    ) -> None:
        m, v = states["exp_avg"], states["exp_avg_sq"]
        update_moments(f, g, m, v)
        r = div(m, root_plus_eps(v, h["eps"]))
        if not is_zero(h["weight_decay"]):
            add_(r, p, h["weight_decay"])
        factor: Factor = f["minus_lr"]
        if not h["adam"]:
            norm_of_p = _full_norms(p, placement)
            norm_of_r = _full_norms(r, placement)
            capped = norm_of_p.clamp(max=LARGEST_NORM)
            trust_ratio = torch.where((capped > 0) & (norm_of_r > 0), capped / norm_of_r, 1.0)
            factor = list((trust_ratio * f["minus_lr"]).unbind())
        add_(p, r, factor)


def _full_norms(xs: Tensors, placement: Placement | None) -> Tensor:
    """The norms of tensors, in one tensor. For distributed tensors, they are the norms of the full tensors."""
    shard_norms = torch.stack(norms(xs))
    return shard_norms if placement is None else sum_over_ranks(shard_norms.square(), placement).sqrt()
