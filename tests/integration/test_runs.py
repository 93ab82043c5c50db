"""The real Trainer, with every schedule: what each batch runs with, and that a resumed run is the same run."""

from __future__ import annotations

from itertools import pairwise
from math import isclose, prod
from pathlib import Path
from typing import Any

import pytest

from tests.integration.resume import in_another_process
from tests.integration.runs import CASES, LENGTHS, MIDDLE, Case, cases, run, train, weight_decay_schedule
from tests.integration.training import (
    BASE_LR,
    BASE_WEIGHT_DECAY,
    At,
    Crash,
    Record,
    assert_goes_on,
    die,
    saving,
)


def values(schedule: Any, case: Case, trainer: Any, record: Record, with_ratio: bool = True) -> list[float]:
    """A schedule on the Trainer's own State, at the time that the Trainer had when it set each batch's value.

    Composer steps its schedulers before it counts the batch, so batch k runs with the value of the time at which
    batch k - 1 began; the first two batches run with the value at 0.
    """
    state, times = trainer.state, record.times
    now, found = state.timestamp, []
    for time in [times[0], *times[:-1]]:
        state.timestamp = time
        found.append(schedule(state, case.ratio) if with_ratio else schedule(state))
    state.timestamp = now
    return found


def check_values(case: Case, trainer: Any, record: Record) -> None:
    """The learning rates are those of our schedule exactly, and of Composer's class where we do not differ."""
    lr = record.of("lr")
    assert lr == [BASE_LR * x for x in values(case.ours(), case, trainer, record)]
    factors = [values(each, case, trainer, record) for each in case.theirs()]
    theirs = [BASE_LR * prod(x) for x in zip(*factors, strict=True)]
    same = all(isclose(a, b, rel_tol=0, abs_tol=1e-12) for a, b in zip(lr, theirs, strict=True))
    assert same is not case.scaled_boundary
    if case.bound:
        schedule = weight_decay_schedule(case.ratio)
        decays = [BASE_WEIGHT_DECAY * x for x in values(schedule, case, trainer, record, with_ratio=False)]
        assert record.of("weight_decay") == decays
        assert len(set(decays)) > 3
    else:
        assert set(record.of("weight_decay")) == {BASE_WEIGHT_DECAY}


def check_length(case: Case, trainer: Any, record: Record) -> None:
    """The run ended at the first batch at or after its scaled length; its batches have uneven numbers of tokens."""
    length = int(LENGTHS[case.unit] * case.ratio)
    starts = [time.get(case.unit).value for time in record.times]
    assert starts[-1] < length <= trainer.state.timestamp.get(case.unit).value
    assert len(record.times) > MIDDLE[case.ratio][0]
    tokens = [time.token.value for time in record.times]
    assert len({b - a for a, b in pairwise(tokens)}) >= 3


@pytest.mark.parametrize("unit", LENGTHS)
def test_every_schedule_and_ratio_saved_and_resumed(unit: str, tmp_path: Path) -> None:
    full = {}
    for case in cases(unit):
        done, trainer, record = train(case, **saving(tmp_path / case.name, MIDDLE[case.ratio]))
        check_values(case, trainer, record)
        check_length(case, trainer, record)
        full[f"{case.name}/{MIDDLE[case.ratio][0]}"] = done
    resumed = in_another_process("tests.integration.runs", tmp_path)
    assert resumed.keys() == full.keys()
    for name, before in full.items():
        assert_goes_on(before, resumed[name], int(name.split("/")[1]), name)


def test_a_crashed_run_goes_on_by_itself(tmp_path: Path) -> None:
    """Saved every five batches, dead at the twelfth, and taken up by Composer's autoresume in another process."""
    name = "tok-1.0-weight_decay"
    with pytest.raises(Crash):
        train(CASES[name], At(12, die), save_folder=str(tmp_path / name), save_interval="5ba")
    assert_goes_on(run(name), in_another_process("tests.integration.runs", tmp_path, name)[name], 10)


@pytest.mark.parametrize("unit", LENGTHS)
def test_a_stopped_run_goes_on(unit: str, tmp_path: Path) -> None:
    """stop_training() makes max_duration the time that has come; the run that goes on has its own again."""
    case = next(case for case in cases(unit, (0.5,)) if case.classes == ("CosineAnnealingWithWarmupScheduler",))
    middle = MIDDLE[case.ratio]
    before = run(case.name)
    stopped, *_ = train(case, At(middle[0], lambda state: state.stop_training()), **saving(tmp_path, middle))
    assert stopped["rows"] == before["rows"][: middle[0]]
    assert_goes_on(before, run(case.name, load_path=str(tmp_path / f"{middle[0]}.pt")), middle[0])
