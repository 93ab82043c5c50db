"""Stochastic gradient descent with momentum; torch's formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from timesched.ops import where

from .engine import STEP, Factors, Work
from .hyper import SWITCH, Number, table
from .lists import Tensors, add, add_, mul_
from .optimizer import State
from .rules import COMMON, RuleOptimizer, absent, gradient


class SGD(RuleOptimizer):
    """Stochastic gradient descent, with Nesterov's or heavy-ball momentum
    (https://proceedings.mlr.press/v28/sutskever13.html).

    The state of a parameter is `momentum_buffer` if there is momentum, and `step` if it is dampened too: the first
    gradient enters the buffer undampened, as in torch.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = SGD([weight], lr=0.1, momentum=0.5)
    >>> for _ in range(2):
    ...     weight.grad = torch.tensor([2.0])
    ...     optimizer.step()
    >>> round(weight.item(), 4)
    0.5

    Args:
        params: parameters or groups.
        lr: learning rate, at least 0.
        momentum: how much of the buffer is kept, at least 0; 0 means no buffer.
        dampening: how much of a gradient is kept out of the buffer.
        weight_decay: factor of the L2 penalty's gradient, at least 0.
        nesterov: look ahead; needs momentum above 0 and no dampening.
        maximize: ascend.
        enable_global_step: keep the state `step` in any case.

    Raises:
        ValueError, TypeError: a hyperparameter breaks its rule.
    """

    hyper = table(
        COMMON, momentum=Number(low=0.0, zero_is_off=True), dampening=Number(zero_is_off=True), nesterov=SWITCH
    )
    may_be_missing = frozenset(("maximize", "nesterov"))

    def __init__(
        self,
        params: Any,
        lr: float | Tensor,
        momentum: float | Tensor = 0,
        dampening: float | Tensor = 0,
        weight_decay: float | Tensor = 0,
        nesterov: bool = False,
        maximize: bool = False,
        *,
        enable_global_step: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
        }
        super().__init__(params, defaults, enable_global_step)

    def check_combination(self, group: Mapping[str, Any], where: str) -> None:
        if group["nesterov"] and (absent(group["momentum"]) or not absent(group["dampening"])):
            raise ValueError(
                f"{where}nesterov=True with momentum={group['momentum']!r} and dampening={group['dampening']!r}: it "
                "needs momentum above 0 and dampening=0."
            )

    def scalar_states(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        return () if absent(group["momentum"]) or absent(group["dampening"]) else (STEP,)

    def tensor_states(self, group: Mapping[str, Any], p: Tensor) -> tuple[str | None, ...]:
        return (None if absent(group["momentum"]) else "momentum_buffer",)

    def adapt_state(self, state: State, p: Tensor, group: Mapping[str, Any]) -> State:
        if "momentum_buffer" in state and state["momentum_buffer"] is None:  # torch before its first step
            state["momentum_buffer"] = torch.zeros_like(p)
            state.setdefault(STEP, 0)
        if STEP in self._scalar_names(group):
            state.setdefault(STEP, 1)  # torch's buffer is there since the first step
        elif state.get(STEP) == 0:
            del state[STEP]
        return state

    @staticmethod
    def numbers(h: dict[str, Any], s: dict[str, Any], stored: Callable[[Any], Any]) -> Factors:
        dampened = 1 - h["dampening"]
        return {
            "rate": -h["lr"],
            "keep": h["momentum"],
            "enter": where(s[STEP] == 1, 1.0, dampened) if STEP in s else dampened,
            "weight_decay": h["weight_decay"],
        }

    @staticmethod
    def update(h: dict[str, Any], k: Factors, p: Tensors, g: Tensors, *states: Tensors) -> None:
        (buffer,) = states
        g = gradient(h, k, p, g)
        if buffer:
            mul_(buffer, k["keep"])
            add_(buffer, g, k["enter"])
            g = add(g, buffer, k["keep"]) if h["nesterov"] else buffer
        add_(p, g, k["rate"])

    @staticmethod
    def fused(h: dict[str, Any], work: Work) -> bool:
        if work.tensors[0] and h["momentum"] == 0:
            return False  # a tensor that is 0 for now; the kernel then wants no buffer
        if not absent(h["dampening"]) or work.params[0].dtype.itemsize < 4:
            return False  # torch's kernel leaves tensors in half precision unchanged (2.7 to 2.13)
        torch._fused_sgd_(
            work.params,
            work.grads,
            work.tensors[0],
            weight_decay=h["weight_decay"],
            momentum=h["momentum"],
            lr=h["lr"],
            dampening=h["dampening"],
            nesterov=h["nesterov"],
            maximize=h["maximize"],
            is_first_step=False,  # without dampening, the first step from a buffer of zeros is like any other
        )
        return True
