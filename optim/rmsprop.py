"""RMSprop; torch's formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from .engine import Factors
from .hyper import SWITCH, Number, table
from .lists import Tensors, add_, addcdiv_, addcmul, addcmul_, follow_, lerp_, mul_, shift_, sqrt, sqrt_
from .rules import COMMON, RuleOptimizer, absent, gradient


class RMSprop(RuleOptimizer):
    """RMSprop (https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf): steps relative to recent
    gradients.

    The state of a parameter is `step`, `square_avg`, `momentum_buffer` if there is momentum, and `grad_avg` if
    centered.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = RMSprop([weight], lr=0.25, alpha=0.75)
    >>> weight.grad = torch.tensor([2.0])
    >>> optimizer.step()
    >>> round(weight.item(), 4)
    0.5

    Args:
        params: parameters or groups.
        lr: learning rate, at least 0.
        alpha: decay rate of the average square, in [0, 1].
        eps: added to the root, at least 0.
        weight_decay: factor of the L2 penalty's gradient, at least 0.
        momentum: how much of the buffer is kept, at least 0; 0 means no buffer.
        centered: divide by the estimated deviation instead of the root of the square.
        maximize: ascend.
        enable_global_step: without effect, as `step` is there anyway.

    Raises:
        ValueError, TypeError: a hyperparameter breaks its rule.
    """

    hyper = table(
        COMMON,
        alpha=Number(low=0.0, high=1.0),
        eps=Number(low=0.0),
        momentum=Number(low=0.0, zero_is_off=True),
        centered=SWITCH,
    )
    structural = ("centered",)
    may_be_missing = frozenset(("maximize",))
    reads = ()

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.01,
        alpha: float | Tensor = 0.99,
        eps: float = 1e-8,
        weight_decay: float | Tensor = 0,
        momentum: float | Tensor = 0,
        centered: bool = False,
        *,
        maximize: bool = False,
        enable_global_step: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "alpha": alpha,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "centered": centered,
            "maximize": maximize,
        }
        super().__init__(params, defaults, enable_global_step)

    def tensor_states(self, group: Mapping[str, Any], p: Tensor) -> tuple[str | None, ...]:
        momentum = None if absent(group["momentum"]) else "momentum_buffer"
        return ("square_avg", momentum, "grad_avg" if group["centered"] else None)

    @staticmethod
    def numbers(h: dict[str, Any], s: dict[str, Any], stored: Callable[[Any], Any]) -> Factors:
        return {
            "keep": h["alpha"],
            "enter": 1 - h["alpha"],
            "eps": h["eps"],
            "momentum": h["momentum"],
            "rate": -h["lr"],
            "weight_decay": h["weight_decay"],
        }

    @staticmethod
    def update(h: dict[str, Any], k: Factors, p: Tensors, g: Tensors, *states: Tensors) -> None:
        square, buffer, mean = states
        g = gradient(h, k, p, g)
        if not buffer and not mean:
            follow_(p, g, square, k["keep"], k["enter"], k["rate"], k["eps"])
            return
        mul_(square, k["keep"])
        addcmul_(square, g, g, k["enter"])
        if mean:
            lerp_(mean, g, k["enter"])
            root = addcmul(square, mean, mean, -1.0)
            sqrt_(root)
        else:
            root = sqrt(square)
        shift_(root, k["eps"])
        if buffer:
            mul_(buffer, k["momentum"])
            addcdiv_(buffer, g, root, 1.0)
            add_(p, buffer, k["rate"])
        else:
            addcdiv_(p, g, root, k["rate"])
