"""Adagrad."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from timesched.types import ParamGroup

from ..base.hyperparameters import NON_NEGATIVE, Number
from ..base.scalar_states import STEP
from ..base.tensor_lists import Tensors, addcmul_
from ..state.optimizer import State
from ..step.fused import FUSED_ADAGRAD
from ..step.rule_optimizer import COMMON, OptimizerOptions, RuleOptimizer, Unpack
from ..step.work import Factors
from .common_steps import add_over_root_, penalized_gradient


class Adagrad(RuleOptimizer):
    """Adagrad: the step size falls with the sum of squared gradients.

        g = -g                                      if maximize
        g = g + λ*θ
        t = t + 1
        G = G + g*g
        θ = θ - η / (1 + (t - 1)*d) * g / (sqrt(G) + ε)

    where θ is a parameter, g its gradient, η is `lr`, d is `lr_decay`, ε is `eps`, and λ is `weight_decay`. The paper
    writes δ for ε, and G for the diagonal matrix of these sums.

    State of a parameter of shape S:
        step: (), t = 0
        sum: S, G = initial_accumulator_value

    Args:
        params: parameters or groups.
        lr: learning rate, at least 0.
        lr_decay: the learning rate is divided by 1 + (step - 1) * lr_decay; at least 0.
        weight_decay: factor of the L2 penalty's gradient, at least 0.
        initial_accumulator_value: the first value of `sum`, at least 0.
        eps: added to the root, at least 0. Default: 1e-6; torch's default: 1e-10.
        maximize: ascend.
        enable_global_step: no effect, since `step` always exists.
        **options: `master_weights`, `stochastic_rounding`, `rounding_seed` and `state_dtype`, which say how bfloat16
            parameters are stepped: see `Precision`.

    Raises:
        ValueError, TypeError: a hyperparameter breaks its rule.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = Adagrad([weight], lr=0.25, initial_accumulator_value=5.0)
    >>> weight.grad = torch.tensor([2.0])
    >>> optimizer.step()
    >>> round(weight.item(), 4)
    0.8333

    Source: https://jmlr.org/papers/v12/duchi11a.html, with torch's decay of the learning rate.
    """

    hyper = dict(
        COMMON, lr_decay=NON_NEGATIVE, initial_accumulator_value=Number(least=0, scheduled=False), eps=NON_NEGATIVE
    )
    fused = FUSED_ADAGRAD
    states = ("sum",)

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.01,
        lr_decay: float | Tensor = 0,
        weight_decay: float | Tensor = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-6,
        maximize: bool = False,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(params, locals())

    def initial_state(self, p: Tensor, group: ParamGroup) -> State:
        first = float(group["initial_accumulator_value"])
        start = complex(first, first) if p.is_complex() else first
        return {**super().initial_state(p, group), "sum": torch.full_like(p, start)}

    @staticmethod
    def factors(h: Factors, s: Factors) -> Factors:
        return {"minus_step_size": -h["lr"] / (1 + (s[STEP] - 1) * h["lr_decay"])}

    @staticmethod
    def update(h: Factors, f: Factors, p: Tensors, g: Tensors, sum: Tensors) -> None:
        g = penalized_gradient(h, p, g)
        addcmul_(sum, g, g, 1.0)
        add_over_root_(p, g, sum, f["minus_step_size"], h["eps"])
