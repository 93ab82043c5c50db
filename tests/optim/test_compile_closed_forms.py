"""Closed-form schedulers in one graph with the optimizer's step, against the same in eager mode with floats."""

import pytest
import torch

import optim
import timesched
from optim import lr_scheduler, scheduler, weight_decay_scheduler
from optim.lr_scheduler import ChainedLR, CosineDecayLR, ExponentialLR, LinearLR, ScalePerParamLR, SequentialLR
from tests.optim.closed_forms import SCHEDULES
from tests.optim.compiling import by_hand, fresh, graphs

STEPS = 25


class Custom(lr_scheduler.LRScheduler):
    def __init__(self, optimizer, rate, total_iters):
        self.rate = rate
        super().__init__(optimizer, total_iters=total_iters)

    def _get_closed_form_lr(self):
        falling = self.rate * 0.5 ** (self.last_epoch.double() / self.total_iters)
        return torch.where(self.last_epoch < 5, self.rate, falling)


class Beta(scheduler.CosineDecayScheduler):
    param_group_key = "betas[0]"


def rate_and_decay(optimizer):
    return [
        CosineDecayLR(optimizer, 0.1, 0.0, 20),
        weight_decay_scheduler.PolynomialWD(optimizer, 0.3, 0.0, 12, param_group_tags="decay"),
        Beta(optimizer, 0.8, 0.95, 20),
    ]


def nested(optimizer):
    inner = SequentialLR(optimizer, [LinearLR(optimizer, 0.0, 0.1, 5), Custom(optimizer, 0.1, 5)], [5])
    return [SequentialLR(optimizer, [inner, CosineDecayLR(optimizer, 0.1, 0.0, 10)], [15])]


def chain(optimizer):
    return [ChainedLR([LinearLR(optimizer, 0.1, 0.2, 10), ExponentialLR(optimizer, 0.1, 10, 0.5)])]


def scaled(optimizer):
    optimizer.param_groups[0]["adjust_learning_rate"] = 0.5
    return [ScalePerParamLR(optimizer, CosineDecayLR(optimizer, 0.1, 0.0, 15))]


def custom(optimizer):
    return [Custom(optimizer, 0.1, 20)]


MAKERS = {name: None for name in SCHEDULES} | {m.__name__: m for m in (rate_and_decay, nested, chain, scaled, custom)}


def schedulers_of(name, optimizer):
    make = MAKERS[name]
    return make(optimizer) if make else [getattr(lr_scheduler, name)(optimizer, *SCHEDULES[name])]


@pytest.fixture(autouse=True)
def _fresh():
    with fresh():
        yield


def model():
    return [torch.nn.Parameter(torch.linspace(-1, 1, 4, dtype=torch.float64)) for _ in range(2)]


def optimizer_of(kind, params, tensors=True):
    groups = [{"params": params[:1], "tags": "decay"}, {"params": params[1:]}]
    made = kind(groups, lr=0.5, weight_decay=0.1)
    if tensors:
        made.hold_tensors()
    return made


def numbers(group):
    return [float(x) for x in (group["lr"], group["weight_decay"], *group.get("betas", ()))]


def race(name, backend="aot_eager", kind=optim.AdamW, steps=STEPS):
    """The same steps compiled and in eager mode; every hyperparameter and parameter compared at every step."""
    params, eager_params = model(), model()
    compiled, eager = optimizer_of(kind, params), optimizer_of(kind, eager_params, tensors=False)
    inside, outside = schedulers_of(name, compiled), schedulers_of(name, eager)

    def train_step():
        compiled.step()
        for each in inside:
            each.step()

    take = by_hand(train_step, backend)
    for step in range(steps):
        for p in (*params, *eager_params):
            p.grad = torch.full_like(p, 0.1 * (step % 3 + 1))
        take()
        eager.step()
        for each in outside:
            each.step()
        for mine, other in zip(compiled.param_groups, eager.param_groups):
            # the float path and the tensor path: law 8
            assert numbers(mine) == pytest.approx(numbers(other), rel=0, abs=1e-15)
    for p, q in zip(params, eager_params):
        assert torch.allclose(p, q, rtol=1e-12, atol=0)
    assert [int(each.last_epoch) for each in inside] == [steps] * len(inside)


@pytest.mark.parametrize("name", MAKERS)
def test_one_graph_and_no_recompilation(name):
    race(name, kind=optim.SGD if name in SCHEDULES else optim.AdamW)
    assert graphs() == 1


@pytest.mark.parametrize("kind", [optim.Lion, optim.Adadelta])
def test_with_other_optimizers(kind):
    race("nested", kind=kind)
    assert graphs() == 1


