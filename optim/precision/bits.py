"""The bits of float32 values in tensors of 16 bits.

A float32 value is the parameter, which is the nearest bfloat16 (at exact ties the one away from zero), and a
*remainder*, the low 16 bits as a signed number: the bits of the value are 2**16 times those of the parameter, plus the
remainder. So it is stored in two tensors of 16 bits, of which the first is the parameter that the model computes with.
The scheme is that of TransformerEngine's `store_param_remainders`. The remainder lies in a tensor of the parameter's
dtype, as neither gloo nor NCCL sends 16-bit integers; as numbers its values mean nothing, and some are NaN.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from ..base.tensor_lists import Tensors

NAN = math.nan  # its bits are 7fc00000: the low half is zero, so that it stays NaN in the high one


def bits(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The same bits in another dtype of the same size: a view, or on torch_xla, which has none, a new tensor."""
    if x.device.type != "xla":
        return x.view(dtype)
    cast: Tensor = _bitcast()(x, to={torch.float32: "f32", torch.bfloat16: "bf16"}.get(dtype, f"s{8 * x.itemsize}"))
    return cast


@functools.cache
def _bitcast() -> Any:
    from torch_xla.core import xla_op_registry

    return xla_op_registry.register("timesched_bits", lambda x, to: x.bitcast(to))


def join(p: Tensor, remainder: Tensor) -> Tensor:
    """The float32 values of a parameter and its remainder, as a new tensor."""
    return joined_(p.float(), _low(remainder))


def _low(remainder: Tensor) -> Tensor:
    """The remainder as numbers."""
    if remainder.is_cpu and torch.compiler.is_compiling():
        return bits(remainder.float(), torch.int32) >> 16
    return bits(remainder, torch.int16)


def joined_(value: Tensor, low: Tensor) -> Tensor:
    """The float32 values whose low half is added to that of `value`, which is overwritten.

    A zero that somebody wrote beside an old remainder stays one: below a zero there are only bits of NaNs.
    """
    whole = bits(value, torch.int32)
    if _may_be_read(value):
        if _is_finite(bits(whole.add_(low), torch.float32)):
            return value
        whole.sub_(low)
    joined = bits(whole + low, torch.float32)
    return torch.where(joined == joined, joined, value)  # noqa: PLR0124  # a NaN is one that the parameter is


def _may_be_read(value: Tensor) -> bool:
    return value.is_cpu and not torch.compiler.is_compiling()


def _is_finite(value: Tensor) -> bool:
    """Whether there is no NaN for sure, by a sum, which takes half as long as an operation on each element."""
    return math.isfinite(value.sum())


def split_(value: Tensor, p: Tensors, remainder: Tensors) -> None:
    """Write float32 values into parameters and their remainders. What was in `value` is lost."""
    whole = bits(_with_one_nan(value), torch.int32)
    if whole.is_cuda and not torch.compiler.is_compiling():  # in few launches
        whole = whole.reshape(-1)
        low = whole.to(torch.int16)
        high = bits(whole.sub_(low), torch.float32).to(torch.bfloat16)
        to = [bits(x, torch.int16) for x in (*p, *remainder)]
        torch._foreach_copy_(to, [*_like(p, bits(high, torch.int16)), *_like(remainder, low)])
        return
    _put(whole, remainder, torch.int16)  # the low half
    _put(whole.add_(1 << 15).bitwise_right_shift_(16), p, torch.int16, high=True)


def round_(value: Tensor, to: Tensors, noise: Tensor) -> None:
    """Write float32 values into bfloat16 tensors, rounded by noise of 0 to 65535. What was in `value` is lost."""
    whole = bits(_with_one_nan(value), torch.int32)
    _put(whole.add_(noise.view(whole.shape)).bitwise_right_shift_(16), to, torch.int16, high=True)


def _with_one_nan(value: Tensor) -> Tensor:
    """The same with 7fc00000 for every NaN."""
    if _may_be_read(value) and _is_finite(value):
        return value
    if (
        value.is_cuda and not torch.compiler.is_compiling()
    ):  # one launch; torch_xla has none, and inductor is slow at it
        return value.nan_to_num_(NAN, math.inf, -math.inf)
    return torch.where(value != value, NAN, value)  # noqa: PLR0124  # that is how a NaN is known


def _put(x: Tensor, to: Tensors, dtype: torch.dtype, high: bool = False) -> None:
    """Write the parts of a flat tensor, or one in any layout, in the form of `dtype`."""
    if x.device.type == "xla":
        torch._foreach_copy_(to, _like(to, bits(x.to(dtype), torch.bfloat16)))
    elif dtype is torch.int16 and x.is_cpu and torch.compiler.is_compiling():  # which inductor does not vectorize
        x = x.reshape(-1)
        whole = bits(x << 16, torch.float32) if high else bits(x, dtype)[::2]
        torch._foreach_copy_(to if high else [each.view(dtype) for each in to], _like(to, whole))
    elif len(to) == 1:
        to[0].view(dtype).copy_(x.view(to[0].shape))
    else:
        torch._foreach_copy_([each.view(dtype) for each in to], _like(to, x.to(dtype)))


def _like(xs: Tensors, flat: Tensor) -> list[Tensor]:
    """Views of a flat tensor in the shapes of others."""
    return [part.view(x.shape) for part, x in zip(torch.split(flat, [x.numel() for x in xs]), xs)]
