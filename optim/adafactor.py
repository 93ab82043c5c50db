"""Adafactor, with row and column averages and steps relative to the parameter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from .core.eager import row_blocks, rows_of
from .core.hyperparameters import SWITCH, Number, Several, table
from .core.optimizer import State, counter
from .core.sharding import Placement, sum_over_ranks, zeros_without_dim
from .core.tensor_lists import Tensors, by_shape, copy_, is_zero, kept_in_graph
from .core.update_rule import RuleOptimizer
from .core.work import STEP, Factors

FEW_ROWS = 16


class Adafactor(RuleOptimizer):
    """Adafactor: the second moment of a matrix is a row and a column, and steps are relative to the parameter.

        t = t + 1
        ρ = lr                                      if not relative_step
        ρ = min(0.01, 1 / sqrt(t))                  if relative_step and not warmup_init
        ρ = min(1e-6*t, 1 / sqrt(t))                if relative_step and warmup_init
        α = max(ε2, RMS(θ)) * ρ                     if scale_parameter
        α = ρ                                       if not scale_parameter
        β2 = 1 - t**c
        R = β2*R + (1 - β2)*mean(g*g + ε1, dim=-1)  if len(S) >= 2
        C = β2*C + (1 - β2)*mean(g*g + ε1, dim=-2)  if len(S) >= 2
        V = outer(R / mean(R, dim=-1, keepdim=True), C)  if len(S) >= 2
        V = β2*V + (1 - β2)*(g*g + ε1)              if len(S) < 2
        U = g / sqrt(V)
        U = α * U / max(1, RMS(U) / d)
        m = β1*m + (1 - β1)*U                       if β1 is not None
        θ = θ - λ*α*θ - (U if β1 is None else m)

    where θ is a parameter of shape S, g its gradient, RMS the root mean square, `lr` the learning rate,
    (ε1, ε2) is `eps`, d is `clip_threshold`, c is `decay_rate`, β1 is `beta1`, and λ is `weight_decay`. Of more than
    two dimensions, the last two are the matrix. R are the averages of its rows, C those of its columns, and
    outer(R, C) is the matrix of their products.

    State of a parameter of shape S, in float32 at least:
        step: (), t = 0
        exp_avg_sq_row: S[:-1], R = 0, if len(S) >= 2
        exp_avg_sq_col: S[:-2] + S[-1:], C = 0, if len(S) >= 2
        exp_avg_sq: S, V = 0, if len(S) < 2
        exp_avg: S, m = 0, if β1 is not None

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

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = Adafactor([weight], lr=0.25)
    >>> weight.grad = torch.tensor([2.0])
    >>> optimizer.step()
    >>> round(weight.item(), 4)
    0.75

    Source: https://arxiv.org/abs/1804.04235, algorithms 4 and 5, in the form of Hugging Face's class and of
    fairseq, not in torch's. tests/optim/reference.py has the plain code.
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
            state["exp_avg_sq_row"] = zeros_without_dim(p, p.dim() - 1, dtype)
            state["exp_avg_sq_col"] = zeros_without_dim(p, p.dim() - 2, dtype)
        else:
            state["exp_avg_sq"] = torch.zeros_like(p, dtype=dtype)
        if group["beta1"] is not None:
            state["exp_avg"] = torch.zeros_like(p, dtype=dtype)
        return state

    @staticmethod
    def factors(h: dict[str, Any], s: dict[str, Any], stored: Callable[[Any], Any]) -> Factors:
        t, rho = s[STEP], h["lr"]
        if h["relative_step"]:
            most, root = (1e-6 * t if h["warmup_init"] else 1e-2), t**-0.5
            rho = torch.clamp(root, max=most) if isinstance(t, Tensor) else min(most, root)
        return {
            "rho": rho,
            "one_minus_beta2": t ** h["decay_rate"],
            "eps1": h["eps"][0],
            "eps2": h["eps"][1],
            "clip_threshold": h["clip_threshold"],
            "one_minus_beta1": None if h["beta1"] is None else 1 - h["beta1"],
            "weight_decay": h["weight_decay"],
        }

    @staticmethod
    def update(h: dict[str, Any], k: Factors, p: Tensors, g: Tensors, *states: Tensors) -> None:
        average, *squares = states
        placement = k["placement"]
        half = len(p) > 0 and p[0].dtype.itemsize < 4  # squares of such numbers leave their range
        for chosen in by_shape(p, alone=placement is not None, on_cpu=True):
            i = chosen[0]
            x = p[i]
            if x.numel() == 0 and placement is None:  # a rank without a shard of it still takes part in the sums
                continue
            shape = placement.full[i][0] if placement else x.shape
            if len(chosen) > 1:
                columns = [[column[j] for j in chosen] for column in (p, g, *squares, *([average] if average else []))]
                lists = {name: [value[j] for j in chosen] for name, value in k.items() if isinstance(value, list)}
                _update_stacked(h, k, lists, columns, shape)
                continue
            wide = x.float() if half else x
            of_this = {name: value[i] if isinstance(value, list) else value for name, value in k.items()}
            moments = [square[i] for square in squares]
            m = average[i] if average else None
            _update(h, of_this, wide, g[i].float() if half else g[i], m, moments, shape)
            if half:
                x.copy_(wide)


