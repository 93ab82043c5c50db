"""Fast eager steps: torch's fused kernels, and on the CPU blocks of the tensors that fit the cache.

An update written as operations on lists reads and writes all tensors once for each operation, and the time of a step
is the time of its memory traffic, or on an accelerator of its launches. So the optimizers that torch has a fused kernel
for take their whole step with it (`fused_sgd`, `fused_adam`, `fused_adagrad`; see `RuleOptimizer.fused`). On the CPU
others call it for that part of their step which has the same arithmetic (`sgd_kernel`, `adam_kernel`), and what is left
works on blocks of the tensors, so that only the first operation reads memory and the later ones find their operands in
the cache.

Nothing here is traced by torch.compile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .hyperparameters import absent
from .sharding import Placement
from .tensor_lists import Factor, Tensors, norms
from .work import STEP, Work, columns_of, selected, with_columns

# torch 2.7 has this kernel for the CPU alone.
ADAGRAD_ON_CUDA = torch._C._dispatch_has_kernel_for_dispatch_key("aten::_fused_adagrad_", "CUDA")
ONE = torch.ones((), dtype=torch.float32, device="cpu")
BLOCK = 1 << 17  # elements: about five arrays of that many fit into a core's second-level cache


def advance(work: Work) -> None:
    """Add 1 to the counts of steps."""
    if STEP in work.scalars:
        if work.scalars[STEP][0].is_cpu:
            torch._foreach_add_(work.scalars[STEP], ONE, alpha=1.0)  # three times as fast as adding the number 1
        else:
            torch._foreach_add_(work.scalars[STEP], 1)


# Kernels for a whole step, on the CPU and on CUDA; `scaling` holds what a GradScaler passes to them. Each gives False,
# and has changed nothing, where it cannot take the step.


def fused_sgd(h: dict[str, Any], work: Work, scaling: dict[str, Tensor]) -> bool:
    """The step of SGD."""
    if work.tensors[0] and h["momentum"] == 0:
        return False  # a tensor that is 0 for now; the kernel then wants no buffer
    if not absent(h["dampening"]) or not _sgd_kernel_works(work.params):
        return False
    advance(work)
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
        **scaling,
    )
    return True


def fused_adam(h: dict[str, Any], work: Work, scaling: dict[str, Tensor]) -> bool:
    """The step of Adam and AdamW."""
    if not h["correct_bias"]:
        return False
    m, v, largest = work.tensors
    kernel = torch._fused_adamw_ if h["decoupled_weight_decay"] else torch._fused_adam_
    advance(work)
    kernel(
        work.params,
        work.grads,
        m,
        v,
        largest,
        work.scalars[STEP],
        lr=h["lr"],
        beta1=h["betas"][0],
        beta2=h["betas"][1],
        weight_decay=h["weight_decay"],
        eps=h["eps"],
        amsgrad=h["amsgrad"],
        maximize=h["maximize"],
        **scaling,
    )
    return True


def fused_adagrad(h: dict[str, Any], work: Work, scaling: dict[str, Tensor]) -> bool:
    """The step of Adagrad."""
    if not work.params[0].is_cpu and not ADAGRAD_ON_CUDA:
        return False
    advance(work)
    torch._fused_adagrad_(
        work.params,
        work.grads,
        work.tensors[0],
        work.scalars[STEP],
        lr=h["lr"],
        lr_decay=h["lr_decay"],
        weight_decay=h["weight_decay"],
        eps=h["eps"],
        maximize=h["maximize"],
        **scaling,
    )
    return True


# Kernels for a part of a step. Each gives False where it cannot run, and has changed nothing then.

# The step count t at which 1 - beta**t is 1.
NO_BIAS_CORRECTION = torch.full((), 1e30, dtype=torch.float32, device="cpu")


def sgd_kernel(p: Tensors, g: Tensors, minus_lr: Any, weight_decay: Any) -> bool:
    """p -= lr * (g + weight_decay * p)."""
    if not _sgd_kernel_works(p) or not _runs_here((p, g), (minus_lr, weight_decay)):
        return False
    torch._fused_sgd_(
        p,
        g,
        [],
        weight_decay=weight_decay,
        momentum=0.0,
        lr=-minus_lr,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )
    return True


def adam_kernel(
    p: Tensors,
    g: Tensors,
    m: Tensors,
    v: Tensors,
    one_minus_beta1: Any,
    beta2: Any,
    minus_step_size: Any,
    eps: Any,
) -> bool:
    """m = beta1 * m + (1 - beta1) * g; v = beta2 * v + (1 - beta2) * g * g; p -= step_size * m / (sqrt(v) + eps).

    The kernel would divide the moments by 1 - beta**t: at `NO_BIAS_CORRECTION` that is 1. A `beta2` of 1 has no such t.
    """
    factors = (one_minus_beta1, beta2, minus_step_size, eps)
    if not _runs_here((p, g, m, v), factors) or beta2 >= 1:
        return False
    torch._fused_adam_(
        p,
        g,
        m,
        v,
        [],
        [NO_BIAS_CORRECTION] * len(p),
        lr=-minus_step_size,
        beta1=1 - one_minus_beta1,
        beta2=beta2,
        weight_decay=0.0,
        eps=eps,
        amsgrad=False,
        maximize=False,
    )
    return True


def rmsprop_kernel(p: Tensors, g: Tensors, v: Tensors, alpha: Any, minus_lr: Any, eps: Any) -> bool:
    """v = alpha * v + (1 - alpha) * g * g; p -= lr * g / (sqrt(v) + eps): Adam without a first moment."""
    if not _runs_here((p, g, v), (alpha, minus_lr, eps)):
        return False
    return adam_kernel(p, g, [torch.zeros_like(x) for x in g], v, 1.0, alpha, minus_lr, eps)


def _runs_here(columns: tuple[Tensors, ...], factors: tuple[Factor, ...]) -> bool:
    if torch.compiler.is_compiling() or not columns[0][0].is_cpu:
        return False
    numbers = all(isinstance(c, (float, int)) for c in factors)
    return numbers and all(all(map(Tensor.is_contiguous, column)) for column in columns)


def _sgd_kernel_works(params: Tensors) -> bool:
    """torch's kernel for the CPU leaves tensors in half precision unchanged (2.7 to 2.13)."""
    return not params[0].is_cpu or params[0].dtype.itemsize >= 4


