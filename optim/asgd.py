"""Averaged stochastic gradient descent; torch's formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from timesched.ops import where

from .engine import STEP, Factors
from .hyper import Number, table
from .lists import Tensors, copy_, descend_, lerp_, neg
from .optimizer import State, counter
from .rules import COMMON, RuleOptimizer


class ASGD(RuleOptimizer):
    """Averaged stochastic gradient descent (https://doi.org/10.1137/0330046), whose average is the state `ax`.

    The state of a parameter is `step`, `eta` (the rate of the next step), `mu` (the weight of the next average) and
    `ax`.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = ASGD([weight], lr=0.25)
    >>> weight.grad = torch.tensor([2.0])
    >>> optimizer.step()
    >>> round(weight.item(), 4)
    0.5

    Args:
        params: parameters or groups.
        lr: learning rate, at least 0; a change acts one step late, since `eta` is computed ahead.
        lambd: decay of the parameter, and of the rate.
        alpha: power of the rate's decay.
        t0: the count from which on there is averaging.
        weight_decay: factor of the L2 penalty's gradient, at least 0.
        maximize: ascend.
        enable_global_step: without effect, as `step` is there anyway.

    Raises:
        ValueError, TypeError: a hyperparameter breaks its rule.
    """

    hyper = table(COMMON, lambd=Number(), alpha=Number(), t0=Number())
    may_be_missing = frozenset(("maximize",))
    reads = (STEP, "eta", "mu")

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.01,
        lambd: float | Tensor = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float | Tensor = 0,
        maximize: bool = False,
        *,
        enable_global_step: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "lambd": lambd,
            "alpha": alpha,
            "t0": t0,
            "weight_decay": weight_decay,
            "maximize": maximize,
        }
        super().__init__(params, defaults, enable_global_step)

    def scalar_states(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        return (STEP, "eta", "mu")

    def tensor_states(self, group: Mapping[str, Any], p: Tensor) -> tuple[str | None, ...]:
        return ("ax",)

    def parameter_state(self, p: Tensor, group: Mapping[str, Any]) -> State:
        # A lazily traced device keeps equal numbers in one buffer: each parameter needs one of its own from the first
        # step on, as the second step, after which their etas are apart, would otherwise be another graph.
        eta = counter(p, group["lr"]).clone()
        return {**super().parameter_state(p, group), "eta": eta, "mu": counter(p, 1.0)}

    @staticmethod
    def numbers(h: dict[str, Any], s: dict[str, Any], stored: Callable[[Any], Any]) -> Factors:
        mu, t = s["mu"], s[STEP]
        eta = where(t == 1, stored(h["lr"]), s["eta"])  # the rate of the first step, as torch takes it
        since = t - h["t0"]
        s["eta"] = h["lr"] / (1 + h["lambd"] * h["lr"] * t) ** h["alpha"]
        s["mu"] = 1 / (since.clamp(min=1) if isinstance(since, Tensor) else max(1.0, since))
        both = h["lambd"] + h["weight_decay"]  # the decay and the penalty's gradient act alike
        return {"decay": both, "shrink": 1 - both * eta, "rate": -eta, "mu": mu}

    @staticmethod
    def update(h: dict[str, Any], k: Factors, p: Tensors, g: Tensors, *states: Tensors) -> None:
        (average,) = states
        descend_(p, neg(g) if h["maximize"] else g, k["rate"], k["decay"], k["shrink"])
        if isinstance(k["mu"], float) and k["mu"] == 1.0:
            copy_(average, p)
        else:
            lerp_(average, p, k["mu"])