def _update_stacked(
    h: dict[str, Any], k: Factors, lists: dict[str, Tensors], columns: list[Tensors], shape: torch.Size
) -> None:
    """The step of several parameters of one shape, at once; `lists` holds the factors that differ between them."""
    count, rank = len(columns[0]), max(1, len(shape))
    of_this = {**k, **{name: torch.stack(values).view(count, *[1] * rank) for name, values in lists.items()}}
    stacks = [torch.stack(column) for column in columns]
    wide = [x.float() if x.dtype.itemsize < 4 else x for x in stacks]
    p, g, *rest = [x if shape else x.unsqueeze(1) for x in wide]
    moments = rest[: 2 if len(shape) >= 2 else 1]
    average = rest[len(moments)] if len(rest) > len(moments) else None
    _update(h, of_this, p, g, average, moments, shape, stacked=True)
    for j, (column, stack) in enumerate(zip(columns, wide)):
        if j != 1:  # the gradients
            copy_(column, list(stack.to(column[0].dtype).unbind()))


def _update(
    h: dict[str, Any],
    k: Factors,
    p: Tensor,
    g: Tensor,
    m: Tensor | None,
    moments: Tensors,
    shape: Any,
    stacked: bool = False,
) -> None:
    """The step of one parameter, of the full shape `shape`; a large one on the CPU by blocks of rows.

    With `stacked` it is the step of several, and the first dimension says of which.

    G / sqrt(V) is not kept, but computed from factors of G when it is needed: a vector's 1 / sqrt(V), or a matrix's
    1 / sqrt(R / mean(R)) of each row and 1 / sqrt(C) of each column.
    """
    blocks = row_blocks(p)
    placement, last, numel = k["placement"], len(shape) - 1, shape.numel()
    column_sums: Any = 0.0
    row_means, norms = [], []
    for block in blocks:
        square = rows_of(g, block).square().add_(k["eps1"])
        if h["scale_parameter"]:
            norms.append(_norm(rows_of(p, block), stacked))
        if len(moments) == 1:
            _average(rows_of(moments[0], block), square, k["one_minus_beta2"], stacked)
        else:
            row_means.append(_mean(square, -1, placement, last, shape))
            column_sums = column_sums + _sum_of_rows(square)
    if len(moments) == 1:
        of_rows, of_columns = None, moments[0].rsqrt()
    else:
        rows, columns = moments
        _average(rows, row_means[0] if len(row_means) == 1 else torch.cat(row_means), k["one_minus_beta2"], stacked)
        column_means = sum_over_ranks(column_sums, placement, (last - 1,)) / max(shape[-2], 1)
        _average(columns, column_means, k["one_minus_beta2"], stacked)
        of_rows = (rows / _mean(rows, -1, placement, last - 1, shape, True)).rsqrt_().unsqueeze(-1)
        of_columns = columns.rsqrt().unsqueeze(-2)
        of_rows, of_columns = kept_in_graph(of_rows, of_columns)

    step_size = k["rho"]
    if h["scale_parameter"]:
        step_size = step_size * _root_mean_square(norms, numel, placement).clamp(min=k["eps2"])
    first = _direction(g, of_rows, of_columns, blocks[0])
    norms = [_norm(first, stacked)]
    norms += [_norm(_direction(g, of_rows, of_columns, block), stacked) for block in blocks[1:]]
    scale = step_size / _root_mean_square(norms, numel, placement, k["clip_threshold"]).clamp(min=1.0)
    for block in blocks:
        direction = first if block is blocks[0] else _direction(g, of_rows, of_columns, block)
        step = direction.mul_(scale)
        if m is not None:
            _average(rows_of(m, block), step, k["one_minus_beta1"], stacked)
            step = rows_of(m, block)
        x = rows_of(p, block)
        if not is_zero(k["weight_decay"]):
            x.mul_(1 - k["weight_decay"] * step_size)
        x.sub_(step)


