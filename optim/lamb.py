"""LAMB."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from .engine import Factors, jobs, joined
from .hyper import BETAS, SWITCH, Number, table
from .lists import Tensors, adapt_, add_, mul_, norms, off, over_root_
from .rules import RuleOptimizer

MOST = 10.0  # a parameter's norm counts up to this


class Lamb(RuleOptimizer):
    """LAMB (https://arxiv.org/abs/1904.00962): Adam's direction, as long as the parameter; without bias correction.

    The state of a parameter is `exp_avg` and `exp_avg_sq`. The norm of a parameter counts up to 10.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> optimizer = Lamb([weight], lr=0.1)
    >>> weight.grad = torch.tensor([1.0, 0.0])
    >>> optimizer.step()
    >>> round(weight[0].item(), 4)
    2.5

    Args:
        params: parameters or groups.
        lr: learning rate, at least 0.
        betas: decay rates of the two moments, each in [0, 1).
        eps: added to the root of the second moment, at least 0.
        weight_decay: how much of the parameter is added to the direction, at least 0.
        adam: leave the length of the direction as it is.
        enable_global_step: keep the state `step`.

    Raises:
        ValueError, TypeError: a hyperparameter breaks its rule.
    """

    hyper = table(lr=Number(low=0.0), betas=BETAS, eps=Number(low=0.0), weight_decay=Number(low=0.0), adam=SWITCH)
    elementwise = False
    reads = ()

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float | Tensor = 0,
        adam: bool = False,
        *,
        enable_global_step: bool = False,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "adam": adam}
        super().__init__(params, defaults, enable_global_step)

    def scalar_states(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        return ()

    def tensor_states(self, group: Mapping[str, Any], p: Tensor) -> tuple[str | None, ...]:
        return ("exp_avg", "exp_avg_sq")

    @staticmethod
    def numbers(h: dict[str, Any], s: dict[str, Any], stored: Callable[[Any], Any]) -> Factors:
        beta1, beta2 = h["betas"]
        return {
            "first": 1 - beta1,
            "keep": beta2,
            "second": 1 - beta2,
            "eps": h["eps"],
            "weight_decay": h["weight_decay"],
            "rate": -h["lr"],
        }

    @staticmethod
    def update(h: dict[str, Any], k: Factors, p: Tensors, g: Tensors, *states: Tensors) -> None:
        for job in jobs([p, g, *states], k["spread"]):
            # A large tensor is gone through in pieces, a second time once the length of the whole direction is known.
            direction: Tensors = []
            weights, lengths = [], []
            for x, now, m, v in job:
                direction = [torch.zeros_like(y) for y in x]
                adapt_(direction, now, m, v, k["first"], k["keep"], k["second"], 1.0, k["eps"])
                if not off(k["weight_decay"]):
                    add_(direction, x, k["weight_decay"])
                if not h["adam"]:
                    weights.append(norms(x))
                    lengths.append(norms(direction))
            rate = k["rate"]
            if not h["adam"]:
                weight, length = joined(weights, k).clamp(max=MOST), joined(lengths, k)
                trust = torch.where((weight > 0) & (length > 0), weight / length, 1.0)
                rate = list((trust * rate).unbind())
            if len(job) == 1:
                add_(job[0][0], direction, rate)
                continue
            amount = rate[0].item() if isinstance(rate, list) else rate  # parts there are on the host alone
            for x, _, m, v in job:
                if not off(k["weight_decay"]):
                    mul_(x, 1 + amount * k["weight_decay"])
                over_root_(x, m, v, amount, k["eps"])
