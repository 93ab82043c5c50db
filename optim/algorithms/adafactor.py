"""Adafactor, with row and column averages and steps relative to the parameter."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from timesched.types import ParamGroup

from ..base.hyperparameters import NON_NEGATIVE, SWITCH, Number, NumberTuple
from ..base.scalar_states import STEP, scalar_state
from ..base.sharding import Placement, sum_over_ranks, zeros_without_dim
from ..base.tensor_lists import Tensors, copy_, indices_by_shape, is_zero, select, stack_tensors
from ..state.optimizer import State
from ..step.rule_optimizer import OptimizerOptions, RuleOptimizer, Unpack
from ..step.work import Factors

SMALL = 1 << 17  # elements of small parameters that are updated together on the CPU


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
    two dimensions, the last two are the matrix. R are the averages of its rows, C the averages of its
    columns, and outer(R, C) is the matrix of their products.

    State of a parameter of shape S, in float32 at least:
        step: (), t = 0
        exp_avg_sq_row: S[:-1], R = 0, if len(S) >= 2
        exp_avg_sq_col: S[:-2] + S[-1:], C = 0, if len(S) >= 2
        exp_avg_sq: S, V = 0, if len(S) < 2
        exp_avg: S, m = 0, if β1 is not None

    Args:
        params: real parameters or groups.
        lr: learning rate, at least 0; None with `relative_step`. No default; torch's default: 0.01.
        eps: added to the squared gradient, and the smallest size of a parameter that counts; each at least 0.
            Default: (1e-30, 1e-3); torch's default: (None, 1e-3).
        clip_threshold: the largest root mean square of an update, above 0.
        decay_rate: power of the step count in the decay rate of the second moment, at most 0.
        beta1: decay rate of a first moment, in [0, 1); None keeps none. It averages updates that contain the learning
            rate, so parameters still move in the steps after `lr` is 0.
        weight_decay: the parameter shrinks by the learning rate times this; at least 0.
        scale_parameter: multiply the learning rate by the parameter's root mean square.
        relative_step: use the smaller of 0.01 and one over the root of the step count as the learning rate.
        warmup_init: with `relative_step`, begin at a millionth for each step instead of 0.01.
        enable_global_step: no effect, since `step` always exists.
        **options: `master_weights`, `stochastic_rounding`, `rounding_seed` and `state_dtype`, which say how bfloat16
            parameters are stepped: see `Precision`.

    Raises:
        ValueError, TypeError: a hyperparameter breaks its rule; both `lr` and `relative_step` are set, or neither of
            them; `warmup_init` is set without `relative_step`.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = Adafactor([weight], lr=0.25)
    >>> weight.grad = torch.tensor([2.0])
    >>> optimizer.step()
    >>> round(weight.item(), 4)
    0.75

    Source: https://arxiv.org/abs/1804.04235, algorithms 4 and 5, in the form of Hugging Face's class and of
    fairseq, not in torch's.
    """

    hyper = dict(
        lr=Number(least=0, optional=True),
        eps=NumberTuple((NON_NEGATIVE, NON_NEGATIVE)),
        clip_threshold=Number(above=0),
        decay_rate=Number(most=0),
        beta1=Number(least=0, below=1, optional=True),
        weight_decay=NON_NEGATIVE,
        scale_parameter=SWITCH,
        relative_step=SWITCH,
        warmup_init=SWITCH,
    )
    structural = ("relative_step",)
    elementwise = False
    decouples_weight_decay = True
    matrices_apart = True

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor | None,
        eps: tuple[float, float] = (1e-30, 1e-3),
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        beta1: float | Tensor | None = None,
        weight_decay: float | Tensor = 0.0,
        scale_parameter: bool = True,
        relative_step: bool = False,
        warmup_init: bool = False,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(params, locals())

    def check_combination(self, group: ParamGroup, where: str) -> None:
        super().check_combination(group, where)
        if group["warmup_init"] and not group["relative_step"]:
            raise ValueError(f"{where}warmup_init=True: it needs relative_step=True. Pass both, with lr=None.")
        if group["relative_step"] and group["lr"] is not None:
            raise ValueError(f"{where}lr={group['lr']!r}: relative_step=True computes the learning rate. Pass lr=None.")
        if not group["relative_step"] and group["lr"] is None:
            raise ValueError(f"{where}lr=None: it needs relative_step=True. Pass a number such as lr=0.001.")

    def check_parameter(self, p: Tensor, group: ParamGroup, where: str) -> None:
        super().check_parameter(p, group, where)
        if p.is_complex():
            raise ValueError(f"{where}a parameter has dtype {p.dtype}, but Adafactor needs real parameters. Use Adam.")

    def tensor_states(self, group: ParamGroup, p: Tensor) -> tuple[str | None, ...]:
        first = "exp_avg" if group["beta1"] is not None else None
        return (first, "exp_avg_sq_row", "exp_avg_sq_col") if p.dim() >= 2 else (first, "exp_avg_sq")

    def initial_state(self, p: Tensor, group: ParamGroup) -> State:
        state: State = {STEP: scalar_state(p)}
        dtype = torch.float32 if p.dtype.itemsize < 4 else p.dtype
        if p.dim() >= 2:
            state["exp_avg_sq_row"] = zeros_without_dim(p, p.dim() - 1, dtype)
            state["exp_avg_sq_col"] = zeros_without_dim(p, p.dim() - 2, dtype)
        else:
            state["exp_avg_sq"] = torch.zeros_like(p, dtype=dtype)
        if group["beta1"] is not None:
            state["exp_avg"] = torch.zeros_like(p, dtype=dtype)
        return state

    @staticmethod
    def factors(h: Factors, s: Factors) -> Factors:
        t, rho = s[STEP], h["lr"]
        if h["relative_step"]:
            largest, root = (1e-6 * t if h["warmup_init"] else 1e-2), t**-0.5
            rho = torch.clamp(root, max=largest) if isinstance(t, Tensor) else min(largest, root)
        return {
            "rho": rho,
            "one_minus_beta2": t ** h["decay_rate"],
            "eps1": h["eps"][0],
            "eps2": h["eps"][1],
            "one_minus_beta1": None if h["beta1"] is None else 1 - h["beta1"],
        }

    @staticmethod
    def update(
        h: Factors, f: Factors, p: Tensors, g: Tensors, placement: Placement | None = None, **states: Tensors
    ) -> None:
        columns = {"p": p, "g": g, **states}
        # Parameters of one shape are updated together, in stacks: tensors whose first dimension counts them.
        for indices in indices_by_shape(p, alone=placement is not None, on_cpu=SMALL):
            shape = placement.full[indices[0]].shape if placement else p[indices[0]].shape
            if p[indices[0]].numel() == 0 and placement is None:  # a rank without a shard still takes part in the sums
                continue
            stacks = {name: _stack_wide(xs, indices, shape) for name, xs in columns.items()}
            # Factors that each parameter has itself are joined in one tensor.
            factors = {name: stack_tensors(select(c, indices)) if isinstance(c, list) else c for name, c in f.items()}
            _update_stacks(h, factors, stacks, shape, placement)
            for name, stack in stacks.items():
                targets = [columns[name][i] for i in indices]
                if name != "g" and (len(targets) > 1 or targets[0].dtype.itemsize < 4):  # otherwise the stack is a view
                    copy_(targets, list(stack.view(-1, *targets[0].shape).to(targets[0].dtype).unbind()))


