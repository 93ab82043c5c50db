"""The noise of stochastic rounding.

It is added to the bits before the low half is cut off: the value becomes each of its two neighbours with a probability
that is the distance to the other, exactly. The noise is a hash of integers, and no generator's: the same on all ranks,
however the parameter is sharded, and after a resume.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..base.sharding import offsets


class Place(NamedTuple):
    """Where the elements of a local tensor lie in all parameters, so that noise does not depend on the sharding."""

    number: int  # of the parameter, in the order of the groups
    first: int  # the index of the first element in the full tensor
    dims: list[tuple[int, int]]  # local sizes, and strides in the full tensor
    long: bool  # indices need more than 31 bits


def _place(number: int, p: Tensor) -> Place:
    shape, offset = offsets(p)
    strides = torch.empty(p.shape, device="meta").stride()
    first = sum([at * stride for at, stride in zip(offset, strides)])
    return Place(number, first, list(zip(shape, strides)), p.numel() > 2**31)


# 2**32 over the golden ratio, which spreads indices that follow each other; then the multipliers of lowbias32 (Chris
# Wellons, nullprogram.com/blog/2018/07/31). All as signed numbers.
_SPREAD, _FIRST, _SECOND = 0x9E3779B1 - 2**32, 0x7FEB352D, 0x846CA68B - 2**32


def noise(index: Tensor, memory: Tensor | None = None) -> Tensor:
    """Numbers of 0 to 65535 for int32 numbers, which are overwritten. `memory`: as much, for what is between."""
    return _shifted(_hashed(index, memory), 16, memory)


def _hashed(x: Tensor, memory: Tensor | None = None) -> Tensor:
    """Overwritten by a hash, of which the high half is good."""
    x = x.mul_(_SPREAD)
    x ^= _shifted(x, 16, memory)
    x *= _FIRST
    x ^= _shifted(x, 15, memory)
    x *= _SECOND
    return x


def _mixed_number(x: int) -> int:
    """A hash of a number, so that noise of another seed is not that of other steps."""
    for multiplier in (_SPREAD, _FIRST, _SECOND):
        x = (x % 2**32 ^ x % 2**32 >> 16) * multiplier
    return (x + 2**31) % 2**32 - 2**31


def _mixed(x: Tensor) -> Tensor:
    """Overwritten by a hash that is good in all bits."""
    x = _hashed(x)
    return x ^ _shifted(x, 16)


def _shifted(x: Tensor, by: int, memory: Tensor | None = None) -> Tensor:
    """A logical shift to the right: that of int32 copies the sign."""
    return torch.bitwise_right_shift(x, by, out=memory).bitwise_and_((1 << (32 - by)) - 1)


def indices(place: Place, start: int, count: int, device: torch.device, memory: Tensor | None = None) -> Tensor:
    """The indices in the full tensor, in int32, of `count` elements of the local one from `start` on."""
    dtype = torch.int64 if place.long else torch.int32
    dims: list[tuple[int, int]] = []  # innermost first; one that goes on where the one inside it ends is joined to it
    for size, stride in reversed(place.dims):
        if dims and dims[-1][0] * dims[-1][1] == stride:
            dims[-1] = dims[-1][0] * size, dims[-1][1]
        elif size != 1:
            dims.append((size, stride))
    if not dims or dims == [(dims[0][0], 1)]:
        start += place.first
        result = torch.arange(start, start + count, dtype=dtype, device=device, out=None if place.long else memory)
    else:
        left = torch.arange(start, start + count, dtype=dtype, device=device)
        result = torch.full_like(left, place.first)
        for size, stride in dims[:-1]:
            result += left % size * stride
            left = left // size
        result += left * dims[-1][1]
    return (result + (result >> 31) * _SPREAD).to(torch.int32) if place.long else result
