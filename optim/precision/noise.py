"""The noise of stochastic rounding.

The noise is added to the bits of a float32 value. Then the low half is cut off, which leaves a bfloat16. The value
becomes each of its two neighbours with a probability that equals the distance to the other neighbour, exactly.

The noise is a hash of integers and needs no generator, so it is the same on all ranks, for every sharding of the
parameter, and after a resume. The hashed integers are, in this order: the user's `rounding_seed` and the number of the
column (the parameters, or one of the states); the step count; the number of the parameter; the index of the element.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..base.sharding import shard_shape_and_offsets


class Place(NamedTuple):
    """The position of a local tensor's elements among all parameters, so that noise does not depend on the sharding."""

    number: int  # of the parameter, in the order of the groups
    first: int  # the index of the first element in the full tensor
    dims: list[tuple[int, int]]  # local sizes, with the strides in the full tensor
    long: bool  # whether indices need more than 31 bits


def make_place(number: int, p: Tensor) -> Place:
    """The position of the elements in the local part of a parameter. `number` is the number of the parameter."""
    shape, offset = shard_shape_and_offsets(p)
    strides = torch.empty(p.shape, device="meta").stride()
    first = sum([start * stride for start, stride in zip(offset, strides)])
    return Place(number, first, list(zip(shape, strides)), p.numel() > 2**31)


# The multipliers of the hash, as signed numbers. The first is 2**32 over the golden ratio, which separates consecutive
# numbers. The others are the multipliers of lowbias32 (Chris Wellons, nullprogram.com/blog/2018/07/31).
_GOLDEN, _FIRST, _SECOND = 0x9E3779B1 - 2**32, 0x7FEB352D, 0x846CA68B - 2**32


def tensor_seeds(rounding_seed: int, column: int, step_counts: Tensor, numbers: Tensor) -> Tensor:
    """The seeds of the tensors of a column, from the step counts and numbers of their parameters, in int32."""
    seeds = _hash_all_bits(step_counts ^ _hash_int(rounding_seed + column * _GOLDEN))
    return _hash_all_bits(seeds ^ numbers)


def noise(x: Tensor) -> Tensor:
    """Numbers from 0 to 65535, the hashes of int32 numbers, which are overwritten."""
    return _logical_shift_right(_hash_(x), 16)


def _hash_(x: Tensor) -> Tensor:
    """Overwrite int32 numbers by a hash whose high half is well mixed."""
    x = x.mul_(_GOLDEN)
    x ^= _logical_shift_right(x, 16)
    x *= _FIRST
    x ^= _logical_shift_right(x, 15)
    x *= _SECOND
    return x


def _hash_all_bits(x: Tensor) -> Tensor:
    """The hash with all bits well mixed, as a new tensor. `x` is overwritten."""
    x = _hash_(x)
    return x ^ _logical_shift_right(x, 16)


def _hash_int(x: int) -> int:
    """The hash of a Python number in int32, so that noise of one seed does not reappear in other steps of another."""
    for multiplier in (_GOLDEN, _FIRST, _SECOND):
        x = (x % 2**32 ^ x % 2**32 >> 16) * multiplier
    return (x + 2**31) % 2**32 - 2**31


def _logical_shift_right(x: Tensor, bits: int) -> Tensor:
    """The right shift that fills with zeros. torch's shift of int32 copies the sign."""
    return torch.bitwise_right_shift(x, bits).bitwise_and_((1 << (32 - bits)) - 1)


def element_indices(place: Place, start: int, count: int, device: torch.device) -> Tensor:
    """The indices in the full tensor, in int32, of `count` elements of the local tensor, starting at `start`.

    If an index needs more than 31 bits, its high bits are mixed into the low bits.
    """
    dtype = torch.int64 if place.long else torch.int32
    dims = _join_dims(place.dims)
    if not dims or dims == [(dims[0][0], 1)]:  # the local elements follow each other in the full tensor
        start += place.first
        result = torch.arange(start, start + count, dtype=dtype, device=device)
    else:
        # The indices within the dimensions that are left.
        remaining = torch.arange(start, start + count, dtype=dtype, device=device)
        result = torch.full_like(remaining, place.first)
        for size, stride in dims[:-1]:
            result += remaining % size * stride
            remaining = remaining // size
        result += remaining * dims[-1][1]
    return (result + (result >> 31) * _GOLDEN).to(torch.int32) if place.long else result


def _join_dims(dims: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The dimensions, innermost first. Dimensions of size 1 are left out, and adjacent contiguous ones are joined."""
    joined: list[tuple[int, int]] = []
    for size, stride in reversed(dims):
        if joined and joined[-1][0] * joined[-1][1] == stride:
            joined[-1] = joined[-1][0] * size, joined[-1][1]
        elif size != 1:
            joined.append((size, stride))
    return joined
