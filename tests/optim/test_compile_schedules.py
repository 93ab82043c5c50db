"""Compiled steps under schedules: torch's schedulers and timesched's around them, and a schedule inside the graph."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

import timesched
from optim.schedules.cycles import PiecewiseConstant
from tests.optim.compiling import BACKEND, HELD, PLAIN, by_hand, fresh, graphs
from tests.optim.problems import assert_states_close, flat, give_gradients, ours
from tests.optim.rows import tensor
from tests.optim.test_compile import small
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


def composer_schedulers(optimizer):
    clock = timesched.Clock(f"{STEPS}ba")
    clock.optimizers = [optimizer]
    return [timesched.compile_composer_scheduler(timesched.CosineAnnealingScheduler(), clock), clock]


def bound_schedulers(optimizer):
    clock = timesched.Clock(f"{STEPS}ba")
    line = timesched.LinearScheduler(1.0, 0.5)
    return [*(timesched.bind(line, optimizer, clock, key=key) for key in ("lr", "weight_decay", "betas[0]")), clock]


def go(optimizer, schedulers, steps=STEPS, take=None):
    """Steps with the schedulers; returns the rates that each used."""
    rates = []
    for step in range(1, steps + 1):
        give_gradients(flat(optimizer), step, missing={})
        rates.append(float(optimizer.param_groups[0]["lr"]))
        (take or optimizer.step)()
        for one in reversed(schedulers):  # the clock first
            one.tick() if isinstance(one, timesched.Clock) else one.step()
    return rates


SCHEDULES = pytest.mark.parametrize("schedule", [torch_schedulers, cosine, composer_schedulers, bound_schedulers])


@SCHEDULES
@pytest.mark.parametrize("order", ["before", "after"])
def test_compiled_before_and_after_a_schedule(order, schedule):
    optimizer, eager = ours(PLAIN["AdamW"], small("AdamW")), ours(PLAIN["AdamW"], small("AdamW"))
    if order == "before":
        optimizer.compile(backend=BACKEND)
    schedulers = schedule(optimizer)
    if order == "after":
        optimizer.compile(backend=BACKEND)
    rates, expected = go(optimizer, schedulers), go(eager, schedule(eager))
    assert graphs() == 1
    assert rates == pytest.approx(expected, rel=1e-14) and len(set(rates)) == STEPS
    assert_states_close(optimizer, eager, 1e-12)


@pytest.mark.parametrize("schedule", [composer_schedulers, bound_schedulers])
@pytest.mark.parametrize("order", ["before", "after"])
def test_by_hand_before_and_after_our_schedules(order, schedule):
    """They patch nothing onto the optimizer, so the order does not matter."""
    optimizer, eager = ours(HELD["AdamW"], small("AdamW")), ours(PLAIN["AdamW"], small("AdamW"))
    take = by_hand(optimizer.step)
    schedulers = schedule(optimizer)
    if order == "after":
        take = by_hand(optimizer.step)
    rates, expected = go(optimizer, schedulers, take=take), go(eager, schedule(eager))
    assert graphs() == 1
    assert rates == pytest.approx(expected, rel=1e-14)
    assert_states_close(optimizer, eager, 1e-12)


def test_by_hand_before_torchs_scheduler():
    """What it wraps is not what runs, so it warns that it saw no step; the values are right."""
    optimizer, eager = ours(HELD["AdamW"], small("AdamW")), ours(PLAIN["AdamW"], small("AdamW"))
    take = by_hand(optimizer.step)
    schedulers = torch_schedulers(optimizer)
    with pytest.warns(UserWarning, match=r"lr_scheduler.step\(\)` before `optimizer.step"):
        rates = go(optimizer, schedulers, take=take)
    assert rates == go(eager, torch_schedulers(eager))
    assert graphs() == 1
    assert_states_close(optimizer, eager, 1e-12)


def test_by_hand_after_torchs_scheduler_cannot_work():
    """The wrapper that it put around `step` lies in a file which torch.compile refuses to look into."""
    optimizer = ours(HELD["AdamW"], small("AdamW"))
    torch_schedulers(optimizer)
    give_gradients(flat(optimizer), 1, missing={})
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"(?s)marked as skipped.*lr_scheduler\.py"):
        by_hand(optimizer.step)()
    optimizer.compile(backend=BACKEND)
    optimizer.step()
    assert graphs() == 1


@pytest.mark.parametrize(("how", "counted_in"), [("hand", torch.int64), ("compile", torch.float64)])
@pytest.mark.parametrize("name", ["AdamW", "SGD", "Muon"])
def test_a_schedule_inside_the_graph(name, how, counted_in):
    """Step, count, and the next values in closed form: one graph that reads nothing, for the whole of a run."""
    steps = 100
    key, start = {"AdamW": ("betas", 0.8), "SGD": ("momentum", 0.8), "Muon": ("momentum", 0.8)}[name]
    optimizer, eager = ours(HELD[name], small(name)), ours(PLAIN[name], small(name))
    (group,) = optimizer.param_groups
    lr, momentum = group["lr"], group[key][0] if key == "betas" else group[key]
    done = torch.zeros((), dtype=counted_in)
    if how == "compile":
        optimizer.compile(backend=BACKEND)

    def schedule(x):
        return 0.05 * curves.cosine(x, 1.0, 0.1), curves.polynomial(1 - x, 2.0, start, 0.95)

    def train_step():
        optimizer.step()
        done.view(1).add_(1)
        rate, kept = schedule(ops.clip(ops.real(done) / steps))
        # Through views: torch drops from a graph what is written into a 0-dim float64 tensor on the CPU itself.
        lr.view(1).copy_(rate.view(1))
        momentum.view(1).copy_(kept.view(1))

    take = by_hand(train_step)
    for step in range(steps):
        rate, kept = schedule(step / steps)
        eager.param_groups[0]["lr"] = rate
        eager.param_groups[0][key] = (kept, eager.param_groups[0]["betas"][1]) if key == "betas" else kept
        if step == 0:  # what the graph computes from then on
            lr.fill_(rate)
            momentum.fill_(kept)
        assert lr.item() == pytest.approx(rate, abs=1e-15) and momentum.item() == pytest.approx(kept, abs=1e-15)
        for one in (optimizer, eager):
            give_gradients(flat(one), step + 1, missing={})
        take()
        eager.step()
    assert graphs() == 1 and done == steps
    assert_states_close(optimizer, eager, 1e-12)


def test_a_schedule_inside_the_graph_with_inductor():
    optimizer, eager = ours(HELD["AdamW"], small("AdamW")), ours(PLAIN["AdamW"], small("AdamW"))
    lr, done = optimizer.param_groups[0]["lr"].fill_(0.05), torch.zeros((), dtype=torch.int64)

    def train_step():
        optimizer.step()
        done.view(1).add_(1)
        lr.view(1).copy_((0.05 * curves.decay(ops.real(done) / 10, 0.5)).view(1))

    take = by_hand(train_step, "inductor")
    for step in range(100):
        eager.param_groups[0]["lr"] = 0.05 * curves.decay(step / 10, 0.5)
        assert lr.item() == pytest.approx(eager.param_groups[0]["lr"], rel=1e-15)
        for one in (optimizer, eager):
            give_gradients(flat(one), step + 1, missing={})
        take()
        eager.step()
    assert graphs() == 1
    assert_states_close(optimizer, eager, 1e-12)


def test_several_tensors_on_one_schedule():
    """Two optimizers that share the tensor of the rate, in one graph with what sets it."""
    lr = tensor(0.1)
    shared = [type(ours(HELD[name], small(name)))(small(name), lr=lr) for name in ("Lion", "AdamW")]
    plain = [type(one)(small("Lion"), lr=0.1) for one in shared]

    def train_step():
        for one in shared:
            one.step()
        lr.view(1).mul_(0.9)

    take = by_hand(train_step)
    rate = 0.1
    for step in range(1, 21):
        for one in plain:
            one.param_groups[0]["lr"] = rate
        rate *= 0.9
        for one in (*shared, *plain):
            give_gradients(flat(one), step, missing={})
        take()
        for one in plain:
            one.step()
    assert graphs() == 1 and lr.item() == pytest.approx(rate, rel=1e-15)
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
