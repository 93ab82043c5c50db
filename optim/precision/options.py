"""The precision options: the arguments of every optimizer that say how bfloat16 parameters are stepped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor

from timesched.findings import warn_once
from timesched.rules import Rule
from timesched.types import ParamGroup

from ..base.hyperparameters import SWITCH, Number

REMAINDER = "remainder"  # the state that holds the low halves of the float32 values: see bits.py

# Sums, maxima and averages of squares. A step changes them so little that they would stay constant in bfloat16, rounded
# to nearest.
SLOW_STATES = ("exp_avg_sq", "max_exp_avg_sq", "exp_inf", "sum", "square_avg", "grad_avg", "acc_delta", "ax")

DEFAULTS = {"master_weights": False, "stochastic_rounding": False, "rounding_seed": 0, "state_dtype": None}


class Precision(TypedDict, total=False):
    """The keyword arguments of every optimizer that say how bfloat16 parameters are stepped; also keys of a group.

    Parameters of other dtypes may be in the same groups. Their steps do not change, but float16 parameters are an
    error.

    Args:
        master_weights: keep the low half of each float32 value in the state `remainder`, and step in float32. Default
            False.
        stochastic_rounding: step in float32, and round to one of the two nearest bfloat16 numbers at random, so that
            the mean of the result is the value. Default False. With `master_weights`, stochastic rounding applies only
            to states in bfloat16.
        rounding_seed: a signed integer of 32 bits. A different seed gives different noise. Default 0.
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
    state_dtype: torch.dtype | str | Mapping[str, torch.dtype | str | None] | None


class OptimizerOptions(Precision, total=False):
    """The keyword arguments that the constructors of all optimizers share."""

    enable_global_step: bool


class StateDtype(Rule):
    """The rule for `state_dtype`."""

    def read(self, name: str, value: Any) -> Any:
        for dtype in value.values() if isinstance(value, Mapping) else [value]:
            if dtype is not None and resolve_dtype(dtype) not in (torch.float32, torch.bfloat16):
                raise ValueError(
                    f"{name}={value!r}: a state must be torch.float32 or torch.bfloat16. Pass one of these, a dict "
                    "from names of states to them, or None."
                )
        return value


RULES: Mapping[str, Rule] = {
    "master_weights": SWITCH,
    "stochastic_rounding": SWITCH,
    "rounding_seed": Number(least=-(2**31), most=2**31 - 1, integer=True),
    "state_dtype": StateDtype(),
}


def resolve_dtype(value: object) -> Any:
    """The dtype of this name. Any other value is returned unchanged."""
    return getattr(torch, value, value) if isinstance(value, str) else value


def name_dtypes(value: object) -> Any:
    """A value of a group with names in place of dtypes, as in a checkpoint."""
    if isinstance(value, Mapping):
        return {key: name_dtypes(x) for key, x in value.items()}
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else value


def requested_dtype(group: ParamGroup, name: str) -> Any:
    """The dtype that a group requests for a state; None if it requests no dtype."""
    asked = group.get("state_dtype")
    return resolve_dtype(asked.get(name) if isinstance(asked, Mapping) else asked)


def has_precision_option(group: ParamGroup) -> bool:
    """Whether an option prevents the group's bfloat16 parameters from losing updates."""
    return bool(group.get("master_weights") or group.get("stochastic_rounding"))


def is_widened(group: ParamGroup, p: Tensor) -> bool:
    """Whether a parameter is stepped in float32 although it or its states are bfloat16."""
    return bool(group.get("state_dtype")) or (p.dtype is torch.bfloat16 and has_precision_option(group))


def has_remainder(group: ParamGroup, p: Tensor) -> bool:
    """Whether a parameter has master weights, whose low half is a state."""
    return p.dtype is torch.bfloat16 and bool(group.get("master_weights"))


def active_states(tensor_states: Sequence[str | None], group: ParamGroup, p: Tensor) -> list[str]:
    """The names of the states of elements that are not switched off, and of the remainder if there is one."""
    names = [name for name in tensor_states if name is not None]
    return [*names, REMAINDER] if has_remainder(group, p) else names


def find_lost_updates(group: ParamGroup, p: Tensor) -> str | None:
    """A parameter in bfloat16 that loses updates."""
    if p.dtype is not torch.bfloat16 or has_precision_option(group):
        return None
    return (
        "parameters in bfloat16 lose every update below half the distance to the next bfloat16, which is 1/512 to "
        "1/256 of the value. Pass master_weights=True (2 more bytes for each) or stochastic_rounding=True."
    )


def find_rounded_steps(group: ParamGroup, i: int, learning_rate: float) -> str | None:
    """Steps of the highest learning rate of group `i` that are rounded away from bfloat16 weights of 1 and below."""
    size = 2.0 ** (math.frexp(learning_rate)[1] + 8)  # above this size, half the distance to the next number is more
    if size > 1 or not any(find_lost_updates(group, p) for p in group["params"]):
        return None
    return (
        f"a step of the highest learning rate, {learning_rate:.4g}, is rounded away from bfloat16 weights of "
        f"{size:.4g} and more, as in group {i}. Pass master_weights: true, or stochastic_rounding: true."
    )


def warn_of_lost_updates(group: ParamGroup, class_name: str) -> None:
    """Warn once in a process of bfloat16 parameters that lose updates."""
    for p in group["params"]:
        lost_updates = find_lost_updates(group, p)
        if lost_updates is not None and not p.is_meta:
            warn_once(Precision, "bfloat16", f"{class_name}: {lost_updates}", 2)


def check_precision(
    group: ParamGroup, p: Tensor, states: Sequence[str], other_states: set[object], class_name: str
) -> None:
    """Raise `ValueError` if a parameter with states of these names cannot be stepped by its group's options.

    `other_states`: the names of states that only parameters of another algorithm have.
    """
    state_dtype = group.get("state_dtype")
    same_exponents = p.dtype in (torch.float32, torch.bfloat16)
    if (state_dtype and not same_exponents) or (p.dtype is torch.float16 and has_precision_option(group)):
        raise ValueError(
            f"{class_name}: a parameter has dtype {p.dtype}, but master_weights, stochastic_rounding and state_dtype "
            "are for bfloat16 and float32. Convert the model, or leave these options out for its group."
        )
    known = {*states, *other_states}
    unknown = [name for name in state_dtype if name not in known] if isinstance(state_dtype, Mapping) else []
    if unknown:
        raise ValueError(
            f"{class_name}.state_dtype={state_dtype!r}: {unknown[0]!r} is not a state with the shape of its parameter. "
            f"Use the names {', '.join(states) or 'of no state'}."
        )
    slow_states = [name for name in states if name in SLOW_STATES] if state_dtype else []
    slow = [name for name in slow_states if requested_dtype(group, name) is torch.bfloat16]
    if slow and "grad_avg" in states:
        raise ValueError(
            f"{class_name}.state_dtype={state_dtype!r}: with centered=True, {slow[0]!r} in bfloat16 could make the "
            "number under a root negative. Leave it in float32."
        )
    if slow and not group.get("stochastic_rounding"):
        raise ValueError(
            f"{class_name}.state_dtype={state_dtype!r}: in bfloat16, {slow[0]!r} would stop changing, since a step "
            "adds too little to it. Leave it in float32, or pass stochastic_rounding=True."
        )
