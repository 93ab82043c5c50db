"""Merges checkpoints of a run at a constant learning rate, instead of decaying: coefficients and weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from timesched.maths import Span, shapes
from timesched.rules import read_times
from timesched.time.units import TimeError
from timesched.time.value import Time, TimeLike

from .average.weight_average import averaging_dtype

_TOLERANCE = 1e-12  # for f(0) = 1: the rounding error of a formula, and no more


def merge_coefficients(
    decay: str | Callable[[float], float], times: TimeLike | Iterable[TimeLike], start: TimeLike
) -> list[float]:
    """The coefficients of checkpoints whose sum replaces the end of a run that decays from `start`.

    The coefficient of a checkpoint is the decay at the previous checkpoint minus the decay at its own time. For the
    last checkpoint it is the full decay at the previous checkpoint. The decay is a function of the share of the way
    from `start` to the last checkpoint. At `start`, which precedes the first checkpoint, it is 1. All checkpoints after
    a step contain the update of this step, so its weight in the sum is the decay at the checkpoint before it. With SGD,
    gradients that do not depend on the weights, and a checkpoint after every batch, the sum equals the decayed run.
    `merge_weights` computes the sum.

    Args:
        decay: the name of a decay of `WarmupStableDecayScheduler`, from 1 to 0: "linear", "cosine", "1-sqrt",
            "1-square" or "exponential"; "geometric" and "harmonic" never reach 0. Or a function of the share of the
            decay that is done, which is 1 at 0.
        times: the times of the checkpoints, increasing, after `start`, and in its unit. One time is one checkpoint.
        start: where the decay would begin. It needs no checkpoint.

    Returns:
        a coefficient for each checkpoint, in order; their sum is 1.

    Raises:
        ValueError: there are no times, or they do not increase from `start` in one unit. Or no decay has this name. Or
            the function is not 1 at 0, or not finite.

    >>> [round(c, 12) for c in merge_coefficients("linear", ["40ba", "60ba", "80ba"], "20ba")]
    [0.333333333333, 0.333333333333, 0.333333333333]
    >>> [round(c, 2) for c in merge_coefficients("1-sqrt", ["40ba", "60ba", "100ba"], "20ba")]
    [0.5, 0.21, 0.29]

    Source: arXiv:2507.17634 (WSM).
    """
    f = _make_decay(decay)
    begin, moments = Time.from_input(start), read_times("merge_coefficients: times", times)
    if not moments:
        raise TimeError("merge_coefficients.times is empty. Pass the time of each checkpoint.")
    for before, after in pairwise([begin, *moments]):
        if after.unit is not begin.unit or after.exact <= before.exact:
            raise TimeError(
                f"merge_coefficients.times: {after} follows {before}. Pass increasing times after "
                f"start={str(begin)!r}, in its unit."
            )
    whole = Fraction(moments[-1].exact - begin.exact)
    values = [f(Fraction(0)), *(f((moment.exact - begin.exact) / whole) for moment in moments[:-1]), 0.0]
    if abs(values[0] - 1.0) > _TOLERANCE or not all(map(math.isfinite, values)):
        raise TimeError(f"merge_coefficients.decay: it is {values[:-1]}. Pass one that starts at 1 and is finite.")
    return [before - after for before, after in pairwise(values)]


def _make_decay(decay: str | Callable[[float], float]) -> Callable[[Fraction], float]:
    """Make a decay into a function of the exact share that is done."""
    if callable(decay):
        return lambda share: float(decay(float(share)))
    names = [name for name in shapes.DECAYS if name not in ("geometric", "harmonic")]  # these two never reach 0
    if decay not in names:
        raise TimeError(f"merge_coefficients.decay={decay!r}: no such decay. Pass {', '.join(names)}, or a function.")
    curve = shapes.decay_shape(decay)(Span(0, 0, 1), 1.0, 0.0)
    return lambda share: float(curve((share,)))


@torch.no_grad()
def merge_weights(state_dicts: Iterable[Mapping[str, object]], coefficients: Iterable[float]) -> dict[str, Any]:
    """The sum of the weights of several checkpoints of a model, each multiplied by its coefficient.

    Floating-point and complex tensors are summed in float32 (float64 and complex128 in their own dtype). The result has
    the dtypes of the last state dict. All other values, such as counts, are taken from the last state dict. Memory
    holds the sum and one state dict, so pass a generator that loads one checkpoint after the other.

    Args:
        state_dicts: the results of `model.state_dict()`, read once and in order.
        coefficients: a number for each state dict, such as `merge_coefficients` returns.

    Returns:
        a state dict with the keys of the last. The sums are new tensors.

    Raises:
        TypeError: `state_dicts` is one state dict or a module, or contains something that is not a state dict.
        ValueError: the numbers of state dicts and coefficients differ, or are 0. Or a state dict has different keys
            than the first, a tensor of a different shape, integers instead of floating-point numbers, or no weights. Or
            a coefficient is not finite.

    >>> import torch
    >>> one, other = {"weight": torch.tensor([1.0])}, {"weight": torch.tensor([3.0])}
    >>> merge_weights([one, other], [0.25, 0.75])["weight"].item()
    2.5
    """
    if isinstance(state_dicts, (Mapping, torch.nn.Module)):
        raise TypeError(f"merge_weights.state_dicts is one {type(state_dicts).__name__}. Pass several state dicts.")
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
                f"merge_weights: state dict {count} is a {type(last).__name__}. Pass results of model.state_dict()."
            )
        kinds = {key: _describe_kind(value) for key, value in last.items()}
        if count == 1:
            kinds_of_first = kinds
        _check_same_model(kinds_of_first, kinds, count)
        for key, value in last.items():
            if _is_summed(value):
                wide = value.to(averaging_dtype(value)) * coefficients[count - 1]
                sums[key] = sums[key] + wide if key in sums else wide
    if count != len(coefficients) or not count:
        raise ValueError(
            f"merge_weights.coefficients={coefficients!r}: {count} state dicts were read. Pass a coefficient for each "
            "state dict, and at least one."
        )
    if not sums:
        raise ValueError(
            f"merge_weights: no weights are among {', '.join(map(repr, last))[:80]}. Pass results of state_dict()."
        )
    return {key: sums[key].to(value.dtype) if key in sums else value for key, value in last.items()}


def _is_summed(value: object) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def _describe_kind(value: object) -> str:
    """Describe the kind of a value, which must be the same in all state dicts."""
    if not isinstance(value, Tensor):
        return "no tensor"
    return f"{tuple(value.shape)}" if _is_summed(value) else f"{tuple(value.shape)} of integers"


def _check_same_model(first: Mapping[str, str], other: Mapping[str, str], number: int) -> None:
    """Raise `ValueError` if the kinds of values in a state dict differ from the first state dict."""
    for key in sorted({*first, *other}):
        here, there = (kinds.get(key, "missing") for kinds in (first, other))
        if here != there:
            raise ValueError(
                f"merge_weights: in state dict {number}, {key!r} is {there}, and in the first it is {here}. Pass state "
                "dicts of one model."
            )
