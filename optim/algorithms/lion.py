"""Lion."""

from __future__ import annotations

from torch import Tensor
from torch.optim.optimizer import ParamsT

from ..base.hyperparameters import BETAS, NON_NEGATIVE, SWITCH
from ..base.tensor_lists import Tensors, add_, decay_cautiously_, is_zero, lerp, lerp_, mul_, sign_
from ..step.rule_optimizer import OptimizerOptions, RuleOptimizer, Unpack
from ..step.work import Factors


class Lion(RuleOptimizer):
    """Lion: steps of one size in the direction of a sign.

        c = β1*m + (1 - β1)*g
        θ = θ - η*λ*θ                               if not cautious_weight_decay
        θ = θ - η*λ*θ*(c*θ >= 0)                    if cautious_weight_decay
        θ = θ - η*sign(c)
        m = β2*m + (1 - β2)*g

    where θ is a parameter, g its gradient, η is `lr`, (β1, β2) is `betas`, and λ is `weight_decay`.

    State of a parameter of shape S:
        exp_avg: S, m = 0

    Args:
        params: parameters or groups.
        lr: learning rate, at least 0.
        betas: the share of the average in the direction, and the share that is kept; each in [0, 1).
        weight_decay: the parameter shrinks by `lr * weight_decay`; at least 0.
        cautious_weight_decay: an element decays only if the step does not move it away from 0
            (https://arxiv.org/abs/2510.12402).
        enable_global_step: keep the state `step`.
        **options: `master_weights`, `stochastic_rounding`, `rounding_seed` and `state_dtype`, which say how bfloat16
            parameters are stepped: see `Precision`.

    Raises:
        ValueError, TypeError: a hyperparameter breaks its rule.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = Lion([weight], lr=0.25, weight_decay=0.5)
    >>> weight.grad = torch.tensor([3.0])
    >>> optimizer.step()
    >>> round(weight.item(), 4)
    0.625

    Source: https://arxiv.org/abs/2302.06675, algorithm 2.
    """

    hyper = dict(lr=NON_NEGATIVE, betas=BETAS, weight_decay=NON_NEGATIVE, cautious_weight_decay=SWITCH)
    may_be_missing = frozenset(("cautious_weight_decay",))
    reads = ()
    states = ("exp_avg",)
    counts_steps = False
    decouples_weight_decay = True

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-4,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.99),
        weight_decay: float | Tensor = 0.0,
        *,
        cautious_weight_decay: bool = False,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(params, locals())

    @staticmethod
    def factors(h: Factors, s: Factors) -> Factors:
        beta1, beta2 = h["betas"]
        return {
            "one_minus_beta1": 1 - beta1,
            "one_minus_beta2": 1 - beta2,
            "minus_lr": -h["lr"],
            "decay_factor": 1 - h["lr"] * h["weight_decay"],
        }

    @staticmethod
    def update(h: Factors, f: Factors, p: Tensors, g: Tensors, exp_avg: Tensors) -> None:
        m = exp_avg
        direction = lerp(m, g, f["one_minus_beta1"])
        sign_(direction)
        if h["cautious_weight_decay"]:
            decay_cautiously_(p, f["decay_factor"], direction)
        elif not is_zero(h["weight_decay"]):
            mul_(p, f["decay_factor"])
        add_(p, direction, f["minus_lr"])
        lerp_(m, g, f["one_minus_beta2"])
