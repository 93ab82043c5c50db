"""NAdam."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim.optimizer import ParamsT

from timesched.types import ParamGroup

from ..base.hyperparameters import BETAS, NON_NEGATIVE, SWITCH
from ..base.scalar_states import STEP
from ..base.tensor_lists import Tensors, addcdiv_
from ..step.rule_optimizer import COMMON, OptimizerOptions, RuleOptimizer, Unpack
from ..step.work import Factors, RoundAsState
from .common_steps import apply_weight_decay, moment_factors, root_plus_eps, update_moments


class NAdam(RuleOptimizer):
    """NAdam: Adam with Nesterov's momentum.

        g = -g                                      if maximize
        g = g + λ*θ                                 if not decoupled_weight_decay
        θ = θ - α*λ*θ                               if decoupled_weight_decay
        t = t + 1
        μ = β1*(1 - 0.5 * 0.96**(t*ψ))
        μ_next = β1*(1 - 0.5 * 0.96**((t + 1)*ψ))
        Π = Π*μ
        m = β1*m + (1 - β1)*g
        v = β2*v + (1 - β2)*g*g
        m_hat = μ_next*m / (1 - Π*μ_next) + (1 - μ)*g / (1 - Π)
        v_hat = v / (1 - β2**t)
        θ = θ - α*m_hat / (sqrt(v_hat) + ε)

    where θ is a parameter, g its gradient, α is `lr`, (β1, β2) is `betas`, ε is `eps`, λ is `weight_decay`, and
    ψ is `momentum_decay`.

    State of a parameter of shape S:
        step: (), t = 0
        mu_product: (), Π = 1
        exp_avg: S, m = 0
        exp_avg_sq: S, v = 0

    Args:
        params: parameters or groups.
        lr: learning rate, at least 0.
        betas: decay rates of the two moments, each in [0, 1).
        eps: added to the root of the second moment, at least 0.
        weight_decay: factor of the L2 penalty's gradient, at least 0.
        momentum_decay: how fast the momentum rises to `betas[0]`, at least 0.
        decoupled_weight_decay: shrink the parameter by `lr * weight_decay` instead of adding an L2 gradient.
        maximize: ascend.
        enable_global_step: no effect, since `step` always exists.
        **options: `master_weights`, `stochastic_rounding`, `rounding_seed` and `state_dtype`, which say how bfloat16
            parameters are stepped: see `Precision`.

    Raises:
        ValueError, TypeError: a hyperparameter breaks its rule.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = NAdam([weight], lr=0.25)
    >>> weight.grad = torch.tensor([2.0])
    >>> optimizer.step()
    >>> round(weight.item(), 4)
    0.7359

    Source: https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ, in the form of torch.optim.NAdam.
    """

    hyper = dict(COMMON, betas=BETAS, eps=NON_NEGATIVE, momentum_decay=NON_NEGATIVE, decoupled_weight_decay=SWITCH)
    structural = ("decoupled_weight_decay",)
    may_be_missing = frozenset(("maximize", "decoupled_weight_decay"))
    reads = (STEP, "mu_product")
    states = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 2e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float | Tensor = 0,
        momentum_decay: float = 4e-3,
        *,
        decoupled_weight_decay: bool = False,
        maximize: bool = False,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(params, locals())

    def scalar_states(self, group: ParamGroup) -> dict[str, Any]:
        return {STEP: 0.0, "mu_product": 1.0}

    @staticmethod
    def factors_and_scalars(h: Factors, s: Factors, round_as_state: RoundAsState) -> tuple[Factors, Factors]:
        (beta1, beta2), lr, t = h["betas"], h["lr"], s[STEP]
        mu = beta1 * (1 - 0.5 * 0.96 ** (t * h["momentum_decay"]))
        next_mu = beta1 * (1 - 0.5 * 0.96 ** ((t + 1) * h["momentum_decay"]))
        product = round_as_state(s["mu_product"] * round_as_state(mu))  # as torch rounds it
        root = (1 - beta2**t) ** 0.5  # corrects the second moment, in the step sizes and eps, as in Adam
        factors = {
            **moment_factors(h),
            "eps": h["eps"] * root,
            "minus_step_size_of_g": -lr * root * (1 - mu) / (1 - product),
            "minus_step_size_of_m": -lr * root * next_mu / (1 - product * next_mu),
            "decay_factor": 1 - lr * h["weight_decay"],
        }
        return factors, {"mu_product": product}

    @staticmethod
    def update(h: Factors, f: Factors, p: Tensors, g: Tensors, exp_avg: Tensors, exp_avg_sq: Tensors) -> None:
        m, v = exp_avg, exp_avg_sq
        g = apply_weight_decay(h, f, p, g)
        update_moments(f, g, m, v)
        root = root_plus_eps(v, f["eps"])
        addcdiv_(p, g, root, f["minus_step_size_of_g"])
        addcdiv_(p, m, root, f["minus_step_size_of_m"])
