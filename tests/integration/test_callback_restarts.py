"""The callback where a run ends and another begins: anew, after an error, on the same optimizer, as a copy."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from composer import Callback
from composer.utils.checkpoint import save_checkpoint

import optim
from optim.lr_scheduler import LinearLR
from optim.weight_decay_scheduler import CosineDecayWD, LinearWD
from tests.integration.callback_run import (
    BATCHES,
    BETA,
    BETA_1,
    BIAS,
    DECAY,
    EMBEDDING,
    LR,
    MATRIX,
    RATE,
    WEIGHT_DECAY,
    At,
    finish,
    linear,
    make_optimizer,
    make_trainer,
    saving,
)
from timesched import LinearScheduler, bind
from timesched.integrations.composer import Binding, Schedules

IGNORED = {"load_ignore_keys": ["state/callbacks/Schedules"]}


def rates(optimizer: Any) -> LinearLR:
    return LinearLR(optimizer, 0.3, 0.0, 20)


def decay(optimizer: Any) -> LinearWD:
    return LinearWD(optimizer, 1.0, 0.0, 20)


def line(start: float, first: int, last: int, steps: int = 20) -> Any:
    return pytest.approx([start * (1 - k / steps) for k in range(first, last)], rel=1e-14)


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
    trainer.fit(duration="12ba")
    trainer.close()
    for group in (EMBEDDING, MATRIX, BIAS):
        assert record.of(RATE, group) == line(LR, 8, 20)
        assert record.of(BETA_1, group) == line(BETA, 8, 20)
        assert record.of(DECAY, group) == [WEIGHT_DECAY] * 12


@pytest.mark.parametrize("clock", [True, False])
def test_schedulers_of_torch_begin_anew(clock: bool, tmp_path: Path) -> None:
    """They multiply what is there, which is not to be what was loaded."""
    finish(*make_trainer([Schedules(rates)], **saving(tmp_path)))

    def halving(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)

    entry: Callable[..., Any] = (lambda optimizer, clock: halving(optimizer)) if clock else halving
    with pytest.warns(UserWarning, match="Schedules is not in the state_dict"):
        trainer, record = make_trainer([Schedules(entry)], load_path=str(tmp_path / "8.pt"), **IGNORED)
    trainer.fit(duration="12ba")
    trainer.close()
    assert record.of(RATE, MATRIX) == [LR] * 4 + [LR / 2] * 4 + [LR / 4] * 4


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


class Boom(Callback):
    """Raises an error once."""

    raised = False

    def batch_end(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch == 5 and not self.raised:
            self.raised = True
            raise KeyError("boom")


def counted(optimizer: Any) -> list[Any]:
    """Two that count their steps, one of them of torch."""
    return [decay(optimizer), torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, 20)]


@pytest.mark.parametrize("first", [True, False])
def test_an_error_before_the_turn_of_the_callback(first: bool) -> None:
    callbacks = [Boom(), Schedules(counted, Binding(linear, "betas[0]"))]
    trainer, record = make_trainer(callbacks if first else callbacks[::-1])
    with pytest.raises(KeyError, match="boom"):
        trainer.fit()
    trainer.fit()
    trainer.close()
    assert len(record.rows) == BATCHES
    assert record.of(DECAY, MATRIX) == line(1.0, 0, BATCHES)
    assert record.of(RATE, MATRIX) == pytest.approx([LR * (1 - k / 20) for k in range(BATCHES)], rel=1e-12)
    assert record.of(BETA_1, MATRIX) == [BETA * (1.0 - 0.5 * k / BATCHES) for k in range(BATCHES)]


@pytest.mark.parametrize("first", [True, False])
def test_a_checkpoint_saved_before_the_turn_of_the_callback(first: bool, tmp_path: Path) -> None:
    saver = At(5, lambda state: save_checkpoint(state, str(tmp_path / "5.pt")))
    callbacks = [saver, Schedules(counted)]
    before = finish(*make_trainer(callbacks if first else callbacks[::-1]))
    options: dict[str, Any] = {"load_path": str(tmp_path / "5.pt")}
    for more in ({}, {"load_ignore_keys": ["state/timestamp"]}):
        trainer, record = make_trainer([Schedules(counted)], **options, **more)
        trainer.fit(duration="12ba")
        trainer.close()
        begin = 5 - (first and bool(more))  # without its time, a checkpoint does not tell what is missing
        assert record.of(DECAY, MATRIX) == line(1.0, begin, begin + 12)
        if not more:
            assert record.rows == before["rows"][5:17]
    # What counts its steps goes on when the time is set back, and misses none.
    trainer, record = make_trainer([Schedules(counted)], **options)
    trainer.fit(duration="6ba", reset_time=True)
    trainer.fit(duration="6ba", reset_time=True)
    trainer.close()
    assert record.of(DECAY, MATRIX) == line(1.0, 5, 17)


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
    assert record.of(RATE, MATRIX) == line(LR, 0, BATCHES)
    assert record.of(DECAY, MATRIX) == line(1.0, 0, BATCHES)


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
    assert record.of(RATE, MATRIX) == line(LR, 0, BATCHES)
    assert record.of(DECAY, MATRIX) == line(1.0, 0, BATCHES)


def test_schedulers_given_to_a_fit_are_dropped_as_the_error_says() -> None:
    for length in ("4ba", None):
        trainer, record = make_trainer([Schedules(Binding(LinearScheduler(), "lr"))], max_duration=length)
        for _ in range(2):
            with pytest.raises(ValueError, match=r"trainer\.state\.schedulers = \[\] drops them"):
                trainer.fit(duration="4ba", schedulers=LinearScheduler())
        trainer.state.schedulers = []
        trainer.fit(duration="4ba")
        trainer.close()
        assert record.of(RATE, MATRIX) == line(LR, 0, 4, 4)


# Copies


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_copy_begins_in_a_trainer_of_its_own(copied: Any) -> None:
    callback = Schedules(Binding(LinearScheduler(), "lr"), decay, ssr=2.0, log=True)
    trainer, record = make_trainer([callback], scale_schedule_ratio=1.0)
    trainer.fit(duration="5ba")
    other = copied(callback)
    assert (other.schedulers, other.ssr, other.log, len(other.entries)) == ([], 2.0, True, 2)
    once, again = (finish(*make_trainer([each]))["rows"] for each in (Schedules(*callback.entries, ssr=2.0), other))
    assert once == again
    trainer.fit(duration="5ba")  # the copy took nothing from it
    trainer.close()
    assert record.of(DECAY, MATRIX) == line(1.0, 0, 10)


def test_the_clock_of_a_run_has_what_the_state_has() -> None:
    clocks: list[Any] = []

    def made(optimizer: Any, clock: Any) -> Any:
        clocks.append(clock)
        return decay(optimizer)

    trainer, _ = make_trainer([Schedules(made)])
    assert clocks[0].timestamp == trainer.state.timestamp and clocks[0].dataloader_len == 8
    with pytest.raises(AttributeError, match="no attribute '__nothing__'"):
        clocks[0].__nothing__  # noqa: B018
    assert copy.copy(clocks[0]).max_duration == "20ba"
    trainer.close()


def test_the_ratio_of_a_scheduler_with_the_clock_is_compared(tmp_path: Path) -> None:
    entry = partial(CosineDecayWD, initial_val=0.2, end_val=0.0, total_iters="20ba")
    finish(*make_trainer([Schedules(entry)], **saving(tmp_path)))
    with pytest.raises(ValueError, match=r"Schedule 0 .*ssr is 1\.0 in the state, and 2\.0 here"):
        make_trainer([Schedules(entry, ssr=2.0)], load_path=str(tmp_path / "8.pt"))
