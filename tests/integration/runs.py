"""Runs that are saved in the middle, resumed and compared: schedules x units of max_duration x ratios."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import composer.optim
from composer import Callback, Event, Trainer

import timesched
from tests.integration.training import Record, finish, make_trainer

RATIOS = (0.5, 1.0, 2.0)
# Before scaling: two epochs of 8 batches, and as many or nearly as many batches, samples (31 in an epoch) and
# tokens (593 in an epoch). Powers of two times 5, so that the parts of them below are whole, scaled or not.
LENGTHS = {"ep": 2, "ba": 16, "sp": 64, "tok": 1280}
# Where each run is saved: inside an epoch, at the end of one, inside a later one.
MIDDLE = {
    0.5: (3, Event.BATCH_CHECKPOINT),
    1.0: (8, Event.EPOCH_CHECKPOINT),
    2.0: (13, Event.BATCH_CHECKPOINT),
}


@dataclass(frozen=True)
class Case:
    """One run: a schedule by its class name and arguments, the unit of max_duration, and the ratio."""

    name: str
    unit: str
    ratio: float
    classes: tuple[str, ...]
    arguments: tuple[dict[str, Any], ...]
    bound: bool = False  # a second schedule on the weight decay
    scaled_boundary: bool = False  # ours moves the boundary of the warmup with the ratio, Composer's does not

    @property
    def max_duration(self) -> str:
        return f"{LENGTHS[self.unit]}{self.unit}"

    def ours(self) -> Any:
        schedules = self._made(timesched)
        return schedules[0] if len(schedules) == 1 else timesched.ProductScheduler(schedules)

    def theirs(self) -> list[Any]:
        """Composer's own classes with the same arguments; where there are several, their values multiply."""
        return self._made(composer.optim)

    def _made(self, module: Any) -> list[Any]:
        both = zip(self.classes, self.arguments, strict=True)
        return [getattr(module, name)(**given) for name, given in both]


def part(unit: str, fraction: float) -> str:
    """A part of the unscaled run as an absolute time, in epochs only where that is a whole number of them."""
    length = fraction * LENGTHS[unit]
    return f"{int(length)}{unit}" if length.is_integer() else part("ba", fraction)


def rows(unit: str, ratio: float) -> list[tuple[str, dict[str, Any]]]:
    """Every schedule, as class name and arguments, for runs whose max_duration is in `unit`."""
    at = partial(part, unit)
    rows: list[tuple[str, dict[str, Any]]] = [
        ("StepScheduler", {"step_size": at(0.25), "gamma": 0.5}),
        ("MultiStepScheduler", {"milestones": [at(0.25), "0.5dur", at(0.75)], "gamma": 0.5}),
        ("ConstantScheduler", {"alpha": 0.5, "t_max": "0.5dur"}),
        ("LinearScheduler", {"alpha_i": 1.0, "alpha_f": 0.1}),
        ("ExponentialScheduler", {"gamma": 0.5, "decay_period": at(0.5)}),
        ("CosineAnnealingScheduler", {"t_max": at(0.75), "alpha_f": 0.1}),
        ("CosineAnnealingWarmRestartsScheduler", {"t_0": at(0.25), "t_mult": 2.0}),
        ("PolynomialScheduler", {"power": 3.0, "t_max": "0.75dur"}),
    ]
    # In dur the setting makes no difference, so that half of the table need not be run twice.
    for t_warmup, t_max, settings in (
        ("0.25dur", "1dur", [ratio == 2.0]),
        (at(0.25), at(1.0), [False, True]),
    ):
        for scale_warmup in settings:
            both = {"t_warmup": t_warmup, "scale_warmup": scale_warmup}
            rows += [
                ("MultiStepWithWarmupScheduler", both | {"milestones": [at(0.5), "0.75dur"], "gamma": 0.5}),
                ("ConstantWithWarmupScheduler", both | {"t_max": t_max, "alpha": 0.75}),
                ("LinearWithWarmupScheduler", both | {"t_max": t_max, "alpha_i": 0.9, "alpha_f": 0.1}),
                ("CosineAnnealingWithWarmupScheduler", both | {"t_max": t_max, "alpha_f": 0.1}),
                ("PolynomialWithWarmupScheduler", both | {"t_max": t_max, "power": 2.0}),
            ]
    return rows


def cases(unit: str, ratios: tuple[float, ...] = RATIOS) -> list[Case]:
    """The runs whose max_duration is in `unit`: every schedule at every ratio."""
    made = []
    for ratio in ratios:
        table = rows(unit, ratio)
        for schedule, given in table:
            absolute = not given.get("t_warmup", "dur").endswith("dur")
            # Where Composer's ramp ends before its boundary, the plateau shows only in front of a slope.
            slopes = schedule not in ("MultiStepWithWarmupScheduler", "ConstantWithWarmupScheduler")
            warmup = f"-{given['t_warmup']}-{given['scale_warmup']}" if "t_warmup" in given else ""
            made.append(
                Case(
                    name=f"{unit}-{ratio}-{schedule}{warmup}",
                    unit=unit,
                    ratio=ratio,
                    classes=(schedule,),
                    arguments=(given,),
                    scaled_boundary=absolute and given["scale_warmup"] and (slopes or ratio > 1) and ratio != 1,
                )
            )
        names, arguments = zip(table[3], table[0], strict=True)
        made.append(Case(f"{unit}-{ratio}-ProductScheduler", unit, ratio, names, arguments))
        made.append(Case(f"{unit}-{ratio}-weight_decay", unit, ratio, names[:1], arguments[:1], bound=True))
    return made


CASES = {case.name: case for unit in LENGTHS for case in cases(unit)}


def weight_decay_schedule(ratio: float) -> Any:
    """Of the state alone: a Trainer's State does not know its ratio, and bind takes none."""
    cosine = timesched.CosineAnnealingScheduler("12ba", alpha_f=0.5)
    return lambda state: cosine(state, ratio)


class BindWeightDecay(Callback):
    """Binds a schedule to the weight decay before a checkpoint is loaded, and has the Trainer step and save it."""

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio

    def before_load(self, state: Any, logger: Any) -> None:
        (optimizer,) = state.optimizers
        bound = timesched.bind(weight_decay_schedule(self.ratio), optimizer, state, key="weight_decay")
        state.schedulers = [*state.schedulers, bound]


def train(case: Case, *callbacks: Callback, **options: Any) -> tuple[dict[str, Any], Trainer, Record]:
    """Train to the end: what was done, the Trainer and its record; `options` are the Trainer's."""
    more = (BindWeightDecay(case.ratio), *callbacks) if case.bound else callbacks
    settings = {"max_duration": case.max_duration, "schedulers": case.ours(), "scale_schedule_ratio": case.ratio}
    trainer, record = make_trainer(more, run_name=case.name, **(settings | options))
    return finish(trainer, record), trainer, record


def run(name: str, **options: Any) -> dict[str, Any]:
    """A run by the name of its case."""
    return train(CASES[name], **options)[0]
