"""The callback where a run goes on: from a checkpoint, anew, after an error, on the same optimizer, as a copy."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from composer.utils.checkpoint import save_checkpoint

import optim
from optim.lr_scheduler import LinearLR
from optim.weight_decay_scheduler import CosineDecayWD, LinearWD
from tests.integration.callback_runs import (
    BATCHES,
    BETA,
    BIAS,
    CASES,
    EMBEDDING,
    LR,
    MATRIX,
    WEIGHT_DECAY,
    falling,
    linear,
    make_optimizer,
    make_trainer,
    run,
    saving,
)
from tests.integration.resume import in_another_process
from tests.integration.training import At, Crash, assert_goes_on, column, die, finish
from timesched import LinearScheduler, MultiStepScheduler, bind
from timesched.integrations.composer import Binding, Schedules

IGNORED = {"load_ignore_keys": ["state/callbacks/Schedules"]}


def rates(optimizer: Any) -> LinearLR:
    return LinearLR(optimizer, 0.3, 0.0, 20)


def decay(optimizer: Any) -> LinearWD:
    return LinearWD(optimizer, 1.0, 0.0, 20)


# From a checkpoint


def test_every_case_resumed_from_every_checkpoint(tmp_path: Path) -> None:
    full = {name: run(name, **saving(tmp_path / name)) for name in CASES}
    resumed = in_another_process("tests.integration.callback_runs", tmp_path)
    assert len(resumed) == 3 * len(CASES)
    for name, after in resumed.items():
        case, batch = name.split("/")
        assert_goes_on(full[case], after, int(batch), name)


def test_a_crashed_run_goes_on_by_itself(tmp_path: Path) -> None:
    before = run("closed-optim")
    with pytest.raises(Crash):
        run("closed-optim", At(12, die), save_folder=str(tmp_path / "closed-optim"), save_interval="5ba")
    after = in_another_process("tests.integration.callback_runs", tmp_path, "closed-optim")["closed-optim"]
    assert_goes_on(before, after, 10)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("length", ["20ba", "1500tok"])
def test_a_stopped_run_goes_on(first: bool, length: str, tmp_path: Path) -> None:
    """stop_training() makes an end of the present moment, for the Trainer and not for the schedules."""

    def trainer(*more: Any, **options: Any) -> Any:
        schedule = MultiStepScheduler(["200tok", "0.5dur", "0.9dur"], gamma=0.5)
        mine = [Schedules(Binding(schedule, "weight_decay")), *more]
        return make_trainer(mine[::-1] if first else mine, max_duration=length, **options)

    before = finish(*trainer())
    assert len(set(column(before["rows"], "weight_decay", MATRIX))) == 4
    stop = At(10, lambda state: state.stop_training())
    stopped, record = trainer(stop, save_folder=str(tmp_path), save_filename="{batch}.pt", save_interval="10ba")
    assert finish(stopped, record)["rows"] == before["rows"][:10]
    group = stopped.state.optimizers[0].param_groups[0]
    assert group["weight_decay"] == column(before["rows"], "weight_decay", EMBEDDING)[10]
    assert_goes_on(before, finish(*trainer(load_path=str(tmp_path / "10.pt"))), 10)


def test_checkpoints_hold_plain_values(tmp_path: Path) -> None:
    run("mixed-optim", **saving(tmp_path))
    saved = torch.load(tmp_path / "8.pt", weights_only=False)["state"]["callbacks"]["Schedules"]
    torch.save(saved, tmp_path / "callback.pt")
    assert torch.load(tmp_path / "callback.pt", weights_only=True) == saved
    assert (tmp_path / "callback.pt").stat().st_size < 4096


def test_a_checkpoint_without_the_callback(tmp_path: Path) -> None:
    """Composer warns; times go on from where the run is, and steps are counted from the first."""
    finish(*make_trainer([], **saving(tmp_path)))
    entries = [
        Binding(LinearScheduler(), "weight_decay", "matrix"),
        partial(CosineDecayWD, initial_val=0.2, end_val=0.0, total_iters="1dur", param_group_tags="embedding"),
        lambda optimizer: LinearWD(optimizer, 0.2, 0.0, 20, param_group_tags=[None]),
    ]
    with pytest.warns(UserWarning, match="Schedules is not in the state_dict"):
        trainer, record = make_trainer([Schedules(*entries)], load_path=str(tmp_path / "13.pt"))
    finish(trainer, record)
    rest = range(13, BATCHES)
    assert record.of("weight_decay", MATRIX) == [WEIGHT_DECAY * (1 - k / BATCHES) for k in rest]
    cosine = [0.2 * (1 + math.cos(math.pi * k / BATCHES)) / 2 for k in rest]
    assert record.of("weight_decay", EMBEDDING) == pytest.approx(cosine, rel=1e-14)
    assert record.of("weight_decay", BIAS) == pytest.approx([0.2 * (1 - k / 20) for k in range(7)], rel=1e-14)


# Other schedules than the checkpoint has


def test_another_schedule_is_refused_with_the_difference(tmp_path: Path) -> None:
    def schedules(*more: Any, alpha: float = 0.5, key: str = "betas[0]", ssr: float = 1.0) -> Schedules:
        return Schedules(
            Binding(LinearScheduler(alpha, 1.0, "1dur"), key, "head"),
            partial(CosineDecayWD, initial_val=0.2, end_val=alpha / 5, total_iters=20),
            *more,
            ssr=ssr,
        )

    finish(*make_trainer([schedules()], **saving(tmp_path)))
    path = str(tmp_path / "8.pt")
    for other, said in (
        (schedules(alpha=0.25), r"(?s)Schedule 0 .*alpha_i=0\.5.*alpha_i=0\.25.*load_ignore_keys"),
        (schedules(key="betas[1]"), r"key='betas\[0\]', and here it is 'betas\[1\]'"),
        (schedules(ssr=2.0), r"'ssr': 1\.0.* here it is .*'ssr': 2\.0"),
        (schedules(Binding(linear, "lr")), "has 2 schedules,.* here are 3"),
        (
            Schedules(*schedules().entries[::-1]),
            r"Schedule 0 .*name': 'Bound'.*'name': 'CosineDecayWD'.* Give",
        ),
        (
            Schedules(schedules().entries[0], partial(CosineDecayWD, initial_val=0.2, end_val=0.2, total_iters=20)),
            "CosineDecayWD.*end_val",
        ),
    ):
        with pytest.raises(ValueError, match=said):
            make_trainer([other], load_path=path)
    # The same schedule in other words is the same; and one may start anew, from the values of the new optimizer.
    written = schedules().entries
    same = Schedules(Binding(LinearScheduler(0.5, 1, "1.0dur"), ("betas", 0), ["head"]), written[1])
    make_trainer([same], load_path=path)[0].close()
    anew = Schedules(Binding(LinearScheduler(0.25, 1.0), "betas[0]", "head"))
    options = {"load_path": path, "load_ignore_keys": ["state/callbacks/Schedules"]}
    with pytest.warns(UserWarning, match="Schedules is not in the state_dict"):
        trainer, record = make_trainer([anew], **options)
    finish(trainer, record)
    assert record.of("betas[0]", MATRIX) == [BETA * (0.25 + 0.75 * (k / 20)) for k in range(8, BATCHES)]


def test_no_schedules_where_the_checkpoint_has_some_and_the_reverse(tmp_path: Path) -> None:
    for name, entries in (("some", [Binding(linear, "weight_decay")]), ("none", [])):
        trainer, record = make_trainer([Schedules(*entries)], max_duration="2ba", save_folder=str(tmp_path / name))
        finish(trainer, record)
    some, none = (str(tmp_path / name / "latest-rank0.pt") for name in ("some", "none"))
    with pytest.raises(ValueError, match="has 1 schedules,.* here are 0.*load_ignore_keys"):
        make_trainer([Schedules()], load_path=some, max_duration="4ba")
    with pytest.raises(ValueError, match="has 0 schedules,.* here are 1"):
        make_trainer([Schedules(Binding(linear, "lr"))], load_path=none, max_duration="4ba")
    trainer, record = make_trainer([Schedules()], load_path=none, max_duration="4ba")
    finish(trainer, record)
    assert len(record.rows) == 2


def test_what_a_function_binds_is_compared(tmp_path: Path) -> None:
    def bound(alpha: float, key: str = "betas[0]") -> Schedules:
        return Schedules(lambda optimizer, clock: bind([LinearScheduler(alpha), linear], optimizer, clock, key, "head"))

    finish(*make_trainer([bound(0.5)], **saving(tmp_path)))
    path = str(tmp_path / "8.pt")
    model, optimizer = make_optimizer()
    with pytest.raises(ValueError, match=r"(?s)Schedule 0 .*alpha_i=0\.5.*alpha_i=0\.25") as caught:
        make_trainer([bound(0.25)], load_path=path, model=model, optimizers=optimizer)
    with pytest.raises(ValueError, match=r"key='betas\[0\]', and here it is 'betas\[1\]'"):
        make_trainer([bound(0.5, "betas[1]")], load_path=path)
    # What was refused has let go of the groups. A Binding of the same is the same.
    assert caught.tb is not None
    same = Schedules(Binding([LinearScheduler(0.5), linear], "betas[0]", "head"))
    make_trainer([same], load_path=path, model=model, optimizers=optimizer)[0].close()


def test_the_ratio_of_a_scheduler_with_the_clock_is_compared(tmp_path: Path) -> None:
    entry = partial(CosineDecayWD, initial_val=0.2, end_val=0.0, total_iters="20ba")
    finish(*make_trainer([Schedules(entry)], **saving(tmp_path)))
    with pytest.raises(ValueError, match=r"Schedule 0 .*'ssr': 1\.0.*'ssr': 2\.0"):
        make_trainer([Schedules(entry, ssr=2.0)], load_path=str(tmp_path / "8.pt"))


# Anew from a checkpoint


@pytest.mark.parametrize("kind", [torch.optim.AdamW, optim.AdamW])
def test_the_initial_values_are_those_before_the_load(kind: Any, tmp_path: Path) -> None:
    """Whatever those in the checkpoint are."""
    first = [Binding(LinearScheduler(0.5), "betas[0]"), rates]
    finish(*make_trainer([Schedules(*first)], kind, **saving(tmp_path)))
    entries = [
        Binding(LinearScheduler(), "lr", "matrix"),
        lambda optimizer, clock: bind(LinearScheduler(), optimizer, clock, "lr", ["embedding", None]),
        Binding(LinearScheduler(), "betas[0]"),
    ]
    options = {"load_path": str(tmp_path / "8.pt"), **IGNORED}
    with pytest.warns(UserWarning, match="Schedules is not in the state_dict"):
        trainer, record = make_trainer([Schedules(*entries)], kind, **options)
    finish(trainer, record, duration="12ba")
    for group in (EMBEDDING, MATRIX, BIAS):
        assert record.of("lr", group) == falling(LR, 8, 20)
        assert record.of("betas[0]", group) == falling(BETA, 8, 20)
        assert record.of("weight_decay", group) == [WEIGHT_DECAY] * 12


@pytest.mark.parametrize("clock", [True, False])
def test_schedulers_of_torch_begin_anew(clock: bool, tmp_path: Path) -> None:
    """They multiply what is there, which is not to be what was loaded."""
    finish(*make_trainer([Schedules(rates)], **saving(tmp_path)))

    def halving(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)

    entry: Callable[..., Any] = (lambda optimizer, clock: halving(optimizer)) if clock else halving
    with pytest.warns(UserWarning, match="Schedules is not in the state_dict"):
        trainer, record = make_trainer([Schedules(entry)], load_path=str(tmp_path / "8.pt"), **IGNORED)
    finish(trainer, record, duration="12ba")
    assert record.of("lr", MATRIX) == [LR] * 4 + [LR / 2] * 4 + [LR / 4] * 4


@pytest.mark.parametrize("more", [{}, IGNORED])
def test_a_load_before_the_length_is_known(more: Any, tmp_path: Path) -> None:
    """Refused when it fits, with what to write: the initial values would be those of the checkpoint."""
    finish(*make_trainer([Schedules(Binding(LinearScheduler(), "lr"))], **saving(tmp_path)))
    entry = Binding(LinearScheduler(), "lr")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Composer's, of what is ignored
        trainer, _ = make_trainer([Schedules(entry)], max_duration=None, load_path=str(tmp_path / "8.pt"), **more)
    with pytest.raises(ValueError, match=r"Trainer\(max_duration=\.\.\.\)"):
        trainer.fit(duration="12ba")
    trainer.close()


# After an error, and from a checkpoint that was saved before the callback's turn


def counted(optimizer: Any) -> list[Any]:
    """Two that count their steps, one of them of torch."""
    return [decay(optimizer), torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, 20)]


@pytest.mark.parametrize("first", [True, False])
def test_an_error_before_the_turn_of_the_callback(first: bool) -> None:
    errors = [KeyError("boom")]

    def fail_once(state: Any) -> None:
        if errors:
            raise errors.pop()

    callbacks = [At(5, fail_once), Schedules(counted, Binding(linear, "betas[0]"))]
    trainer, record = make_trainer(callbacks if first else callbacks[::-1])
    with pytest.raises(KeyError, match="boom"):
        trainer.fit()
    trainer.fit()
    trainer.close()
    assert len(record.rows) == BATCHES
    assert record.of("weight_decay", MATRIX) == falling(1.0, 0, BATCHES)
    assert record.of("lr", MATRIX) == pytest.approx([LR * (1 - k / 20) for k in range(BATCHES)], rel=1e-12)
    assert record.of("betas[0]", MATRIX) == [BETA * (1.0 - 0.5 * k / BATCHES) for k in range(BATCHES)]


@pytest.mark.parametrize("first", [True, False])
def test_a_checkpoint_saved_before_the_turn_of_the_callback(first: bool, tmp_path: Path) -> None:
    saver = At(5, lambda state: save_checkpoint(state, str(tmp_path / "5.pt")))
    callbacks = [saver, Schedules(counted)]
    before = finish(*make_trainer(callbacks if first else callbacks[::-1]))
    options: dict[str, Any] = {"load_path": str(tmp_path / "5.pt")}
    for more in ({}, {"load_ignore_keys": ["state/timestamp"]}):
        trainer, record = make_trainer([Schedules(counted)], **options, **more)
        finish(trainer, record, duration="12ba")
        begin = 5 - (first and bool(more))  # without its time, a checkpoint does not tell what is missing
        assert record.of("weight_decay", MATRIX) == falling(1.0, begin, begin + 12)
        if not more:
            assert record.rows == before["rows"][5:17]
    # What counts its steps goes on when the time is set back, and misses none.
    trainer, record = make_trainer([Schedules(counted)], **options)
    trainer.fit(duration="6ba", reset_time=True)
    trainer.fit(duration="6ba", reset_time=True)
    trainer.close()
    assert record.of("weight_decay", MATRIX) == falling(1.0, 5, 17)


# One optimizer, one Trainer after another


@pytest.mark.parametrize("kind", [torch.optim.AdamW, optim.AdamW])
def test_a_trainer_that_failed_lets_go_of_the_optimizer(kind: Any) -> None:
    """Though the traceback holds on to it, as sys.last_value does in a notebook."""
    model, optimizer = make_optimizer(kind)
    options = {"model": model, "optimizers": optimizer}
    entries = [Binding(LinearScheduler(), "lr"), decay]
    with pytest.raises(FileNotFoundError) as caught:
        make_trainer([Schedules(*entries)], load_path="nowhere.pt", **options)
    trainer, record = make_trainer([Schedules(*entries)], **options)
    assert caught.tb is not None
    finish(trainer, record)
    assert record.of("lr", MATRIX) == falling(LR, 0, BATCHES)
    assert record.of("weight_decay", MATRIX) == falling(1.0, 0, BATCHES)


def test_a_new_trainer_takes_over() -> None:
    """As when a cell of a notebook runs again; the one before says so when it is fitted on."""
    model, optimizer = make_optimizer()
    options: dict[str, Any] = {"model": model, "optimizers": optimizer}
    entries = [Binding(LinearScheduler(), "lr", "matrix"), decay]
    former, _ = make_trainer([Schedules(*entries)], **options)
    former.fit(duration="5ba")
    # One that is refused takes nothing over.
    with pytest.raises(ValueError, match="No parameter group carries the tag 'body'"):
        make_trainer([Schedules(Binding(linear, "lr", "body"))], **options)
    former.fit(duration="5ba")
    trainer, record = make_trainer([Schedules(*entries)], **options)
    with pytest.raises(ValueError, match="was superseded by"):
        former.fit(duration="5ba")
    former.close()  # lets go of nothing that is another's
    finish(trainer, record)
    assert record.of("lr", MATRIX) == falling(LR, 0, BATCHES)
    assert record.of("weight_decay", MATRIX) == falling(1.0, 0, BATCHES)


def test_schedulers_given_to_a_fit_are_dropped_as_the_error_says() -> None:
    for length in ("4ba", None):
        trainer, record = make_trainer([Schedules(Binding(LinearScheduler(), "lr"))], max_duration=length)
        for _ in range(2):
            with pytest.raises(ValueError, match=r"trainer\.state\.schedulers = \[\] drops them"):
                trainer.fit(duration="4ba", schedulers=LinearScheduler())
        trainer.state.schedulers = []
        trainer.fit(duration="4ba")
        trainer.close()
        assert record.of("lr", MATRIX) == falling(LR, 0, 4, 4)
