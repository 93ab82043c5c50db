"""Torch's fused kernels, each for a whole step, on the CPU and on CUDA.

A kernel reads and writes each tensor once; operations on lists do so once for each operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..base.hyperparameters import is_switched_off
from ..base.scalar_states import STEP
from ..base.tensor_lists import Tensors
from .work import Factors, Work


class Kernel(NamedTuple):
    """One of torch's kernels."""

    # Whether it supports a work. The answer may depend only on the kind of the step (defined in __init__.py).
    supports: Callable[[Work], bool]
    # Its arguments are the hyperparameters, the step counts with this step counted, and the columns by name.
    step: Callable[..., None]


# torch 2.7 has this kernel only for the CPU.
ADAGRAD_ON_CUDA = torch._C._dispatch_has_kernel_for_dispatch_key("aten::_fused_adagrad_", "CUDA")


def _supports_sgd(work: Work) -> bool:
    hyper, p = work.hyper, work.columns["p"][0]
    if not _supports_kinds(work) or not is_switched_off(hyper["dampening"]):
        return False
    if "momentum_buffer" in work.columns and hyper["momentum"] == 0:
        return False  # a momentum tensor may be 0 at present, and the kernel must get no buffer then
    # torch's kernel for the CPU leaves tensors in half precision unchanged (2.7 to 2.13)
    return not p.is_cpu or p.dtype.itemsize >= 4 or work.widening is not None


def _step_sgd(hyper: Factors, step_counts: Tensors, p: Tensors, g: Tensors, momentum_buffer: Tensors = ()) -> None:
    numbers = {name: hyper[name] for name in ("momentum", "dampening", "nesterov")}
    # Without dampening, the first step from a buffer of zeros is the same as any other.
    torch._fused_sgd_(p, g, momentum_buffer, **numbers, **_arguments(hyper), is_first_step=False)


def _supports_adam(work: Work) -> bool:
    hyper = work.hyper
    return _supports_kinds(work) and bool(hyper["correct_bias"]) and not hyper.get("cautious_weight_decay")


def _step_adam(hyper: Factors, step_counts: Tensors, p: Tensors, g: Tensors, **states: Tensors) -> None:
    moments = (states["exp_avg"], states["exp_avg_sq"], states.get("max_exp_avg_sq", ()))
    (beta1, beta2), eps, amsgrad = hyper["betas"], hyper["eps"], hyper["amsgrad"]
    step: Any = torch._fused_adamw_ if hyper["decoupled_weight_decay"] else torch._fused_adam_
    step(p, g, *moments, step_counts, beta1=beta1, beta2=beta2, eps=eps, amsgrad=amsgrad, **_arguments(hyper))


def _supports_adagrad(work: Work) -> bool:
    return _supports_kinds(work) and (work.columns["p"][0].is_cpu or ADAGRAD_ON_CUDA)


def _step_adagrad(hyper: Factors, step_counts: Tensors, p: Tensors, g: Tensors, sum: Tensors) -> None:
    torch._fused_adagrad_(p, g, sum, step_counts, lr_decay=hyper["lr_decay"], eps=hyper["eps"], **_arguments(hyper))


FUSED_SGD = Kernel(_supports_sgd, _step_sgd)
FUSED_ADAM = Kernel(_supports_adam, _step_adam)  # and AdamW
FUSED_ADAGRAD = Kernel(_supports_adagrad, _step_adagrad)


def _supports_kinds(work: Work) -> bool:
    """Whether these kernels support the hyperparameters and the tensors.

    Hyperparameters must be numbers. Only the learning rate on CUDA may be a tensor, which is read as float32.
    """
    hyper, p = work.hyper, work.columns["p"][0]
    if isinstance(hyper["lr"], Tensor) and (not hyper["lr"].is_cuda or p.dtype == torch.float64):
        return False
    others = [value for name, value in hyper.items() if name not in ("lr", "betas")]
    if any(isinstance(x, Tensor) for x in (*others, *hyper.get("betas", ()))):
        return False
    if STEP in work.scalars and work.scalars[STEP][0].dtype != torch.float32:
        return False
    return not p.is_cuda or _has_same_strides(work)


def _arguments(hyper: Factors) -> dict[str, Any]:
    """The arguments that all of these kernels share."""
    lr = hyper["lr"].float() if isinstance(hyper["lr"], Tensor) else hyper["lr"]
    return {"lr": lr, "weight_decay": hyper["weight_decay"], "maximize": hyper["maximize"]}


def _has_same_strides(work: Work) -> bool:
    """Whether the contiguous tensors of each parameter have its strides: a dimension of size 1 may have any."""
    for i, p in enumerate(work.columns["p"]):
        if 1 in p.shape and any(column[i].stride() != p.stride() for column in work.columns.values()):
            return False
    return True