def test_as_machine_code():
    race("nested", "inductor")
    assert graphs() == 1


def test_the_scheduler_outside_of_a_compiled_optimizer():
    """In place, so `optimizer.compile()` compiles once; before the schedulers are made or after."""
    for early in (True, False):
        params = model()
        optimizer = optimizer_of(optim.AdamW, params, tensors=False)
        if early:
            optimizer.compile(backend="aot_eager")
        schedulers = rate_and_decay(optimizer)
        if not early:
            optimizer.compile(backend="aot_eager")
        held = optimizer.param_groups[0]["lr"]
        for _ in range(STEPS):
            for p in params:
                p.grad = torch.ones_like(p)
            optimizer.step()
            for each in schedulers:
                each.step()
        assert optimizer.param_groups[0]["lr"] is held and held == 0.0
    assert graphs() == 2  # one for each optimizer


def test_loading_compiles_nothing_again():
    optimizer = optimizer_of(optim.AdamW, model())
    (schedule,) = nested(optimizer)
    take = by_hand(lambda: schedule.step())
    for _ in range(4):
        take()
    state = schedule.state_dict()
    values = schedule.values(40)
    for count in (17, 3, 30, 2**40):
        schedule.load_state_dict({**state, "last_epoch": count})
        take()
        assert int(schedule.last_epoch) == count + 1
        expected = values[count + 1] if count < 39 else 0.0
        assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(expected, abs=1e-16)
    assert graphs() == 1


def test_counts_stay_exact_in_a_graph():
    """In float32 the count would stay at 2**24 for ever, and in float64 at 2**53."""
    optimizer = optimizer_of(optim.AdamW, model())
    schedule = lr_scheduler.MultiStepLR(optimizer, 1.0, 0.5, [2**24 + 1, 2**53 + 1])
    take = by_hand(lambda: schedule.step())
    for milestone, value in ((2**24 + 1, 0.5), (2**53 + 1, 0.25)):
        schedule.last_epoch = milestone - 2
        schedule.refresh()
        take()
        assert optimizer.param_groups[0]["lr"] == 2 * value
        take()
        assert optimizer.param_groups[0]["lr"] == value and int(schedule.last_epoch) == milestone
    assert graphs() == 1


def test_numbers_cannot_be_set_in_a_graph():
    optimizer = torch.optim.SGD(model(), lr=0.1)
    schedule = CosineDecayLR(optimizer, 0.1, 0.0, 20)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="has to be a tensor"):
        by_hand(lambda: schedule.step())()
    assert optimizer.param_groups[0]["lr"] == 0.1 and int(schedule.last_epoch) == 0


def test_a_clock_is_read_outside_of_the_graph():
    optimizer = optimizer_of(optim.AdamW, model())
    clock = timesched.Clock("20ba")
    schedule = CosineDecayLR(optimizer, 0.1, 0.0, "1dur", clock=clock)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="outside the compiled"):
        by_hand(lambda: schedule.step())()
    clock.tick()
    schedule.step()
    assert (
        float(optimizer.param_groups[0]["lr"])
        == CosineDecayLR(torch.optim.SGD(model(), lr=1.0), 0.1, 0.0, 20).values(2)[1]
    )


def test_a_tensor_of_another_optimizer():
    """torch's optimizers break graphs, but the scheduler's own step is one."""
    rate = torch.tensor(0.1, dtype=torch.float64)
    optimizer = torch.optim.SGD(model(), lr=rate)
    schedule = CosineDecayLR(optimizer, 0.1, 0.0, 20)
    take = by_hand(lambda: schedule.step())
    for _ in range(10):
        take()
    assert optimizer.param_groups[0]["lr"] is rate and rate == pytest.approx(0.05, abs=1e-16)
    assert graphs() == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_that_a_graph_writes(dtype):
    """As they are, and not only tensors: inductor drops what is written into a 0-dim float64 tensor itself."""
    for act, expected in (
        (lambda one: one.step(), [0.25, 0.25]),
        (lambda one: one.update_groups([0.5, 0.75]), [0.5, 0.75]),
    ):
        with fresh():
            rates = [torch.tensor(value, dtype=dtype) for value in (0.1, 0.2)]
            groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates]
            one = lr_scheduler.ConstantLR(torch.optim.SGD(groups, lr=rates[0]), 0.25)
            take = by_hand(lambda one=one, act=act: act(one), backend="inductor")
            for _ in range(2):
                for rate in rates:
                    rate.fill_(0.7)
                take()
                assert [float(rate) for rate in rates] == expected
