"""Stochastic gradient descent with momentum."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from timesched.maths.ops import where
from timesched.types import ParamGroup

from ..base.hyperparameters import SWITCH, Number, is_switched_off
from ..base.scalar_states import STEP
from ..base.tensor_lists import Tensors, add, add_, mul_
from ..state.optimizer import State
from ..step.fused import FUSED_SGD
from ..step.rule_optimizer import COMMON, OptimizerOptions, RuleOptimizer, Unpack
from ..step.work import Factors
from .common_steps import penalized_gradient


class SGD(RuleOptimizer):
    """Stochastic gradient descent, with Nesterov's or heavy-ball momentum.

        g = -g                                      if maximize
        g = g + λ*θ
        t = t + 1
        b = μ*b + (g if t == 1 else (1 - τ)*g)      if μ
        g = b                                       if μ and not nesterov
        g = g + μ*b                                 if nesterov
        θ = θ - γ*g

    where θ is a parameter, g its gradient, t counts its steps, γ is `lr`, μ is `momentum`, τ is `dampening`, and
    λ is `weight_decay`. The first gradient enters the buffer undampened, as in torch.

    State of a parameter of shape S:
        momentum_buffer: S, b = 0, if μ
        step: (), t = 0, if μ and τ

    Args:
        params: parameters or groups.
        lr: learning rate, at least 0. No default; torch's default: 0.001.
        momentum: the share of the buffer that is kept, at least 0. With 0 there is no buffer.
        dampening: the share of a gradient that does not enter the buffer.
        weight_decay: factor of the L2 penalty's gradient, at least 0.
        nesterov: look ahead; needs momentum above 0 and no dampening.
        maximize: ascend.
        enable_global_step: always keep the state `step`.
        **options: `master_weights`, `stochastic_rounding`, `rounding_seed` and `state_dtype`, which say how bfloat16
            parameters are stepped: see `Precision`.

    Raises:
        ValueError, TypeError: a hyperparameter breaks its rule.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = SGD([weight], lr=0.1, momentum=0.5)
    >>> for _ in range(2):
    ...     weight.grad = torch.tensor([2.0])
    ...     optimizer.step()
    >>> round(weight.item(), 4)
    0.5

    Source: https://proceedings.mlr.press/v28/sutskever13.html, in the form of torch.optim.SGD, where the learning rate
    multiplies the buffer and not the gradient that enters it.
    """

    hyper = dict(
        COMMON, momentum=Number(least=0, zero_is_off=True), dampening=Number(zero_is_off=True), nesterov=SWITCH
    )
    may_be_missing = frozenset(("maximize", "nesterov"))
    fused = FUSED_SGD

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor,
        momentum: float | Tensor = 0,
        dampening: float | Tensor = 0,
        weight_decay: float | Tensor = 0,
        nesterov: bool = False,
        maximize: bool = False,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(params, locals())

    def check_combination(self, group: ParamGroup, where: str) -> None:
        if group["nesterov"] and (is_switched_off(group["momentum"]) or not is_switched_off(group["dampening"])):
            raise ValueError(
                f"{where}nesterov=True: momentum={group['momentum']!r} must be above 0, and "
                f"dampening={group['dampening']!r} must be 0. Pass momentum=0.9 and dampening=0, for example."
            )

    def scalar_states(self, group: ParamGroup) -> dict[str, Any]:
        return {} if is_switched_off(group["momentum"]) or is_switched_off(group["dampening"]) else {STEP: 0.0}

    def advances_count(self, group: ParamGroup) -> bool:
        # Only the dampening needs the count. While the dampening is 0, the count advances with the buffer, so that it
        # is right when the dampening returns. Without momentum, neither changes.
        return not is_switched_off(group["momentum"])

    def tensor_states(self, group: ParamGroup, p: Tensor) -> tuple[str | None, ...]:
        return (None if is_switched_off(group["momentum"]) else "momentum_buffer",)

    def adapt_state(self, state: State, p: Tensor, group: ParamGroup) -> State:
        if "momentum_buffer" in state and state["momentum_buffer"] is None:  # torch before its first step
            state["momentum_buffer"] = torch.zeros_like(p)
            state.setdefault(STEP, 0)
        if STEP in self.needed_states(group, p):
            state.setdefault(STEP, 1)  # torch's buffer exists after the first step
        return state

    @staticmethod
    def factors(h: Factors, s: Factors) -> Factors:
        undampened = 1 - h["dampening"]
        return {
            "minus_lr": -h["lr"],
            "one_minus_dampening": where(s[STEP] == 1, 1.0, undampened) if STEP in s else undampened,
        }

    @staticmethod
    def update(h: Factors, f: Factors, p: Tensors, g: Tensors, momentum_buffer: Tensors = ()) -> None:
        b = momentum_buffer
        g = penalized_gradient(h, p, g)
        if b:
            mul_(b, h["momentum"])
            add_(b, g, f["one_minus_dampening"])
            g = add(g, b, h["momentum"]) if h["nesterov"] else b
        add_(p, g, f["minus_lr"])
