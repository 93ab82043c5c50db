"""Comparisons of tensors: can one take the place of another one, or at least its values?

* Of the same kind (`tensor_kind`, or `make_guards` for many at once): a state still fits its parameter.
* Of different kinds with the same `cast_invariants`: the values of one can be copied into the other.
* With different `cast_invariants`: an error, which shows both by `describe_tensor`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Dynamo's comparison of many tensors. In Python, the comparison takes three times as long, and a step of small tensors
# a quarter longer. The class is private. Without it, every step uses the slower comparison.
TensorGuards: Any = getattr(torch._C._dynamo.guards, "TensorGuards", None)


def tensor_kind(x: object) -> Any:
    """The properties that a step relies on, to be compared with `==`; None for an object that is no tensor."""
    return (type(x), x.shape, x.dtype, x.device) if isinstance(x, Tensor) else None


def make_guards(tensors: list[Any]) -> Any:
    """An object whose `check(*tensors)` compares the kinds and strides of tensors with these.

    None if one of these is not a tensor, or if torch does not have the class.
    """
    if TensorGuards is None or not all(isinstance(x, Tensor) for x in tensors):
        return None
    sizes, strides = [list(x.shape) for x in tensors], [list(x.stride()) for x in tensors]
    return TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)


def cast_invariants(x: object) -> Any:
    """The properties that a cast and a move do not change, to be compared with `==`."""
    return (x.shape, x.is_complex(), *_mesh_and_placements(x)) if isinstance(x, Tensor) else None


def describe_tensor(x: object) -> str:
    """The properties of a tensor that must fit its parameter, for a message."""
    if not isinstance(x, Tensor):
        return repr(x)
    layout = "" if x.layout is torch.strided else f" in the layout {x.layout}"
    placed = f" distributed as {_mesh_and_placements(x)}" if _mesh_and_placements(x) else ""
    return f"{x.dtype} of shape {tuple(x.shape)} on {x.device}{layout}{placed}"


def _mesh_and_placements(x: Any) -> tuple[Any, ...]:
    """How a tensor is distributed, also a value from a user while no parameter is distributed. Empty if it is not."""
    return (x.device_mesh, x.placements) if hasattr(x, "placements") else ()