def _sum_of_rows(x: Tensor) -> Tensor:
    """The sum over the dimension -2.

    In a graph it is taken of a few rows at a time: inductor sums up on the CPU by columns, and a column of a large
    matrix has a cache line in every row.
    """
    few = x.shape[-2] - x.shape[-2] % FEW_ROWS
    if not torch.compiler.is_compiling() or few <= FEW_ROWS:
        return x.sum(-2)
    total = x[..., :few, :].reshape(*x.shape[:-2], -1, FEW_ROWS, x.shape[-1]).sum(-2).sum(-2)
    return total + x[..., few:, :].sum(-2) if few < x.shape[-2] else total


def _direction(g: Tensor, of_rows: Tensor | None, of_columns: Tensor, block: Any) -> Tensor:
    """G / sqrt(V) in the rows of a block."""
    if of_rows is None:
        return rows_of(g, block) * rows_of(of_columns, block)
    return (rows_of(g, block) * of_columns).mul_(rows_of(of_rows, block))


def _average(mean: Tensor, x: Tensor, one_minus_beta: Any, stacked: bool) -> None:
    """mean = beta * mean + (1 - beta) * x."""
    if isinstance(one_minus_beta, Tensor):
        if stacked:
            one_minus_beta = one_minus_beta.reshape(-1, *[1] * (mean.dim() - 1))
        mean.add_((x - mean) * one_minus_beta)
    else:
        mean.lerp_(x, one_minus_beta)


def _mean(x: Tensor, dim: int, placement: Placement | None, at: int, shape: Any, keepdim: bool = False) -> Tensor:
    """The mean over the dimension `dim` of `x`, which is the dimension `at` of the full shape."""
    if placement is None:
        return x.mean(dim, keepdim=keepdim)
    mean: Tensor = sum_over_ranks(x.sum(dim, keepdim=keepdim), placement, (at,)) / max(shape[at], 1)
    return mean


def _norm(x: Tensor, stacked: bool) -> Tensor:
    """The norm of a tensor, or of each that is stacked."""
    dims = tuple(range(1, x.dim())) if stacked else None
    norm: Tensor = torch.linalg.vector_norm(x, dim=dims, keepdim=stacked)
    return norm


def _root_mean_square(norms: Tensors, numel: int, placement: Placement | None, unit: Any = 1.0) -> Tensor:
    """The root mean square of a tensor over `unit`, from the norms of its blocks."""
    norm = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
    if placement is not None:
        norm = sum_over_ranks(norm.square(), placement).sqrt()
    root: Tensor = norm / (max(numel, 1) ** 0.5 * unit)
    return root
