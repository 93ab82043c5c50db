"""`merge_weights`: state dicts summed into one, by coefficients such as those of `timesched.merge_coefficients`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor


@torch.no_grad()
def merge_weights(state_dicts: Iterable[Mapping[str, Any]], coefficients: Iterable[float]) -> dict[str, Any]:
    """The sum of the weights of several checkpoints of a model, each times its coefficient.

    Floating-point and complex tensors are summed in float32 (float64 and complex128 ones in their own dtype), and have
    the dtypes of the last state dict in the end. All else, such as counts, is that of the last. One state dict is held
    beside the sum, so pass a generator that loads one after the other.

    Args:
        state_dicts: what `model.state_dict()` returned; read once, in order.
        coefficients: a number for each, such as `timesched.merge_coefficients` gives.

    Returns:
        a state dict with the keys of the last, in new tensors where it is a sum.

    Raises:
        TypeError: `state_dicts` is one state dict or a module, or contains something that is not a state dict.
        ValueError: there is another number of state dicts than of coefficients, or none; one has other keys than the
            first, a tensor of another shape, integers in place of floating-point numbers, or nothing to sum; a
            coefficient is not finite.

    >>> import torch
    >>> one, other = {"weight": torch.tensor([1.0])}, {"weight": torch.tensor([3.0])}
    >>> merge_weights([one, other], [0.25, 0.75])["weight"].item()
    2.5
    """
    if isinstance(state_dicts, (Mapping, torch.nn.Module)):
        raise TypeError(f"merge_weights: state_dicts is one {type(state_dicts).__name__}: pass several state dicts.")
    coefficients = list(coefficients)
    if not all(map(math.isfinite, coefficients)):
        raise ValueError(f"merge_weights.coefficients={coefficients!r}: a coefficient is not finite. Pass finite ones.")
    sums: dict[str, Tensor] = {}
    kinds_of_first: dict[str, str] = {}
    last: Mapping[str, Any] = {}
    count = 0
    for count, last in enumerate(state_dicts, 1):
        if count > len(coefficients):
            break
        if not isinstance(last, Mapping):
            raise TypeError(
                f"merge_weights: state dict {count} is a {type(last).__name__}: pass what model.state_dict() returned."
            )
        kinds = {key: _kind(value) for key, value in last.items()}
        if count == 1:
            kinds_of_first = kinds
        _refuse_other_model(kinds_of_first, kinds, count)
        for key, value in last.items():
            if _is_summed(value):  # torch promotes no float8
                dtype = torch.float32 if value.itemsize < 4 else torch.promote_types(value.dtype, torch.float32)
                wide = value.to(dtype) * coefficients[count - 1]
                sums[key] = sums[key] + wide if key in sums else wide
    if count != len(coefficients) or not count:
        raise ValueError(
            f"merge_weights: {count} state dicts{' or more' * (count > len(coefficients))} and {len(coefficients)} "
            "coefficients: pass one coefficient for each, and at least one."
        )
    if not sums:
        raise ValueError(
            f"merge_weights: no weights are among {', '.join(map(repr, last))[:80]}: pass what model.state_dict() gave."
        )
    return {key: sums[key].to(value.dtype) if key in sums else value for key, value in last.items()}


def _is_summed(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def _kind(value: Any) -> str:
    """The kind of a value that all state dicts must have under one key."""
    if not isinstance(value, Tensor):
        return "no tensor"
    return f"{tuple(value.shape)}" if _is_summed(value) else f"{tuple(value.shape)} of integers"


def _refuse_other_model(first: Mapping[str, str], other: Mapping[str, str], number: int) -> None:
    """Raise `ValueError` where the kinds of a state dict, by keys, are not those of the first one."""
    for key in sorted({*first, *other}):
        here, there = (kinds.get(key, "missing") for kinds in (first, other))
        if here != there:
            raise ValueError(
                f"merge_weights: state dict {number} is of another model than the first: {key!r} is {there} there, and "
                f"{here} in the first."
            )
