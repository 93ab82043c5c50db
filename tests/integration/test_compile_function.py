"""Ways to put a schedule on the real Trainer: Composer's compile function, ours, and bind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import composer.optim
import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

import timesched
from tests.integration.runs import CASES, LENGTHS, MIDDLE, Case, cases, part, run, train
from tests.integration.training import (
    BASE_LR,
    BASE_WEIGHT_DECAY,
    NextByte,
    assert_goes_on,
    finish,
    make_trainer,
    saving,
)


def with_our_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the Trainer compile schedules with our function in place of its own."""
    monkeypatch.setattr("composer.trainer.trainer.compile_composer_scheduler", timesched.compile_composer_scheduler)


@pytest.mark.parametrize(("unit", "ratio"), [("ep", 2.0), ("ba", 1.0), ("tok", 0.5)])
def test_both_compile_functions_give_the_same(unit: str, ratio: float, monkeypatch: pytest.MonkeyPatch) -> None:
    table = cases(unit, (ratio,))
    theirs = [train(case) for case in table]
    with_our_compile(monkeypatch)
    for case, (before, trainer, _) in zip(table, theirs, strict=True):
        after, another, _ = train(case)
        assert type(trainer.state.schedulers[0]) is LambdaLR
        assert isinstance(another.state.schedulers[0], timesched.BoundLR)
        assert_goes_on(before, after, 0, case.name)


def test_our_compile_is_saved_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_our_compile(monkeypatch)
    case = CASES["sp-2.0-weight_decay"]
    middle = MIDDLE[case.ratio]
    before, *_ = train(case, **saving(tmp_path, middle))
    path = str(tmp_path / f"{middle[0]}.pt")
    after, trainer, _ = train(case, load_path=path)
    assert_goes_on(before, after, middle[0])
    assert [each.last_epoch for each in trainer.state.schedulers] == [len(before["rows"])] * 2
    # The rate in the checkpoint counts, as in torch.
    model = NextByte()
    slower = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=BASE_WEIGHT_DECAY)
    assert run(case.name, model=model, optimizers=slower, load_path=path)["rows"] == after["rows"]


def test_a_compiled_schedule_is_given_to_a_trainer() -> None:
    """As the state's scheduler, or to fit() as the torch scheduler that it is."""
    schedule = timesched.CosineAnnealingWithWarmupScheduler("0.25dur")
    usual = make_trainer(max_duration="12ba", schedulers=schedule)
    assigned = make_trainer(max_duration="12ba")
    assigned[0].state.schedulers = [timesched.compile_composer_scheduler(schedule, assigned[0].state)]
    given = make_trainer(max_duration="12ba")
    compiled = timesched.compile_composer_scheduler(schedule, given[0].state)
    rows = [finish(*usual)["rows"], finish(*assigned)["rows"]]
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
    trainer.fit()
    trainer.close()
    assert [x / BASE_LR for x in record.of("lr")] == [1, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25]
    assert [x / BASE_WEIGHT_DECAY for x in record.of("weight_decay")] == [1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.125]


def test_the_schedule_bound_last_owns_the_trainers_learning_rate() -> None:
    trainer, _ = make_trainer(max_duration="8ba")
    (optimizer,) = trainer.state.optimizers
    bound = timesched.bind(timesched.LinearScheduler(), optimizer, trainer.state)
    other = timesched.bind(timesched.ConstantScheduler(0.5), optimizer, trainer.state)
    with pytest.raises(ValueError, match="was superseded by ConstantScheduler"):
        bound.step()
    assert other.get_last_lr() == [0.5 * BASE_LR]
    trainer.close()


def warmups(unit: str) -> list[tuple[str, dict[str, Any]]]:
    """The classes that refuse a t_max shorter than the run, with a t_max that is the unscaled run."""
    times = {"t_warmup": part(unit, 0.25), "t_max": f"{LENGTHS[unit]}{unit}", "scale_warmup": True}
    return [
        ("ConstantWithWarmupScheduler", times),
        ("LinearWithWarmupScheduler", times),
        ("CosineAnnealingWithWarmupScheduler", times),
        ("PolynomialWithWarmupScheduler", times),
    ]


@pytest.mark.parametrize("unit", LENGTHS)
def test_half_a_run_with_an_explicit_t_max(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Composer compiles before it scales the duration, and its classes then find t_max too short; ours do not."""
    for name, times in warmups(unit):
        case = Case(name, unit, 0.5, (name,), (times,))
        (theirs,) = case.theirs()
        with pytest.raises(ValueError, match="must be greater than or equal to max_duration"):
            make_trainer(max_duration=case.max_duration, schedulers=theirs, scale_schedule_ratio=0.5)
        rates = train(Case(name, unit, 0.5, (name,), (times | {"t_max": "1dur"},)))[2].of("lr")
        assert train(case)[2].of("lr") == rates
        with monkeypatch.context() as patch:
            with_our_compile(patch)
            assert train(case)[2].of("lr") == rates


@pytest.mark.parametrize("unit", LENGTHS)
def test_a_t_max_that_is_too_short_is_refused(unit: str) -> None:
    """Neither t_max nor its scaled length reaches the end of the run: an error from ours as from Composer's."""
    for name, times in warmups(unit):
        for module in (timesched, composer.optim):
            short = getattr(module, name)(**(times | {"t_max": part(unit, 0.5)}))
            with pytest.raises(ValueError, match=r"t_max .* must be greater than or equal to max_duration"):
                make_trainer(max_duration=f"{LENGTHS[unit]}{unit}", schedulers=short)


def test_plain_functions_on_the_trainer() -> None:
    """A function of the state, compiled by Composer and by us; with a ratio it needs the second argument."""

    def halves(state: Any) -> float:
        return 0.5 ** int(state.timestamp.batch)

    for compile_function in (composer.optim.compile_composer_scheduler, timesched.compile_composer_scheduler):
        trainer, record = make_trainer(max_duration="4ba")
        trainer.state.schedulers = [compile_function(halves, trainer.state)]
        with pytest.raises(ValueError, match="ratio"):
            compile_function(halves, trainer.state, 0.5)
        trainer.fit()
        trainer.close()
        assert [lr / BASE_LR for lr in record.of("lr")] == [1, 1, 0.5, 0.25]


def test_of_several_schedules_the_last_one_counts() -> None:
    """That is Composer's way with a list, whatever its docs say; our product is one schedule."""
    line, step = timesched.LinearScheduler(), timesched.StepScheduler("2ba", gamma=0.5)
    rates = []
    for schedulers in ([line, step], step, timesched.ProductScheduler([line, step])):
        trainer, record = make_trainer(max_duration="6ba", schedulers=schedulers)
        trainer.fit()
        trainer.close()
        rates.append([lr / BASE_LR for lr in record.of("lr")])
    assert rates[0] == rates[1] == [1, 1, 1, 0.5, 0.5, 0.25]
    assert rates[2] == pytest.approx([1, 1, 5 / 6, 2 / 6, 3 / 12, 2 / 24], abs=1e-15)
