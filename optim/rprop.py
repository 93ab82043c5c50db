"""Rprop; torch's formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from timesched.ops import where

from .engine import STEP, Factors
from .hyper import SWITCH, Number, Several, table
from .lists import Tensors, neg
from .optimizer import State
from .rules import RuleOptimizer


class Rprop(RuleOptimizer):
    """Rprop (https://doi.org/10.1109/ICNN.1993.298623): a step size for each element, from the signs of its gradients.

    The state of a parameter is `step`, `prev` (the last gradient, 0 where its sign had turned) and `step_size`.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = Rprop([weight], lr=0.25)
    >>> for _ in range(2):
    ...     weight.grad = torch.tensor([7.0])
    ...     optimizer.step()
    >>> round(weight.item(), 4)
    0.45

    Args:
        params: parameters or groups.
        lr: the step size at a parameter's first step, at least 0; later values have no effect.
        etas: factors of the step size where the sign turned, in (0, 1), and where it stayed, above 1.
        step_sizes: the smallest and the largest step size.
        maximize: ascend.
        enable_global_step: without effect, as `step` is there anyway.

    Raises:
        ValueError, TypeError: a hyperparameter breaks its rule.
    """

    hyper = table(
        lr=Number(low=0.0),
        maximize=SWITCH,
        etas=Several((Number(low=0.0, high=1.0, open_low=True, open_high=True), Number(low=1.0, open_low=True))),
        step_sizes=Several((Number(low=0.0), Number(low=0.0)), ordered=True),
    )
    may_be_missing = frozenset(("maximize",))

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50.0),
        *,
        maximize: bool = False,
        enable_global_step: bool = False,
    ) -> None:
        defaults = {"lr": lr, "etas": etas, "step_sizes": step_sizes, "maximize": maximize}
        super().__init__(params, defaults, enable_global_step)

    def tensor_states(self, group: Mapping[str, Any], p: Tensor) -> tuple[str | None, ...]:
        return ("prev", "step_size")

    def parameter_state(self, p: Tensor, group: Mapping[str, Any]) -> State:
        size = torch.zeros_like(p)
        lr = group["lr"].detach().reshape(()) if isinstance(group["lr"], Tensor) else group["lr"]
        with torch.no_grad():
            if p.is_complex():
                torch.view_as_real(size).fill_(lr)
            else:
                size.fill_(lr)
        return {**super().parameter_state(p, group), "step_size": size}

    @staticmethod
    def numbers(h: dict[str, Any], s: dict[str, Any], stored: Callable[[Any], Any]) -> Factors:
        (down, up), (low, high) = h["etas"], h["step_sizes"]
        start = where(s[STEP] == 1, h["lr"] + 0.0, -1.0)
        return {"down": down, "up": up, "low": low, "high": high, "start": start}

    @staticmethod
    def update(h: dict[str, Any], k: Factors, p: Tensors, g: Tensors, *states: Tensors) -> None:
        prev, size = states
        if h["maximize"]:
            g = neg(g)
        begins = k["start"] if isinstance(k["start"], list) else [k["start"]] * len(p)
        for x, now, before, step, start in zip(p, g, prev, size, begins):
            if isinstance(start, Tensor):
                step.copy_(torch.where(start < 0, step, start.to(step.dtype)))
            elif start >= 0:
                step.fill_(start)
            agreement = (now * before).sign_()
            turned = agreement < 0
            # 1 where the gradient was 0; else beyond the factor that is meant, which the clamp then gives exactly.
            factor = agreement.mul_(k["up"]).add_(1.0)
            step.mul_(factor.clamp_(k["down"], k["up"])).clamp_(k["low"], k["high"])
            before.copy_(now).masked_fill_(turned, 0)
            x.addcmul_(before.sign(), step, value=-1)
