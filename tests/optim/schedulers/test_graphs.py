"""Closed forms in one graph with the optimizer's step, against the same in eager mode with numbers, and around it."""

import copy

import pytest
import torch

import optim
from optim import lr_scheduler, weight_decay_scheduler
from optim.lr_scheduler import CosineDecayLR, LinearLR, SequentialLR
from tests.extent import IS_DEEP
from tests.optim.compiling import BACKEND, by_hand, fresh, graphs
from tests.optim.schedulers.building import count, make, moved, one_group, optimizer, value
from tests.optim.schedulers.rows import COSINE, EXAMPLES
from tests.optim.schedulers.test_custom import Beta, CustomScheduler
from timesched import Clock

STEPS = 25


pytestmark = pytest.mark.usefixtures("compiles_afresh")


def rate_and_decay(on):
    return [
        CosineDecayLR(on, 0.1, 0.0, 20),
        weight_decay_scheduler.PolynomialWD(on, 0.3, 0.0, 12, param_group_tags="decay"),
        Beta(on),
    ]


def nested(on):
    inner = SequentialLR(on, [LinearLR(on, 0.0, 0.1, 5), CustomScheduler(on, 0.1, 5)], [5])
    return [SequentialLR(on, [inner, CosineDecayLR(on, 0.1, 0.0, 10)], [15])]


def scaled(on):
    on.param_groups[0]["adjust_learning_rate"] = 0.5
    return [lr_scheduler.ScalePerParamLR(on, CosineDecayLR(on, 0.1, 0.0, 15))]


COMBINED = {maker.__name__: maker for maker in (rate_and_decay, nested, scaled)}
MAKERS = {stem: lambda on, stem=stem: [make(stem, EXAMPLES[stem][-1], on)] for stem in EXAMPLES}
MAKERS |= COMBINED
# Several phases, cycles that grow, milestones, and a user's functions: each other class is of one of these kinds.
KINDS = ("WarmupStableDecay", "CosineAnnealingWarmRestarts", "PiecewiseConstant", "Lambda")


def race(name, backend=BACKEND, kind=optim.AdamW):
    """The same steps compiled and in eager mode; every hyperparameter and parameter compared at every step."""

    def new(tensors):
        params = [torch.nn.Parameter(torch.linspace(-1, 1, 4, dtype=torch.float64)) for _ in range(2)]
        on = kind([{"params": params[:1], "tags": "decay"}, {"params": params[1:]}], lr=0.5, weight_decay=0.1)
        if tensors:
            on.hold_tensors()
        return params, on, MAKERS[name](on)

    def step(on, schedulers):
        on.step()
        for each in schedulers:
            each.step()

    params, on, schedulers = new(True)
    plain_params, plain, plain_schedulers = new(False)
    take = by_hand(lambda: step(on, schedulers), backend)
    for t in range(STEPS):
        for p in (*params, *plain_params):
            p.grad = torch.full_like(p, 0.1 * (t % 3 + 1))
        take()
        step(plain, plain_schedulers)
        for mine, other in zip(on.param_groups, plain.param_groups):
            one, two = ([float(x) for x in (g["lr"], g["weight_decay"], *g.get("betas", ()))] for g in (mine, other))
            assert one == pytest.approx(two, rel=0, abs=1e-15)  # the float path and the tensor path: one formula
    assert all(torch.allclose(p, q, rtol=1e-12, atol=0) for p, q in zip(params, plain_params))
    assert [count(each) for each in schedulers] == [STEPS] * len(schedulers) and graphs() == 1


@pytest.mark.parametrize("name", MAKERS if IS_DEEP else [*KINDS, *COMBINED])
def test_one_graph_and_no_recompilation(name):
    race(name, kind=optim.AdamW if name in COMBINED else optim.SGD)


