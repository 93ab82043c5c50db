"""The real Trainer, with every schedule: what each batch runs with, and that a resumed run is the same run."""

from __future__ import annotations

from itertools import pairwise
from math import isclose, prod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

import timesched
from tests.integration.resume import in_another_process
from tests.integration.runs import CASES, LENGTHS, MIDDLE, ours, run, theirs, train
from tests.integration.training import (
    BASE_LR,
    BASE_WEIGHT_DECAY,
    At,
    NextByte,
    Record,
    assert_goes_on,
    finish,
    make_trainer,
    saving,
)


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
        done, trainer, record = train(name, **saving(tmp_path / name, MIDDLE[ratio]))
        check(name, trainer, record)
        full[f"{name}/{MIDDLE[ratio][0]}"] = done
    resumed = in_another_process("tests.integration.runs", tmp_path)
    assert resumed.keys() == full.keys()
    for name, before in full.items():
        assert_goes_on(before, resumed[name], int(name.split("/")[1]), name)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", ["ep-0.5-StepScheduler", "tok-0.5-MultiStepScheduler-LinearScheduler"])
def test_a_stopped_run_goes_on(name: str, first: bool, tmp_path: Path) -> None:
    """stop_training() makes an end of the present moment, for the Trainer and not for the schedules."""
    middle = MIDDLE[0.5]
    before, stop = run(name), At(middle[0], lambda state: state.stop_training())
    stopped, trainer, _ = train(name, stop, first=first, **saving(tmp_path, middle))
    assert stopped["rows"] == before["rows"][: middle[0]]
    (group,) = trainer.state.optimizers[0].param_groups
    assert group["weight_decay"] == before["rows"][middle[0]][0]["weight_decay"]
    assert_goes_on(before, run(name, load_path=str(tmp_path / f"{middle[0]}.pt")), middle[0])


# Our compile_composer_scheduler, and bind


@pytest.mark.parametrize("name", ["ba-0.5-LinearWithWarmupScheduler", "tok-1.0-ExponentialScheduler"])
def test_our_compile_function(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of Composer's it gives the same run, also one that is resumed."""
    middle = MIDDLE[CASES[name][1]]
    before, trainer, _ = train(name)
    assert type(trainer.state.schedulers[0]) is LambdaLR
    monkeypatch.setattr("composer.trainer.trainer.compile_composer_scheduler", timesched.compile_composer_scheduler)
    after, trainer, _ = train(name, **saving(tmp_path, middle))
    assert isinstance(trainer.state.schedulers[0], timesched.BoundLR)
    assert_goes_on(before, after, 0)
    path = str(tmp_path / f"{middle[0]}.pt")
    resumed, trainer, _ = train(name, load_path=path)
    assert_goes_on(before, resumed, middle[0])
    assert trainer.state.schedulers[0].last_epoch == len(before["rows"])
    # The rate in the checkpoint counts, as in torch.
    model = NextByte()
    slower = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=BASE_WEIGHT_DECAY)
    assert run(name, model=model, optimizers=slower, load_path=path)["rows"] == resumed["rows"]


def test_a_compiled_schedule_is_given_to_a_trainer() -> None:
    """As the state's scheduler, or to fit() as the torch scheduler that it is."""
    schedule = timesched.CosineAnnealingWithWarmupScheduler("0.25dur")
    usual, assigned, given = (make_trainer(max_duration="12ba", schedulers=each) for each in (schedule, None, None))
    assigned[0].state.schedulers = [timesched.compile_composer_scheduler(schedule, assigned[0].state)]
    rows = [finish(*usual)["rows"], finish(*assigned)["rows"]]
    compiled = timesched.compile_composer_scheduler(schedule, given[0].state)
    rows.append(finish(*given, schedulers=compiled, step_schedulers_every_batch=True)["rows"])
    assert len(set(usual[1].of("lr"))) > 10
    assert rows[0] == rows[1] == rows[2]


def test_bound_lr_and_weight_decay() -> None:
    """Both bound to the Trainer's State, and stepped by the Trainer."""
    trainer, record = make_trainer(max_duration="8ba")
    (optimizer,) = trainer.state.optimizers
    lr = timesched.bind(timesched.LinearScheduler(), optimizer, trainer.state)
    decay = timesched.bind(timesched.StepScheduler("2ba", 0.5), optimizer, trainer.state, key="weight_decay")
    trainer.state.schedulers = [lr, decay]
    finish(trainer, record)
    assert [x / BASE_LR for x in record.of("lr")] == [1, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25]
    assert [x / BASE_WEIGHT_DECAY for x in record.of("weight_decay")] == [1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.125]
