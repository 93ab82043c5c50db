"""RAdam; torch's formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from timesched.ops import where

from .engine import STEP, Factors
from .hyper import BETAS, SWITCH, Number, table
from .lists import Tensors, adapt_, add_, off, over_root_
from .rules import COMMON, RuleOptimizer, decay


class RAdam(RuleOptimizer):
    """RAdam (https://arxiv.org/abs/1908.03265): Adam that adapts only once its second moment is worth something.

    The state of a parameter is `step`, `exp_avg` and `exp_avg_sq`.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = RAdam([weight], lr=0.25)
    >>> weight.grad = torch.tensor([2.0])
    >>> optimizer.step()
    >>> round(weight.item(), 4)
    0.5

    Args:
        params: parameters or groups.
        lr: learning rate, at least 0.
        betas: decay rates of the two moments, each in [0, 1).
        eps: added to the root of the second moment, at least 0.
        weight_decay: factor of the L2 penalty's gradient, at least 0.
        decoupled_weight_decay: shrink the parameter by `lr * weight_decay` instead of adding an L2 gradient.
        maximize: ascend.
        enable_global_step: without effect, as `step` is there anyway.

    Raises:
        ValueError, TypeError: a hyperparameter breaks its rule.
    """

    hyper = table(COMMON, betas=BETAS, eps=Number(low=0.0), decoupled_weight_decay=SWITCH)
    structural = ("decoupled_weight_decay",)
    may_be_missing = frozenset(("maximize", "decoupled_weight_decay"))

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float | Tensor = 0.0,
        *,
        decoupled_weight_decay: bool = False,
        maximize: bool = False,
        enable_global_step: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
        }
        super().__init__(params, defaults, enable_global_step)

    def tensor_states(self, group: Mapping[str, Any], p: Tensor) -> tuple[str | None, ...]:
        return ("exp_avg", "exp_avg_sq")

    @staticmethod
    def numbers(h: dict[str, Any], s: dict[str, Any], stored: Callable[[Any], Any]) -> Factors:
        (beta1, beta2), lr, t = h["betas"], h["lr"], s[STEP]
        correction = 1 - beta2**t
        longest = 2 / (1 - beta2) - 1
        length = longest - 2 * t * beta2**t / correction
        adapted = length > 5
        # Where the length is too small to adapt, any positive number serves.
        safe = where(adapted, length, 6.0 + 0.0 * length)
        variance = (safe - 4) * (safe - 2) * longest / (safe * abs((longest - 4) * (longest - 2)))
        rate = -lr / (1 - beta1**t)
        return {
            "first": 1 - beta1,
            "keep": beta2,
            "second": 1 - beta2,
            "eps": h["eps"],
            "plain": where(adapted, 0.0 * rate, rate),
            "adaptive": where(adapted, rate * (variance * correction) ** 0.5, 0.0 * rate),
            "shrink": 1 - lr * h["weight_decay"],
            "weight_decay": h["weight_decay"],
        }

    @staticmethod
    def update(h: dict[str, Any], k: Factors, p: Tensors, g: Tensors, *states: Tensors) -> None:
        m, v = states
        g = decay(h, k, p, g)
        if off(k["plain"]):
            adapt_(p, g, m, v, k["first"], k["keep"], k["second"], k["adaptive"], k["eps"])
            return
        adapt_(p, g, m, v, k["first"], k["keep"], k["second"], 0.0, 1.0)  # the moments alone
        add_(p, m, k["plain"])
        if not off(k["adaptive"]):
            over_root_(p, m, v, k["adaptive"], k["eps"])
