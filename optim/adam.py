"""Adam and AdamW, with torch's formula (https://arxiv.org/abs/1412.6980, https://arxiv.org/abs/1711.05101)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from .engine import STEP, Factors, Work
from .hyper import BETAS, SWITCH, Number, table
from .lists import Tensors, adapt_, addcmul_, lerp_, maximum_, mul_, over_root_
from .rules import COMMON, RuleOptimizer, decay


class AdamBase(RuleOptimizer):
    """What `Adam` and `AdamW` share: two moments of the gradient, and their bias correction.

    The state of a parameter is `step`, `exp_avg`, `exp_avg_sq`, and `max_exp_avg_sq` with `amsgrad`.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = AdamBase([weight], lr=0.5, decoupled_weight_decay=True)
    >>> weight.grad = torch.tensor([4.0])
    >>> optimizer.step()
    >>> round(weight.item(), 4)
    0.5

    Args:
        params: parameters or groups.
        lr: learning rate, at least 0.
        betas: the decay rates of the two moments, each in [0, 1).
        eps: added to the root of the second moment, at least 0.
        weight_decay: at least 0.
        correct_bias: whether the moments are divided by one minus the power of their decay rate.
        amsgrad: whether the largest second moment so far is used (https://arxiv.org/abs/1904.09237).
        maximize: ascend.
        decoupled_weight_decay: shrink the parameter by `lr * weight_decay` instead of adding an L2 gradient.
        enable_global_step: without effect, as `step` is there anyway.

    Raises:
        ValueError, TypeError: a hyperparameter breaks its rule.
    """

    hyper = table(
        COMMON, betas=BETAS, eps=Number(low=0.0), amsgrad=SWITCH, correct_bias=SWITCH, decoupled_weight_decay=SWITCH
    )
    structural = ("amsgrad", "decoupled_weight_decay")
    may_be_missing = frozenset(("maximize", "correct_bias", "decoupled_weight_decay"))

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float | Tensor = 0.0,
        correct_bias: bool = True,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        decoupled_weight_decay: bool = False,
        enable_global_step: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "correct_bias": correct_bias,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "decoupled_weight_decay": decoupled_weight_decay,
        }
        super().__init__(params, defaults, enable_global_step)

    def tensor_states(self, group: Mapping[str, Any], p: Tensor) -> tuple[str | None, ...]:
        return ("exp_avg", "exp_avg_sq", "max_exp_avg_sq" if group["amsgrad"] else None)

    @staticmethod
    def numbers(h: dict[str, Any], s: dict[str, Any], stored: Callable[[Any], Any]) -> Factors:
        (beta1, beta2), lr, t = h["betas"], h["lr"], s[STEP]
        # The correction of the second moment goes into the rate and eps, which are not as large as the moment.
        correct = h["correct_bias"]
        root = (1 - beta2**t) ** 0.5 if correct else 1.0
        return {
            "first": 1 - beta1,
            "keep": beta2,
            "second": 1 - beta2,
            "eps": h["eps"] * root,
            "rate": -lr * root / (1 - beta1**t) if correct else -lr,
            "weight_decay": h["weight_decay"],
            "shrink": 1 - lr * h["weight_decay"],
        }

    @staticmethod
    def update(h: dict[str, Any], k: Factors, p: Tensors, g: Tensors, *states: Tensors) -> None:
        m, v, largest = states
        g = decay(h, k, p, g)
        if not largest:
            adapt_(p, g, m, v, k["first"], k["keep"], k["second"], k["rate"], k["eps"])
            return
        lerp_(m, g, k["first"])
        mul_(v, k["keep"])
        addcmul_(v, g, g, k["second"])
        maximum_(largest, v)
        over_root_(p, m, largest, k["rate"], k["eps"])

    @staticmethod
    def fused(h: dict[str, Any], work: Work) -> bool:
        if not h["correct_bias"]:
            return False
        m, v, largest = work.tensors
        kernel = torch._fused_adamw_ if h["decoupled_weight_decay"] else torch._fused_adam_
        kernel(
            work.params,
            work.grads,
            m,
            v,
            largest,
            work.scalars[STEP],
            lr=h["lr"],
            beta1=h["betas"][0],
            beta2=h["betas"][1],
            weight_decay=h["weight_decay"],
            eps=h["eps"],
            amsgrad=h["amsgrad"],
            maximize=h["maximize"],
        )
        return True


class Adam(AdamBase):
    """Adam (https://arxiv.org/abs/1412.6980), with an L2 penalty; torch's formula.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = Adam([weight], lr=0.25)
    >>> weight.grad = torch.tensor([-3.0])
    >>> optimizer.step()
    >>> round(weight.item(), 4)
    1.25

    Arguments and errors are those of `AdamBase`; the bias is always corrected.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float | Tensor = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        decoupled_weight_decay: bool = False,
        enable_global_step: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad=amsgrad,
            maximize=maximize,
            decoupled_weight_decay=decoupled_weight_decay,
            enable_global_step=enable_global_step,
        )


class AdamW(AdamBase):
    """AdamW: Adam whose weight decay shrinks the parameter itself (https://arxiv.org/abs/1711.05101); torch's formula.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = AdamW([weight], lr=0.5, weight_decay=0.1)
    >>> weight.grad = torch.tensor([2.0])
    >>> optimizer.step()
    >>> round(weight.item(), 4)
    0.45

    Arguments and errors are those of `AdamBase`. State dicts of Hugging Face's former AdamW load, too.
    """

    may_be_missing = AdamBase.may_be_missing | {"amsgrad"}

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float | Tensor = 0.0,
        correct_bias: bool = True,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        enable_global_step: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            correct_bias,
            amsgrad,
            maximize=maximize,
            decoupled_weight_decay=True,
            enable_global_step=enable_global_step,
        )
