"""Adafactor, with row and column averages and steps relative to the parameter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from .engine import PIECE, STEP, Factors
from .hyper import SWITCH, Number, Several, table
from .lists import Tensors, off
from .optimizer import State, counter
from .rules import RuleOptimizer
from .sharding import total, zeros_without


class Adafactor(RuleOptimizer):
    """Adafactor (https://arxiv.org/abs/1804.04235), whose second moment of a matrix is a row and a column.

    The formula is that of Hugging Face's class and of fairseq, not torch's. The state of a parameter is `step`,
    `exp_avg_sq_row` and `exp_avg_sq_col` (below 2 dimensions `exp_avg_sq`), and `exp_avg` with `beta1`; in float32 at
    least.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = Adafactor([weight], lr=0.25)
    >>> weight.grad = torch.tensor([2.0])
    >>> optimizer.step()
    >>> round(weight.item(), 4)
    0.75

    Args:
        params: real parameters or groups.
        lr: learning rate, at least 0; None with `relative_step`.
        eps: added to the squared gradient, and the least size of a parameter that counts; each at least 0.
        clip_threshold: the largest root mean square of an update, above 0.
        decay_rate: power of the step count in the decay rate of the second moment, at most 0.
        beta1: decay rate of a first moment, in [0, 1); None keeps none.
        weight_decay: the parameter shrinks by the rate times this; at least 0.
        scale_parameter: multiply the rate by the parameter's root mean square.
        relative_step: take the smaller of 0.01 and one over the root of the step count as the rate.
        warmup_init: with `relative_step`, begin at a millionth for each step instead of 0.01.
        enable_global_step: without effect, as `step` is there anyway.

    Raises:
        ValueError, TypeError: a hyperparameter breaks its rule; `lr` is given along with `relative_step`, or neither
            is; there is `warmup_init` without `relative_step`.
    """

    hyper = table(
        lr=Number(low=0.0, optional=True),
        eps=Several((Number(low=0.0), Number(low=0.0))),
        clip_threshold=Number(low=0.0, open_low=True),
        decay_rate=Number(high=0.0),
        beta1=Number(low=0.0, high=1.0, open_high=True, optional=True),
        weight_decay=Number(low=0.0),
        scale_parameter=SWITCH,
        relative_step=SWITCH,
        warmup_init=SWITCH,
    )
    structural = ("relative_step",)
    elementwise = False
    by_rank = True
    reduced: ClassVar[Mapping[str, int]] = {"exp_avg_sq_row": -1, "exp_avg_sq_col": -2}

    def __init__(
        self,
        params: Any,
        lr: float | Tensor | None,
        eps: tuple[float, float] = (1e-30, 1e-3),
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        beta1: float | Tensor | None = None,
        weight_decay: float | Tensor = 0.0,
        scale_parameter: bool = True,
        relative_step: bool = False,
        warmup_init: bool = False,
        *,
        enable_global_step: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "eps": eps,
            "clip_threshold": clip_threshold,
            "decay_rate": decay_rate,
            "beta1": beta1,
            "weight_decay": weight_decay,
            "scale_parameter": scale_parameter,
            "relative_step": relative_step,
            "warmup_init": warmup_init,
        }
        super().__init__(params, defaults, enable_global_step)

    def check_combination(self, group: Mapping[str, Any], where: str) -> None:
        if group["warmup_init"] and not group["relative_step"]:
            raise ValueError(f"{where}warmup_init=True needs relative_step=True; pass both, with lr=None.")
        if group["relative_step"] and group["lr"] is not None:
            raise ValueError(
                f"{where}lr={group['lr']!r} with relative_step=True, which makes the rate itself; pass lr=None."
            )
        if not group["relative_step"] and group["lr"] is None:
            raise ValueError(f"{where}lr=None needs relative_step=True; pass a number such as lr=0.001.")

    def check_parameter(self, p: Tensor, where: str) -> None:
        super().check_parameter(p, where)
        if p.is_complex():
            raise ValueError(f"{where}a parameter has dtype {p.dtype}: Adafactor is for real parameters; use Adam.")

    def tensor_states(self, group: Mapping[str, Any], p: Tensor) -> tuple[str | None, ...]:
        first = "exp_avg" if group["beta1"] is not None else None
        return (first, "exp_avg_sq_row", "exp_avg_sq_col") if p.dim() >= 2 else (first, "exp_avg_sq")

    def state_dtype(self, p: Tensor) -> torch.dtype:
        return torch.float32 if p.dtype.itemsize < 4 else p.dtype

    def parameter_state(self, p: Tensor, group: Mapping[str, Any]) -> State:
        state: State = {STEP: counter(p)}
        dtype = self.state_dtype(p)
        if p.dim() >= 2:
            state["exp_avg_sq_row"] = zeros_without(p, p.dim() - 1, dtype)
            state["exp_avg_sq_col"] = zeros_without(p, p.dim() - 2, dtype)
        else:
            state["exp_avg_sq"] = torch.zeros_like(p, dtype=dtype)
        if group["beta1"] is not None:
            state["exp_avg"] = torch.zeros_like(p, dtype=dtype)
        return state

    @staticmethod
    def numbers(h: dict[str, Any], s: dict[str, Any], stored: Callable[[Any], Any]) -> Factors:
        t, rate = s[STEP], h["lr"]
        if h["relative_step"]:
            most, root = (1e-6 * t if h["warmup_init"] else 1e-2), t**-0.5
            rate = torch.clamp(root, max=most) if isinstance(t, Tensor) else min(most, root)
        return {
            "rate": rate,
            "enter": t ** h["decay_rate"],
            "floor": h["eps"][0],
            "least": h["eps"][1],
            "threshold": h["clip_threshold"],
            "first": None if h["beta1"] is None else 1 - h["beta1"],
            "weight_decay": h["weight_decay"],
        }

    @staticmethod
    def update(h: dict[str, Any], k: Factors, p: Tensors, g: Tensors, *states: Tensors) -> None:
        average, *squares = states
        for i, (x, now) in enumerate(zip(p, g)):
            if x.numel() == 0 and k["spread"] is None:  # a rank without a part of it still takes part in the sums
                continue
            half = x.dtype.itemsize < 4  # squares of such numbers leave their range
            wide = x.float() if half else x
            one = {name: value[i] if isinstance(value, list) else value for name, value in k.items()}
            parts = [square[i] for square in squares]
            shape = k["spread"][2][i][0] if k["spread"] else x.shape
            _update(h, one, wide, now.float() if half else now, average[i] if average else None, parts, shape)
            if half:
                x.copy_(wide)


def _update(
    h: dict[str, Any], k: Factors, p: Tensor, g: Tensor, average: Tensor | None, squares: Tensors, shape: Any
) -> None:
    """Go through a large tensor by blocks of rows that fit the cache: for averages, length and step."""
    blocks = _blocks(p)
    spread, last, numel = k["spread"], len(shape) - 1, shape.numel()
    columns: Any = 0.0
    rows, lengths = [], []
    for block in blocks:
        square = _part(g, block).square().add_(k["floor"])
        if h["scale_parameter"]:
            lengths.append(torch.linalg.vector_norm(_part(p, block)))
        if len(squares) == 1:
            _average(_part(squares[0], block), square, k["enter"])
        else:
            rows.append(_mean(square, -1, spread, last, shape))
            columns = columns + square.sum(-2)
    if len(squares) == 1:
        left, right = None, squares[0].rsqrt()
    else:
        row, column = squares
        _average(row, rows[0] if len(rows) == 1 else torch.cat(rows), k["enter"])
        _average(column, total(columns, spread, (last - 1,)) / max(shape[-2], 1), k["enter"])
        left = (row / _mean(row, -1, spread, last - 1, shape, True)).rsqrt_().unsqueeze(-1)
        right = column.rsqrt().unsqueeze(-2)

    rate = k["rate"]
    if h["scale_parameter"]:
        rate = rate * _root_mean_square(lengths, numel, spread).clamp_(min=k["least"])
    direction = _direction(g, left, right, blocks[0])
    lengths = [torch.linalg.vector_norm(direction)]
    lengths += [torch.linalg.vector_norm(_direction(g, left, right, block)) for block in blocks[1:]]
    scale = rate / _root_mean_square(lengths, numel, spread, k["threshold"]).clamp_(min=1.0)
    for block in blocks:
        step = (direction if block is blocks[0] else _direction(g, left, right, block)).mul_(scale)
        if average is not None:
            _average(_part(average, block), step, k["first"])
            step = _part(average, block)
        x = _part(p, block)
        if not off(k["weight_decay"]):
            x.mul_(1 - k["weight_decay"] * rate)
        x.sub_(step)


def _blocks(p: Tensor) -> list[Any]:
    """Slices of the first dimension; all of it in a graph, and of small or many-dimensional tensors."""
    split = p.dim() in (1, 2) and p.numel() > PIECE and p.is_cpu
    if torch.compiler.is_compiling() or not split:
        return [...]
    rows = max(1, PIECE // (p.shape[1] if p.dim() == 2 else 1))
    return [slice(at, at + rows) for at in range(0, p.shape[0], rows)]


def _part(x: Tensor, block: Any) -> Tensor:
    return x if block is ... else x[block]


def _direction(g: Tensor, left: Tensor | None, right: Tensor, block: Any) -> Tensor:
    if left is None:
        return _part(g, block) * _part(right, block)
    return (_part(g, block) * right).mul_(_part(left, block))


def _average(mean: Tensor, x: Tensor, enter: Any) -> None:
    if isinstance(enter, Tensor):
        mean.add_((x - mean) * enter)
    else:
        mean.lerp_(x, enter)


def _mean(x: Tensor, dim: int, spread: Any, at: int, shape: Any, keepdim: bool = False) -> Tensor:
    if spread is None:
        return x.mean(dim, keepdim=keepdim)
    mean: Tensor = total(x.sum(dim, keepdim=keepdim), spread, (at,)) / max(shape[at], 1)
    return mean


def _root_mean_square(lengths: Tensors, numel: int, spread: Any, unit: Any = 1.0) -> Tensor:
    whole = lengths[0] if len(lengths) == 1 else torch.linalg.vector_norm(torch.stack(lengths))
    if spread is not None:
        whole = total(whole.square(), spread).sqrt()
    root: Tensor = whole / (max(numel, 1) ** 0.5 * unit)
    return root
