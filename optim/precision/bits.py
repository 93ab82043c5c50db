"""Float32 values in two tensors of 16 bits: the parameter, in bfloat16, and its remainder.

A bfloat16 number is the high half of a float32 one:

    float32     1 bit of sign | 8 bits of exponent | 7 bits of fraction | 16 more bits of fraction
    halves      high: these 16 bits are a bfloat16                      | low

The model computes with the parameter, which is the bfloat16 nearest to the value (away from zero at exact ties). So its
bits are the high half or the next number up. The *remainder* is the distance from there to the value, as a signed
number of 16 bits. As integers:

    bits of the value  =  2**16 * bits of the parameter  +  remainder,    -2**15 <= remainder < 2**15

The remainder has the bits of the low half, read with a sign. `split_` writes the two, and `join` computes the value
from them. TransformerEngine's `store_param_remainders` uses the same scheme. The tensor of remainders has the
parameter's dtype, since neither gloo nor NCCL sends 16-bit integers. Read as bfloat16 its values mean nothing, and some
are NaN.

In the names, `value` is a tensor in float32, `whole` the same 32 bits as integers, and `low` the remainder as integers.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from ..base.tensor_lists import Tensors

NAN = math.nan  # its bits are 7fc00000: the low half is zero, so the high half alone is NaN, too


def bitcast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The same bits in another dtype of the same size: a view, or a new tensor on torch_xla, which has no views."""
    if x.device.type != "xla":
        return x.view(dtype)
    xla_name = {torch.float64: "f64", torch.float32: "f32", torch.bfloat16: "bf16"}.get(dtype, f"s{8 * x.itemsize}")
    cast: Tensor = _xla_bitcast()(x, to=xla_name)
    return cast


@functools.cache
def _xla_bitcast() -> Any:
    from torch_xla.core import xla_op_registry

    return xla_op_registry.register("timesched_bits", lambda x, to: x.bitcast(to))


# Joining


def join(p: Tensor, remainder: Tensor) -> Tensor:
    """The float32 values of a parameter and its remainder, as a new tensor."""
    return join_(p.float(), signed_integers(remainder))


def signed_integers(remainder: Tensor) -> Tensor:
    """The remainder as the signed integers that it holds."""
    if _is_inductor_on_cpu(remainder):  # which vectorizes float32 and int32, but not int16
        return bitcast(remainder.float(), torch.int32) >> 16
    return bitcast(remainder, torch.int16)


def join_(value: Tensor, low: Tensor) -> Tensor:
    """Add the remainder to the bits of a parameter in float32, and return the sum. `value` is overwritten.

    Where the sum is NaN, the result is the parameter itself. Either the parameter is NaN, or it was set to zero or to
    infinity and the old remainder means nothing for it. (All bits below zero's and above infinity's are NaN.)
    """
    whole = bitcast(value, torch.int32)
    if _is_readable_on_host(value):
        if _has_finite_sum(bitcast(whole.add_(low), torch.float32)):
            return value
        whole.sub_(low)
    joined = bitcast(whole + low, torch.float32)
    return torch.where(joined == joined, joined, value)  # noqa: PLR0124  # only NaN differs from itself


# Storing


def split_(value: Tensor, p: Tensors, remainder: Tensors) -> None:
    """Write float32 values into parameters and their remainders. `value` is overwritten."""
    whole = bitcast(_canonicalize_nan(value), torch.int32)
    if whole.is_cuda and not torch.compiler.is_compiling():  # in few launches
        whole = whole.reshape(-1)
        low = whole.to(torch.int16)
        high = bitcast(whole.sub_(low), torch.float32).to(torch.bfloat16)
        targets = [bitcast(x, torch.int16) for x in (*p, *remainder)]
        torch._foreach_copy_(targets, [*split_like(bitcast(high, torch.int16), p), *split_like(low, remainder)])
        return
    _store_low_half(whole, remainder)
    _store_high_half_(whole.add_(1 << 15), p)  # half of the high half's unit: the nearest, ties away from zero


def stochastic_round_(value: Tensor, targets: Tensors, noise: Tensor) -> None:
    """Write float32 values into bfloat16 tensors by stochastic rounding. `value` is overwritten.

    `noise` has integers from 0 to 65535. If the sum of the noise and the low half carries over, the value is rounded
    away from zero.
    """
    whole = bitcast(_canonicalize_nan(value), torch.int32)
    _store_high_half_(whole.add_(noise.view(whole.shape)), targets)


def round_to_nearest(value: Tensor, targets: Tensors) -> None:
    """Write float32 values into bfloat16 tensors, rounded as torch does."""
    _store(value, targets, torch.bfloat16)


def split_like(flat: Tensor, tensors: Tensors) -> list[Tensor]:
    """The parts of a flat tensor that has the elements of these tensors, one after the other: views in their shapes."""
    parts = torch.split(flat, [x.numel() for x in tensors])
    return [part.view(x.shape) for part, x in zip(parts, tensors)]


def _store_low_half(whole: Tensor, targets: Tensors) -> None:
    """Write the low 16 bits."""
    if _is_inductor_on_cpu(whole):
        low = bitcast(whole.reshape(-1), torch.int16)[::2]  # little-endian: the low half comes first
        torch._foreach_copy_([x.view(torch.int16) for x in targets], split_like(low, targets))
    else:
        _store(whole, targets, torch.int16)


def _store_high_half_(whole: Tensor, targets: Tensors) -> None:
    """Write the high 16 bits, which are bfloat16 numbers. `whole` is overwritten."""
    whole.bitwise_right_shift_(16)
    if _is_inductor_on_cpu(whole):
        value = bitcast(whole.reshape(-1) << 16, torch.float32)
        torch._foreach_copy_(targets, split_like(value, targets))
    else:
        _store(whole, targets, torch.int16)


def _store(x: Tensor, targets: Tensors, dtype: torch.dtype) -> None:
    """Convert to a dtype of 16 bits, and write the bits into one tensor of any layout or parts of a flat one."""
    if x.device.type == "xla":
        torch._foreach_copy_(targets, split_like(bitcast(x.to(dtype), torch.bfloat16), targets))
    elif len(targets) == 1:
        targets[0].view(dtype).copy_(x.view(targets[0].shape))
    else:
        torch._foreach_copy_([target.view(dtype) for target in targets], split_like(x.to(dtype), targets))


# Helpers of joining and storing


def _canonicalize_nan(value: Tensor) -> Tensor:
    """The same values with 7fc00000 for every NaN, so that rounding does not turn a NaN into a number."""
    if _is_readable_on_host(value) and _has_finite_sum(value):
        return value
    if value.is_cuda and not torch.compiler.is_compiling():
        # This is one launch. torch_xla does not have the operation, and inductor is slow at it.
        return value.nan_to_num_(NAN, math.inf, -math.inf)
    return torch.where(value != value, NAN, value)  # noqa: PLR0124  # only NaN differs from itself


def _is_readable_on_host(x: Tensor) -> bool:
    """Whether a decision may depend on the numbers in a tensor.

    On other devices, reading a number waits for the device. In a graph, it ends the graph.
    """
    return x.is_cpu and not torch.compiler.is_compiling()


def _has_finite_sum(value: Tensor) -> bool:
    """Whether the tensor surely has no NaN. A sum takes half as long as an operation on each element."""
    return math.isfinite(value.sum())


def _is_inductor_on_cpu(x: Tensor) -> bool:
    """Whether inductor compiles this for the CPU, where it does not vectorize 16-bit integers."""
    return x.is_cpu and torch.compiler.is_compiling()
