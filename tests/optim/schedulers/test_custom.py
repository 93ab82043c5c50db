"""Schedulers of one's own: closed forms of torch operations, other keys, functions of the step, scaled cycles."""

import copy
import gc
import pickle
import weakref

import pytest
import torch

import optim
import timesched
from optim import lr_scheduler, scheduler, weight_decay_scheduler
from tests.optim.schedulers.building import KINDS, count, make, moved, optimizer, stepped, value
from tests.optim.schedulers.rows import COSINE, HALVING, STEPS

KIND = pytest.mark.parametrize("kind", KINDS)


class CustomScheduler(lr_scheduler.LRScheduler):
    """In the outline of the page on custom schedulers: up to a peak, then down along a root."""

    def __init__(self, optimizer, peak, warmup, last_epoch=-1, **more):
        self.peak = peak
        self.warmup = warmup
        super().__init__(optimizer, total_iters=10 * warmup, last_epoch=last_epoch, **more)

    def _get_closed_form_lr(self) -> torch.Tensor:
        step = self.last_epoch.double()
        rising = self.peak * step / self.warmup
        falling = self.peak * torch.sqrt(self.warmup / torch.clamp(step, min=1.0))
        return torch.where(self.last_epoch < self.warmup, rising, falling)


def custom(t, peak=0.4, warmup=5):
    return peak * t / warmup if t < warmup else peak * (warmup / t) ** 0.5


class Beta(scheduler.Scheduler):
    param_group_key = "betas[0]"

    def _get_closed_form(self):
        return torch.clamp(0.8 + 0.01 * self.last_epoch.double(), max=0.95)


class LinearBeta(scheduler.LinearScheduler):
    param_group_key = "betas[0]"


class Temperature(scheduler.CosineDecayScheduler):
    param_group_key = "temperature"


class OnSteps(lr_scheduler.LambdaLR):
    def set_lr_lambda(self):
        return lambda t: 0.5 ** t.double()


class OnValues(weight_decay_scheduler.LambdaWD):
    def set_value_lambda(self):
        return [lambda t: 1.0 / (1.0 + t.double()), lambda t: 2.0]


class Damped(lr_scheduler.CyclicLR):
    def set_scale_fn(self):
        return lambda n: 1.0 / (1.0 + n.double())


@KIND
def test_a_closed_form(kind):
    on = optimizer(kind, {}, {"tags": "b"})
    one = CustomScheduler(on, 0.4, warmup=5)
    assert one.total_iters == 50
    assert one.values(30) == stepped(one, 30) == pytest.approx([custom(t) for t in range(30)], rel=1e-15)
    assert value(one) == value(one, 1) == float(one._get_closed_form_lr()) == float(one.get_lr()[0])
    assert value(moved(one, 2**40)) == pytest.approx(custom(2**40), rel=1e-15)