def test_as_machine_code():
    """With the step of SGD, which has the shortest code. In `make test-deep` with that of AdamW, too."""
    for kind in (optim.SGD, optim.AdamW) if IS_DEEP else (optim.SGD,):
        with fresh():
            race("nested", "inductor", kind)


@pytest.mark.parametrize("early", [True, False])
def test_the_scheduler_outside_of_a_compiled_optimizer(early):
    """Compiled before the schedulers are made or after, in one graph; nobody is warned of the order of calls."""
    on = optim.AdamW([{**one_group(), "tags": "decay"}], lr=0.5)
    if early:
        on.compile(backend=BACKEND)
    schedulers = rate_and_decay(on)
    if not early:
        on.compile(backend=BACKEND)
    held = on.param_groups[0]["lr"]
    for _ in range(STEPS):  # a warning would be an error
        on.param_groups[0]["params"][0].grad = torch.ones(3)
        on.step()
        for each in schedulers:
            each.step()
    assert on.param_groups[0]["lr"] is held and held == 0.0 and graphs() == 1


@pytest.mark.parametrize("kind", ["tensors", "our tensors"])
def test_loading_compiles_nothing_again(kind):
    on = optimizer(kind)
    (schedule,) = nested(on)
    take = by_hand(schedule.step)
    for _ in range(4):
        take()
    state, values = schedule.state_dict(), schedule.values(40)
    for step in (17, 3, 30, 2**40):
        on.load_state_dict(copy.deepcopy(on.state_dict()))
        schedule.load_state_dict({**state, "last_epoch": step})
        take()
        assert count(schedule) == step + 1
        assert value(schedule) == pytest.approx(values[step + 1] if step < 39 else 0.0, abs=1e-16)
    assert graphs() == 1


def test_counts_stay_exact_in_a_graph():
    schedule = lr_scheduler.MultiStepLR(optimizer("our tensors"), 1.0, 0.5, [2**24 + 1, 2**53 + 1])
    take = by_hand(lambda: schedule.step())
    for milestone, expected in ((2**24 + 1, 0.5), (2**53 + 1, 0.25)):
        moved(schedule, milestone - 2)
        for at, found in ((milestone - 1, 2 * expected), (milestone, expected)):
            take()
            assert (count(schedule), value(schedule)) == (at, found)
    assert graphs() == 1


def test_what_a_graph_cannot_do():
    """A number is no tensor to write into, and a clock is read on the host."""
    number, clock = make(*COSINE, optimizer("numbers")), Clock("20ba")
    timed = CosineDecayLR(optimizer("our tensors"), 0.1, 0.0, "1dur", clock=clock)

    for act, words in (
        (lambda: number.step(), "key='lr': in a graph"),
        (lambda: timed.step(), "outside the compiled"),
    ):
        with pytest.raises(torch._dynamo.exc.Unsupported, match=words):
            by_hand(act)()
    with pytest.raises(RuntimeError, match=r"torch\.tensor"):
        by_hand(number.step, "eager")()
    assert value(number) == 0.1 and count(number) == 0
    clock.tick()
    timed.step()
    assert value(timed) == CosineDecayLR(optimizer(), 0.1, 0.0, 20).values(2)[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_that_a_graph_writes(dtype):
    """As they are, and not only tensors: inductor drops what is written into a 0-dim float64 tensor itself."""
    for act, expected in (
        (lambda one: one.step(), [0.25, 0.25]),
        (lambda one: one.update_groups([0.5, 0.75]), [0.5, 0.75]),
    ):
        with fresh():
            held = [torch.tensor(value, dtype=dtype) for value in (0.1, 0.2)]
            groups = [one_group(lr=rate) for rate in held]
            one = lr_scheduler.ConstantLR(torch.optim.SGD(groups, lr=held[0]), 0.25)
            take = by_hand(lambda one=one, act=act: act(one), backend="inductor")
            for _ in range(2):
                for rate in held:
                    rate.fill_(0.7)
                take()
                assert [float(rate) for rate in held] == expected
