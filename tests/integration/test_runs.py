"""The real Trainer, with every schedule: what each batch runs with, and that a resumed run is the same run."""

from __future__ import annotations

from itertools import pairwise
from math import isclose, prod
from pathlib import Path
from typing import Any

import composer.optim
import pytest
import torch
from composer import Callback, Event, Trainer
from torch.optim.lr_scheduler import LambdaLR

import timesched
from tests.integration import training
from tests.integration.resume import in_another_process
from tests.integration.training import BASE_LR, BASE_WEIGHT_DECAY, Record, assert_goes_on, data, finish, make_trainer
from timesched import LinearScheduler, LinearWithWarmupScheduler, ProductScheduler, StepScheduler
from timesched.integrations.composer import Binding, Schedules

# Before scaling: two epochs of 8 batches, and as many or nearly as many batches, samples (31 in an epoch) and
# tokens (593 in an epoch). Powers of two times 5, so that the parts of them below are whole, scaled or not.
LENGTHS = {"ep": 2, "ba": 16, "sp": 64, "tok": 1280}
# Where each run is saved: inside an epoch, at the end of one, inside a later one.
MIDDLE = {0.5: (3, Event.BATCH_CHECKPOINT), 1.0: (8, Event.EPOCH_CHECKPOINT), 2.0: (13, Event.BATCH_CHECKPOINT)}
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


def check(name: str, trainer: Any, record: Record) -> None:
    """The values are those of our schedule exactly, and of Composer's class where we do not differ.

    The callback's are those of the time at which a batch begins. Composer steps its own schedulers before it counts the
    batch, so batch k runs with the learning rate of the time at which batch k - 1 began; the first two batches run with
    the value at 0.
    """
    (unit, ratio, schedules), state, times = CASES[name], trainer.state, record.times

    def values(schedule: Any) -> list[float]:
        found = []
        for state.timestamp in times:
            found.append(schedule(state, ratio))
        return found

    end = state.timestamp
    mine, factors = values(ours(name)), [values(each) for each in theirs(name)]
    assert record.of("weight_decay") == [BASE_WEIGHT_DECAY * x for x in mine]
    assert record.of("lr") == [BASE_LR * x for x in [mine[0], *mine[:-1]]]
    same = all(isclose(x, prod(each), rel_tol=0, abs_tol=1e-12) for x, *each in zip(mine, *factors, strict=True))
    # ours moves the boundary of the warmup with the ratio, and Composer's does not
    assert same is not any(given.get("scale_warmup") for given in schedules.values())
    # The run ended at the first batch at or after its scaled length; its batches have uneven numbers of tokens.
    assert times[-1].get(unit).value < int(LENGTHS[unit] * ratio) <= end.get(unit).value
    assert len(times) > MIDDLE[ratio][0]
    assert len({b.token.value - a.token.value for a, b in pairwise(times)}) >= 3


def test_every_schedule_saved_and_resumed(tmp_path: Path) -> None:
    assert {case[:2] for case in CASES.values()} == {(unit, ratio) for unit in LENGTHS for ratio in MIDDLE}
    full = {}
    for name, (_, ratio, _) in CASES.items():
        done, trainer, record = train(name, **training.saving(tmp_path / name, MIDDLE[ratio]))
        check(name, trainer, record)
        full[f"{name}/{MIDDLE[ratio][0]}"] = done
    resumed = in_another_process("tests.integration.test_runs", tmp_path)
    assert resumed.keys() == full.keys()
    for name, before in full.items():
        assert_goes_on(before, resumed[name], int(name.split("/")[1]), name)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", ["ep-0.5-StepScheduler", "tok-0.5-MultiStepScheduler-LinearScheduler"])
def test_a_stopped_run_goes_on(name: str, first: bool, tmp_path: Path) -> None:
    """stop_training() makes an end of the present moment, for the Trainer and not for the schedules."""
    middle = MIDDLE[0.5]
    before, stop = run(name), training.At(middle[0], lambda state: state.stop_training())
    stopped, trainer, _ = train(name, stop, first=first, **training.saving(tmp_path, middle))
    assert stopped["rows"] == before["rows"][: middle[0]]
    (group,) = trainer.state.optimizers[0].param_groups
    assert group["weight_decay"] == before["rows"][middle[0]][0]["weight_decay"]
    assert_goes_on(before, run(name, load_path=str(tmp_path / f"{middle[0]}.pt")), middle[0])


# What the Trainer does, by hand

STREAM = {"train_dataloader": data(training.Stream())}
PART = ProductScheduler([StepScheduler("1ep", gamma=0.5), LinearScheduler(1.0, 0.0, "2ep")])
RAMP = LinearWithWarmupScheduler("0.25dur", t_max="16ba", scale_warmup=True)
HALF = [0, 0, 0.5, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6]  # of RAMP, in 8 of 16 batches
EIGHT = [1, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8]

