"""The callback where a run goes on: from a checkpoint, anew, after an error, on the same optimizer."""

from __future__ import annotations

import math
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from composer.utils.checkpoint import save_checkpoint

from optim.weight_decay_scheduler import CosineDecayWD, LinearWD, PiecewiseConstantWD
from tests.integration.callback_runs import (
    BATCHES,
    BETA,
    BIAS,
    BOTH,
    CASES,
    EMBEDDING,
    LR,
    MATRIX,
    counted,
    done,
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
FALLING = Binding(LinearScheduler(), "lr")
FIRST = pytest.mark.parametrize("first", [True, False])


def torchs(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)


# From a checkpoint


def test_every_case_resumed_from_every_checkpoint(tmp_path: Path) -> None:
    names = [*CASES, "bindings-optim", "closed-optim"]
    full = {name: run(name, **saving(tmp_path / name)) for name in names}
    resumed = in_another_process("tests.integration.callback_runs", tmp_path)
    assert len(resumed) == 3 * len(names)
    for name, after in resumed.items():
        case, batch = name.split("/")
        assert_goes_on(full[case], after, int(batch), name)


def test_a_crashed_run_goes_on_by_itself(tmp_path: Path) -> None:
    """Saved every five batches, dead at the twelfth, and taken up by Composer's autoresume in another process."""
    name = "beside-optim"
    before = run(name)
    with pytest.raises(Crash):
        run(name, At(12, die), save_folder=str(tmp_path / name), save_interval="5ba")
    assert_goes_on(before, in_another_process("tests.integration.callback_runs", tmp_path, name)[name], 10)


@pytest.mark.parametrize(("first", "length"), [(True, "20ba"), (False, "1500tok")])
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
    run("closed-optim", **saving(tmp_path))
    saved = torch.load(tmp_path / "8.pt", weights_only=False)["state"]["callbacks"]["Schedules"]
    torch.save(saved, tmp_path / "callback.pt")
    assert torch.load(tmp_path / "callback.pt", weights_only=True) == saved
    assert (tmp_path / "callback.pt").stat().st_size < 8192


# What a checkpoint is compared with


def steps(values: list[float]) -> Any:
    return lambda optimizer: PiecewiseConstantWD(optimizer, values, [4, 12])


SAVED = [Binding([LinearScheduler(0.5, 1.0, "1dur"), linear], "betas[0]", "head"), steps([0.3, 0.2, 0.1]), torchs]
SAME = Binding([LinearScheduler(0.5, 1, "1.0dur"), linear], ("betas", 0), ["head"])
OTHERS: list[tuple[list[Any], dict[str, Any], str]] = [
    ([Binding(LinearScheduler(0.5), "betas[0]", "head"), *SAVED[1:]], {}, "(?s)Schedule 0 .* another .*load_ignore_k"),
    ([lambda on, run: bind(linear, on, run, "betas[0]", "head"), *SAVED[1:]], {}, r"(?s)saved \[Linear.*now   linear"),
    ([Binding(SAME.schedule, "betas[1]", "head"), *SAVED[1:]], {}, r"key='betas\[0\]', and here it is 'betas\[1\]'"),
    ([SAVED[0], steps([0.3, 0.1, 0.2]), torchs], {}, r"(?s)Schedule 1 .*\[0\.2, .* saved, \[0\.1, "),
    ([*SAVED[:2], lambda on: torch.optim.lr_scheduler.ConstantLR(on)], {}, "Schedule 2 .*'StepLR'.*'ConstantLR'"),
    (SAVED, {"ssr": 2.0}, r"'ssr': 1\.0.* here it is .*'ssr': 2\.0"),
    ([*SAVED, Binding(linear, "betas[1]")], {}, "has 3 schedules, here are 4"),
    ([], {}, "has 3 schedules, here are 0"),
]  # fmt: skip


def test_a_checkpoint_of_other_schedules_is_refused(tmp_path: Path) -> None:
    path = {"load_path": str(tmp_path / "8.pt")}
    before = finish(*make_trainer([Schedules(*SAVED)], **saving(tmp_path)))
    for entries, options, said in OTHERS:
        with pytest.raises(ValueError, match=said):
            make_trainer([Schedules(*entries, **options)], **path)
    # The same in other words goes on; so does one that counts its steps and has the saved value.
    assert_goes_on(before, finish(*make_trainer([Schedules(SAME, *SAVED[1:])], **path)), 8)
    record = done([SAME, steps([0.9, 0.2, 0.5]), torchs], **path)
    assert record.of("weight_decay") == [0.2] * 4 + [0.5] * 8


def test_nothing_was_saved(tmp_path: Path) -> None:
    finish(*make_trainer([Schedules()], **saving(tmp_path)))
    with pytest.raises(ValueError, match="has 0 schedules, here are 1"):
        make_trainer([Schedules(FALLING)], load_path=str(tmp_path / "8.pt"))
    assert len(done([], load_path=str(tmp_path / "8.pt")).rows) == 12


# Anew from a checkpoint


@BOTH
@pytest.mark.filterwarnings("ignore:Schedules is not in the state_dict:UserWarning")
def test_a_run_begins_anew(kind: Any, tmp_path: Path) -> None:
    """From the initial values of the new optimizer, whatever those in the checkpoint are; Composer warns."""
    finish(*make_trainer([Schedules(Binding(LinearScheduler(0.5), "lr"), *SAVED[:2])], kind, **saving(tmp_path)))
    path = {"load_path": str(tmp_path / "8.pt"), "kind": kind, **IGNORED}
    entries = [
        Binding(LinearScheduler(), "lr", "matrix"),
        lambda optimizer, clock: bind(LinearScheduler(), optimizer, clock, "lr", ["embedding", None]),
        Binding(LinearScheduler(), "betas[0]"),
        partial(CosineDecayWD, initial_val=0.2, end_val=0.0, total_iters="1dur", param_group_tags="embedding"),
        lambda optimizer: LinearWD(optimizer, 0.2, 0.0, 20, param_group_tags=[None]),
    ]
    record = done(entries, **path)
    for group in (EMBEDDING, MATRIX, BIAS):
        assert record.of("lr", group) == falling(LR, 8, 20)
        assert record.of("betas[0]", group) == falling(BETA, 8, 20)
    assert record.of("weight_decay", MATRIX) == [0.2] * 12  # which nobody sets
    cosine = [0.2 * (1 + math.cos(math.pi * k / BATCHES)) / 2 for k in range(8, BATCHES)]
    assert record.of("weight_decay", EMBEDDING) == pytest.approx(cosine, rel=1e-14)
    assert record.of("weight_decay", BIAS) == falling(0.2, 0, 12)  # what counts its steps begins at the first
    # Schedulers of torch multiply what is there, which is not to be what was loaded.
    assert done([torchs], **path).of("lr", MATRIX) == [LR] * 4 + [LR / 2] * 4 + [LR / 4] * 4


@pytest.mark.parametrize("more", [{}, IGNORED])
def test_a_load_before_the_length_is_known(more: Any, tmp_path: Path) -> None:
    """Refused when it fits, with what to write: the initial values would be those of the checkpoint."""
    finish(*make_trainer([Schedules(FALLING)], **saving(tmp_path)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Composer's, of what is ignored
        trainer, _ = make_trainer([Schedules(FALLING)], max_duration=None, load_path=str(tmp_path / "8.pt"), **more)
    with pytest.raises(ValueError, match=r"Trainer\(max_duration=\.\.\.\)"):
        trainer.fit(duration="12ba")
    trainer.close()


# After an error, and from a checkpoint that was saved before the callback's turn


@FIRST
def test_an_error_before_the_turn_of_the_callback(first: bool) -> None:
    errors = [KeyError("boom")]

    def fail_once(state: Any) -> None:
        if errors:
            raise errors.pop()

    callbacks = [At(5, fail_once), Schedules(counted, torchs, Binding(linear, "betas[0]"))]
    trainer, record = make_trainer(callbacks if first else callbacks[::-1])
    with pytest.raises(KeyError, match="boom"):
        trainer.fit()
    finish(trainer, record)
    assert len(record.rows) == BATCHES
    assert record.of("weight_decay", MATRIX) == falling(1.0, 0, BATCHES)
    assert record.of("lr", MATRIX) == [LR / 2 ** (k // 4) for k in range(BATCHES)]
    assert record.of("betas[0]", MATRIX) == [BETA * (1.0 - 0.5 * k / BATCHES) for k in range(BATCHES)]


@FIRST
def test_a_checkpoint_saved_before_the_turn_of_the_callback(first: bool, tmp_path: Path) -> None:
    saver = At(5, lambda state: save_checkpoint(state, str(tmp_path / "5.pt")))
    callbacks = [saver, Schedules(counted)]
    before = finish(*make_trainer(callbacks if first else callbacks[::-1]))
    options: dict[str, Any] = {"load_path": str(tmp_path / "5.pt")}
    assert_goes_on(before, finish(*make_trainer([Schedules(counted)], **options)), 5)
    # Without its time, a checkpoint does not tell what is missing.
    trainer, record = make_trainer([Schedules(counted)], load_ignore_keys=["state/timestamp"], **options)
    finish(trainer, record, duration="12ba")
    assert record.of("weight_decay", MATRIX) == falling(1.0, 5 - first, 17 - first)
    # What counts its steps goes on when the time is set back, and misses none.
    trainer, record = make_trainer([Schedules(counted)], **options)
    trainer.fit(duration="6ba", reset_time=True)
    finish(trainer, record, duration="6ba", reset_time=True)
    assert record.of("weight_decay", MATRIX) == falling(1.0, 5, 17)


# One optimizer, one Trainer after another


@BOTH
def test_a_new_trainer_takes_over(kind: Any) -> None:
    """As when a cell of a notebook runs again; the one before says so when it is fitted on."""
    model, optimizer = make_optimizer(kind)
    options: dict[str, Any] = {"model": model, "optimizers": optimizer}
    entries = [Binding(LinearScheduler(), "lr", "matrix"), counted]
    former, _ = make_trainer([Schedules(*entries)], **options)
    former.fit(duration="5ba")
    # One that is refused takes nothing over.
    with pytest.raises(ValueError, match="No parameter group carries the tag 'body'"):
        make_trainer([Schedules(Binding(linear, "lr", "body"))], **options)
    former.fit(duration="5ba")
    # One that fails later lets go, though the traceback holds on to it, as sys.last_value does in a notebook.
    with pytest.raises(FileNotFoundError) as caught:
        make_trainer([Schedules(*entries)], load_path="nowhere.pt", **options)
    trainer, record = make_trainer([Schedules(*entries)], **options)
    assert caught.tb is not None
    with pytest.raises(ValueError, match="was superseded by"):
        former.fit(duration="5ba")
    former.close()  # lets go of nothing that is another's
    finish(trainer, record)
    assert record.of("lr", MATRIX) == falling(LR, 0, BATCHES)
    assert record.of("weight_decay", MATRIX) == falling(1.0, 0, BATCHES)
