"""Torch's fused kernels, each for a whole step, on the CPU and on CUDA.

A kernel reads and writes each tensor once; operations on lists do so once for each operation. Each function returns a
kernel, or None if torch's kernel does not support the step. The arguments of a kernel are the step counts, with this
step counted, and the columns by name, as in `update`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..base.hyperparameters import is_switched_off
from ..base.scalar_states import STEP
from ..base.tensor_lists import Tensors
from .work import Work

Kernel = Callable[..., None]

# torch 2.7 has this kernel only for the CPU.
ADAGRAD_ON_CUDA = torch._C._dispatch_has_kernel_for_dispatch_key("aten::_fused_adagrad_", "CUDA")


def fused_sgd(work: Work) -> Kernel | None:
    """The step of SGD."""
    h, p = work.hyper, work.columns["p"][0]
    arguments = _kernel_arguments(work)
    if (
        arguments is None
        or not is_switched_off(h["dampening"])
        or ("momentum_buffer" in work.columns and h["momentum"] == 0)
    ):
        return None  # a momentum tensor may be 0 at present, and the kernel must get no buffer then
    if p.is_cpu and p.dtype.itemsize < 4 and work.widening is None:
        return None  # torch's kernel for the CPU leaves tensors in half precision unchanged (2.7 to 2.13)

    def kernel(step_counts: Tensors, p: Tensors, g: Tensors, momentum_buffer: Tensors = ()) -> None:
        numbers = {"momentum": h["momentum"], "dampening": h["dampening"], "nesterov": h["nesterov"], **arguments}
        # Without dampening, the first step from a buffer of zeros is the same as any other.
        torch._fused_sgd_(p, g, momentum_buffer, is_first_step=False, **numbers)

    return kernel


def fused_adam(work: Work) -> Kernel | None:
    """The step of Adam and AdamW."""
    h, arguments = work.hyper, _kernel_arguments(work)
    if arguments is None or not h["correct_bias"] or h.get("cautious_weight_decay"):
        return None
    beta1, beta2 = h["betas"]
    fused_step: Any = torch._fused_adamw_ if h["decoupled_weight_decay"] else torch._fused_adam_

    def kernel(step_counts: Tensors, p: Tensors, g: Tensors, **states: Tensors) -> None:
        moments = (states["exp_avg"], states["exp_avg_sq"], states.get("max_exp_avg_sq", ()))
        numbers = {"beta1": beta1, "beta2": beta2, "eps": h["eps"], "amsgrad": h["amsgrad"], **arguments}
        fused_step(p, g, *moments, step_counts, **numbers)

    return kernel


def fused_adagrad(work: Work) -> Kernel | None:
    """The step of Adagrad."""
    h, arguments = work.hyper, _kernel_arguments(work)
    if arguments is None or not (work.columns["p"][0].is_cpu or ADAGRAD_ON_CUDA):
        return None

    def kernel(step_counts: Tensors, p: Tensors, g: Tensors, sum: Tensors) -> None:
        torch._fused_adagrad_(p, g, sum, step_counts, lr_decay=h["lr_decay"], eps=h["eps"], **arguments)

    return kernel


def _kernel_arguments(work: Work) -> dict[str, Any] | None:
    """The arguments that all of these kernels share; None if a kernel does not support the hyperparameters.

    They are numbers. Only the learning rate on CUDA may be a tensor, which is read as float32.
    """
    h, p = work.hyper, work.columns["p"][0]
    lr = h["lr"]
    for name, value in h.items():
        numbers = value if isinstance(value, tuple) else (value,)
        if name != "lr" and any(isinstance(x, Tensor) for x in numbers):
            return None
    if STEP in work.scalars and work.scalars[STEP][0].dtype != torch.float32:
        return None
    if p.is_cuda and not _has_same_strides(work):
        return None
    if isinstance(lr, Tensor):
        if not lr.is_cuda or p.dtype == torch.float64:
            return None
        lr = lr.float()
    return {"lr": lr, "weight_decay": h["weight_decay"], "maximize": h["maximize"]}


def _has_same_strides(work: Work) -> bool:
    """Whether the contiguous tensors of each parameter have its strides: a dimension of size 1 may have any."""
    for i, p in enumerate(work.columns["p"]):
        if 1 in p.shape and any(column[i].stride() != p.stride() for column in work.columns.values()):
            return False
    return True
