"""Adadelta; torch's formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from .engine import Factors
from .hyper import Number, table
from .lists import Tensors, add_, addcmul_, div_, mul_, shift, sqrt_
from .rules import COMMON, RuleOptimizer, gradient


class Adadelta(RuleOptimizer):
    """Adadelta (https://arxiv.org/abs/1212.5701): steps in proportion to the size of earlier steps.

    The state of a parameter is `step`, `square_avg` and `acc_delta`.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = Adadelta([weight], rho=0.75, eps=0.01)
    >>> weight.grad = torch.tensor([1.0])
    >>> optimizer.step()
    >>> round(weight.item(), 4)
    0.8039

    Args:
        params: parameters or groups.
        lr: factor of the step, at least 0.
        rho: decay rate of the two averages, in [0, 1].
        eps: added under the roots, at least 0.
        weight_decay: factor of the L2 penalty's gradient, at least 0.
        maximize: ascend.
        enable_global_step: without effect, as `step` is there anyway.

    Raises:
        ValueError, TypeError: a hyperparameter breaks its rule.
    """

    hyper = table(COMMON, rho=Number(low=0.0, high=1.0), eps=Number(low=0.0))
    may_be_missing = frozenset(("maximize",))
    reads = ()

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1.0,
        rho: float | Tensor = 0.9,
        eps: float = 1e-6,
        weight_decay: float | Tensor = 0,
        maximize: bool = False,
        *,
        enable_global_step: bool = False,
    ) -> None:
        defaults = {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, defaults, enable_global_step)

    def tensor_states(self, group: Mapping[str, Any], p: Tensor) -> tuple[str | None, ...]:
        return ("square_avg", "acc_delta")

    @staticmethod
    def numbers(h: dict[str, Any], s: dict[str, Any], stored: Callable[[Any], Any]) -> Factors:
        rho = h["rho"]
        return {"keep": rho, "enter": 1 - rho, "eps": h["eps"], "rate": -h["lr"], "weight_decay": h["weight_decay"]}

    @staticmethod
    def update(h: dict[str, Any], k: Factors, p: Tensors, g: Tensors, *states: Tensors) -> None:
        square, accumulated = states
        g = gradient(h, k, p, g)
        mul_(square, k["keep"])
        addcmul_(square, g, g, k["enter"])
        ratio = shift(accumulated, k["eps"])
        div_(ratio, shift(square, k["eps"]))
        sqrt_(ratio)
        mul_(ratio, g)
        mul_(accumulated, k["keep"])
        addcmul_(accumulated, ratio, ratio, k["enter"])
        add_(p, ratio, k["rate"])
