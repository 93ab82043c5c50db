"""Compiled steps under schedules: torch's schedulers and timesched's around them, and a schedule inside the graph."""

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

import timesched
from tests.optim.compiling import BACKEND, HELD, PLAIN, by_hand, graphs, small
from tests.optim.problems import assert_states_close, flat, give_gradients, ours

STEPS = 20


pytestmark = pytest.mark.usefixtures("compiles_afresh")


def torch_schedulers(optimizer):
    return [LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch))]


def cosine(optimizer):
    """Computes each rate from the one before."""
    return [CosineAnnealingLR(optimizer, T_max=STEPS)]


def bound_schedulers(optimizer):
    clock = timesched.Clock(f"{STEPS}ba")
    line = timesched.LinearScheduler(1.0, 0.5)
    return [*(timesched.bind(line, optimizer, clock, key=key) for key in ("lr", "weight_decay", "betas[0]")), clock]


def go(optimizer, schedulers, take=None):
    """Steps with the schedulers; returns the rates that each used."""
    rates = []
    for step in range(1, STEPS + 1):
        give_gradients(flat(optimizer), step, missing={})
        rates.append(float(optimizer.param_groups[0]["lr"]))
        (take or optimizer.step)()
        for one in reversed(schedulers):  # the clock first
            one.tick() if isinstance(one, timesched.Clock) else one.step()
    return rates


def adamw(table):
    return ours(table["AdamW"], small("AdamW"))


@pytest.mark.parametrize("schedule", [torch_schedulers, cosine, bound_schedulers])
@pytest.mark.parametrize("order", ["before", "after"])
def test_compiled_before_and_after_a_schedule(order, schedule):
    optimizer, eager = adamw(PLAIN), adamw(PLAIN)
    if order == "before":
        optimizer.compile(backend=BACKEND)
    schedulers = schedule(optimizer)
    if order == "after":
        optimizer.compile(backend=BACKEND)
    rates, expected = go(optimizer, schedulers), go(eager, schedule(eager))
    assert graphs() == 1
    assert rates == pytest.approx(expected, rel=1e-14) and len(set(rates)) == STEPS
    assert_states_close(optimizer, eager, 1e-12)


def test_by_hand_after_torchs_scheduler_cannot_work():
    """The wrapper that it put around `step` lies in a file which torch.compile refuses to look into.

    Schedulers of timesched patch nothing.
    """
    optimizer, eager = adamw(HELD), adamw(PLAIN)
    schedulers = bound_schedulers(optimizer)
    rates = go(optimizer, schedulers, take=by_hand(optimizer.step))
    assert rates == pytest.approx(go(eager, bound_schedulers(eager)), rel=1e-14) and graphs() == 1
    assert_states_close(optimizer, eager, 1e-12)
    optimizer = adamw(HELD)
    torch_schedulers(optimizer)
    give_gradients(flat(optimizer), 1, missing={})
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"(?s)marked as skipped.*lr_scheduler\.py"):
        by_hand(optimizer.step)()
    optimizer.compile(backend=BACKEND)
    optimizer.step()
    assert graphs() == 2
