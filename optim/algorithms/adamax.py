"""Adamax."""

from __future__ import annotations

from torch import Tensor
from torch.optim.optimizer import ParamsT

from ..base.hyperparameters import BETAS, NON_NEGATIVE
from ..base.scalar_states import STEP
from ..base.tensor_lists import Tensors, absolute, addcdiv_, copy_, lerp_, maximum_, mul_, shift_
from ..step.rule_optimizer import COMMON, OptimizerOptions, RuleOptimizer, Unpack
from ..step.work import Factors
from .common_steps import penalized_gradient, widen_float16


class Adamax(RuleOptimizer):
    """Adamax: Adam with the infinity norm.

        g = -g                                      if maximize
        g = g + λ*θ
        t = t + 1
        m = β1*m + (1 - β1)*g
        u = max(β2*u, abs(g) + ε)
        θ = θ - α / (1 - β1**t) * m / u

    where θ is a parameter, g its gradient, α is `lr`, (β1, β2) is `betas`, ε is `eps`, and λ is `weight_decay`. The
    paper has no ε.

    State of a parameter of shape S:
        step: (), t = 0
        exp_avg: S, m = 0
        exp_inf: S, u = 0

    Args:
        params: parameters or groups.
        lr: learning rate, at least 0. Default: 0.001; torch's default: 0.002.
        betas: decay rates of the average and of the norm, each in [0, 1).
        eps: added to the size of the gradient, at least 0. Default: 1e-6; torch's default: 1e-8.
        weight_decay: factor of the L2 penalty's gradient, at least 0.
        maximize: ascend.
        enable_global_step: no effect, since `step` always exists.
        **options: `master_weights`, `stochastic_rounding`, `rounding_seed` and `state_dtype`, which say how bfloat16
            parameters are stepped: see `Precision`.

    Raises:
        ValueError, TypeError: a hyperparameter breaks its rule.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = Adamax([weight], lr=0.25)
    >>> weight.grad = torch.tensor([2.0])
    >>> optimizer.step()
    >>> round(weight.item(), 4)
    0.75

    Source: https://arxiv.org/abs/1412.6980, algorithm 2, with torch's eps.
    """

    hyper = dict(COMMON, betas=BETAS, eps=NON_NEGATIVE)
    states = ("exp_avg", "exp_inf")

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float | Tensor = 0.0,
        maximize: bool = False,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(params, locals())

    @staticmethod
    def factors(h: Factors, s: Factors) -> Factors:
        beta1, beta2 = h["betas"]
        minus_step_size = -h["lr"] / (1 - beta1 ** s[STEP])
        return {"one_minus_beta1": 1 - beta1, "beta2": beta2, "minus_step_size": minus_step_size}

    @staticmethod
    def update(h: Factors, f: Factors, p: Tensors, g: Tensors, exp_avg: Tensors, exp_inf: Tensors) -> None:
        m, u = exp_avg, exp_inf
        g = penalized_gradient(h, p, g)
        lerp_(m, g, f["one_minus_beta1"])
        divisor = widen_float16(u)  # u itself, except in float16
        mul_(divisor, f["beta2"])
        size = absolute(widen_float16(g))
        shift_(size, h["eps"])
        maximum_(divisor, size)
        addcdiv_(p, m, divisor, f["minus_step_size"])
        if divisor is not u:
            copy_(u, divisor)
