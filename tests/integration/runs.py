"""Runs that are saved in the middle, resumed and compared: every schedule, and every unit with every ratio."""

from __future__ import annotations

from typing import Any

import composer.optim
from composer import Callback, Event, Trainer

import timesched
from tests.integration.training import Record, finish, make_trainer
from timesched.integrations.composer import Binding, Schedules

# Before scaling: two epochs of 8 batches, and as many or nearly as many batches, samples (31 in an epoch) and
# tokens (593 in an epoch). Powers of two times 5, so that the parts of them below are whole, scaled or not.
LENGTHS = {"ep": 2, "ba": 16, "sp": 64, "tok": 1280}
# Where each run is saved: inside an epoch, at the end of one, inside a later one.
MIDDLE = {
    0.5: (3, Event.BATCH_CHECKPOINT),
    1.0: (8, Event.EPOCH_CHECKPOINT),
    2.0: (13, Event.BATCH_CHECKPOINT),
}
STEPS: dict[str, Any] = {"milestones": ["320tok", "0.5dur", "960tok"], "gamma": 0.5}
WARM = "WithWarmupScheduler"
# The unit of max_duration, the ratio, and the schedules, which multiply, by class and arguments.
TABLE: list[tuple[str, float, dict[str, dict[str, Any]]]] = [
    ("ep", 0.5, {"StepScheduler": {"step_size": "4ba", "gamma": 0.5}}),
    ("ep", 1.0, {"MultiStepScheduler": {"milestones": ["4ba", "0.5dur", "12ba"], "gamma": 0.5}}),
    ("ep", 2.0, {f"CosineAnnealing{WARM}": {"t_warmup": "4ba", "t_max": "2ep", "alpha_f": 0.1, "scale_warmup": True}}),
    ("ba", 0.5, {f"Linear{WARM}": {"t_warmup": "4ba", "t_max": "16ba", "alpha_i": 0.9, "scale_warmup": True}}),
    ("ba", 1.0, {"ConstantScheduler": {"alpha": 0.5, "t_max": "0.5dur"}}),
    ("ba", 2.0, {f"Polynomial{WARM}": {"t_warmup": "4ba", "t_max": "16ba", "power": 2.0}}),
    ("sp", 0.5, {"CosineAnnealingScheduler": {"t_max": "48sp", "alpha_f": 0.1}}),
    ("sp", 1.0, {f"MultiStep{WARM}": {"t_warmup": "0.25dur", "milestones": ["32sp", "0.75dur"], "gamma": 0.5}}),
    ("sp", 2.0, {"CosineAnnealingWarmRestartsScheduler": {"t_0": "16sp", "t_mult": 2.0}}),
    ("tok", 0.5, {f"Constant{WARM}": {"t_warmup": "320tok", "t_max": "1dur", "alpha": 0.75}}),
    ("tok", 1.0, {"ExponentialScheduler": {"gamma": 0.5, "decay_period": "640tok"}}),
    ("tok", 2.0, {"LinearScheduler": {"alpha_i": 1.0, "alpha_f": 0.1}}),
    ("ep", 1.0, {"PolynomialScheduler": {"power": 3.0, "t_max": "0.75dur"}}),
    ("tok", 0.5, {"MultiStepScheduler": STEPS, "LinearScheduler": {"alpha_f": 0.1}}),
]


CASES = {f"{unit}-{ratio}-{'-'.join(schedules)}": (unit, ratio, schedules) for unit, ratio, schedules in TABLE}


def ours(name: str) -> Any:
    made = [getattr(timesched, each)(**given) for each, given in CASES[name][2].items()]
    return made[0] if len(made) == 1 else timesched.ProductScheduler(made)


def theirs(name: str) -> list[Any]:
    """Composer's own classes with the same arguments."""
    return [getattr(composer.optim, each)(**given) for each, given in CASES[name][2].items()]


def train(
    name: str, *callbacks: Callback, first: bool = True, **options: Any
) -> tuple[dict[str, Any], Trainer, Record]:
    """Train to the end: what was done, the Trainer and its record; `options` are the Trainer's.

    The Trainer schedules the learning rate, and our callback, the first one or the last, the weight decay.
    """
    unit, ratio, _ = CASES[name]
    mine = Schedules(Binding(ours(name), "weight_decay"), ssr=ratio)
    several = [mine, *callbacks] if first else [*callbacks, mine]
    settings = {"max_duration": f"{LENGTHS[unit]}{unit}", "schedulers": ours(name), "scale_schedule_ratio": ratio}
    trainer, record = make_trainer(several, run_name=name, **(settings | options))
    return finish(trainer, record), trainer, record


def run(name: str, **options: Any) -> dict[str, Any]:
    """A run by the name of its case."""
    return train(name, **options)[0]
