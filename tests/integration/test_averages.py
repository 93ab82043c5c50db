"""Averages of the weights in the real Composer Trainer: like its own EMA, evaluated, saved and resumed."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from composer import Callback, Event
from composer.algorithms import EMA

import optim
from tests.integration import training
from timesched import LinearScheduler
from timesched.integrations.composer import Binding, Schedules

DECAY = Binding(LinearScheduler(), "weight_decay")
LENGTH = "20ba"
# Composer's average begins with the weights after the first batch.
AVERAGE = partial(optim.WeightAverage, half_life="3ba", start="1ba")


class Watch(Callback):
    """The weights after each batch, and while the Trainer evaluates."""

    def __init__(self) -> None:
        self.after: list[torch.Tensor] = []
        self.evaluated: list[torch.Tensor] = []

    def batch_end(self, state: Any, logger: Any) -> None:
        self.after.append(flat(state.model.parameters()))

    def eval_batch_end(self, state: Any, logger: Any) -> None:
        self.evaluated.append(flat(state.model.parameters()))


def flat(tensors: Any) -> torch.Tensor:
    return torch.cat([x.detach().reshape(-1) for x in tensors]).clone()


def of(average: Any) -> torch.Tensor:
    return flat(state["average"] for state in average.state.values())


def fitted(schedules: Schedules, **options: Any) -> tuple[Any, Watch]:
    watch = Watch()
    evaluation = {"eval_dataloader": training.data(shuffle=False), "eval_interval": "5ba"}
    trainer, record = training.make_trainer([schedules, watch], max_duration=LENGTH, **evaluation, **options)
    training.finish(trainer, record)
    return trainer, watch


def test_as_composers() -> None:
    ours = Schedules(DECAY, average=AVERAGE, evaluate_averaged=True)
    _, watch = fitted(ours)
    ema = EMA(half_life="3ba", update_interval="1ba")
    trainer, theirs = fitted(Schedules(DECAY), algorithms=[ema])
    assert torch.equal(watch.after[-1], theirs.after[-1])
    names = [name for name, _ in trainer.state.model.named_parameters()]
    expected = flat(ema.ema_model.named_parameters_dict[name] for name in names)
    torch.testing.assert_close(of(ours.average), expected, rtol=0, atol=1e-6)  # each rounds in every batch
    assert len(watch.evaluated) == len(theirs.evaluated) > 0
    for x, y in zip(watch.evaluated, theirs.evaluated):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-6)
    assert not torch.equal(watch.evaluated[-1], watch.after[-1])


def test_saved_and_resumed(tmp_path: Path) -> None:
    whole = Schedules(DECAY, average=AVERAGE, evaluate_averaged=True)
    _, watch = fitted(whole, **training.saving(tmp_path, (11, Event.BATCH_CHECKPOINT)))
    resumed = Schedules(DECAY, average=AVERAGE, evaluate_averaged=True)
    _, again = fitted(resumed, load_path=str(tmp_path / "11.pt"))
    assert torch.equal(again.after[-1], watch.after[-1])
    assert torch.equal(of(resumed.average), of(whole.average))


def test_a_checkpoint_without_it(tmp_path: Path) -> None:
    _, watch = fitted(Schedules(DECAY), **training.saving(tmp_path, (11, Event.BATCH_CHECKPOINT)))
    path = str(tmp_path / "11.pt")
    with pytest.raises(ValueError, match="The checkpoint has no average of the weights"):
        fitted(Schedules(DECAY, average=AVERAGE), load_path=path)
    anew = Schedules(DECAY, average=AVERAGE)
    ignored = {"load_ignore_keys": ["state/callbacks/Schedules"]}
    with pytest.warns(UserWarning, match="Schedules"):
        _, again = fitted(anew, load_path=path, **ignored)
    assert anew.average.param_groups[0]["start_batch"] == 11
    assert torch.equal(again.after[-1], watch.after[-1])


def test_refused() -> None:
    with pytest.raises(ValueError, match="evaluate_averaged=True without an average"):
        Schedules(DECAY, evaluate_averaged=True)
