"""Adamax; torch's formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from .engine import STEP, Factors
from .hyper import BETAS, Number, table
from .lists import Tensors, absolute, addcdiv_, lerp_, maximum_, mul_, shift_
from .rules import COMMON, RuleOptimizer, gradient


class Adamax(RuleOptimizer):
    """Adamax (https://arxiv.org/abs/1412.6980): Adam with the infinity norm.

    The state of a parameter is `step`, `exp_avg` and `exp_inf`.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = Adamax([weight], lr=0.25)
    >>> weight.grad = torch.tensor([2.0])
    >>> optimizer.step()
    >>> round(weight.item(), 4)
    0.75

    Args:
        params: parameters or groups.
        lr: learning rate, at least 0.
        betas: decay rates of the average and of the norm, each in [0, 1).
        eps: added to the size of the gradient, at least 0.
        weight_decay: factor of the L2 penalty's gradient, at least 0.
        maximize: ascend.
        enable_global_step: without effect, as `step` is there anyway.

    Raises:
        ValueError, TypeError: a hyperparameter breaks its rule.
    """

    hyper = table(COMMON, betas=BETAS, eps=Number(low=0.0))
    may_be_missing = frozenset(("maximize",))

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float | Tensor = 0.0,
        maximize: bool = False,
        *,
        enable_global_step: bool = False,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, defaults, enable_global_step)

    def tensor_states(self, group: Mapping[str, Any], p: Tensor) -> tuple[str | None, ...]:
        return ("exp_avg", "exp_inf")

    @staticmethod
    def numbers(h: dict[str, Any], s: dict[str, Any], stored: Callable[[Any], Any]) -> Factors:
        beta1, beta2 = h["betas"]
        return {
            "first": 1 - beta1,
            "keep": beta2,
            "eps": h["eps"],
            "rate": -h["lr"] / (1 - beta1 ** s[STEP]),
            "weight_decay": h["weight_decay"],
        }

    @staticmethod
    def update(h: dict[str, Any], k: Factors, p: Tensors, g: Tensors, *states: Tensors) -> None:
        m, largest = states
        g = gradient(h, k, p, g)
        lerp_(m, g, k["first"])
        mul_(largest, k["keep"])
        size = absolute(g)
        shift_(size, k["eps"])
        maximum_(largest, size)
        addcdiv_(p, m, largest, k["rate"])
