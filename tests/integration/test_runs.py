"""Runs of the real Trainer with `schedulers=`: what each batch runs with, and that a resumed run is the same run."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from composer import Callback, Event, Trainer
from torch.optim.lr_scheduler import LambdaLR

import timesched
from tests.integration import training
from tests.integration.training import (
    BASE_LR,
    BASE_WEIGHT_DECAY,
    Record,
    assert_goes_on,
    data,
    finish,
    in_another_process,
    make_trainer,
)
from timesched import (
    CosineAnnealingWarmRestartsScheduler,
    ExponentialScheduler,
    LinearScheduler,
    LinearWithWarmupScheduler,
    MultiStepScheduler,
    ProductScheduler,
    StepScheduler,
)
from timesched.integrations.composer import Binding, Schedules

# Before scaling: two epochs of 8 batches, and as many or nearly as many batches, samples (31 in an epoch) and
# tokens (593 in an epoch). Powers of two times 5, so that the parts of them below are whole, scaled or not.
LENGTHS = {"ep": 2, "ba": 16, "sp": 64, "tok": 1280}
# Where each run is saved: inside an epoch, at the end of one, inside a later one.
MIDDLE = {0.5: (3, Event.BATCH_CHECKPOINT), 1.0: (8, Event.EPOCH_CHECKPOINT), 2.0: (13, Event.BATCH_CHECKPOINT)}
STEPS = MultiStepScheduler(["320tok", "0.5dur", "960tok"], gamma=0.5)
# The unit of max_duration, the ratio, and the schedule.
CASES: dict[str, tuple[str, float, Any]] = {
    "epochs": ("ep", 0.5, StepScheduler("4ba", gamma=0.5)),
    "batches": ("ba", 0.5, LinearWithWarmupScheduler("4ba", alpha_i=0.9, t_max="16ba", scale_warmup=True)),
    "samples": ("sp", 2.0, CosineAnnealingWarmRestartsScheduler("16sp", t_mult=2.0)),
    "tokens": ("tok", 1.0, ExponentialScheduler(gamma=0.5, decay_period="640tok")),
    "a product": ("tok", 0.5, ProductScheduler([STEPS, LinearScheduler(alpha_f=0.1)])),
}


def train(
    name: str, *callbacks: Callback, first: bool = True, **options: Any
) -> tuple[dict[str, Any], Trainer, Record]:
    """Train to the end: what was done, the Trainer and its record; `options` are the Trainer's.

    The Trainer schedules the learning rate, and our callback, the first one or the last, the weight decay.
    """
    unit, ratio, schedule = CASES[name]
    mine = Schedules(Binding(schedule, "weight_decay"), ssr=ratio)
    several = [mine, *callbacks] if first else [*callbacks, mine]
    settings = {"max_duration": f"{LENGTHS[unit]}{unit}", "schedulers": schedule, "scale_schedule_ratio": ratio}
    trainer, record = make_trainer(several, run_name=name, **(settings | options))
    return finish(trainer, record), trainer, record


def run(name: str, **options: Any) -> dict[str, Any]:
    """A run by the name of its case."""
    return train(name, **options)[0]


def check(name: str, trainer: Any, record: Record) -> None:
    """The values are those of the schedule.

    The callback's are those of the time at which a batch begins. Composer steps its own schedulers before it counts the
    batch, so batch k runs with the learning rate of the time at which batch k - 1 began; the first two batches run with
    the value at 0.
    """
    (unit, ratio, schedule), state, times = CASES[name], trainer.state, record.times
    end, values = state.timestamp, []
    for state.timestamp in times:
        values.append(schedule(state, ratio))
    assert record.of("weight_decay") == [BASE_WEIGHT_DECAY * x for x in values]
    assert record.of("lr") == [BASE_LR * x for x in [values[0], *values[:-1]]]
    # The run ended at the first batch at or after its scaled length; its batches have uneven numbers of tokens.
    assert times[-1].get(unit).value < int(LENGTHS[unit] * ratio) <= end.get(unit).value
    assert len(times) > MIDDLE[ratio][0]
    assert len({b.token.value - a.token.value for a, b in pairwise(times)}) >= 3


def test_runs_in_each_unit_saved_and_resumed(tmp_path: Path) -> None:
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
@pytest.mark.parametrize("name", ["epochs", "a product"])
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


@pytest.mark.parametrize("name", ["batches", "tokens"])
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
