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

from optim.weight_decay_scheduler import CosineDecayWD, PiecewiseConstantWD
from tests.integration.callback_runs import (
    BATCHES,
    BETA,
    BIAS,
    BOTH,
    CASES,
    EMBEDDING,
    HALVED,
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
    torchs,
)
from tests.integration.resume import in_another_process
from tests.integration.training import At, Crash, assert_goes_on, die, finish
from timesched import LinearScheduler, bind
from timesched.integrations.composer import Binding, Schedules

FALLING = Binding(LinearScheduler(), "lr")
IGNORED = {"load_ignore_keys": ["state/callbacks/Schedules"]}
FIRST = pytest.mark.parametrize("first", [True, False])


def test_every_case_resumed_from_every_checkpoint(tmp_path: Path) -> None:
    names = [*CASES, "bindings-optim", "closed-optim"]
    full = {name: run(name, **saving(tmp_path / name)) for name in names}
    resumed = in_another_process("tests.integration.callback_runs", tmp_path)
    assert len(resumed) == 3 * len(names)
    for name, after in resumed.items():
        case, batch = name.split("/")
        assert_goes_on(full[case], after, int(batch), name)
    # What the callback saved is plain.
    saved = torch.load(tmp_path / "closed" / "8.pt", weights_only=False)["state"]["callbacks"]["Schedules"]
    torch.save(saved, tmp_path / "callback.pt")
    assert torch.load(tmp_path / "callback.pt", weights_only=True) == saved
    assert (tmp_path / "callback.pt").stat().st_size < 8192


def test_a_crashed_run_goes_on_by_itself(tmp_path: Path) -> None:
    """Saved every five batches, dead at the twelfth, and taken up by Composer's autoresume in another process."""
    name = "closed-optim"
    with pytest.raises(Crash):
        run(name, At(12, die), save_folder=str(tmp_path / name), save_interval="5ba")
    assert_goes_on(run(name), in_another_process("tests.integration.callback_runs", tmp_path, name)[name], 10)


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
]


def test_a_checkpoint_of_other_schedules_is_refused(tmp_path: Path) -> None:
    path = {"load_path": str(tmp_path / "8.pt")}
    before = finish(*make_trainer([Schedules(*SAVED)], **saving(tmp_path)))
    for entries, options, said in OTHERS:
        with pytest.raises(ValueError, match=said):
            make_trainer([Schedules(*entries, **options)], **path)
    # The same in other words goes on; so does one that counts its steps and has the saved value.
    assert_goes_on(before, finish(*make_trainer([Schedules(SAME, *SAVED[1:])], **path)), 8)
    assert done(SAME, steps([0.9, 0.2, 0.5]), torchs, **path).of("weight_decay") == [0.2] * 4 + [0.5] * 8
    finish(*make_trainer([Schedules()], **saving(tmp_path / "none")))
    with pytest.raises(ValueError, match="has 0 schedules, here are 1"):
        make_trainer([Schedules(FALLING)], load_path=str(tmp_path / "none" / "8.pt"))


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
        partial(counted, tags=[None]),
    ]
    record = done(*entries, **path)
    for group in (EMBEDDING, MATRIX, BIAS):
        assert record.of("lr", group) == falling(LR, 8, 20)
        assert record.of("betas[0]", group) == falling(BETA, 8, 20)
    assert record.of("weight_decay", MATRIX) == [0.2] * 12  # which nobody sets
    cosine = [0.2 * (1 + math.cos(math.pi * k / BATCHES)) / 2 for k in range(8, BATCHES)]
    assert record.of("weight_decay", EMBEDDING) == pytest.approx(cosine, rel=1e-14)
    assert record.of("weight_decay", BIAS) == falling(1.0, 0, 12)  # what counts its steps begins at the first
    # Schedulers of torch multiply what is there, which is not to be what was loaded.
    assert done(torchs, **path).of("lr", MATRIX) == [LR] * 4 + [LR / 2] * 4 + [LR / 4] * 4


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
    assert record.of("betas[0]", MATRIX) == [BETA * half for half in HALVED]


@FIRST
def test_a_checkpoint_saved_before_the_turn_of_the_callback(first: bool, tmp_path: Path) -> None:
    saver = At(5, lambda state: save_checkpoint(state, str(tmp_path / "5.pt")))
    callbacks, path = [saver, Schedules(counted)], {"load_path": str(tmp_path / "5.pt")}
    before = finish(*make_trainer(callbacks if first else callbacks[::-1]))
    assert_goes_on(before, finish(*make_trainer([Schedules(counted)], **path)), 5)
    # What counts its steps goes on when the time is set back, and misses none.
    trainer, record = make_trainer([Schedules(counted)], **path)
    trainer.fit(duration="6ba", reset_time=True)
    finish(trainer, record, duration="6ba", reset_time=True)
    assert record.of("weight_decay", MATRIX) == falling(1.0, 5, 17)


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
