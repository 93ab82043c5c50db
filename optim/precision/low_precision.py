"""Steps in float32 of bfloat16 tensors: with the 16 bits that rounding cuts off kept beside them, or rounded at random.

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

import functools
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor

from ..base.hyperparameters import SWITCH, Number
from ..base.sharding import offsets
from ..base.tensor_lists import Tensors

REMAINDER = "remainder"  # the state with the low half of a float32 value

# The states that move by so little in a step that bfloat16, rounded to the nearest, stands still.
SLOW = ("exp_avg_sq", "max_exp_avg_sq", "exp_inf", "sum", "square_avg", "grad_avg", "acc_delta", "ax")

DEFAULTS = {"master_weights": False, "stochastic_rounding": False, "rounding_seed": 0, "state_dtype": None}

_warned: list[str] = []  # in this process


class Precision(TypedDict, total=False):
    """The keyword arguments of every optimizer that say how bfloat16 parameters are stepped; also keys of a group.

    Parameters of other dtypes are stepped as ever beside them, except that float16 ones are refused.

    Args:
        master_weights: keep the low half of each float32 value in the state `remainder`, and step in float32. Default
            False.
        stochastic_rounding: step in float32, and round at random. Default False. With `master_weights`, only states in
            bfloat16 are rounded so.
        rounding_seed: a whole number of 32 bits with sign; another one gives other noise. Default 0.
        state_dtype: `torch.float32` or `torch.bfloat16` (or their names) for the states that have the parameter's
            shape, or a dict from names of states to these. Default None: float32 with `master_weights` or
            `stochastic_rounding`, else the parameter's dtype. Sums and averages of squares in bfloat16 need
            `stochastic_rounding`.

    >>> import torch
    >>> import optim
    >>> weight = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    >>> optimizer = optim.SGD([weight], lr=0.001, master_weights=True)
    >>> for _ in range(3):
    ...     weight.grad = torch.ones_like(weight)
    ...     optimizer.step()
    >>> weight.item(), round(optimizer.float32_parameters()[weight].item(), 4)
    (0.99609375, 0.997)
    """

    master_weights: bool
    stochastic_rounding: bool
    rounding_seed: int
    state_dtype: Any


class StateDtype:
    """The rule for `state_dtype`."""

    def check(self, name: str, value: Any) -> None:
        for each in value.values() if isinstance(value, Mapping) else [value]:
            if each is not None and as_dtype(each) not in (torch.float32, torch.bfloat16):
                raise ValueError(
                    f"{name}={value!r}: states are torch.float32 or torch.bfloat16; pass one of these, a dict from the "
                    "names of states to them, or None."
                )


RULES: Mapping[str, Any] = {
    "master_weights": SWITCH,
    "stochastic_rounding": SWITCH,
    "rounding_seed": Number(low=-(2**31), high=2**31 - 1, integer=True),
    "state_dtype": StateDtype(),
}


def as_dtype(value: Any) -> Any:
    """A dtype that is given by its name."""
    return getattr(torch, value, value) if isinstance(value, str) else value


def as_name(value: Any) -> Any:
    """A value of a group as a checkpoint takes it, where dtypes go by their names."""
    if isinstance(value, Mapping):
        return {key: as_name(x) for key, x in value.items()}
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else value


def asked_dtype(group: Mapping[str, Any], name: str) -> Any:
    """The dtype that a group asks for in a state; None where it asks for nothing."""
    asked = group.get("state_dtype")
    return as_dtype(asked.get(name) if isinstance(asked, Mapping) else asked)


def has_remedy(group: Mapping[str, Any]) -> bool:
    """Whether a group's bfloat16 parameters are kept from losing updates."""
    return bool(group.get("master_weights") or group.get("stochastic_rounding"))


