"""The table of the parity tests: all thirteen classes with several arguments, in every unit.

A time is written as a fraction of the run and given in one unit after the other. Every fraction is whole in every
unit at every ratio, since where it is not Composer truncates and we do not (test_differences.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import composer.optim

import timesched
from tests.parity.states import LENGTHS

UNITS = (*LENGTHS, "dur")


@dataclass(frozen=True)
class Part:
    """A time: a part of the run, in `unit` if that is given and in the unit of the row otherwise."""

    of_run: Fraction
    unit: str | None = None

    def text(self, unit: str) -> str:
        unit = self.unit or unit
        if unit == "dur":
            return f"{float(self.of_run)}dur"
        count = self.of_run * LENGTHS[unit]
        assert count.denominator == 1, (self, unit)
        return f"{count}{unit}"


ZERO, EIGHTH, QUARTER, HALF, MOST, ALL, MORE = (Part(Fraction(n, 8)) for n in (0, 1, 2, 4, 6, 8, 10))

# Class, and arguments by their name
PLAIN: list[tuple[str, dict[str, Any]]] = [
    ("StepScheduler", {"step_size": EIGHTH}),
    ("StepScheduler", {"step_size": QUARTER, "gamma": 0.7}),
    ("MultiStepScheduler", {"milestones": []}),
    ("MultiStepScheduler", {"milestones": [QUARTER, HALF]}),
    ("MultiStepScheduler", {"milestones": [MOST, ZERO, HALF, HALF], "gamma": 0.3}),
    ("MultiStepScheduler", {"milestones": [Part(Fraction(1, 4), unit) for unit in UNITS] + [HALF], "gamma": 0.5}),
    ("ConstantScheduler", {}),
    ("ConstantScheduler", {"alpha": 0.25, "t_max": HALF}),
    ("ConstantScheduler", {"alpha": 3.0, "t_max": MORE}),
    ("LinearScheduler", {}),
    ("LinearScheduler", {"alpha_i": 0.2, "alpha_f": 1.3, "t_max": HALF}),
    ("LinearScheduler", {"alpha_i": 1.0, "alpha_f": 0.1, "t_max": MORE}),
    ("ExponentialScheduler", {"gamma": 0.9}),
    ("ExponentialScheduler", {"gamma": 0.5, "decay_period": QUARTER}),
    ("ExponentialScheduler", {"gamma": 1.1, "decay_period": ALL}),
    ("CosineAnnealingScheduler", {}),
    ("CosineAnnealingScheduler", {"t_max": MOST, "alpha_f": 0.1}),
    ("CosineAnnealingScheduler", {"t_max": MORE, "alpha_f": 1.5}),
    ("CosineAnnealingWarmRestartsScheduler", {"t_0": EIGHTH}),
    ("CosineAnnealingWarmRestartsScheduler", {"t_0": EIGHTH, "t_mult": 2.0, "alpha_f": 0.1}),
    ("CosineAnnealingWarmRestartsScheduler", {"t_0": QUARTER, "t_mult": 1.5}),
    ("CosineAnnealingWarmRestartsScheduler", {"t_0": MORE, "t_mult": 3.0}),
    ("PolynomialScheduler", {"power": 2.0}),
    ("PolynomialScheduler", {"power": 0.5, "t_max": HALF, "alpha_f": 0.2}),
    ("PolynomialScheduler", {"power": 1.0, "t_max": MORE}),
    ("PolynomialScheduler", {"power": 0.0, "t_max": HALF}),
]
WARM: list[tuple[str, dict[str, Any]]] = [
    ("MultiStepWithWarmupScheduler", {"t_warmup": QUARTER, "milestones": [HALF, MOST]}),
    ("MultiStepWithWarmupScheduler", {"t_warmup": HALF, "milestones": [QUARTER, MOST], "gamma": 0.4}),
    ("MultiStepWithWarmupScheduler", {"t_warmup": ZERO, "milestones": [Part(Fraction(1, 2), unit) for unit in UNITS]}),
    ("ConstantWithWarmupScheduler", {"t_warmup": QUARTER, "t_max": ALL}),
    ("ConstantWithWarmupScheduler", {"t_warmup": ZERO, "alpha": 0.7, "t_max": ALL}),
    ("ConstantWithWarmupScheduler", {"t_warmup": ALL, "alpha": 2.0, "t_max": MORE}),
    ("LinearWithWarmupScheduler", {"t_warmup": QUARTER, "t_max": ALL}),
    ("LinearWithWarmupScheduler", {"t_warmup": EIGHTH, "alpha_i": 0.8, "alpha_f": 0.2, "t_max": MORE}),
    ("LinearWithWarmupScheduler", {"t_warmup": ALL, "alpha_i": 0.8, "alpha_f": 0.2, "t_max": ALL}),
    ("LinearWithWarmupScheduler", {"t_warmup": MORE, "alpha_f": 0.5, "t_max": ALL}),
    ("LinearWithWarmupScheduler", {"t_warmup": ZERO, "t_max": ALL}),
    ("CosineAnnealingWithWarmupScheduler", {"t_warmup": QUARTER, "t_max": ALL}),
    ("CosineAnnealingWithWarmupScheduler", {"t_warmup": HALF, "t_max": MORE, "alpha_f": 0.1}),
    ("PolynomialWithWarmupScheduler", {"t_warmup": QUARTER, "t_max": ALL}),
    ("PolynomialWithWarmupScheduler", {"t_warmup": EIGHTH, "power": 0.5, "t_max": MORE, "alpha_f": 0.3}),
]
NAMES = sorted({name for name, _ in PLAIN + WARM})


def arguments(given: dict[str, Any], unit: str) -> dict[str, Any]:
    """The arguments with every time written in `unit`."""

    def written(value: Any) -> Any:
        if isinstance(value, list):
            return [written(item) for item in value]
        return value.text(unit) if isinstance(value, Part) else value

    return {name: written(value) for name, value in given.items()}


def variants(name: str) -> Iterator[dict[str, Any]]:
    """Every set of arguments for one class."""
    for own, given in PLAIN + WARM:
        for unit in UNITS if own == name else ():
            written = arguments(given, unit)
            yield written
            if "t_warmup" in given:
                yield written | {"scale_warmup": True}


def pair(name: str, given: dict[str, Any]) -> tuple[Any, Any]:
    """Our schedule and Composer's of the same name and arguments."""
    return getattr(timesched, name)(**given), getattr(composer.optim, name)(**given)


def moves_boundary(given: dict[str, Any], ratio: float) -> bool:
    """Whether a scaled warmup makes a difference: ours ends where its ramp does."""
    absolute = not given.get("t_warmup", "0dur").endswith("dur") and given.get("t_warmup", "0")[0] != "0"
    return bool(given.get("scale_warmup", False) and absolute and ratio != 1.0)
