"""What the callback refuses when a Trainer is built, in the words that it says it with."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import composer.optim
import pytest

from optim.config import build
from optim.lr_scheduler import CosineDecayLR, LinearLR, SequentialLR
from optim.weight_decay_scheduler import ConstantWD, LinearWD
from tests.integration.callback_runs import (
    BATCHES,
    BETA,
    EMBEDDING,
    LR,
    MATRIX,
    linear,
    make_optimizer,
    make_trainer,
    sequence,
)
from tests.integration.training import finish
from timesched import Clock, ConstantScheduler, LinearScheduler, bind
from timesched.integrations.composer import Binding, Schedules

DECAYING = {"initial_learning_rate": 0.1, "end_learning_rate": 0.0, "total_iters": 20}


@pytest.mark.parametrize(
    ("entry", "error", "said"),
    [
        (LinearScheduler(), TypeError, r"does not say which key it sets: pass Binding\(LinearScheduler\("),
        ("weight_decay", TypeError, "'weight_decay' is none of a Binding"),
        (lambda optimizer: 3, TypeError, "returned 3: a scheduler has step"),
    ],
)
def test_entries_that_are_none(entry: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        make_trainer([Schedules(entry)])


def test_bindings_that_are_none() -> None:
    with pytest.raises(TypeError, match="3 is not a schedule"):
        Binding(3, "lr")
    with pytest.raises(TypeError, match=r"'cosine' is not a schedule"):
        Binding("cosine", "lr")
    with pytest.raises(ValueError, match="is empty"):
        make_trainer([Schedules(Binding([], "lr"))])
    with pytest.raises(ValueError, match="name a key"):
        Binding(linear, "betas[first]")
    with pytest.raises(ValueError, match=r"ssr.*-1"):
        Schedules(ssr=-1.0)


def test_groups_and_keys_that_are_not_there() -> None:
    with pytest.raises(ValueError, match=r"No parameter group carries the tag 'body': .*'embedding', 'head', 'matrix'"):
        make_trainer([Schedules(Binding(linear, "lr", "body"))])
    with pytest.raises(ValueError, match="no 'momentum' to schedule"):
        make_trainer([Schedules(Binding(linear, "momentum"))])


def test_a_schedule_of_the_state_alone_has_no_ratio() -> None:
    with pytest.raises(ValueError, match=r"takes the state alone.*0\.5"):
        make_trainer([Schedules(Binding(lambda state: 1.0, "lr"), ssr=0.5)])


def test_two_callbacks() -> None:
    with pytest.raises(ValueError, match="two Schedules callbacks.*entries of both to one"):
        make_trainer([Schedules(Binding(linear, "lr")), Schedules(Binding(linear, "weight_decay"))])


@pytest.mark.parametrize(
    "entries",
    [
        [Binding(linear, "weight_decay"), Binding(linear, "weight_decay", "head")],
        [partial(ConstantWD, val=0.1), partial(ConstantWD, val=0.2, param_group_tags="head")],
        [partial(ConstantWD, val=0.1), Binding(linear, "weight_decay", "head")],
        [Binding(linear, "weight_decay", "head"), partial(ConstantWD, val=0.1)],
    ],
)
def test_two_schedules_on_one_number(entries: list[Any]) -> None:
    model, optimizer = make_optimizer()
    with pytest.raises(
        ValueError, match=r"of 'weight_decay' was superseded by .*'embedding', 'head', 'matrix'"
    ) as caught:
        make_trainer([Schedules(*entries)], model=model, optimizers=optimizer)
    # Nothing of them is left, though the error's traceback holds on to them: each alone may have the groups.
    assert caught.tb is not None
    for entry in entries:
        trainer, _ = make_trainer([Schedules(entry)], model=model, optimizers=optimizer)
        trainer.close()


@pytest.mark.parametrize("tags", [None, "head"])
@pytest.mark.parametrize("ours", [True, False])
def test_the_learning_rate_has_one_master(tags: Any, ours: bool) -> None:
    entry = Binding(linear, "lr", tags) if ours else partial(CosineDecayLR, **DECAYING, param_group_tags=tags)
    for schedule in (LinearScheduler(), composer.optim.LinearScheduler()):
        with pytest.raises(ValueError, match=r"'lr' of parameter group \d is set by two.*of schedulers="):
            make_trainer([Schedules(entry)], schedulers=schedule)
    for length in (None, "2ba"):
        trainer, _ = make_trainer([Schedules(entry)], max_duration=length)
        with pytest.raises(ValueError, match=r"set by two.*of schedulers="):
            trainer.fit(duration="2ba", schedulers=LinearScheduler())
        trainer.close()


def test_a_scheduler_of_other_tags_may_be_the_trainers() -> None:
    model, optimizer = make_optimizer()
    other = CosineDecayLR(optimizer, **DECAYING, param_group_tags=["embedding", None])
    options = {"model": model, "optimizers": optimizer, "step_schedulers_every_batch": True}
    trainer, record = make_trainer([Schedules(Binding(linear, "lr", "head"))], schedulers=other, **options)
    finish(trainer, record)
    assert record.of("lr", MATRIX) == [LR * (1.0 - 0.5 * k / BATCHES) for k in range(BATCHES)]
    cosine = [0.1 * (1 + math.cos(math.pi * k / BATCHES)) / 2 for k in range(BATCHES)]
    assert record.of("lr", EMBEDDING) == pytest.approx(cosine, rel=1e-14)


def test_a_scheduler_of_another_optimizer() -> None:
    _, optimizer = make_optimizer()
    with pytest.raises(ValueError, match="LinearWD is for another optimizer than the Trainer's"):
        make_trainer([Schedules(LinearWD(optimizer, 0.2, 0.0, 20))])


def test_a_trainer_that_is_refused_leaves_the_optimizer_as_it_was() -> None:
    """Also what the entries before the refused one had written."""
    model, optimizer = make_optimizer()
    before = [{**group} for group in optimizer.param_groups]
    first = LinearWD(optimizer, 0.3, 0.0, 20)
    written = [{**group} for group in optimizer.param_groups]
    entries = (Binding(ConstantScheduler(0.25), "lr"), lambda on: ConstantWD(on, 0.7), Binding(LinearScheduler(), "no"))
    with pytest.raises(ValueError, match="has no 'no' to schedule"):
        make_trainer([Schedules(*entries)], model=model, optimizers=optimizer)
    assert written != before and optimizer.param_groups == written
    first.step()
    assert first.get_last_value() == [pytest.approx(0.285, rel=1e-15)] * len(before)


def test_a_child_of_another_scheduler() -> None:
    model, optimizer = make_optimizer()
    child, other = LinearLR(optimizer, 0.0, 0.1, 5), CosineDecayLR(optimizer, 0.1, 0.01, 15)
    parent = SequentialLR(optimizer, [child, other], [5])
    for entries in ([child], [lambda optimizer: [child]], [parent, child]):
        with pytest.raises(ValueError, match=r"LinearLR\(.*\) of 'lr' was superseded by"):
            make_trainer([Schedules(*entries)], model=model, optimizers=optimizer)


STANDING = r"{} follows a timesched\.Clock, which nobody ticks .* function of \(optimizer, clock\)"


def test_schedulers_that_follow_a_clock_of_their_own() -> None:
    """As those that are built from a config with a length: in a Trainer they would keep their first value."""
    decay = {"initial_val": 0.2, "end_val": 0.0, "total_iters": "1dur", "param_group_tags": "matrix"}
    config = {"schedulers": [{"LinearWD": decay}, {"LinearScheduler": {"key": "betas[0]"}}]}
    model, optimizer = make_optimizer()
    built = build(model, {"optimizer": optimizer, "max_duration": "20ba", **config})
    for scheduler, name in zip(built.schedulers, ("LinearWD", "Bound"), strict=True):
        with pytest.raises(ValueError, match=STANDING.format(name)):
            make_trainer([Schedules(scheduler)], model=model, optimizers=optimizer)
        scheduler.unbind()

    entries: list[tuple[Any, str]] = [
        (lambda optimizer: LinearWD(optimizer, **decay, clock=Clock("20ba")), "LinearWD"),
        (partial(LinearWD, **decay, clock=Clock("20ba")), "LinearWD"),
        (lambda optimizer, clock: bind(linear, optimizer, Clock("20ba")), "BoundLR"),
        (lambda optimizer: sequence(optimizer, Clock("20ba")), "SequentialLR"),
    ]
    for entry, name in entries:
        with pytest.raises(ValueError, match=STANDING.format(name)):
            make_trainer([Schedules(entry)], model=model, optimizers=optimizer)

    # What was refused is gone from the groups. And as the error says it works.
    def made(optimizer: Any, clock: Any) -> Any:
        return build(model, {"optimizer": optimizer, **config}, clock).schedulers

    trainer, record = make_trainer([Schedules(made)], model=model, optimizers=optimizer)
    finish(trainer, record)
    assert record.of("weight_decay", MATRIX) == pytest.approx(
        [0.2 * (1 - k / 20) for k in range(BATCHES)], rel=0, abs=1e-16
    )
    assert record.of("betas[0]", MATRIX) == [BETA * (1 - k / 20) for k in range(BATCHES)]
