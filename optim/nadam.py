"""NAdam; torch's formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from .engine import STEP, Factors
from .hyper import BETAS, SWITCH, Number, table
from .lists import Tensors, adapt_, copies, lerp_
from .optimizer import State, counter
from .rules import COMMON, RuleOptimizer, decay


class NAdam(RuleOptimizer):
    """NAdam (https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ): Adam with Nesterov's momentum.

    The state of a parameter is `step`, `mu_product`, `exp_avg` and `exp_avg_sq`.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = NAdam([weight], lr=0.25)
    >>> weight.grad = torch.tensor([2.0])
    >>> optimizer.step()
    >>> round(weight.item(), 4)
    0.7359

    Args:
        params: parameters or groups.
        lr: learning rate, at least 0.
        betas: decay rates of the two moments, each in [0, 1).
        eps: added to the root of the second moment, at least 0.
        weight_decay: factor of the L2 penalty's gradient, at least 0.
        momentum_decay: how fast the momentum rises to `betas[0]`, at least 0.
        decoupled_weight_decay: shrink the parameter by `lr * weight_decay` instead of adding an L2 gradient.
        maximize: ascend.
        enable_global_step: without effect, as `step` is there anyway.

    Raises:
        ValueError, TypeError: a hyperparameter breaks its rule.
    """

    hyper = table(
        COMMON, betas=BETAS, eps=Number(low=0.0), momentum_decay=Number(low=0.0), decoupled_weight_decay=SWITCH
    )
    structural = ("decoupled_weight_decay",)
    may_be_missing = frozenset(("maximize", "decoupled_weight_decay"))
    reads = (STEP, "mu_product")

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 2e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float | Tensor = 0,
        momentum_decay: float = 4e-3,
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
            "momentum_decay": momentum_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
        }
        super().__init__(params, defaults, enable_global_step)

    def scalar_states(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        return (STEP, "mu_product")

    def tensor_states(self, group: Mapping[str, Any], p: Tensor) -> tuple[str | None, ...]:
        return ("exp_avg", "exp_avg_sq")

    def parameter_state(self, p: Tensor, group: Mapping[str, Any]) -> State:
        return {**super().parameter_state(p, group), "mu_product": counter(p, 1.0)}

    @staticmethod
    def numbers(h: dict[str, Any], s: dict[str, Any], stored: Callable[[Any], Any]) -> Factors:
        (beta1, beta2), lr, t = h["betas"], h["lr"], s[STEP]
        mu = beta1 * (1 - 0.5 * 0.96 ** (t * h["momentum_decay"]))
        following = beta1 * (1 - 0.5 * 0.96 ** ((t + 1) * h["momentum_decay"]))
        product = s["mu_product"] = stored(s["mu_product"] * stored(mu))  # as torch rounds it
        root = (1 - beta2**t) ** 0.5
        # The step is along the gradient and ahead along its new average: a mix of the gradient and the old average.
        along, ahead = (1 - mu) / (1 - product), following / (1 - product * following)
        return {
            "first": 1 - beta1,
            "keep": beta2,
            "second": 1 - beta2,
            "eps": h["eps"] * root,
            "mix": (along + ahead * (1 - beta1)) / (along + ahead),
            "rate": -lr * root * (along + ahead),
            "shrink": 1 - lr * h["weight_decay"],
            "weight_decay": h["weight_decay"],
        }

    @staticmethod
    def update(h: dict[str, Any], k: Factors, p: Tensors, g: Tensors, *states: Tensors) -> None:
        m, v = states
        g = decay(h, k, p, g)
        direction = copies(m)
        lerp_(m, g, k["first"])
        adapt_(p, g, direction, v, k["mix"], k["keep"], k["second"], k["rate"], k["eps"])
