"""In-place arithmetic on lists of tensors: what the update rules are written in.

A factor `c` is a Python number, a 0-dim tensor, or a list of 0-dim tensors, one for each tensor of the list. Eager
calls become torch's multi-tensor kernels. (On CUDA these take all tensors at once where a factor is a number or a 0-dim
tensor of their dtype; elsewhere tensors of one shape are stacked.) In a graph for the CPU the loop is unrolled instead,
since inductor there keeps the results of multi-tensor operations in memory and fuses those of single ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor

Tensors: TypeAlias = list[Tensor]
Factor: TypeAlias = "float | Tensor | list[Tensor]"

STACKED = 1 << 24  # elements that are stacked together on a GPU
STACKED_ON_CPU = 1 << 17  # fewer, which fit into a core's second-level cache
SMALL_ON_CPU = 1 << 14  # elements of a tensor that is worth to be stacked on the CPU


def is_zero(factor: Factor) -> bool:
    """Whether a factor is the number 0, so that what it multiplies can be left out."""
    return isinstance(factor, (int, float)) and factor == 0


def _unrolled(xs: Tensors) -> bool:
    return torch.compiler.is_compiling() and xs[0].device.type == "cpu"


def on_gpu(xs: Tensors) -> bool:
    """Whether this is an eager step on a CUDA GPU, where the number of launches counts."""
    return not torch.compiler.is_compiling() and len(xs) > 0 and xs[0].is_cuda


def kept_in_graph(*xs: Tensor) -> Tensors:
    """Small tensors, in a graph by way of a single array.

    inductor keeps what is concatenated, and would otherwise compute it again for each element that it is used for.
    """
    if not torch.compiler.is_compiling():
        return list(xs)
    flat = torch.cat([x.reshape(-1) for x in xs])
    return [part.view(x.shape) for part, x in zip(torch.split(flat, [x.numel() for x in xs]), xs)]


def by_shape(xs: Tensors, alone: bool = False, on_cpu: bool = False) -> list[list[int]]:
    """The indices of tensors to stack, as one operation on several small tensors takes less time than one on each.

    That is so in eager steps on a CUDA GPU, for contiguous tensors of one shape; others stay alone, and all where
    `alone` says so. What is stacked together is limited, as it takes memory, and large tensors gain nothing. On the CPU
    it is so for small tensors, and where `on_cpu` says so: for an update of many operations on each tensor.
    """
    found: dict[Any, list[int]] = {}
    gpu = on_gpu(xs)
    cpu = on_cpu and not gpu and len(xs) > 0 and xs[0].is_cpu and not torch.compiler.is_compiling()
    largest = 0 if alone else STACKED if gpu else SMALL_ON_CPU if cpu else 0
    for i, x in enumerate(xs):
        found.setdefault(x.shape if 0 < x.numel() <= largest and x.is_contiguous() else i, []).append(i)
    result = []
    for indices in found.values():
        size = max(1, (STACKED_ON_CPU if cpu else STACKED) // max(1, xs[indices[0]].numel()))
        result += [indices[at : at + size] for at in range(0, len(indices), size)]
    return result


def _each(c: Factor, n: int) -> list[Any]:
    return c if isinstance(c, list) else [c] * n


def _zip(xs: Tensors, *columns: Any) -> Iterator[Any]:
    return zip(xs, *(_each(column, len(xs)) for column in columns))


def _in_place(several: Callable[..., Any], single: Callable[..., Any], xs: Tensors, *columns: Any) -> None:
    if _unrolled(xs):
        for row in _zip(xs, *columns):
            single(*row)
    else:
        several(xs, *columns)


def _new(several: Callable[..., Any], single: Callable[..., Any], xs: Tensors, *columns: Any) -> Tensors:
    if _unrolled(xs):
        return [single(*row) for row in _zip(xs, *columns)]
    return list(several(xs, *columns))


def _one_by_one(xs: Tensors, c: Any) -> bool:
    """Whether, on a GPU, torch's multi-tensor kernels would take one tensor after the other.

    They do where each has its own 0-dim factor, or where the factor is of another dtype.
    """
    if not on_gpu(xs) or not isinstance(c, (list, Tensor)):
        return False
    if isinstance(c, Tensor):
        return c.dtype != xs[0].dtype
    return all(k.dim() == 0 for k in c) and any(x.dim() for x in xs)


def _by_shape(operation: Callable[[Tensor, Tensor], Tensor], xs: Tensors, c: Any) -> Tensors:
    """The results of an operation on each tensor and its factor, computed at once for tensors of one shape."""
    results = list(xs)
    for chosen in by_shape(xs):
        first = xs[chosen[0]]
        stacked = torch.stack([xs[i] for i in chosen]) if len(chosen) > 1 else first[None]
        factors = c if isinstance(c, Tensor) else torch.stack([c[i] for i in chosen])
        factors = factors.view(-1, *[1] * first.dim())
        for i, result in zip(chosen, operation(stacked, factors).to(first.dtype).unbind()):
            results[i] = result
    return results


def mul_(xs: Tensors, c: Factor) -> None:
    """xs *= c; `c` may also be a list of tensors of the same shapes."""
    if _one_by_one(xs, c):
        copy_(xs, _by_shape(torch.mul, xs, c))
    else:
        _in_place(torch._foreach_mul_, Tensor.mul_, xs, c)


def mul(xs: Tensors, c: Factor) -> Tensors:
    """xs * c."""
    return _by_shape(torch.mul, xs, c) if _one_by_one(xs, c) else _new(torch._foreach_mul, torch.mul, xs, c)


def div(xs: Tensors, ys: Tensors) -> Tensors:
    """xs / ys."""
    return _new(torch._foreach_div, torch.div, xs, ys)


def div_(xs: Tensors, ys: Tensors) -> None:
    """xs /= ys."""
    _in_place(torch._foreach_div_, Tensor.div_, xs, ys)


def shift_(xs: Tensors, c: Factor) -> None:
    """xs += c."""
    if _one_by_one(xs, c):
        copy_(xs, _by_shape(torch.add, xs, c))
    elif isinstance(c, Tensor) and on_gpu(xs):
        torch._foreach_add_(xs, c, alpha=1.0)  # without alpha, torch takes c for a number and reads it
    else:
        _in_place(torch._foreach_add_, Tensor.add_, xs, c)


def shift(xs: Tensors, c: Factor) -> Tensors:
    """xs + c."""
    if _one_by_one(xs, c):
        return _by_shape(torch.add, xs, c)
    if isinstance(c, Tensor) and on_gpu(xs):
        return list(torch._foreach_add(xs, c, alpha=1.0))  # as above
    return _new(torch._foreach_add, torch.add, xs, c)


def sqrt(xs: Tensors) -> Tensors:
    """The square roots."""
    return _new(torch._foreach_sqrt, torch.sqrt, xs)


def sqrt_(xs: Tensors) -> None:
    """The square roots, in place."""
    _in_place(torch._foreach_sqrt_, Tensor.sqrt_, xs)


def neg(xs: Tensors) -> Tensors:
    """-xs."""
    return _new(torch._foreach_neg, torch.neg, xs)


def absolute(xs: Tensors) -> Tensors:
    """|xs|."""
    return _new(torch._foreach_abs, torch.abs, xs)


def sign(xs: Tensors) -> Tensors:
    """-1, 0 or 1."""
    return _new(torch._foreach_sign, torch.sign, xs)


def sign_(xs: Tensors) -> None:
    """-1, 0 or 1, in place."""
    _in_place(torch._foreach_sign_, Tensor.sign_, xs)


def clamp_(xs: Tensors, low: Any, high: Any) -> None:
    """xs limited to [low, high], in place."""
    if not on_gpu(xs):
        for x in xs:
            x.clamp_(low, high)
        return
    for bound, kernel, operation in (
        (low, torch._foreach_clamp_min_, torch.maximum),
        (high, torch._foreach_clamp_max_, torch.minimum),
    ):
        if isinstance(bound, Tensor):
            copy_(xs, _by_shape(operation, xs, bound))
        else:
            kernel(xs, bound)


def zero_where_negative_(xs: Tensors, signs: Tensors) -> None:
    """xs = 0 where the sign, which is -1, 0 or 1, is negative."""
    if not on_gpu(xs):
        for x, s in zip(xs, signs):
            x.masked_fill_(s < 0, 0)
        return
    # There is no multi-tensor kernel for that. So xs is limited to [-bound, bound]:
    #     bound = min(s + 1, 1) / max(-s, 0), which is 0 / 1 for a negative sign, else 1 / 0
    bound, below = shift(signs, 1.0), neg(signs)
    torch._foreach_clamp_max_(bound, 1.0)
    torch._foreach_clamp_min_(below, 0.0)
    torch._foreach_abs_(below)  # 1 / -0 would be another infinity
    div_(bound, below)
    torch._foreach_minimum_(xs, bound)
    torch._foreach_maximum_(xs, neg(bound))


def copy_(xs: Tensors, ys: Tensors) -> None:
    """xs = ys."""
    _in_place(torch._foreach_copy_, Tensor.copy_, xs, ys)


def copies(xs: Tensors) -> Tensors:
    """xs, as new tensors."""
    return mul(xs, 1.0) if on_gpu(xs) else [x.clone() for x in xs]


def norms(xs: Tensors) -> Tensors:
    """The root of the sum of squares of each."""
    return _new(torch._foreach_norm, torch.linalg.vector_norm, xs)


def maximum_(xs: Tensors, ys: Tensors) -> None:
    """xs = max(xs, ys)."""
    _in_place(torch._foreach_maximum_, lambda x, y: x.copy_(torch.maximum(x, y)), xs, ys)


def add_(xs: Tensors, ys: Tensors, c: Factor = 1.0) -> None:
    """xs += c * ys."""
    if _unrolled(xs):
        for x, y, k in _zip(xs, ys, c):
            x.add_(y * k)
    elif isinstance(c, (float, int)):
        torch._foreach_add_(xs, ys, alpha=c)
    elif on_gpu(xs):
        torch._foreach_add_(xs, mul(ys, c))
    else:
        torch._foreach_addcmul_(xs, ys, _each(c, len(xs)))


def add(xs: Tensors, ys: Tensors, c: Factor = 1.0) -> Tensors:
    """xs + c * ys."""
    if _unrolled(xs):
        return [x + y * k for x, y, k in _zip(xs, ys, c)]
    if isinstance(c, (float, int)):
        return list(torch._foreach_add(xs, ys, alpha=c))
    if on_gpu(xs):
        return list(torch._foreach_add(xs, mul(ys, c)))
    return list(torch._foreach_addcmul(xs, ys, _each(c, len(xs))))


def lerp_(xs: Tensors, ys: Tensors, c: Factor) -> None:
    """xs += c * (ys - xs)."""
    if _unrolled(xs):
        for x, y, k in _zip(xs, ys, c):
            x.add_((y - x) * k)
    elif isinstance(c, (float, int)):
        torch._foreach_lerp_(xs, ys, c)
    elif on_gpu(xs):
        add_(xs, list(torch._foreach_sub(ys, xs)), c)
    else:
        torch._foreach_lerp_(xs, ys, [k.to(x.dtype) for x, k in _zip(xs, c)])


def lerp(xs: Tensors, ys: Tensors, c: Factor) -> Tensors:
    """xs + c * (ys - xs)."""
    if _unrolled(xs):
        return [x + (y - x) * k for x, y, k in _zip(xs, ys, c)]
    if isinstance(c, (float, int)):
        return list(torch._foreach_lerp(xs, ys, c))
    if on_gpu(xs):
        return add(xs, list(torch._foreach_sub(ys, xs)), c)
    return list(torch._foreach_lerp(xs, ys, [k.to(x.dtype) for x, k in _zip(xs, c)]))


def addcmul_(xs: Tensors, ys: Tensors, zs: Tensors, c: Factor) -> None:
    """xs += c * ys * zs."""
    if _unrolled(xs):
        for x, y, z, k in _zip(xs, ys, zs, c):
            x.add_(y * z * k)
    elif isinstance(c, (float, int)):
        torch._foreach_addcmul_(xs, ys, zs, value=c)
    else:
        torch._foreach_addcmul_(xs, mul(ys, c), zs)


def addcmul(xs: Tensors, ys: Tensors, zs: Tensors, c: float) -> Tensors:
    """xs + c * ys * zs."""
    if _unrolled(xs):
        return [x + c * y * z for x, y, z in zip(xs, ys, zs)]
    return list(torch._foreach_addcmul(xs, ys, zs, value=c))


def addcdiv_(xs: Tensors, ys: Tensors, zs: Tensors, c: Factor) -> None:
    """xs += c * ys / zs."""
    if _unrolled(xs):
        for x, y, z, k in _zip(xs, ys, zs, c):
            x.add_(y / z * k)
    elif isinstance(c, (float, int)):
        torch._foreach_addcdiv_(xs, ys, zs, value=c)
    else:
        torch._foreach_addcdiv_(xs, mul(ys, c), zs)
