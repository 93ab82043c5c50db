"""Schedulers of one's own: closed forms of torch operations, other keys, functions of the step; what is refused."""

import copy
import pickle

import pytest
import torch

import optim
from optim import lr_scheduler, scheduler, weight_decay_scheduler
from tests.optim.schedulers.building import (
    KIND,
    Ramp,
    constant,
    count,
    make,
    moved,
    one_group,
    optimizer,
    rates,
    stepped,
    ticked,
    value,
)
from tests.optim.schedulers.rows import COSINE, HALVING, STEPS
from timesched import Clock


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


@KIND
def test_a_closed_form(kind, tmp_path):
    """With all that others have: tags, another first step, copies, and states that name its class and arguments."""
    one = CustomScheduler(optimizer(kind, {}, {"tags": "b"}), 0.4, warmup=5)
    assert one.values(30) == stepped(one, 30) == pytest.approx([custom(t) for t in range(30)], rel=1e-15)
    assert value(one) == value(one, 1) == float(one._get_closed_form_lr()) == float(one.get_lr()[0])
    assert value(moved(one, 2**40)) == pytest.approx(custom(2**40), rel=1e-15) and one.total_iters == 50

    def new(peak=0.4):
        return CustomScheduler(optimizer(kind, {"tags": "a"}, {}), peak, 5, last_epoch=6, param_group_tags="a")

    one = new()
    assert count(one) == 7 and value(one) == pytest.approx(custom(7), rel=1e-15) and value(one, 1) == 0.5
    one.step()
    torch.save(one.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert state["schedule"] == "CustomScheduler(peak=0.4, warmup=5, total_iters=50)"
    again = new()
    again.load_state_dict(state)
    assert count(again) == 8 and value(again) == value(one) != value(new())
    with pytest.raises(ValueError, match=r"(?s)peak=0\.4.*peak=0\.3"):
        new(0.3).load_state_dict(state)
    for copied in (copy.deepcopy(again), pickle.loads(pickle.dumps(again))):
        copied.step()
        assert value(copied) == pytest.approx(custom(9), rel=1e-15) and count(again) == 8


@KIND
def test_a_closed_form_inside_others(kind):
    """In a sequence it counts from its milestone on; two deep it still does, and a state names it."""
    on = optimizer(kind)
    inner = lr_scheduler.SequentialLR(on, [make(*COSINE, on), CustomScheduler(on, 0.4, 5)], [4])
    outer = lr_scheduler.SequentialLR(on, [inner, make(*STEPS, on)], [20])
    first, last = make(*COSINE, optimizer()).values(4), make(*STEPS, optimizer()).values(10)
    expected = [*first, *(custom(t) for t in range(16)), *last]
    assert stepped(outer, 30) == pytest.approx(expected, rel=1e-14)
    assert "CustomScheduler" in outer.state_dict()["schedule"]
    both = lr_scheduler.ChainedLR([CustomScheduler(on, 0.4, 5), make(*HALVING, on)])
    assert stepped(both, 20) == pytest.approx([custom(t) * 0.5 ** (t / 10) for t in range(20)], rel=1e-14)


class Half(lr_scheduler.CosineDecayLR):
    """Made of the formula of its base."""

    def _get_closed_form_lr(self):
        return super()._get_closed_form_lr() * 0.5


@KIND
def test_a_closed_form_made_of_a_formula(kind):
    halves = [0.5 * value for value in lr_scheduler.CosineDecayLR(optimizer(), 1.0, 0.0, 10).values(8)]
    one = Half(optimizer(kind), 1.0, 0.0, 10)
    assert one.values(8) == stepped(one, 8) == pytest.approx(halves, rel=1e-15)
    on = optimizer(kind)
    around = lr_scheduler.ScalePerParamLR(on, Half(on, 1.0, 0.0, 10))  # with the same schedule
    assert float(around._get_closed_form_lr()) == float(moved(one, 0)._get_closed_form_lr()) == halves[0]
    clock, on = Clock("20ba"), optimizer(kind)
    children = [constant(on), Half(on, 1.0, 0.0, "0.5dur", clock=clock)]
    later = lr_scheduler.SequentialLR(on, children, ["0.25dur"], clock=clock)
    assert later.values(13) == ticked(later, clock, 12) == [0.1] * 5 + halves


def test_in_its_method_a_scheduler_is_at_the_step_to_compute():
    """What a method reads of the count is of this step, and what it writes does not last."""

    class Counted(lr_scheduler.LRScheduler):
        def _get_closed_form_lr(self):
            rate = 0.1 * self._step_count
            self.last_epoch = 0
            return rate

    one = Counted(optimizer())
    assert one.values(4) == stepped(one, 4) == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert int(one.last_epoch) == 3


def test_a_base_without_a_formula_has_no_value():
    class Wrong(lr_scheduler.LRScheduler):
        def _get_closed_form_lr(self):
            return super()._get_closed_form_lr() * 0.5

    with pytest.raises(NotImplementedError, match=r"^Wrong\._get_closed_form_lr: super\(\) has no formula"):
        Wrong(optimizer())


NO_VALUES = None, "0.1", torch.tensor([0.1, 0.2]), float("nan"), torch.tensor(float("inf")), 1j
NO_FUNCTIONS = None, [], 5, ["x"], [None], "lambda t: t"


@pytest.mark.parametrize(
    ("base", "hook", "wrong", "words"),
    [
        *((lr_scheduler.LRScheduler, "_get_closed_form_lr", wrong, "Wrong") for wrong in NO_VALUES),
        *((lr_scheduler.LambdaLR, "set_lr_lambda", wrong, "Wrong.set_lr_lambda: it") for wrong in NO_FUNCTIONS),
        (lr_scheduler.LRScheduler, "other", 0.1, "_get_closed_form_lr: the class does not"),
        (weight_decay_scheduler.WeightDecayScheduler, "other", 0.1, "_get_closed_form_wd: the class does not"),
    ],
)
def test_a_class_without_a_value_is_refused(base, hook, wrong, words):
    cls, on = type("Wrong", (base,), {hook: lambda self: wrong}), optimizer()
    with pytest.raises((ValueError, TypeError), match=words):
        cls(on, *([0.1] if base is lr_scheduler.LambdaLR else []))
    assert rates(on) == [0.5]
    constant(on).step()  # and the group is free


METHODS = "increment_last_epoch", "get", "get_lr", "update_groups", "update_last_value", "update_last_lr"


@pytest.mark.parametrize("method", [*METHODS, "_get_closed_form"])
def test_a_method_of_a_step_cannot_be_overridden(method):
    """It would not be called: the class is refused where it is defined, also by way of a mixin."""
    own = {method: lambda self, *more: None, "__module__": "mine"}
    for bases, more in (((), own), ((type("Mine", (), own),), {"__module__": "mine"})):
        with pytest.raises(TypeError, match=rf"^Mine.{method}: step\(\) does not call it"):
            type("Mine", (*bases, lr_scheduler.CosineDecayLR), more)


# Other keys


class Beta(scheduler.Scheduler):
    param_group_key = "betas[0]"

    def _get_closed_form(self):
        return torch.clamp(0.8 + 0.01 * self.last_epoch.double(), max=0.95)


@pytest.mark.parametrize("module", [torch.optim, optim])
def test_an_element_of_a_tuple(module):
    on = module.AdamW([one_group()], lr=0.1, betas=(0.9, 0.99))
    one, seen = Beta(on), []
    for _ in range(20):
        first, second = on.param_groups[0]["betas"]
        assert float(second) == 0.99 and rates(on) == [0.1] and isinstance(on.param_groups[0]["betas"], tuple)
        seen.append(float(first))
        on.step()
        one.step()
    assert seen == pytest.approx([min(0.8 + 0.01 * t, 0.95) for t in range(20)], rel=1e-15)
    assert one.get_last_value() == one.get_last_lr() == [on.param_groups[0]["betas"][0]]
    assert one.state_dict()["key"] == "betas[0]"


# Functions of the step


class OnValues(weight_decay_scheduler.MultiplicativeWD):
    def set_lr_lambda(self):
        return [lambda t: 1.0 / (1.0 + t.double()), lambda t: 2.0]


@KIND
def test_functions_of_the_step(kind):
    many = OnValues(optimizer(kind), 0.1, 0.9)
    assert stepped(many, 10) == pytest.approx([0.2 / (1 + t) for t in range(10)], rel=1e-15)


def test_the_functions_of_the_classes_themselves_can_be_asked_for():
    by_default = lr_scheduler.LambdaLR(optimizer(), 0.1).set_lr_lambda()
    assert [float(each(torch.tensor(3))) for each in by_default] == pytest.approx([0.1, 0.95**3])
    factor = lr_scheduler.MultiplicativeLR(optimizer(), 0.1, 0.5).set_lr_lambda()
    assert [float(factor(torch.tensor(n))) for n in (0, 1, 3)] == [1.0, 0.5, 0.125]


class Damped(lr_scheduler.CyclicLR):
    def set_scale_fn(self):
        return lambda n: 1.0 / (1.0 + n.double())


@KIND
def test_the_scale_of_a_cycle(kind):
    """By the number of the cycle from 1 on, or by iterations, as `scale_mode` says."""
    given = {"base_lr": 0.0, "max_lr": 1.0, "step_size_up": 2}
    by_cycle = Damped(optimizer(kind), **given)
    up_and_down = [0.0, 0.5, 1.0, 0.5]
    expected = [up_and_down[t % 4] / (t // 4 + 2) for t in range(20)]
    assert stepped(by_cycle, 20) == pytest.approx(expected, abs=1e-15)
    by_step = Damped(optimizer(kind), **given, scale_mode="iterations")
    assert stepped(by_step, 20) == pytest.approx([up_and_down[t % 4] / (1 + t) for t in range(20)], abs=1e-15)
    assert float(by_step._get_closed_form_lr()) == pytest.approx(value(by_step), abs=1e-15)


def test_a_scale_in_float32_keeps_the_precision_of_the_height():
    class Inverse(lr_scheduler.CyclicLR):
        def set_scale_fn(self):
            return lambda n: 1.0 / n  # of an int64 tensor: float32

    scheduler = Inverse(optimizer(), base_lr=0.1, max_lr=0.7, step_size_up=2)
    assert scheduler.values(3) == pytest.approx([0.1, 0.4, 0.7], rel=1e-15)


def test_a_class_with_a_name_of_torch_and_several_rates():
    class StepLR(lr_scheduler.PiecewiseConstantLR):
        pass

    assert StepLR(optimizer(), [0.1, 0.2], [2]).values(3) == [0.1, 0.1, 0.2]


# Steps that fail


@KIND
def test_a_step_that_fails_is_not_counted(kind):
    one = CustomScheduler(optimizer(kind), 0.4, 5)
    stepped(one, 3)
    written = value(one)
    for peak, error, words in ((float("nan"), ValueError, "nan.* after 2 steps"), ("high", TypeError, "tensor|str")):
        one.peak = peak
        for _ in range(2):
            with pytest.raises(error, match=words):
                one.step()
            assert count(one) == 2 and value(one) == written
    growing = moved(lr_scheduler.MultiplicativeLR(optimizer(kind), 1.0, 10.0), 308)
    with pytest.raises(ValueError, match="inf.* after 308 steps"):
        growing.step()
    assert count(growing) == 308 and value(growing) == 1e308


@KIND
def test_a_python_number_is_a_value_and_the_step_tensor_may_be_changed_in_place(kind):
    class Limited(Ramp):
        def _get_closed_form_lr(self):
            return 0.5 if self.last_epoch.clamp_(max=3) == 3 else self.last_epoch.double() * 0.1

    one = Limited(optimizer(kind))
    assert stepped(one, 6) == pytest.approx([0.0, 0.1, 0.2, 0.5, 0.5, 0.5]) and count(one) == 5
