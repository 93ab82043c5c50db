"""In-place arithmetic on lists of tensors: what the update rules are written in.

A factor `c` is a Python number, a 0-dim tensor, or a list of 0-dim tensors, one for each tensor of the list. Eager
calls become torch's multi-tensor kernels. In a graph for the CPU the loop is unrolled instead, since inductor there
keeps the results of multi-tensor operations in memory and fuses those of single ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor

Tensors: TypeAlias = list[Tensor]
Factor: TypeAlias = "float | Tensor | list[Tensor]"


def off(factor: Factor) -> bool:
    """Whether a factor is the number 0, so that what it multiplies can be left out."""
    return isinstance(factor, (int, float)) and factor == 0


def _unrolled(xs: Tensors) -> bool:
    return torch.compiler.is_compiling() and xs[0].device.type == "cpu"


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


def mul_(xs: Tensors, c: Factor) -> None:
    """xs *= c; `c` may also be a list of tensors of the same shapes."""
    _in_place(torch._foreach_mul_, Tensor.mul_, xs, c)


def mul(xs: Tensors, c: Factor) -> Tensors:
    """xs * c."""
    return _new(torch._foreach_mul, torch.mul, xs, c)


def div(xs: Tensors, ys: Tensors) -> Tensors:
    """xs / ys."""
    return _new(torch._foreach_div, torch.div, xs, ys)


def div_(xs: Tensors, ys: Tensors) -> None:
    """xs /= ys."""
    _in_place(torch._foreach_div_, Tensor.div_, xs, ys)


def shift_(xs: Tensors, c: Factor) -> None:
    """xs += c."""
    _in_place(torch._foreach_add_, Tensor.add_, xs, c)


def shift(xs: Tensors, c: Factor) -> Tensors:
    """xs + c."""
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


def sign_(xs: Tensors) -> None:
    """-1, 0 or 1, in place."""
    _in_place(torch._foreach_sign_, Tensor.sign_, xs)


def copy_(xs: Tensors, ys: Tensors) -> None:
    """xs = ys."""
    _in_place(torch._foreach_copy_, Tensor.copy_, xs, ys)


def copies(xs: Tensors) -> Tensors:
    """xs, as new tensors."""
    return [x.clone() for x in xs]


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
    else:
        torch._foreach_addcmul_(xs, ys, _each(c, len(xs)))


def add(xs: Tensors, ys: Tensors, c: Factor = 1.0) -> Tensors:
    """xs + c * ys."""
    if _unrolled(xs):
        return [x + y * k for x, y, k in _zip(xs, ys, c)]
    if isinstance(c, (float, int)):
        return list(torch._foreach_add(xs, ys, alpha=c))
    return list(torch._foreach_addcmul(xs, ys, _each(c, len(xs))))


def lerp_(xs: Tensors, ys: Tensors, c: Factor) -> None:
    """xs += c * (ys - xs)."""
    if _unrolled(xs):
        for x, y, k in _zip(xs, ys, c):
            x.add_((y - x) * k)
    elif isinstance(c, (float, int)):
        torch._foreach_lerp_(xs, ys, c)
    else:
        torch._foreach_lerp_(xs, ys, [k.to(x.dtype) for x, k in _zip(xs, c)])


def lerp(xs: Tensors, ys: Tensors, c: Factor) -> Tensors:
    """xs + c * (ys - xs)."""
    if _unrolled(xs):
        return [x + (y - x) * k for x, y, k in _zip(xs, ys, c)]
    if isinstance(c, (float, int)):
        return list(torch._foreach_lerp(xs, ys, c))
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


# Steps that several rules take. On the CPU, torch's fused kernels take them in one pass over the memory.

ENDLESS = torch.full((), 1e30, dtype=torch.float32, device="cpu")  # so many steps correct no bias


def _fusable(columns: tuple[Tensors, ...], factors: tuple[Factor, ...]) -> bool:
    if torch.compiler.is_compiling() or not columns[0][0].is_cpu:
        return False
    numbers = all(isinstance(c, (float, int)) for c in factors)
    return numbers and all(all(map(Tensor.is_contiguous, column)) for column in columns)


def descend_(p: Tensors, g: Tensors, rate: Any, decay: Any, shrink: Any) -> None:
    """p = shrink * p + rate * g, where shrink = 1 + rate * decay."""
    # torch's kernel leaves tensors in half precision unchanged (2.7 to 2.13).
    if p[0].dtype.itemsize >= 4 and _fusable((p, g), (rate, decay)):
        torch._fused_sgd_(
            p,
            g,
            [],
            weight_decay=decay,
            momentum=0.0,
            lr=-rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )
        return
    if not off(decay):
        mul_(p, shrink)
    add_(p, g, rate)


def adapt_(
    p: Tensors,
    g: Tensors,
    m: Tensors,
    v: Tensors,
    first: Any,
    keep: Any,
    second: Any,
    rate: Any,
    eps: Any,
) -> None:
    """m += first * (g - m); v = keep * v + second * g * g; p += rate * m / (sqrt(v) + eps)."""
    if _fusable((p, g, m, v), (first, keep, second, rate, eps)) and keep < 1:
        torch._fused_adam_(
            p,
            g,
            m,
            v,
            [],
            [ENDLESS] * len(p),
            lr=-rate,
            beta1=1 - first,
            beta2=keep,
            weight_decay=0.0,
            eps=eps,
            amsgrad=False,
            maximize=False,
        )
        return
    lerp_(m, g, first)
    mul_(v, keep)
    addcmul_(v, g, g, second)
    if not off(rate):
        over_root_(p, m, v, rate, eps)


def follow_(p: Tensors, g: Tensors, v: Tensors, keep: Any, second: Any, rate: Any, eps: Any) -> None:
    """v = keep * v + second * g * g; p += rate * g / (sqrt(v) + eps)."""
    if _fusable((p, g, v), (keep, second, rate, eps)) and keep < 1:
        adapt_(p, g, [torch.zeros_like(x) for x in g], v, 1.0, keep, second, rate, eps)
        return
    mul_(v, keep)
    addcmul_(v, g, g, second)
    over_root_(p, g, v, rate, eps)


def over_root_(p: Tensors, x: Tensors, v: Tensors, rate: Any, eps: Any) -> None:
    """p += rate * x / (sqrt(v) + eps)."""
    root = sqrt(v)
    if not off(eps):
        shift_(root, eps)
    addcdiv_(p, x, root, rate)
