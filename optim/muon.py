"""Muon, in the form of the Cerebras suite and in torch's, which came with torch 2.9."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .core.hyperparameters import FRACTION, RATE, SWITCH, Choice, Number, Several, table
from .core.sharding import distributed_as, from_local, full_tensor, local
from .core.tensor_lists import Tensors, add, add_, by_shape, is_zero, lerp, lerp_, mul_
from .core.update_rule import Precision, RuleOptimizer, Unpack
from .core.work import Factors


class Muon(RuleOptimizer):
    """Muon: momentum made orthogonal by Newton-Schulz iterations in bfloat16, for the matrices of hidden layers.

        B = μ*B + (1 - μ)*g
        G = B                                       if not nesterov
        G = g + μ*B                                 if nesterov and adjust_lr_fn == "cerebras"
        G = (1 - μ)*g + μ*B                         if nesterov and adjust_lr_fn != "cerebras"
        O = NewtonSchulz(G)
        s = 0.2*sqrt(max(n, m))                     if adjust_lr_fn in ("cerebras", "match_rms_adamw")
        s = sqrt(max(1, n/m))                       if adjust_lr_fn in ("original", None)
        θ = θ - η*s*λ*θ                             if adjust_lr_fn == "cerebras"
        θ = θ - η*λ*θ                               if adjust_lr_fn != "cerebras"
        θ = θ - η*s*O

    where θ is a parameter, g its gradient, n and m the rows and columns of the matrix, η is `lr`, μ is `momentum`, and
    λ is `weight_decay`. NewtonSchulz(G) divides X = G by its norm (by `eps` at least), repeats `ns_steps` times
    X = a*X + (b*A + c*A@A) @ X with A = X @ X.T, where (a, b, c) is `ns_coefficients`, and so comes near the orthogonal
    matrix next to G. A parameter of 3 dimensions is a stack of matrices, as of the experts of a mixture. One of 4 or 5
    is the weight of a convolution, and so a matrix of `shape[0]` rows; in the form "cerebras" n and m in its s are its
    first two sizes.

    State of a parameter of shape S:
        momentum_buffer: S, B = 0

    Args:
        params: parameters of 2 or more dimensions, or groups of them.
        lr: learning rate, at least 0.
        weight_decay: the parameter shrinks by `lr * weight_decay`; at least 0.
        momentum: how much of the buffer is kept, in [0, 1).
        nesterov: look ahead.
        ns_steps: iterations, 1 to 99.
        ns_coefficients: the polynomial of an iteration.
        eps: the least norm that is divided by, at least 0.
        adjust_lr_fn: "cerebras", the form of that suite: the rate is 0.2 times the root of the larger side times `lr`,
            also for the decay, and the look-ahead is the gradient plus `momentum` times the buffer. torch's three
            values mean torch's form, in which the decay takes `lr` itself and the look-ahead weighs the gradient by
            1 - `momentum`: "match_rms_adamw" adjusts the rate likewise, "original" or None by the root of rows over
            columns if that is above 1.
        flatten: True: a parameter is one matrix of `shape[0]` rows, which the weight of a Conv1d needs; False: a stack
            of matrices, its last two dimensions; None: a stack if it has 3 dimensions.
        enable_global_step: keep the state `step`.
        **precision: `master_weights`, `stochastic_rounding`, `rounding_seed` and `state_dtype`, which say how bfloat16
            parameters are stepped: see `Precision`.

    Raises:
        ValueError, TypeError: a hyperparameter breaks its rule, or a parameter has fewer than 2 dimensions.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.eye(2))
    >>> optimizer = Muon([weight], lr=0.5, weight_decay=0.0)
    >>> weight.grad = torch.eye(2)
    >>> optimizer.step()
    >>> round(weight[0, 0].item(), 1)
    0.8

    Source: https://kellerjordan.github.io/posts/muon/.
    """

    hyper = table(
        lr=RATE,
        weight_decay=RATE,
        momentum=FRACTION,
        nesterov=SWITCH,
        ns_steps=Number(low=1, high=99, integer=True, scheduled=False),
        ns_coefficients=Several((Number(scheduled=False),) * 3),
        eps=Number(low=0.0, scheduled=False),
        adjust_lr_fn=Choice(("cerebras", None, "original", "match_rms_adamw")),
        flatten=Choice((None, True, False)),
    )
    may_be_missing = frozenset(("flatten",))
    elementwise = False
    reads = ()

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.02,
        weight_decay: float | Tensor = 0.01,
        momentum: float | Tensor = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        *,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7,
        adjust_lr_fn: str | None = "cerebras",
        flatten: bool | None = None,
        enable_global_step: bool = False,
        **precision: Unpack[Precision],
    ) -> None:
        super().__init__(params, locals(), enable_global_step)

    def check_parameter(self, p: Tensor, where: str) -> None:
        super().check_parameter(p, where)
        if p.dim() < 2 or p.is_complex():
            raise ValueError(
                f"{where}a parameter has the shape {tuple(p.shape)} and dtype {p.dtype}: Muon is for real matrices; "
                "give biases, norms and embeddings to AdamW."
            )

    def scalar_states(self, group: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def tensor_states(self, group: Mapping[str, Any], p: Tensor) -> tuple[str | None, ...]:
        return ("momentum_buffer",)

    @staticmethod
    def factors(h: dict[str, Any], s: dict[str, Any], stored: Callable[[Any], Any]) -> Factors:
        return {"one_minus_momentum": 1 - h["momentum"]}

    @staticmethod
    def update(k: Factors, p: Tensors, g: Tensors, *states: Tensors) -> None:
        lerp_(states[0], g, k["one_minus_momentum"])
        for chosen in by_shape(p, alone=k["placement"] is not None):  # one after the other, as directions take memory
            _move(k, chosen, *([column[i] for i in chosen] for column in (p, g, states[0])))


def _move(k: Factors, chosen: Sequence[int], p: Tensors, g: Tensors, buffer: Tensors) -> None:
    """Move the chosen parameters, which have one shape."""
    cerebras, directions = k["adjust_lr_fn"] == "cerebras", buffer
    if k["nesterov"]:
        directions = add(g, buffer, k["momentum"]) if cerebras else lerp(g, buffer, k["momentum"])
    parts = [from_local(x, k["placement"], i) for i, x in zip(chosen, directions)]
    stacked = parts[0].dim() == 3 if k["flatten"] is None else not k["flatten"]
    step_size = k["lr"] * _adjustment(parts[0].shape, stacked, k["adjust_lr_fn"])
    if not is_zero(k["weight_decay"]):
        mul_(p, 1 - (step_size if cerebras else k["lr"]) * k["weight_decay"])
    whole = [full_tensor(x) for x in parts]  # all rows are needed, so that every rank computes all
    steps = _orthogonal(whole, stacked, k["ns_coefficients"], k["ns_steps"], k["eps"])
    back = [distributed_as(x, part) for x, part in zip(steps, parts)]
    add_(p, [local(x, x) for x in back], -step_size)


def _adjustment(shape: torch.Size, stacked: bool, form: str | None) -> float:
    rows, columns = shape[-2:] if stacked else (shape[0], shape[1] if form == "cerebras" else shape[1:].numel())
    if form in ("cerebras", "match_rms_adamw"):
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1.0, rows / columns)) if columns else 1.0


def _orthogonal(
    xs: Tensors, stacked: bool, coefficients: tuple[float, float, float], steps: int, eps: float
) -> list[Tensor]:
    """The orthogonal matrices next to tensors of one shape, about: singular values near 1; in bfloat16, as torch's.

    Several are computed at once, and so are the matrices of a stack.
    """
    together = torch.stack(list(xs)) if len(xs) > 1 else xs[0][None]
    flat = (together.flatten(0, -3) if stacked else together.flatten(2)).bfloat16()
    found = _newton_schulz(flat[0] if len(flat) == 1 else flat, coefficients, steps, eps)
    return list(found.reshape(together.shape).to(xs[0].dtype).unbind())


def _newton_schulz(flat: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """For a matrix in bfloat16, or several in one tensor."""
    tall = flat.shape[-2] > flat.shape[-1]
    y = flat.mT if tall else flat
    norm = y.norm() if y.dim() == 2 else torch.linalg.vector_norm(y, dim=(1, 2), keepdim=True)
    y = y / norm.clamp(min=eps)
    a, b, c = coefficients
    for _ in range(steps):
        gram = y @ y.mT
        y = _addmm(y, _addmm(gram, gram, gram, b, c), y, a)
    return y.mT if tall else y


def _addmm(x: Tensor, left: Tensor, right: Tensor, beta: float, alpha: float = 1.0) -> Tensor:
    """`beta * x + alpha * left @ right`."""
    if x.device.type == "xla":  # with factors, torch_xla computes it on the host: a graph before and one after each
        return (beta * x.float() + alpha * (left @ right).float()).to(x.dtype)
    product = torch.addmm if x.dim() == 2 else torch.baddbmm
    return product(x, left, right, beta=beta, alpha=alpha)