@KIND
def test_a_closed_form_with_all_that_others_have(kind, tmp_path):
    """Tags, another first step, checkpoints that know their class and arguments."""

    def new(peak=0.4):
        return CustomScheduler(optimizer(kind, {"tags": "a"}, {}), peak, 5, last_epoch=6, param_group_tags="a")

    one = new()
    assert count(one) == 7 and value(one) == pytest.approx(custom(7), rel=1e-15) and value(one, 1) == 0.5
    assert one.arguments == {"peak": 0.4, "warmup": 5}
    one.step()
    torch.save(one.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    again = new()
    again.load_state_dict(state)
    assert count(again) == 8 and value(again) == value(one) != value(new())
    with pytest.raises(ValueError, match=r"peak.*0.4.*0.3|peak.*0.3.*0.4"):
        new(0.3).load_state_dict(state)
    for copied in (copy.deepcopy(again), pickle.loads(pickle.dumps(again))):
        copied.step()
        assert value(copied) == pytest.approx(custom(9), rel=1e-15) and count(again) == 8


@KIND
def test_a_closed_form_inside_others(kind):
    """In a sequence it counts from its milestone on; two deep it still does, and a state dict names it."""
    on = optimizer(kind)
    inner = lr_scheduler.SequentialLR(on, [make(*COSINE, on), CustomScheduler(on, 0.4, 5)], [4])
    whole = lr_scheduler.SequentialLR(on, [inner, make(*STEPS, on)], [20])
    first, last = make(*COSINE, optimizer()).values(4), make(*STEPS, optimizer()).values(10)
    expected = [*first, *(custom(t) for t in range(16)), *last]
    assert stepped(whole, 30) == pytest.approx(expected, rel=1e-14)
    assert "CustomScheduler" in str(whole.state_dict())
    chained = optimizer(kind)
    both = lr_scheduler.ChainedLR([CustomScheduler(chained, 0.4, 5), make(*HALVING, chained)])
    halved = [custom(t) * 0.5 ** (t / 10) for t in range(20)]
    assert stepped(both, 20) == pytest.approx(halved, rel=1e-14)


def test_a_python_number_is_a_value_too():
    class Plain(lr_scheduler.LRScheduler):
        def _get_closed_form_lr(self):
            return 0.25

    one = Plain(optimizer())
    assert stepped(one, 3) == [0.25] * 3 == one.values(3)


@pytest.mark.parametrize(
    "wrong", [None, "0.1", torch.tensor([0.1, 0.2]), float("nan"), torch.tensor(float("inf")), torch.tensor(True), 1j]
)
def test_what_is_no_value_is_refused(wrong):
    class Wrong(lr_scheduler.LRScheduler):
        def _get_closed_form_lr(self):
            return wrong

    on = optimizer()
    with pytest.raises((ValueError, TypeError), match="Wrong"):
        Wrong(on)
    assert on.param_groups[0]["lr"] == 0.5
    make("Constant", {"val": 0.1}, on).step()  # and the group is free


@pytest.mark.parametrize(
    ("base", "method"),
    [
        (lr_scheduler.LRScheduler, "_get_closed_form_lr"),
        (weight_decay_scheduler.WeightDecayScheduler, "_get_closed_form_wd"),
    ],
)
def test_a_class_without_a_closed_form_says_what_to_define(base, method):
    class Nothing(base):
        pass

    for cls in (Nothing, base):
        with pytest.raises(TypeError, match=method):
            cls(optimizer())


def test_a_class_without_a_key_says_so():
    for cls in (scheduler.Scheduler, scheduler.ConstantScheduler):
        with pytest.raises(TypeError, match="param_group_key"):
            cls(optimizer(), 0.1)


@pytest.mark.parametrize("module", [torch.optim, optim])
def test_an_element_of_a_tuple(module):
    on = module.AdamW([torch.nn.Parameter(torch.zeros(2))], lr=0.1, betas=(0.9, 0.99))
    one = Beta(on)
    seen = []
    for _ in range(20):
        seen.append(float(on.param_groups[0]["betas"][0]))
        assert float(on.param_groups[0]["betas"][1]) == 0.99 and float(on.param_groups[0]["lr"]) == 0.1
        on.step()
        one.step()
    assert seen == pytest.approx([min(0.8 + 0.01 * t, 0.95) for t in range(20)], rel=1e-15)
    assert isinstance(on.param_groups[0]["betas"], tuple)
    other = module.AdamW([torch.nn.Parameter(torch.zeros(2))], lr=0.1, betas=(0.9, 0.99))
    line = LinearBeta(other, 0.8, 0.9, total_iters=2)
    line.step()
    assert float(other.param_groups[0]["betas"][0]) == pytest.approx(0.85, rel=1e-15) == float(line.get_last_value()[0])
    assert [float(v) for v in line.get_last_lr()] == [float(v) for v in line.get_last_value()]


@KIND
def test_a_key_that_the_user_made(kind):
    on = optimizer(kind, {"temperature": 5.0}, {"temperature": 7.0, "tags": "cold"})
    one = Temperature(on, initial_val=2.0, end_val=1.0, total_iters=4, param_group_tags="cold")
    assert float(on.param_groups[0]["temperature"]) == 5.0
    for expected in one.values(5):
        assert float(on.param_groups[1]["temperature"]) == expected
        one.step()
    assert one.state_dict()["key"] == "temperature"


@KIND
def test_functions_of_the_step(kind):
    one = OnSteps(optimizer(kind), 0.1)
    assert stepped(one, 10) == [0.1 * 0.5**t for t in range(10)] == one.values(10)
    many = OnValues(optimizer(kind), 0.1)
    assert stepped(many, 10) == pytest.approx([0.2 / (1 + t) for t in range(10)], rel=1e-15)
    assert float(moved(many, 10**6)._get_closed_form_wd()) == pytest.approx(0.2 / (1 + 10**6), rel=1e-15)


def test_either_name_of_the_method_in_either_family():
    class One(lr_scheduler.LambdaLR):
        def set_value_lambda(self):
            return [lambda t: 0.5 ** t.double()]

    class Two(weight_decay_scheduler.LambdaWD):
        def set_lr_lambda(self):
            return [lambda t: 0.5 ** t.double()]

    assert One(optimizer(), 0.1).values(5) == Two(optimizer(), 0.1).values(5) == [0.1 * 0.5**t for t in range(5)]
    functions = OnSteps(optimizer(), 0.1).set_lr_lambda()
    assert float((functions[0] if isinstance(functions, list) else functions)(torch.tensor(2))) == 0.25


@pytest.mark.parametrize("returned", [None, [], 5, ["x"], [None], "lambda t: t"])
def test_functions_that_are_none(returned):
    class Wrong(lr_scheduler.LambdaLR):
        def set_lr_lambda(self):
            return returned

    on = optimizer()
    with pytest.raises(TypeError, match="Wrong.*set_lr_lambda|set_lr_lambda.*Wrong"):
        Wrong(on, 0.1)
    assert on.param_groups[0]["lr"] == 0.5


def test_functions_may_use_the_arguments():
    class Scaled(lr_scheduler.LambdaLR):
        def __init__(self, optimizer, initial_learning_rate, rate):
            self.rate = rate
            super().__init__(optimizer, initial_learning_rate)

        def set_lr_lambda(self):
            return lambda t: self.rate ** t.double()

    one = Scaled(optimizer(), 0.1, rate=0.25)
    assert one.values(4) == [0.1 * 0.25**t for t in range(4)]
    assert one.arguments == {"initial_learning_rate": 0.1, "rate": 0.25}
    other = Scaled(optimizer(), 0.1, rate=0.5)
    with pytest.raises(ValueError, match="rate"):
        other.load_state_dict(one.state_dict())
    twin = copy.deepcopy(one)
    twin.step()
    assert value(twin) == 0.025 and value(one) == 0.1


@KIND
def test_the_scale_of_a_cycle(kind):
    """By the number of the cycle from 1 on, or by iterations."""
    by_cycle = Damped(optimizer(kind), base_lr=0.0, max_lr=1.0, step_size_up=2)
    up_and_down = [0.0, 0.5, 1.0, 0.5]
    expected = [up_and_down[t % 4] / (t // 4 + 2) for t in range(20)]
    assert stepped(by_cycle, 20) == pytest.approx(expected, abs=1e-15)
    by_step = Damped(optimizer(kind), base_lr=0.0, max_lr=1.0, step_size_up=2, scale_mode="iterations")
    assert stepped(by_step, 20) == pytest.approx([up_and_down[t % 4] / (1 + t) for t in range(20)], abs=1e-15)
    assert float(by_step._get_closed_form_lr()) == pytest.approx(value(by_step), abs=1e-15)


def test_the_scale_of_each_mode_can_be_asked_for():
    """What `set_scale_fn` returns by default, of the number of the cycle from 1 on, or of the iterations."""
    given = {"base_lr": 0.1, "max_lr": 1.0, "step_size_up": 2}
    for more, expected in (
        ({}, [1.0, 1.0, 1.0]),
        ({"mode": "triangular2"}, [1.0, 0.5, 0.25]),
        ({"mode": "exp_range", "gamma": 0.5}, [0.5, 0.25, 0.125]),
    ):
        scale = lr_scheduler.CyclicLR(optimizer(), **given, **more).set_scale_fn()
        assert [float(scale(torch.tensor(n))) for n in (1, 2, 3)] == expected


def test_none_is_kept_alive_by_its_clock():
    """No cycle of references, so that optimizer and scheduler go with their last name."""
    gc.collect()
    gc.disable()
    try:
        for wrap in (lambda on, one: one, lr_scheduler.ScalePerParamLR):
            on, clock = optimizer("numbers"), timesched.Clock("20ba")
            one = wrap(on, CustomScheduler(on, 0.4, 5, clock=clock))
            one.step()
            refs = [weakref.ref(each) for each in (on, one, clock)]
            del on, one, clock
            assert [ref() for ref in refs] == [None] * 3
    finally:
        gc.enable()


@KIND
def test_a_step_that_fails_is_not_counted(kind):
    on = optimizer(kind)
    one = CustomScheduler(on, 0.4, 5)
    stepped(one, 3)
    written = value(one)
    one.peak = float("nan")
    with pytest.raises(ValueError, match="nan.* at step 3"):
        one.step()
    assert count(one) == 2 and value(one) == written


class Once(scheduler.Scheduler):
    param_group_key = "lr"

    def _get_closed_form(self):
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls > 1:
            raise ArithmeticError("a second time")
        return torch.tensor(0.25)


def once(on):
    calls = []
    timesched.bind(lambda state: calls.append(state) or 1.0 / (len(calls) < 2), on, timesched.Clock("4ba"))


@KIND
@pytest.mark.parametrize("make", [Once, once])
def test_a_scheduler_whose_making_fails_late_changes_nothing(kind, make):
    on = optimizer(kind, {}, {})
    owner = lr_scheduler.ConstantLR(on, 0.1)
    before = [dict(group) for group in on.param_groups]
    numbers = [float(group["lr"]) for group in on.param_groups]
    with pytest.raises(ArithmeticError):
        make(on)
    for group, was, number in zip(on.param_groups, before, numbers):
        assert group.keys() == was.keys() and all(group[key] is was[key] for key in was)
        assert float(group["lr"]) == number
    owner.step()


def test_a_number_stays_one_where_the_making_fails():
    on = optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    with pytest.raises(ArithmeticError):
        Once(on)
    assert on.param_groups[0]["lr"] == 0.5 and type(on.param_groups[0]["lr"]) is float