# The schedule, the Trainer's options, those of each fit after the first, and what the learning rate is multiplied by:
# the value of the time at which the batch before began. The first batch of a fit runs with what the last one left.
RUNS: dict[str, tuple[Any, dict[str, Any], list[dict[str, Any]], list[float]]] = {
    # the batches have 45, 103, 76, 89, 92, 85 and 43 tokens, so they begin at 0, 45, 148, 224, 313, 405 and 490
    "uneven tokens": (LinearScheduler(), {"max_duration": "500tok"}, [], [1, 1, 0.91, 0.704, 0.552, 0.374, 0.19]),
    "a function": (lambda state: 0.5 ** int(state.timestamp.batch), {"max_duration": "4ba"}, [], [1, 1, 0.5, 0.25]),
    "t_max before scaling": (RAMP, {"max_duration": "16ba", "scale_schedule_ratio": 0.5}, [], HALF),
    "a part of an epoch is the epoch": (
        *(PART, {"max_duration": "2ep", "train_subset_num_batches": 5}, []),
        [1, 1, 0.9, 0.8, 0.7, 0.6, 0.25, 0.2, 0.15, 0.1],
    ),
    "no length": (LinearScheduler(), {"max_duration": "5ba", **STREAM}, [], [1, 1, 0.8, 0.6, 0.4]),
    "epochs without a length": (StepScheduler("1ep", 0.5), {"max_duration": "11ba", **STREAM}, [], [1] * 9 + [0.5] * 2),
    "evaluations, while the State has the length of another loader": (
        LinearWithWarmupScheduler("0.5ep", t_max="2ep"),
        {"max_duration": "2ep", "eval_dataloader": data(batch_size=10), "eval_interval": "3ba"},
        [],
        [0, 0, 0.25, 0.5, 0.75, 1, *(1 - k / 12 for k in range(1, 11))],
    ),
    "the end moves": (
        *(LinearScheduler(), {"max_duration": "1ep"}, [{"duration": "1ep"}, {"duration": "6ba"}]),
        [*EIGHT, 1 / 8, *(1 - t / 16 for t in range(8, 15)), 1 / 16, *(1 - t / 22 for t in range(16, 21))],
    ),
    "another unit and ratio": (
        LinearScheduler(),
        {"max_duration": "4ba"},
        [{"reset_time": True, "duration": "2ep", "schedulers": RAMP, "scale_schedule_ratio": 0.5}],
        [1, 1, 3 / 4, 2 / 4, *HALF],
    ),
    "batches of another size: 8 in the first epoch, and 4 in the others": (
        LinearScheduler(t_max="3ep"),
        {"max_duration": "1ep"},
        [{"duration": "2ep", "train_dataloader": data(batch_size=8)}],
        [1, 1, *(1 - t / 24 for t in range(1, 8)), *(1 - t / 12 for t in range(4, 11))],  # epochs are epochs
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_values(name: str) -> None:
    schedule, options, fits, expected = RUNS[name]
    trainer, record = make_trainer(schedulers=schedule, **options)
    trainer.fit()
    for fit in fits:
        trainer.fit(**fit)
    trainer.close()
    assert [lr / BASE_LR for lr in record.of("lr")] == pytest.approx(expected, rel=0, abs=1e-15)


# Our compile_composer_scheduler


@pytest.mark.parametrize("name", ["ba-0.5-LinearWithWarmupScheduler", "tok-1.0-ExponentialScheduler"])
def test_our_compile_function(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    middle = MIDDLE[CASES[name][1]]
    before, trainer, _ = train(name)
    assert type(trainer.state.schedulers[0]) is LambdaLR
    monkeypatch.setattr("composer.trainer.trainer.compile_composer_scheduler", timesched.compile_composer_scheduler)
    after, trainer, _ = train(name, **training.saving(tmp_path, middle))
    assert isinstance(trainer.state.schedulers[0], timesched.BoundLR)
    assert_goes_on(before, after, 0)
    path = str(tmp_path / f"{middle[0]}.pt")
    resumed, trainer, _ = train(name, load_path=path)
    assert_goes_on(before, resumed, middle[0])
    assert trainer.state.schedulers[0].last_epoch == len(before["rows"])
    # The rate in the checkpoint counts, as in torch, and a warning says so.
    model = training.NextByte()
    slower = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=BASE_WEIGHT_DECAY)
    with pytest.warns(UserWarning, match="initial"):
        again = run(name, model=model, optimizers=slower, load_path=path)
    assert again["rows"] == resumed["rows"]
