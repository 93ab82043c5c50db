"""What the callback refuses when a Trainer is built or fits; the optimizer is then as it was."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import composer.optim
import pytest

from optim.lr_scheduler import CosineDecayLR, LinearLR, SequentialLR
from optim.weight_decay_scheduler import ConstantWD, LinearWD
from tests.integration.callback_runs import (
    BATCHES,
    EMBEDDING,
    LR,
    MATRIX,
    Beta,
    done,
    falling,
    linear,
    make_optimizer,
    make_trainer,
    sequence,
)
from timesched import Clock, ConstantScheduler, LinearScheduler, bind
from timesched.integrations.composer import Binding, Schedules

LINE = LinearScheduler()
FALLING = partial(CosineDecayLR, initial_learning_rate=0.1, end_learning_rate=0.0, total_iters=20)
DECAY = partial(LinearWD, initial_val=0.2, end_val=0.0, total_iters=20)
COSINE = composer.optim.CosineAnnealingScheduler()


def child_of_another(optimizer: Any) -> LinearLR:
    child = LinearLR(optimizer, 0.0, 0.1, 5)
    SequentialLR(optimizer, [child, FALLING(optimizer)], [5])
    return child


# What is given to the callback, options of the Trainer, and the error.
REFUSED: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (lambda: [LINE], {}, TypeError, r"does not say which key it sets: pass Binding\(LinearScheduler\("),
    (lambda: ["weight_decay"], {}, TypeError, "'weight_decay' is none of a Binding"),
    (lambda: [Binding(3, "lr")], {}, TypeError, "3 is not a schedule"),
    (lambda: [Binding([], "lr")], {}, ValueError, "is empty"),
    (lambda: [Binding(linear, "betas[first]")], {}, ValueError, "name a key"),
    (lambda: [lambda optimizer: 3], {}, TypeError, "returned 3: a scheduler has step"),
    (lambda: [Binding(linear, "lr", "body")], {}, ValueError, "the tag 'body': .*'embedding', 'head', 'matrix'"),
    (lambda: [Binding(ConstantScheduler(0.5), "lr"), Binding(LINE, "momentum")], {}, ValueError, "no 'momentum'"),
    (lambda: [Binding(lambda state: 1.0, "lr")], {"ssr": 0.5}, ValueError, r"takes the state alone.*0\.5"),
    (lambda: [], {"ssr": -1.0}, ValueError, r"ssr.*-1"),
    (lambda: [], {"callbacks": [Schedules()]}, ValueError, "two Schedules callbacks.*entries of both to one"),
    # two schedulers on one number
    (lambda: [Binding(linear, "lr"), Binding(linear, "lr", "head")], {}, ValueError, "'lr' was superseded by"),
    (lambda: [DECAY, partial(ConstantWD, val=0.2, param_group_tags="head")], {}, ValueError, "superseded by"),
    (lambda: [DECAY, Binding(linear, "weight_decay", "head")], {}, ValueError, "superseded by"),
    (lambda: [Binding(linear, "weight_decay", "head"), DECAY], {}, ValueError, "superseded by"),
    (lambda: [child_of_another], {}, ValueError, r"LinearLR\(.* superseded by SequentialLR"),
    (lambda: [Binding(linear, "lr", "head")], {"schedulers": LINE}, ValueError, r"'lr' of .* 1 is set by two.*of sch"),
    (lambda: [FALLING], {"schedulers": COSINE}, ValueError, r"'lr' of parameter group 0 is set by two.*of schedulers="),
    # schedulers that cannot run in this Trainer
    (lambda: [LinearWD(make_optimizer()[1], 0.2, 0.0, 20)], {}, ValueError, "LinearWD is for another optimizer"),
    (
        lambda: [partial(DECAY, clock=Clock("20ba"))],
        {},
        ValueError,
        r"LinearWD follows a timesched\.Clock, which nobody",
    ),
    (lambda: [lambda on, clock: bind(linear, on, Clock("20ba"))], {}, ValueError, "BoundLR follows a"),
    (lambda: [lambda on: sequence(on, Clock("20ba"))], {}, ValueError, r"SequentialLR follows .* \(optimizer, clock\)"),
]


@pytest.mark.parametrize(("entries", "options", "error", "said"), REFUSED)
def test_refused(entries: Any, options: dict[str, Any], error: type[Exception], said: str) -> None:
    """Whatever the entries before had written; what owned a key before owns it again."""
    model, optimizer = make_optimizer()
    first = [bind(linear, optimizer, Clock("20ba"), key) for key in ("lr", "weight_decay")]
    before = [{**group} for group in optimizer.param_groups]
    own = {"ssr": options["ssr"]} if "ssr" in options else {}
    trainers = {key: value for key, value in options.items() if key not in ("ssr", "callbacks")}
    with pytest.raises(error, match=said) as caught:
        mine = [Schedules(*entries(), **own), *options.get("callbacks", [])]
        make_trainer(mine, model=model, optimizers=optimizer, **trainers)
    assert optimizer.param_groups == before
    for each in first:
        each.step()
    assert caught.tb is not None  # which holds on to what was refused, as in a notebook


@pytest.mark.parametrize("length", [None, "4ba"])
def test_schedulers_given_to_a_fit(length: str | None) -> None:
    """They are refused beside the callback's, and dropped as the error says."""
    trainer, record = make_trainer([Schedules(Binding(LINE, "lr"))], max_duration=length)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"set by two.*trainer\.state\.schedulers = \[\] drops them"):
            trainer.fit(duration="4ba", schedulers=LINE)
    trainer.state.schedulers = []
    trainer.fit(duration="4ba")
    trainer.close()
    assert record.of("lr", MATRIX) == falling(LR, 0, 4, 4)


def test_a_scheduler_of_other_tags_may_be_the_trainers() -> None:
    model, optimizer = make_optimizer()
    other = FALLING(optimizer, param_group_tags=["embedding", None])
    options = {"model": model, "optimizers": optimizer, "schedulers": other, "step_schedulers_every_batch": True}
    record = done([Binding(linear, "lr", "head"), Beta], **options)
    assert record.of("lr", MATRIX) == [LR * (1.0 - 0.5 * k / BATCHES) for k in range(BATCHES)]
    cosine = [0.1 * (1 + math.cos(math.pi * k / BATCHES)) / 2 for k in range(BATCHES)]
    assert record.of("lr", EMBEDDING) == pytest.approx(cosine, rel=1e-14)
