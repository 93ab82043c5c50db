"""Compiled steps under schedules: torch's schedulers and timesched's around them, and a schedule inside the graph."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

import timesched
from optim.closed_form.formulas import PiecewiseConstant
from tests.optim.compiling import BACKEND, HELD, PLAIN, by_hand, fresh, graphs, small
from tests.optim.problems import assert_states_close, flat, give_gradients, ours
from tests.optim.rows import tensor
from timesched import Horizon, curves, ops
from timesched.positions import Frame
from timesched.time.units import TimeUnit

STEPS = 20


@pytest.fixture(autouse=True)
def _fresh():
    with fresh():
        yield


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


def test_a_curve_inside_the_graph():
    """Step, count, and the next value, in the tensor that two optimizers share: one graph for the whole of a run."""
    steps, lr, done = 40, tensor(0.05), torch.zeros((), dtype=torch.int64)
    shared = [type(ours(HELD[name], small(name)))(small(name), lr=lr) for name in ("Lion", "AdamW")]
    plain = [type(one)(small("Lion"), lr=0.05) for one in shared]

    def rate(x):
        return curves.cosine(x, 0.05, 0.005)

    def train_step():
        for one in shared:
            one.step()
        done.view(1).add_(1)
        # Through a view: torch drops from a graph what is written into a 0-dim float64 tensor on the CPU itself.
        lr.view(1).copy_(rate(ops.clip(ops.real(done) / steps)).view(1))

    take = by_hand(train_step)
    for step in range(steps):
        assert lr.item() == pytest.approx(rate(step / steps), abs=1e-15)
        for one in (*shared, *plain):
            give_gradients(flat(one), step + 1, missing={})
        take()
        for one in plain:
            one.param_groups[0]["lr"] = rate(step / steps)
            one.step()
    assert graphs() == 1 and done == steps
    for one, other in zip(shared, plain):
        assert_states_close(one, other, 1e-12)


@pytest.mark.parametrize("fake_first", [True, False])
def test_a_table_that_fake_tensors_have_read_holds_its_values(fake_first):
    formula = PiecewiseConstant(vals=[0.1, 0.2, 0.3], milestones=[3, 5])
    frame = Frame(Horizon(None), TimeUnit.BATCH)
    if fake_first:
        with FakeTensorMode() as mode:
            function = formula.resolve(frame)
            assert function((mode.from_tensor(torch.arange(7)),)).shape == (7,)
    else:
        function = formula.resolve(frame)
    assert function((torch.arange(7),)).tolist() == [0.1, 0.1, 0.1, 0.2, 0.2, 0.3, 0.3]
    with FakeTensorMode() as mode:
        assert function((mode.from_tensor(torch.arange(7)),)).shape == (7,)
