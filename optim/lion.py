"""Lion."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from .engine import Factors
from .hyper import BETAS, Number, table
from .lists import Tensors, descend_, lerp, lerp_, sign_
from .rules import RuleOptimizer


class Lion(RuleOptimizer):
    """Lion (https://arxiv.org/abs/2302.06675): steps of one size in the direction of a sign.

    The state of a parameter is `exp_avg`.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = Lion([weight], lr=0.25, weight_decay=0.5)
    >>> weight.grad = torch.tensor([3.0])
    >>> optimizer.step()
    >>> round(weight.item(), 4)
    0.625

    Args:
        params: parameters or groups.
        lr: learning rate, at least 0.
        betas: how much of the average counts in the direction, and how much of it is kept; each in [0, 1).
        weight_decay: the parameter shrinks by `lr * weight_decay`; at least 0.
        enable_global_step: keep the state `step`.

    Raises:
        ValueError, TypeError: a hyperparameter breaks its rule.
    """

    hyper = table(lr=Number(low=0.0), betas=BETAS, weight_decay=Number(low=0.0))
    reads = ()

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-4,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.99),
        weight_decay: float | Tensor = 0.0,
        *,
        enable_global_step: bool = False,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay}, enable_global_step)

    def scalar_states(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        return ()

    def tensor_states(self, group: Mapping[str, Any], p: Tensor) -> tuple[str | None, ...]:
        return ("exp_avg",)

    @staticmethod
    def numbers(h: dict[str, Any], s: dict[str, Any], stored: Callable[[Any], Any]) -> Factors:
        beta1, beta2 = h["betas"]
        return {
            "direct": 1 - beta1,
            "enter": 1 - beta2,
            "rate": -h["lr"],
            "weight_decay": h["weight_decay"],
            "shrink": 1 - h["lr"] * h["weight_decay"],
        }

    @staticmethod
    def update(h: dict[str, Any], k: Factors, p: Tensors, g: Tensors, *states: Tensors) -> None:
        (m,) = states
        direction = lerp(m, g, k["direct"])
        sign_(direction)
        descend_(p, direction, k["rate"], k["weight_decay"], k["shrink"])
        lerp_(m, g, k["enter"])
