"""Adadelta."""

from __future__ import annotations

from torch import Tensor
from torch.optim.optimizer import ParamsT

from ..base.hyperparameters import NON_NEGATIVE, Number
from ..base.tensor_lists import Tensors, add_, div_, mul_, shift, sqrt_
from ..step.rule_optimizer import COMMON, OptimizerOptions, RuleOptimizer, Unpack
from ..step.work import Factors
from .common_steps import penalized_gradient, square_average_, widen_float16


class Adadelta(RuleOptimizer):
    """Adadelta: steps in proportion to the size of earlier steps.

        g = -g                                      if maximize
        g = g + λ*θ
        t = t + 1
        E_g = ρ*E_g + (1 - ρ)*g*g
        Δ = sqrt(E_Δ + ε) / sqrt(E_g + ε) * g
        E_Δ = ρ*E_Δ + (1 - ρ)*Δ*Δ
        θ = θ - γ*Δ

    where θ is a parameter, g its gradient, γ is `lr`, ρ is `rho`, ε is `eps`, and λ is `weight_decay`. The paper writes
    E[g²] and E[Δ²], and its steps have the other sign.

    State of a parameter of shape S:
        step: (), t = 0
        square_avg: S, E_g = 0
        acc_delta: S, E_Δ = 0

    Args:
        params: parameters or groups.
        lr: factor of the step, at least 0.
        rho: decay rate of the two averages, in [0, 1].
        eps: added under the roots, at least 0.
        weight_decay: factor of the L2 penalty's gradient, at least 0.
        maximize: ascend.
        enable_global_step: no effect, since `step` always exists.
        **options: `master_weights`, `stochastic_rounding`, `rounding_seed` and `state_dtype`, which say how bfloat16
            parameters are stepped: see `Precision`.

    Raises:
        ValueError, TypeError: a hyperparameter breaks its rule.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = Adadelta([weight], rho=0.75, eps=0.01)
    >>> weight.grad = torch.tensor([1.0])
    >>> optimizer.step()
    >>> round(weight.item(), 4)
    0.8039

    Source: https://arxiv.org/abs/1212.5701, algorithm 1, with torch's learning rate.
    """

    hyper = dict(COMMON, rho=Number(least=0, most=1), eps=NON_NEGATIVE)
    reads = ()
    states = ("square_avg", "acc_delta")

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1.0,
        rho: float | Tensor = 0.9,
        eps: float = 1e-6,
        weight_decay: float | Tensor = 0,
        maximize: bool = False,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(params, locals())

    @staticmethod
    def factors(h: Factors, s: Factors) -> Factors:
        return {"one_minus_rho": 1 - h["rho"], "minus_lr": -h["lr"]}

    @staticmethod
    def update(h: Factors, f: Factors, p: Tensors, g: Tensors, square_avg: Tensors, acc_delta: Tensors) -> None:
        g = penalized_gradient(h, p, g)
        square_average_(square_avg, g, h["rho"], f["one_minus_rho"])
        delta = shift(widen_float16(acc_delta), h["eps"])
        div_(delta, shift(widen_float16(square_avg), h["eps"]))
        sqrt_(delta)
        mul_(delta, g)
        square_average_(acc_delta, delta, h["rho"], f["one_minus_rho"])
        add_(p, delta, f["minus_lr"])
