"""Torch's fused kernels, each for a whole step, on the CPU and on CUDA.

A kernel reads and writes each tensor once, where operations on lists do so once for each operation. Each function gives
a kernel for columns of tensors and their counts, which have this step counted, or None where it cannot take the step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..base.hyperparameters import absent
from ..base.tensor_lists import Tensors
from .work import STEP, Work

Kernel = Callable[[Any, Tensors], None]

# torch 2.7 has this kernel for the CPU alone.
ADAGRAD_ON_CUDA = torch._C._dispatch_has_kernel_for_dispatch_key("aten::_fused_adagrad_", "CUDA")


def fused_sgd(work: Work) -> Kernel | None:
    """The step of SGD."""
    h, params = work.h, work.params
    arguments = _arguments(work)
    if arguments is None or not absent(h["dampening"]) or (work.tensors[0] and h["momentum"] == 0):
        return None  # a momentum that is a tensor is 0 for now: the kernel wants no buffer then
    if params[0].is_cpu and params[0].dtype.itemsize < 4 and work.low is None:
        return None  # torch's kernel for the CPU leaves tensors in half precision unchanged (2.7 to 2.13)

    def kernel(columns: Any, steps: Tensors) -> None:
        torch._fused_sgd_(
            *columns,
            momentum=h["momentum"],
            dampening=h["dampening"],
            nesterov=h["nesterov"],
            is_first_step=False,  # without dampening, the first step from a buffer of zeros is like any other
            **arguments,
        )

    return kernel


def fused_adam(work: Work) -> Kernel | None:
    """The step of Adam and AdamW."""
    h, arguments = work.h, _arguments(work)
    if arguments is None or not h["correct_bias"] or h.get("cautious_weight_decay"):
        return None
    beta1, beta2 = h["betas"]
    whole: Any = torch._fused_adamw_ if h["decoupled_weight_decay"] else torch._fused_adam_

    def kernel(columns: Any, steps: Tensors) -> None:
        whole(*columns, steps, beta1=beta1, beta2=beta2, eps=h["eps"], amsgrad=h["amsgrad"], **arguments)

    return kernel


def fused_adagrad(work: Work) -> Kernel | None:
    """The step of Adagrad."""
    h, arguments = work.h, _arguments(work)
    if arguments is None or not (work.params[0].is_cpu or ADAGRAD_ON_CUDA):
        return None

    def kernel(columns: Any, steps: Tensors) -> None:
        p, g, sums = columns
        torch._fused_adagrad_(p, g, sums, steps, lr_decay=h["lr_decay"], eps=h["eps"], **arguments)

    return kernel


def _arguments(work: Work) -> dict[str, Any] | None:
    """The arguments that all of these kernels have; None where the kernel cannot take the hyperparameters.

    They are numbers, but for the learning rate on CUDA, which may be a tensor there and is read as float32.
    """
    h, lr = work.h, work.h["lr"]
    others = [x for name, value in h.items() if name != "lr" for x in (value if isinstance(value, tuple) else (value,))]
    if any(isinstance(x, Tensor) for x in others) or (
        STEP in work.scalars and work.scalars[STEP][0].dtype != torch.float32
    ):
        return None
    if work.params[0].is_cuda and not _same_strides(work):
        return None
    if isinstance(lr, Tensor):
        if not lr.is_cuda or work.params[0].dtype == torch.float64:
            return None
        lr = lr.float()
    return {"lr": lr, "weight_decay": h["weight_decay"], "maximize": h["maximize"]}


def _same_strides(work: Work) -> bool:
    """Whether the contiguous tensors of each parameter have its strides: a dimension of size 1 may have any."""
    odd = [i for i, p in enumerate(work.params) if 1 in p.shape]
    return all(column[i].stride() == work.params[i].stride() for i in odd for column in work.columns() if column)
