"""The rules of hyperparameters, checked wherever a parameter group comes from. Their values are kept as they are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from timesched import rules as base_rules
from timesched.binding.groups import check_own_tags
from timesched.binding.groups import read_tags as read_tag_list
from timesched.maths.ops import host_scalar
from timesched.rules import Rule
from timesched.types import ParamGroup, Tags


@dataclass(frozen=True)
class Number(base_rules.Number):
    """A finite number, or a 0-dim floating-point tensor that holds one."""

    integer: bool = False  # an int, and never a tensor: it decides shapes
    scheduled: bool = True  # hold_tensors() turns it into a tensor, if it is no integer
    zero_is_off: bool = False  # at 0 some state is absent, so hold_tensors() leaves a 0 alone

    def read(self, name: str, value: Any) -> Any:
        """The value itself. Raises `ValueError` if it breaks the rule, or `TypeError` if it is not a number."""
        if value is None and self.optional:
            return value
        number = value
        if isinstance(value, Tensor) and not self.integer:
            if value.numel() != 1 or value.dim() > 1 or not value.is_floating_point():
                raise ValueError(
                    f"{name}={value!r}: a tensor must hold a single floating-point number. Pass "
                    f"torch.tensor({self._example()!r}, dtype=torch.float64)."
                )
            if value.is_meta:
                return value
            number = value.item()
        if isinstance(number, bool) or not isinstance(number, Integral if self.integer else Real):
            raise TypeError(f"{name}={value!r}: {self._requirement()}")
        as_float = float(number)
        if not math.isfinite(as_float) or self.find_violation(as_float) is not None:
            raise ValueError(f"{name}={value!r}: {self._requirement()}")
        return value

    def _requirement(self) -> str:
        """The requirement for a value, with an example, for messages."""
        ends = {"above": self.above, "at least": self.least, "below": self.below, "at most": self.most}
        bounds = " and ".join(f"{end} {bound:g}" for end, bound in ends.items() if bound is not None)
        kind = f"{'a whole' if self.integer else 'a finite'} number {bounds}".strip()
        return f"it must be {kind}{', or None' if self.optional else ''}. Pass {self._example()!r}, for example."

    def _example(self) -> float | None:
        """A number that the rule accepts."""
        numbers = (5, 1) if self.integer else (0.001, 5, 1.5, -0.5)
        return next((number for number in numbers if self.find_violation(number) is None), self.least)

    def held_value(self, value: Any, device: torch.device) -> Any:
        """The value after `hold_tensors()`: a tensor in place of a number that may change, in float64 if possible."""
        is_fixed = self.integer or not self.scheduled or (self.zero_is_off and value == 0)
        if is_fixed or value is None or isinstance(value, Tensor):
            return value
        dtype = torch.float32 if device.type in ("mps", "xla") else torch.float64
        return host_scalar(float(value), dtype).to(device)


@dataclass(frozen=True)
class NumberTuple(Rule):
    """A tuple or list with one number for each of the given rules."""

    rules: tuple[Number, ...]
    ordered: bool = False  # no number is below the previous one

    def read(self, name: str, value: Any) -> Any:
        count = len(self.rules)
        if not isinstance(value, (tuple, list)):
            raise TypeError(f"{name}={value!r}: it must be a tuple or list. Pass a tuple of {count} numbers.")
        if len(value) != count:
            raise ValueError(f"{name}={value!r}: it has {len(value)} elements. Pass a tuple of {count} numbers.")
        for i, (rule, element) in enumerate(zip(self.rules, value)):
            try:
                rule.read(f"{name}[{i}]", element)
            except (TypeError, ValueError) as error:
                raise type(error)(f"{name}={value!r}: {error}") from None
        if self.ordered and list(map(float, value)) != sorted(map(float, value)):
            raise ValueError(f"{name}={value!r}: the first number must not be above the second. Swap them.")
        return value

    def held_value(self, value: Any, device: torch.device) -> Any:
        return tuple(rule.held_value(element, device) for rule, element in zip(self.rules, value))


class Counts(Rule):
    """A tuple or list of any number of whole numbers above 0, or None."""

    def read(self, name: str, value: Any) -> Any:
        if value is not None:
            if not isinstance(value, (tuple, list)) or not value:
                error = ValueError if isinstance(value, (tuple, list)) else TypeError
                raise error(f"{name}={value!r}: it must be a tuple of whole numbers above 0, or None.")
            NumberTuple((Number(least=1, integer=True),) * len(value)).read(name, value)
        return value


class Choice(base_rules.Choice):
    """One of a few values. None is not False, and 1 is not True."""

    def read(self, name: str, value: Any) -> Any:
        if not any(value is option or (type(value) is type(option) and value == option) for option in self.options):
            types = {type(option) for option in self.options}
            error = ValueError if type(value) in types else TypeError
            raise error(f"{name}={value!r}: it must be {' or '.join(map(repr, self.options))}.")
        return value


# The hyperparameters of the optimizers here. If a group has one of these keys and its own algorithm does not know the
# key, the key belongs to another algorithm.
_NAMES = """
    adam adjust_lr_fn algorithm alpha amsgrad beta1 beta2 betas cautious_weight_decay centered clip_threshold
    correct_bias dampening decay_rate decoupled_weight_decay eps etas flatten initial_accumulator_value lambd lr
    lr_decay maximize momentum momentum_decay nesterov ns_coefficients ns_dtype ns_steps num_heads relative_step rho
    scale_parameter split_sizes step_sizes t0 transposed warmup_init weight_decay
"""
HYPERPARAMETERS = frozenset(_NAMES.split())

NON_NEGATIVE = Number(least=0)
FRACTION = Number(least=0, below=1)
BETAS = NumberTuple((FRACTION, FRACTION))
SWITCH = Choice((False, True))


def all_parameters(groups: Iterable[ParamGroup]) -> list[Any]:
    """The members of all groups, in order: parameters, or their numbers or names in the groups of a state dict."""
    return [p for group in groups for p in group["params"]]


def check_group(rules: Mapping[str, Rule], group: ParamGroup, where: str) -> None:
    """Check all hyperparameters of a group. An error begins with `where`."""
    for name, rule in rules.items():
        if name in group:
            try:
                rule.read(name, group[name])
            except (TypeError, ValueError) as error:
                raise type(error)(f"{where}{error}") from None


def read_tags(tags: Tags, where: str) -> set[Any]:
    """The tags of a group as a set. Raises an error if they are no strings, or if one begins with `!`."""
    if isinstance(tags, Mapping) or not isinstance(tags, Iterable | None):
        raise TypeError(f"{where}tags={tags!r}: it must be a name, or a list or set of names. Pass tags=['a name'].")
    names = read_tag_list(tags)
    if not all(isinstance(tag, str) for tag in names):
        raise TypeError(f"{where}tags={names!r}: every tag must be a string. Pass tags=['a name'].")
    check_own_tags(names, where)
    return set(names)


def comparable_value(value: object) -> Any:
    """A value that can be compared and hashed: numbers instead of tensors, tuples instead of lists."""
    if isinstance(value, Tensor):
        return value.item()
    if isinstance(value, (list, tuple)):
        return tuple(comparable_value(item) for item in value)
    return value if value.__hash__ is not None else repr(value)


def is_switched_off(value: object) -> bool:
    """Whether a hyperparameter is the number 0, so that its state is not kept. A tensor may change later."""
    return not isinstance(value, Tensor) and value == 0