def check(group: Mapping[str, Any], p: Tensor, states: Sequence[str], others: set[Any], where: str) -> None:
    """Raise `ValueError` where a parameter, with states of these names, cannot be stepped as its group asks.

    `others`: names of states that parameters with another algorithm have.

    Warns of bfloat16 parameters that lose updates, once in a process.
    """
    named = group.get("state_dtype")
    if p.dtype is torch.bfloat16 and not has_remedy(group) and not _warned and not p.is_meta:
        _warned.append(where)
        warnings.warn(
            f"{where}parameters in bfloat16 lose every update that is smaller than half the distance to the next "
            "bfloat16, 1/512 to 1/256 of the value: pass master_weights=True (2 bytes more for each), or "
            "stochastic_rounding=True.",
            stacklevel=2,
        )
    alike = p.dtype in (torch.float32, torch.bfloat16)
    if (named and not alike) or (p.dtype is torch.float16 and has_remedy(group)):
        raise ValueError(
            f"{where}a parameter has dtype {p.dtype}: master_weights, stochastic_rounding and state_dtype are for "
            "bfloat16 and float32, whose exponents are alike; convert the model, or leave them out for its group."
        )
    unknown = [name for name in (named if isinstance(named, Mapping) else ()) if name not in {*states, *others}]
    if unknown:
        raise ValueError(
            f"{where}state_dtype={named!r}: {unknown[0]!r} is no state of the shape of its parameter; these are "
            f"{', '.join(states) or 'none'}."
        )
    slow = [name for name in states if name in SLOW and asked_dtype(group, name) is torch.bfloat16]
    if slow and (not group.get("stochastic_rounding") or "grad_avg" in states):
        raise ValueError(
            f"{where}state_dtype={named!r}: in bfloat16, rounded to the nearest, {slow[0]!r} would stop moving, as "
            "what a step adds is too small for it: leave it in float32, or pass stochastic_rounding=True (but not with "
            "centered=True, where it would make the root that of a negative number)."
        )


class Place(NamedTuple):
    """Where the elements of a local tensor lie in all parameters, so that noise does not depend on the sharding."""

    number: int  # of the parameter, in the order of the groups
    first: int  # the index of the first element in the full tensor
    dims: list[tuple[int, int]]  # local sizes, and strides in the full tensor
    long: bool  # indices need more than 31 bits


class Low(NamedTuple):
    """How a piece of work is stepped in float32."""

    remainder: bool  # the last column holds remainders
    places: list[Place]  # for rounding at random; empty without it
    seed: int


def low(group: Mapping[str, Any], params: Tensors, numbers: Mapping[Tensor, int] | None = None) -> Low | None:
    """How parameters of one dtype are stepped in float32; None where they are stepped as they are.

    `numbers` counts all parameters, for rounding at random.
    """
    short = params[0].dtype is torch.bfloat16
    if not (short and has_remedy(group)) and not group.get("state_dtype"):
        return None
    remainder = short and bool(group.get("master_weights"))
    rounds = group.get("stochastic_rounding") and (group.get("state_dtype") or not remainder)
    places = [_place(numbers[p], p) for p in params] if rounds and numbers else []
    return Low(remainder, places, group.get("rounding_seed", 0))


def _place(number: int, p: Tensor) -> Place:
    shape, offset = offsets(p)
    strides = torch.empty(p.shape, device="meta").stride()
    first = sum([at * stride for at, stride in zip(offset, strides)])
    return Place(number, first, list(zip(shape, strides)), p.numel() > 2**31)


# Bits

NAN = math.nan  # its bits are 7fc00000: the low half is zero, so that it stays NaN in the high one
# 2**32 over the golden ratio, which spreads indices that follow each other; then the multipliers of lowbias32 (Chris
# Wellons, nullprogram.com/blog/2018/07/31). All as signed numbers.
_SPREAD, _FIRST, _SECOND = 0x9E3779B1 - 2**32, 0x7FEB352D, 0x846CA68B - 2**32


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


def narrow(columns: Sequence[Tensors]) -> list[int]:
    """Which columns are in bfloat16."""
    return [j for j, xs in enumerate(columns) if xs and all([x.dtype is torch.bfloat16 for x in xs])]


