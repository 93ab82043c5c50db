"""Rprop."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from timesched.maths.ops import where
from timesched.types import ParamGroup

from ..base.hyperparameters import NON_NEGATIVE, SWITCH, Number, NumberTuple
from ..base.scalar_states import STEP
from ..base.sharding import local_shard
from ..base.tensor_lists import Tensors, addcmul_, copy_, mul, mul_, neg, shift_, sign, sign_
from ..state.optimizer import State
from ..step.rule_optimizer import OptimizerOptions, RuleOptimizer, Unpack
from ..step.work import Factors


class Rprop(RuleOptimizer):
    """Rprop: a step size for each element, from the signs of its gradients.

        g = -g                                      if maximize
        t = t + 1
        Δ = γ                                       if t == 1
        Δ = where(g*g_prev > 0, η_plus*Δ, where(g*g_prev < 0, η_minus*Δ, Δ))
        Δ = min(max(Δ, Δ_min), Δ_max)
        g = where(g*g_prev < 0, 0, g)
        θ = θ - sign(g)*Δ
        g_prev = g

    where θ is a parameter, g its gradient, γ is `lr`, (η_minus, η_plus) is `etas`, and (Δ_min, Δ_max) is `step_sizes`.

    State of a parameter of shape S:
        step: (), t = 0
        prev: S, g_prev = 0
        step_size: S, Δ = lr

    Args:
        params: parameters or groups.
        lr: the step size at a parameter's first step, at least 0. Later values have no effect. Default: 0.001; torch's
            default: 0.01.
        etas: factors of the step size where the sign turned, in (0, 1), and where it stayed, above 1.
        step_sizes: the smallest and the largest step size.
        maximize: ascend.
        enable_global_step: no effect, since `step` always exists.
        **options: `master_weights`, `stochastic_rounding`, `rounding_seed` and `state_dtype`, which say how bfloat16
            parameters are stepped: see `Precision`.

    Raises:
        ValueError, TypeError: a hyperparameter breaks its rule.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = Rprop([weight], lr=0.25)
    >>> for _ in range(2):
    ...     weight.grad = torch.tensor([7.0])
    ...     optimizer.step()
    >>> round(weight.item(), 4)
    0.45

    Source: https://doi.org/10.1109/ICNN.1993.298623, in the form of torch.optim.Rprop, which does not take back steps.
    """

    hyper = dict(
        lr=NON_NEGATIVE,
        maximize=SWITCH,
        etas=NumberTuple((Number(above=0, below=1), Number(above=1))),
        step_sizes=NumberTuple((NON_NEGATIVE, NON_NEGATIVE), ordered=True),
    )
    states = ("prev", "step_size")

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50.0),
        *,
        maximize: bool = False,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(params, locals())

    def initial_state(self, p: Tensor, group: ParamGroup) -> State:
        size = torch.zeros_like(p)
        lr = group["lr"].detach().reshape(()) if isinstance(group["lr"], Tensor) else group["lr"]
        with torch.no_grad():
            part = local_shard(size, size)  # a DTensor cannot be filled with a tensor
            (torch.view_as_real(part) if p.is_complex() else part).fill_(lr)
        return {**super().initial_state(p, group), "step_size": size}

    @staticmethod
    def factors(h: Factors, s: Factors) -> Factors:
        first = s[STEP] == 1  # the step sizes start with the learning rate of the first step
        (eta_minus, eta_plus), (smallest, largest) = h["etas"], h["step_sizes"]
        return {
            "eta_minus": eta_minus,
            "eta_plus": eta_plus,
            "smallest": smallest,
            "largest": largest,
            "kept": where(first, 0.0, 1.0),
            "first_step_size": where(first, h["lr"] + 0.0, 0.0),
        }

    @staticmethod
    def update(h: Factors, f: Factors, p: Tensors, g: Tensors, prev: Tensors, step_size: Tensors) -> None:
        if h["maximize"]:
            g = neg(g)
        if not (isinstance(f["kept"], float) and f["kept"] == 1.0):
            mul_(step_size, f["kept"])
            shift_(step_size, f["first_step_size"])
        agreement = mul(g, prev)
        sign_(agreement)
        copy_(prev, g)
        for x, signs in zip(prev, agreement):
            x.masked_fill_(signs < 0, 0)
        # A clamped line through the three cases replaces a choice by the sign of agreement:
        #     factor = eta_plus where it is 1, 1 where it is 0, eta_minus where it is -1
        #     factor = clamp(eta_plus * agreement + 1, eta_minus, eta_plus)
        # since eta_plus + 1 is above eta_plus, and 1 - eta_plus is below 0.
        mul_(agreement, f["eta_plus"])
        shift_(agreement, 1.0)
        for x in agreement:
            x.clamp_(f["eta_minus"], f["eta_plus"])
        mul_(step_size, agreement)
        for x in step_size:
            x.clamp_(f["smallest"], f["largest"])
        addcmul_(p, sign(prev), step_size, -1.0)
