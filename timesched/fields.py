"""Fields of a schedule. Each has a rule, which reads its value when the schedule is constructed."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

from timesched.rules import COUNTS, NUMBERS, TIMES, Choice, Count, Flag, NonNegativeTime, Number, Rule


def _field_with(rule: Rule, default: object = dataclasses.MISSING, keyword: bool = False) -> Any:
    return dataclasses.field(default=default, metadata={"read": rule.read}, kw_only=keyword)


def _field(
    rule_class: type[Rule], default: object = dataclasses.MISSING, *, keyword: bool = False, **arguments: object
) -> Any:
    """A field with a rule, which gets `arguments`. `keyword`: the schedule takes the argument by its name only."""
    return _field_with(rule_class(**arguments), default, keyword)


# A field takes its default, and the arguments of its rule by name, as in number(0.5, above=0).
time = partial(_field, NonNegativeTime)
number = partial(_field, Number)
count = partial(_field, Count)
flag = partial(_field, Flag)
times = partial(_field_with, TIMES)
numbers = partial(_field_with, NUMBERS)
counts = partial(_field_with, COUNTS)


def choice(default: object, *options: object) -> Any:
    """One of a few values."""
    return _field_with(Choice(options), default)