def _stack_wide(xs: Tensors, indices: list[int], shape: torch.Size) -> Tensor:
    """The stack of some tensors, in float32 at least. For a single tensor in float32 or float64, it is a view."""
    stacked = stack_tensors(select(xs, indices))
    stacked = stacked if shape else stacked.unsqueeze(1)  # norms need a dimension of elements
    return stacked.float() if stacked.dtype.itemsize < 4 else stacked


def _update_stacks(
    h: Factors, f: Factors, stacks: dict[str, Tensor], shape: torch.Size, placement: Placement | None
) -> None:
    """Update the stacks of parameters and states. `shape` is the shape of each full parameter."""
    p, g = stacks["p"], stacks["g"]
    last = len(shape) - 1  # the dimension of a row's elements; a column's elements are in the previous dimension
    square = g.square().add_(f["eps1"])
    if "exp_avg_sq" in stacks:
        v = stacks["exp_avg_sq"]
        _average(v, square, f["one_minus_beta2"])
        u = g * v.rsqrt()
    else:
        row_averages, column_averages = stacks["exp_avg_sq_row"], stacks["exp_avg_sq_col"]  # the averages R and C
        _average(row_averages, _mean(square, -1, last, shape, placement), f["one_minus_beta2"])
        _average(column_averages, _mean(square, -2, last - 1, shape, placement), f["one_minus_beta2"])
        # The roots of the two factors of V, one after the other: V itself is never computed.
        row_scales = (row_averages / _mean(row_averages, -1, last - 1, shape, placement).unsqueeze(-1)).rsqrt_()
        u = (g * column_averages.rsqrt().unsqueeze(-2)).mul_(row_scales.unsqueeze(-1))
    alpha = _broadcast_factor(f["rho"], p)
    if h["scale_parameter"]:
        alpha = alpha * _root_mean_square(p, shape, placement).clamp(min=f["eps2"])
    u.mul_(alpha / (_root_mean_square(u, shape, placement) / h["clip_threshold"]).clamp(min=1.0))
    if "exp_avg" in stacks:
        _average(stacks["exp_avg"], u, f["one_minus_beta1"])
        u = stacks["exp_avg"]
    if not is_zero(h["weight_decay"]):
        p.mul_(1 - h["weight_decay"] * alpha)
    p.sub_(u)


def _broadcast_factor(c: object, stack: Tensor) -> Any:
    """A factor with the dimensions of a stack, so that each parameter's factor multiplies its elements."""
    return c.reshape(-1, *[1] * (stack.dim() - 1)) if isinstance(c, Tensor) else c


def _average(average: Tensor, x: Tensor, one_minus_beta: Any) -> None:
    """average = beta * average + (1 - beta) * x."""
    if isinstance(one_minus_beta, Tensor):
        average.add_((x - average) * _broadcast_factor(one_minus_beta, average))
    else:
        average.lerp_(x, one_minus_beta)


def _mean(x: Tensor, dim: int, full_dim: int, shape: torch.Size, placement: Placement | None) -> Tensor:
    """The mean over the dimension `dim` of a stack, which is `full_dim` in the full shape of each parameter."""
    if placement is None:
        return x.mean(dim)
    return sum_over_ranks(x.sum(dim), placement, full_dim) / max(shape[full_dim], 1)


def _root_mean_square(x: Tensor, shape: torch.Size, placement: Placement | None) -> Tensor:
    """The root mean square of each full parameter in a stack, with the dimensions of the stack."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=tuple(range(1, x.dim())), keepdim=True)
    if placement is not None:
        norm = sum_over_ranks(norm.square(), placement).sqrt()
    root: Tensor = norm / max(shape.numel(), 1) ** 0.5
    return root
