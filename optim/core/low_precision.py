"""Float32 values in bfloat16 tensors: with the 16 bits that rounding cuts off beside them, or rounded at random.

A float32 value is the parameter, which is the nearest bfloat16 (at exact ties the one away from zero), and a
*remainder*, the low 16 bits as a signed number: the bits of the value are 2**16 times those of the parameter, plus the
remainder. So it is stored in two tensors of 16 bits, of which the first is the parameter that the model computes with.
The scheme is that of TransformerEngine's `store_param_remainders`. The remainder lies in a tensor of the parameter's
dtype, as neither gloo nor NCCL sends 16-bit integers; as numbers its values mean nothing, and some are NaN.

Rounding at random adds noise to the bits before the low half is cut off: the value becomes each of its two neighbours
with a probability that is the distance to the other, exactly. The noise is a hash of integers, and no generator's: the
same on all ranks, however the parameter is sharded, and after a resume.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor

from .hyperparameters import SWITCH, Number, Rule
from .tensor_lists import Tensors

REMAINDER = "remainder"  # the state with the low half of a float32 value


class Precision(TypedDict, total=False):
    """The arguments of every optimizer that say how bfloat16 parameters are stepped."""

    master_weights: bool
    stochastic_rounding: bool
    rounding_seed: int
    state_dtype: Any


RULES: Mapping[str, Rule] = {
    "master_weights": SWITCH,
    "stochastic_rounding": SWITCH,
    "rounding_seed": Number(low=-(2**31), high=2**31 - 1, integer=True),
}


class Low(NamedTuple):
    """How bfloat16 parameters are stepped in float32: with remainders, which are the last column, or rounded."""

    master_weights: bool


def low(group: Mapping[str, Any], p: Tensor) -> Low | None:
    """How a parameter of a group is stepped in float32; None where it is stepped as it is."""
    if p.dtype is not torch.bfloat16 or not group.get("master_weights"):
        return None
    return Low(True)


NAN = float("nan")  # its bits are 7fc00000: the low half is zero, so that it stays NaN in the high one
# 2**32 over the golden ratio, which spreads indices that follow each other; then the multipliers of lowbias32 (Chris
# Wellons, nullprogram.com/blog/2018/07/31). All as signed numbers.
_SPREAD, _FIRST, _SECOND = 0x9E3779B1 - 2**32, 0x7FEB352D, 0x846CA68B - 2**32


def join(p: Tensor, remainder: Tensor) -> Tensor:
    """The float32 values of a parameter and its remainder, as a new tensor."""
    value = p.float()  # the bits of the parameter, and 16 zeros
    value.view(torch.int32).add_(remainder.view(torch.int16))
    return value


def split_(value: Tensor, p: Tensor, remainder: Tensor) -> None:
    """Write float32 values into a parameter and its remainder. What was in `value` is lost."""
    bits = _with_one_nan(value).view(torch.int32)
    remainder.view(torch.int16).copy_(bits)  # the low half
    p.view(torch.int16).copy_(bits.add_(1 << 15).bitwise_right_shift_(16))


def round_(value: Tensor, to: Tensor, noise: Tensor) -> None:
    """Write float32 values into a bfloat16 tensor, rounded by noise of 0 to 65535. What was in `value` is lost."""
    bits = _with_one_nan(value).view(torch.int32)
    to.view(torch.int16).copy_(bits.add_(noise).bitwise_right_shift_(16))


def _with_one_nan(value: Tensor) -> Tensor:
    """The same with every NaN as 7fc00000. On the CPU a sum tells whether there may be any, in a tenth of the time."""
    if value.is_cpu and not torch.compiler.is_compiling() and math.isfinite(value.sum()):
        return value
    return value.masked_fill_(value.isnan(), NAN)


def noise(index: Tensor, seed: int | Tensor) -> Tensor:
    """Numbers of 0 to 65535 from the indices of elements, in int32, and a seed of 32 bits. `index` is overwritten."""
    x = index.bitwise_xor_(seed).mul_(_SPREAD)
    x ^= _shifted(x, 16)
    x *= _FIRST
    x ^= _shifted(x, 15)
    x *= _SECOND
    return _shifted(x, 16)


def _shifted(x: Tensor, by: int) -> Tensor:
    """A logical shift to the right: that of int32 copies the sign."""
    return torch.bitwise_right_shift(x, by).bitwise_and_((1 << (32 - by)) - 1)


# Columns of a piece of work


def widened(columns: Sequence[Tensors], how: Low) -> list[Tensors]:
    """The parameters, gradients and states in float32: copies of those in bfloat16."""
    p, g, *states, remainders = columns
    if len(p) > 1 and all(x.is_contiguous() for x in p) and not torch.compiler.is_compiling():
        joined = _like(p, join(_flat(p), _flat(remainders)))  # few operations for many small tensors
    else:  # in the layout that each has
        joined = list(map(join, p, remainders))
    return [joined, *([x if x.dtype == torch.float32 else x.float() for x in column] for column in (g, *states))]


def write_back(wide: Sequence[Tensors], columns: Sequence[Tensors], how: Low) -> None:
    """Write what was updated in float32 into the bfloat16 tensors that it came from."""
    for x, part, remainder in zip(wide[0], columns[0], columns[-1]):
        split_(x, part, remainder)


def _flat(xs: Tensors) -> Tensor:
    return torch.cat([x.reshape(-1) for x in xs])


def _like(xs: Tensors, flat: Tensor) -> list[Tensor]:
    """Views of a flat tensor in the shapes of others."""
    return [part.view(x.shape) for part, x in zip(flat.split([x.numel() for x in xs]), xs)]
