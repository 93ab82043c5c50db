"""The few operations that a curve needs. A Python number gives a number, and a tensor gives a tensor.

Tensors are computed in float64, whatever torch's default dtype is, and their gradients are not NaN at the ends. Where
both types are possible, a function tests for floats first, since `isinstance(x, Tensor)` costs more than the cosine of
a float.

`host_scalar`, `check_compiler` and `check_not_in_graph` are for the modules that write values: `timesched.binding` and
`optim`.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.torch_version import TorchVersion

Value = Any  # a float, or a float64 tensor of any shape
OLDEST_COMPILER = "2.9"  # the version of torch whose compiler makes one graph of a step
COMPILES = TorchVersion(torch.__version__) >= OLDEST_COMPILER  # here, since graphs of 2.9 cannot compare versions


def to_double(x: Value) -> Value:
    """`x` in double precision: a float, or a float64 tensor."""
    if type(x) is float:
        return x
    return x.to(torch.float64) if isinstance(x, Tensor) else float(x)


def half_cosine(x: Value) -> Value:
    """The falling half of a cosine wave, from 1 at 0 to 0 at 1."""
    return 0.5 + 0.5 * (math.cos(x * math.pi) if type(x) is float else torch.cos(x * math.pi))


def clip(x: Value) -> Value:
    """`x` limited to [0, 1]."""
    if type(x) is float:
        return (x if x < 1.0 else 1.0) if x > 0.0 else 0.0
    return torch.clamp(x, 0.0, 1.0)


def clamp(x: Value, low: float, high: float) -> Value:
    """`x` limited to [low, high]."""
    if type(x) is float:
        return low if x < low else high if x > high else x
    if isinstance(x, Tensor):
        return torch.clamp(x, low, high)
    return min(max(x, low), high)


def clamp_min(x: Value, low: float) -> Value:
    """The larger one of `x` and `low`."""
    if type(x) is float:
        return x if x > low else low
    return torch.clamp(x, min=low) if isinstance(x, Tensor) else max(x, low)


def where(test: Any, yes: Value, no: Value) -> Value:
    """`yes` where `test` holds, otherwise `no`."""
    if type(test) is bool:
        return yes if test else no
    if not isinstance(yes, Tensor):  # two Python numbers would make torch choose its default dtype
        yes = torch.full((), yes, dtype=torch.float64, device=test.device)
    return torch.where(test, yes, no)


def floor(x: Value) -> Value:
    """The largest whole number that is not above `x`, as a float or a float64 tensor."""
    return torch.floor(x) if isinstance(x, Tensor) else float(math.floor(x))


def root(x: Value, power: float) -> Value:
    """`x ** power` for `x >= 0` and `power >= 0`; infinity where a float cannot hold the result.

    The gradient at 0 is 0, even where the slope has no limit.
    """
    if type(x) is float:
        try:
            return x**power
        except OverflowError:
            return math.inf
    if power == 0.0 or power >= 1.0:
        return torch.pow(x, power)
    inside = x > 0.0
    return torch.where(inside, torch.pow(torch.where(inside, x, 1.0), power), 0.0)


def exponential(base: float, x: Value) -> Value:
    """`base ** x`; infinity where a float cannot hold the result."""
    if type(x) is float or not isinstance(x, Tensor):
        x = x if type(x) is int else float(x)
        try:
            return float(base**x)
        except OverflowError:
            return -math.inf if base < 0.0 and x % 2 else math.inf
    return torch.pow(base, x.to(torch.float64))


def expm1(x: Value) -> Value:
    """`e ** x - 1`, which is also exact near 0."""
    return math.expm1(x) if type(x) is float else torch.expm1(x)


def constant(values: Sequence[int] | Sequence[float], dtype: torch.dtype) -> Tensor:
    """A constant tensor on the CPU, in int64 or float64. It is never fake; a `torch.tensor` is in some modes."""
    return torch.frombuffer(array("q" if dtype is torch.int64 else "d", values), dtype=dtype)


def host_scalar(value: float, dtype: torch.dtype | None = None) -> Tensor:
    """A number as a 0-dim tensor on the CPU, whatever torch's default device is. Move it to where it is needed.

    On a lazy device (XLA), a number that is created there may be a constant, and each constant needs a new graph.
    """
    return torch.tensor(value, dtype=dtype, device="cpu")


def count_not_above(ends: Tensor, x: Tensor) -> Tensor:
    """The number of the sorted constants `ends` that are not above `x`: an int64 tensor of the shape of `x`."""
    ends = _match_device(ends, x)
    if x.device.type == "xla":  # a binary search leaves the graph there
        return (x.unsqueeze(-1) >= ends).sum(-1)
    return torch.bucketize(x.contiguous(), ends, right=True)  # it warns of any other memory layout


def pick(values: Tensor, i: Tensor) -> Tensor:
    """The constants at the indices `i`."""
    return torch.index_select(_match_device(values, i), 0, i.reshape(-1)).reshape(i.shape)


def _match_device(values: Tensor, x: Any) -> Tensor:
    """Constants on the device of `x`, and in its FakeTensorMode, which does not accept real tensors."""
    return (x.fake_mode.from_tensor(values) if hasattr(x, "fake_mode") else values).to(x.device)


def sqrt(x: Value) -> Value:
    """The square root."""
    return math.sqrt(x) if type(x) is float or not isinstance(x, Tensor) else torch.sqrt(x)


def check_compiler() -> None:
    """Raise `RuntimeError`, which names the version, if torch's compiler does not make one graph of a step."""
    if not COMPILES:
        message = (
            f"torch=={torch.__version__}: steps compile on torch {OLDEST_COMPILER} and newer. Update torch, or call "
            f"the step outside of the compiled function."
        )
        if torch.compiler.is_compiling():
            torch._dynamo.graph_break(message)  # the text of an error is not shown there
        raise RuntimeError(message)


def check_not_in_graph(message: str) -> None:
    """Raise `RuntimeError` with this message in a graph."""
    if torch.compiler.is_compiling():
        raise RuntimeError(message)