# Contiguous tensors, for which there are kernels and blocks


def by_layout(work: Work) -> list[tuple[Work, bool]]:
    """The work in up to two parts: of contiguous tensors (True), and of others."""
    columns = columns_of(work)
    if all(all(map(Tensor.is_contiguous, column)) for column in columns):
        return [(work, True)]
    if work.rule.elementwise:
        rows = [_as_vectors([column[i] if column else None for column in columns]) for i in range(len(work.params))]
        columns = [[row[j] for row in rows] if columns[j] else [] for j in range(len(columns))]
        work = with_columns(work, columns, work.scalars, work.placement)
    good = [all(column[i].is_contiguous() for column in columns if column) for i in range(len(work.params))]
    parts = [(selected(work, [i for i, x in enumerate(good) if x is kind]), kind) for kind in (True, False)]
    return [(part, kind) for part, kind in parts if part.params]


def _as_vectors(row: list[Any]) -> list[Any]:
    """Tensors that lie in memory alike and without gaps, as if they were vectors; others as they are."""
    first = row[0]
    order = sorted(range(first.dim()), key=first.stride)
    dense, expected = True, 1
    for i in order:
        dense, expected = dense and (first.stride(i) == expected or first.shape[i] == 1), expected * first.shape[i]
    if not dense or any(x is not None and x.stride() != first.stride() for x in row):
        return row
    return [x if x is None else x.as_strided((x.numel(),), (1,)) for x in row]


# Blocks


def blocks(columns: list[Tensors], size: int = BLOCK) -> Iterator[list[Tensors]]:
    """The contiguous tensors of the columns in blocks of about `size` elements: large ones split, small ones joined."""
    batch: list[Tensors] = [[] for _ in columns]
    filled = 0
    for i, first in enumerate(columns[0]):
        count = first.numel()
        if filled + count > size and filled:
            yield batch
            batch, filled = [[] for _ in columns], 0
        if count > size:
            split = [torch.split(column[i].view(-1), size) if column else () for column in columns]
            for j in range(len(split[0])):
                yield [[parts[j]] if parts else [] for parts in split]
        elif count:
            for to, column in zip(batch, columns):
                if column:
                    to.append(column[i])
            filled += count
    if filled:
        yield batch


def blocks_by_tensor(columns: list[Tensors], placement: Placement | None) -> list[list[list[Tensors]]]:
    """For updates that need the norm of each tensor: the blocks of one large tensor at a time, small tensors together.

    In a graph, on another device, where a tensor is not contiguous, and where tensors are distributed (all ranks must
    sum up the same), everything is a single block.
    """
    if placement is not None or not columns[0][0].is_cpu:
        return [[columns]]
    if torch.compiler.is_compiling() or not all(all(map(Tensor.is_contiguous, column)) for column in columns):
        return [[columns]]
    large = [i for i, x in enumerate(columns[0]) if x.numel() > BLOCK]
    small = [i for i, x in enumerate(columns[0]) if x.numel() <= BLOCK]
    result = [[block] for block in blocks([[column[i] for i in small] for column in columns])]
    return result + [list(blocks([[column[i]] for column in columns])) for i in large]


def two_passes(
    tensor: list[list[Tensors]],
    direction: Callable[..., Tensors],
    factor: Callable[[Tensor, Tensor], Tensor] | float,
    update: Callable[..., None],
) -> None:
    """Update a large tensor, given in blocks, by a factor that needs the norms of all of it and of its direction.

    The first pass calls `direction(*block)`, which updates the moments, and keeps only its norm; the second calls
    `update(factor, *block)`, which computes the direction from the moments again. That is less memory traffic than to
    keep it. A `factor` that is a number needs no norms.
    """
    norms_of_p, norms_of_direction = [], []
    for block in tensor:
        found = direction(*block)
        if callable(factor):
            norms_of_p.append(norms(block[0])[0])
            norms_of_direction.append(norms(found)[0])
    if callable(factor):
        lengths = [
            torch.linalg.vector_norm(torch.stack(x).unsqueeze(1), dim=0) for x in (norms_of_p, norms_of_direction)
        ]
        factor = factor(*lengths).item()
    for block in tensor:
        update(factor, *block)


def row_blocks(p: Tensor) -> list[Any]:
    """Indices of blocks of rows of a large vector or matrix; for any other tensor, and in a graph, one of all of it."""
    large = p.dim() in (1, 2) and p.numel() > BLOCK and p.is_cpu
    if torch.compiler.is_compiling() or not large:
        return [...]
    rows = max(1, BLOCK // (p.shape[1] if p.dim() == 2 else 1))
    return [slice(at, at + rows) for at in range(0, p.shape[0], rows)]


def rows_of(x: Tensor, block: Any) -> Tensor:
    """The rows of a block; the tensor itself where that is all of it."""
    return x if block is ... else x[block]
