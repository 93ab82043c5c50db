"""Averages of the weights in the real Composer Trainer: like its own EMA, and after an evaluation that failed."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from composer import Callback, Evaluator
from composer.algorithms import EMA

import optim
from tests.integration import training
from timesched import LinearScheduler
from timesched.integrations.composer import Binding, Schedules

DECAY = Binding(LinearScheduler(), "weight_decay")
LENGTH = "20ba"
AVERAGE = partial(optim.WeightAverage, half_life="3ba", start="1ba")


class Normed(training.NextByte):
    """With running statistics, which are floating-point buffers, and the count of batches, which is an integer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.head(self.norm(self.embedding(batch["tokens"])))


class Watch(Callback):
    """The weights and floating-point buffers after each batch, and while the Trainer evaluates."""

    def __init__(self) -> None:
        self.after: list[torch.Tensor] = []
        self.evaluated: list[torch.Tensor] = []

    def batch_end(self, state: Any, logger: Any) -> None:
        self.after.append(weights(state.model))

    def eval_batch_end(self, state: Any, logger: Any) -> None:
        self.evaluated.append(weights(state.model))


def flat(tensors: Any) -> torch.Tensor:
    return torch.cat([x.detach().reshape(-1) for x in tensors]).clone()


def weights(model: Any) -> torch.Tensor:
    return flat([*model.parameters(), *(x for x in model.buffers() if x.is_floating_point())])


def fitted(schedules: Schedules, **options: Any) -> tuple[Any, Watch]:
    watch = Watch()
    evaluation = {"eval_dataloader": training.data(shuffle=False), "eval_interval": "5ba"}
    trainer, record = training.make_trainer([schedules, watch], max_duration=LENGTH, **evaluation, **options)
    training.finish(trainer, record)
    return trainer, watch


def test_as_composers() -> None:
    """As Composer's EMA, which begins with the weights after the first batch, and averages buffers."""
    model = Normed()
    average = partial(optim.WeightAverage, half_life="3ba", start="0ba", buffers=model)
    ours = Schedules(DECAY, average=average, evaluate_averaged=True)
    _, watch = fitted(ours, model=model)
    ema = EMA(half_life="3ba", update_interval="1ba")
    trainer, theirs = fitted(Schedules(DECAY), algorithms=[ema], model=Normed())
    assert torch.equal(watch.after[-1], theirs.after[-1])
    averages = ema.ema_model.named_parameters_dict | ema.ema_model.named_buffers_dict
    names = [name for name in trainer.state.model.state_dict() if averages[name].is_floating_point()]
    assert len(names) == 7
    parameters, buffers = (group["params"] for group in ours.average.param_groups)
    assert len(parameters) == 5 and len(buffers) == 2
    for name in names:
        tensor = dict([*model.named_parameters(), *model.named_buffers()])[name]
        # Each rounds in every batch.
        torch.testing.assert_close(ours.average.state[tensor]["average"], averages[name], rtol=0, atol=1e-6)
    assert len(watch.evaluated) == len(theirs.evaluated) > 0
    for x, y in zip(watch.evaluated, theirs.evaluated):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-6)
    assert not torch.equal(watch.evaluated[-1], watch.after[-1])


class Fails(Callback):
    """Raises an error in the second evaluation, once."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error, self.evaluations = error, 0

    def eval_batch_end(self, state: Any, logger: Any) -> None:
        self.evaluations += 1
        if self.evaluations == 2 + len(state.dataloader):
            raise self.error


def saves(trainer: Any) -> None:
    assert torch.equal(flat(trainer.state.state_dict()["model"].values()), flat(trainer.state.model.parameters()))


AFTERWARDS: dict[str, Callable[[Any], Any]] = {
    "close": lambda trainer: trainer.close(),
    "state_dict": saves,
    "eval": lambda trainer: trainer.eval(Evaluator(label="other", dataloader=training.data(shuffle=False))),
    "predict": lambda trainer: trainer.predict(training.data(shuffle=False)),
}


def failed(error: type[BaseException]) -> tuple[Any, Any, Watch]:
    """A Trainer whose evaluation of the average has failed after ten batches."""
    watch = Watch()
    callbacks = [Schedules(DECAY, average=AVERAGE, evaluate_averaged=True), watch, Fails(error)]
    evaluation = {"eval_dataloader": training.data(shuffle=False), "eval_interval": "5ba"}
    trainer, record = training.make_trainer(callbacks, max_duration=LENGTH, **evaluation)
    with pytest.raises(error):
        trainer.fit()
    assert len(watch.after) == 10
    return trainer, record, watch


@pytest.mark.parametrize("what", AFTERWARDS)
@pytest.mark.parametrize("error", [training.Crash, KeyboardInterrupt])
def test_a_failed_evaluation(what: str, error: type[BaseException]) -> None:
    """The model has its weights again in whatever comes next."""
    trainer, _, watch = failed(error)
    AFTERWARDS[what](trainer)
    assert torch.equal(weights(trainer.state.model), watch.after[-1])


def test_training_continues_after_a_failed_evaluation() -> None:
    _, expected = fitted(Schedules(DECAY, average=AVERAGE, evaluate_averaged=True))
    trainer, record, watch = failed(training.Crash)
    training.finish(trainer, record)
    assert len(watch.after) == 20
    assert all(torch.equal(x, y) for x, y in zip(watch.after, expected.after, strict=True))
    assert torch.equal(watch.evaluated[-1], expected.evaluated[-1])


@pytest.mark.parametrize("first", [True, False])
def test_an_error_before_the_turn_of_the_callback(first: bool) -> None:
    """The average has the weights of the batch in which another callback failed."""
    expected = Schedules(DECAY, average=AVERAGE)
    fitted(expected)
    errors = [KeyError("boom")]

    def fail_once(state: Any) -> None:
        if errors:
            raise errors.pop()

    ours = Schedules(DECAY, average=AVERAGE)
    callbacks = [training.At(5, fail_once), ours] if first else [ours, training.At(5, fail_once)]
    trainer, record = training.make_trainer(callbacks, max_duration=LENGTH)
    with pytest.raises(KeyError, match="boom"):
        trainer.fit()
    training.finish(trainer, record)
    averages = [[state["average"] for state in schedules.average.state.values()] for schedules in (ours, expected)]
    assert torch.equal(flat(averages[0]), flat(averages[1]))