def seeds(how: Low, steps: Tensors, columns: Sequence[Tensors]) -> dict[int, list[Any]]:
    """For each column that is rounded at random the seeds of its tensors, as numbers where the host has the counts."""
    if not how.places:
        return {}
    count = torch.cat([step.reshape(1) for step in steps]).to(torch.int32)
    every = torch.arange(max(place.number for place in how.places) + 1, dtype=torch.int32, device=count.device)
    number = torch.cat([every[place.number : place.number + 1] for place in how.places])  # nothing comes from the host
    found = {}
    for column in narrow(columns):
        if column == 1 or (column == 0 and how.remainder):  # gradients, and what is split
            continue
        x = count ^ _mixed_number(how.seed + column * _SPREAD)
        x = _mixed(_mixed(x) ^ number)
        on_host = x.is_cpu and not torch.compiler.is_compiling()
        found[column] = x.tolist() if on_host else list(x.unbind())
    return found


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


# Pieces


class Buffers:
    """Memory that the pieces of a step use one after the other; without it, each gets its own."""

    def __init__(self, reuse: bool) -> None:
        self._kept: dict[Any, Tensor] | None = {} if reuse else None

    def get(self, shape: Sequence[int], use: Any, dtype: torch.dtype = torch.int32) -> Tensor | None:
        """Memory in a shape, for one use."""
        count = math.prod(shape)
        if self._kept is None:
            return None
        if use not in self._kept or self._kept[use].numel() < count:
            self._kept[use] = torch.empty(count, dtype=dtype, device="cpu")
        return self._kept[use][:count].view(shape)

    def cast(self, x: Tensor, use: Any, dtype: torch.dtype) -> Tensor:
        """A copy in another dtype."""
        memory = self.get(x.shape, use, dtype)
        return x.to(dtype) if memory is None else memory.copy_(x)


def in_float32(
    columns: Sequence[Tensors], how: Low, places: list[Place], start: int, seeds: dict[int, list[Any]], buffers: Buffers
) -> Iterator[Sequence[Tensors]]:
    """Gives the parameters, gradients and states in float32, and writes back what was updated.

    The tensors are the parts from `start` on of those in `places`.
    """
    remainders: Tensors = []
    if how.remainder:
        *columns, remainders = columns
    p, short = columns[0], narrow(columns)
    joined = len(p) > 1 and len(short) > 0 and not torch.compiler.is_compiling()
    joined = joined and all([x.is_contiguous() for xs in columns for x in xs])
    if joined:  # few operations for many small tensors
        flat = torch.cat([x.view(-1) for xs in (*(columns[j] for j in short), remainders) for x in xs])
        n = sum(x.numel() for x in p)
        values = {j: [x] for j, x in zip(short, flat[: n * len(short)].float().view(len(short), n).unbind())}
        if remainders:
            values[0] = [joined_(values[0][0], bits(flat[-n:], torch.int16))]
    else:
        values = {j: [buffers.cast(x, j, torch.float32) for x in columns[j]] for j in short}
        lows = [buffers.cast(_low(x), "int32", torch.int32) for x in remainders]
        if remainders:
            values[0] = list(map(joined_, values[0], lows))
    wide = [list(column) for column in columns]
    for j in short:
        wide[j] = _like(p, values[j][0]) if joined else values[j]
    if 1 not in short:
        wide[1] = [g.float() for g in columns[1]]
    yield wide
    for j in short:
        for i, x in enumerate(values[j]):
            chosen = slice(None) if joined else slice(i, i + 1)
            to = columns[j][chosen]
            if j == 0 and how.remainder:
                split_(x, to, remainders[chosen])
            elif j != 1 and places:
                memory = None if joined else buffers.get((x.numel(),), "int32")
                parts = [
                    indices(place, start, y.numel(), y.device, memory).bitwise_xor_(seed)
                    for y, place, seed in zip(to, places[chosen], seeds[j][chosen])
                ]
                index = torch.cat(parts) if joined else parts[0]
                round_(x, to, noise(index, buffers.get((x.numel(),), "int32 too")))
            elif j != 1:
                _put(x, to, torch.bfloat16)


def _like(xs: Tensors, flat: Tensor) -> list[Tensor]:
    """Views of a flat tensor in the shapes of others."""
    return [part.view(x.shape) for part, x in zip(torch.split(flat, [x.numel() for x in xs]), xs)]
