"""RAdam."""

from __future__ import annotations

from torch import Tensor
from torch.optim.optimizer import ParamsT

from timesched.maths.ops import clamp_min, where

from ..base.hyperparameters import BETAS, NON_NEGATIVE, SWITCH
from ..base.scalar_states import STEP
from ..base.tensor_lists import Tensors, add_, is_zero
from ..step.rule_optimizer import COMMON, OptimizerOptions, RuleOptimizer, Unpack
from ..step.work import Factors
from .common_steps import add_over_root_, apply_weight_decay, moment_factors, update_moments


class RAdam(RuleOptimizer):
    """RAdam: Adam that adapts only when its second moment is reliable.

        g = -g                                      if maximize
        g = g + λ*θ                                 if not decoupled_weight_decay
        θ = θ - α*λ*θ                               if decoupled_weight_decay
        t = t + 1
        m = β1*m + (1 - β1)*g
        v = β2*v + (1 - β2)*g*g
        m_hat = m / (1 - β1**t)
        ρ_inf = 2 / (1 - β2) - 1
        ρ = ρ_inf - 2*t*β2**t / (1 - β2**t)
        l = sqrt(1 - β2**t) / (sqrt(v) + ε)                                       if ρ > 5
        r = sqrt((ρ - 4)*(ρ - 2)*ρ_inf / ((ρ_inf - 4)*(ρ_inf - 2)*ρ))             if ρ > 5
        θ = θ - α*m_hat*r*l                                                       if ρ > 5
        θ = θ - α*m_hat                                                           if ρ <= 5

    where θ is a parameter, g its gradient, α is `lr`, (β1, β2) is `betas`, ε is `eps`, and λ is `weight_decay`.

    State of a parameter of shape S:
        step: (), t = 0
        exp_avg: S, m = 0
        exp_avg_sq: S, v = 0

    Args:
        params: parameters or groups.
        lr: learning rate, at least 0.
        betas: decay rates of the two moments, each in [0, 1).
        eps: added to the root of the second moment, at least 0. Default: 1e-6; torch's default: 1e-8.
        weight_decay: factor of the L2 penalty's gradient, at least 0.
        decoupled_weight_decay: shrink the parameter by `lr * weight_decay` instead of adding an L2 gradient.
        maximize: ascend.
        enable_global_step: no effect, since `step` always exists.
        **options: `master_weights`, `stochastic_rounding`, `rounding_seed` and `state_dtype`, which say how bfloat16
            parameters are stepped: see `Precision`.

    Raises:
        ValueError, TypeError: a hyperparameter breaks its rule.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = RAdam([weight], lr=0.25)
    >>> weight.grad = torch.tensor([2.0])
    >>> optimizer.step()
    >>> round(weight.item(), 4)
    0.5

    Source: https://arxiv.org/abs/1908.03265, algorithm 2, which adapts if ρ > 4; the threshold 5 and ε follow torch.
    """

    hyper = dict(COMMON, betas=BETAS, eps=NON_NEGATIVE, decoupled_weight_decay=SWITCH)
    structural = ("decoupled_weight_decay",)
    may_be_missing = frozenset(("maximize", "decoupled_weight_decay"))
    states = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float | Tensor = 0.0,
        *,
        decoupled_weight_decay: bool = False,
        maximize: bool = False,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(params, locals())

    @staticmethod
    def factors(h: Factors, s: Factors) -> Factors:
        (beta1, beta2), lr, t = h["betas"], h["lr"], s[STEP]
        bias_correction2 = 1 - beta2**t
        rho_inf = 2 / (1 - beta2) - 1
        rho = rho_inf - 2 * t * beta2**t / bias_correction2
        adapts = rho > 5
        # Where rho is too small to adapt, the result is not used. With 5 or more, no divisor is 0 and no root complex.
        safe, safe_inf = clamp_min(rho, 5.0), clamp_min(rho_inf, 5.0)
        rectified = (safe - 4) * (safe - 2) * safe_inf / (safe * ((safe_inf - 4) * (safe_inf - 2)))
        minus_step_size = -lr / (1 - beta1**t)
        zero = 0.0 * minus_step_size
        # Both cases of the rule are computed, one of them with 0, since a graph cannot branch on rho. The correction of
        # the second moment is folded into the step size. It is not folded into eps, which torch adds to the root of v:
        #     p -= (lr / (1 - beta1**t)) * m                                    where rho <= 5
        #     p -= (lr / (1 - beta1**t)) * r * sqrt(1 - beta2**t) * m / (sqrt(v) + eps)    elsewhere
        return {
            **moment_factors(h),
            "minus_plain_step_size": where(adapts, zero, minus_step_size),
            "minus_adaptive_step_size": where(adapts, minus_step_size * (rectified * bias_correction2) ** 0.5, zero),
            "decay_factor": 1 - lr * h["weight_decay"],
        }

    @staticmethod
    def update(h: Factors, f: Factors, p: Tensors, g: Tensors, exp_avg: Tensors, exp_avg_sq: Tensors) -> None:
        m, v = exp_avg, exp_avg_sq
        g = apply_weight_decay(h, f, p, g)
        update_moments(f, g, m, v)
        if not is_zero(f["minus_plain_step_size"]):
            add_(p, m, f["minus_plain_step_size"])
        if not is_zero(f["minus_adaptive_step_size"]):
            add_over_root_(p, m, v, f["minus_adaptive_step_size"], h["eps"])
