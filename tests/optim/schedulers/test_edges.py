"""What is easy to get wrong about closed forms, parts, later groups and copies; each was once."""

import copy
import functools
import gc
import weakref

import pytest
import torch
from torch.nn import Parameter

import timesched
from optim import lr_scheduler as lr
from optim import weight_decay_scheduler as wd
from tests.optim.compiling import by_hand, fresh
from tests.optim.schedulers.edges import Ramp, rates, sgd
from timesched import Clock


class Half(lr.CosineDecayLR):
    def _get_closed_form_lr(self):
        return super()._get_closed_form_lr() * 0.5


# Closed forms made of a formula


def test_a_form_made_of_a_formula_with_a_clock():
    clock = Clock("10ba")
    expected = [0.5 * value for value in lr.CosineDecayLR(sgd(), 1.0, 0.0, 10).values(8)]
    one = Half(sgd(), 1.0, 0.0, "1dur", clock=clock)
    assert one.values(8) == expected
    for step in range(1, 8):
        clock.tick()
        one.step()
        assert one.get_last_lr() == [expected[step]]


@pytest.mark.parametrize("rate", [1.0, torch.tensor(1.0, dtype=torch.float64)])
def test_a_form_made_of_a_formula_that_counts_its_steps(rate):
    expected = [0.5 * value for value in lr.CosineDecayLR(sgd(), 1.0, 0.0, 10).values(8)]
    optimizer = sgd(lr=rate)
    one = Half(optimizer, 1.0, 0.0, 10)
    assert one.values(8) == pytest.approx(expected, rel=1e-15)
    for value in expected:
        assert rates(optimizer) == [pytest.approx(value, rel=1e-15)]
        assert float(one._get_closed_form_lr()) == pytest.approx(value, rel=1e-15)
        one.step()


def test_such_a_form_as_a_later_part():
    optimizer, clock = sgd(), Clock("10ba")
    first, second = lr.ConstantLR(optimizer, 0.1), Half(optimizer, 1.0, 0.0, "0.5dur", clock=clock)
    whole = lr.SequentialLR(optimizer, [first, second], ["0.5dur"], clock=clock)
    seen = []
    for _ in range(10):
        seen += rates(optimizer)
        clock.tick()
        whole.step()
    assert seen == [0.1] * 5 + [0.5 * value for value in lr.CosineDecayLR(sgd(), 1.0, 0.0, 5).values(5)]


def test_a_part_that_starts_between_two_batches():
    optimizer, clock = sgd(), Clock("10ba")
    parts = [lr.ConstantLR(optimizer, 0.1), lr.MultiplicativeLR(optimizer, 0.1, 0.25)]
    whole = lr.SequentialLR(optimizer, parts, ["0.25dur"], clock=clock)
    for _ in range(3):
        clock.tick()
        whole.step()
    assert rates(optimizer) == [pytest.approx(0.05, rel=1e-15)]  # half a batch after it


def test_the_step_tensor_belongs_to_the_form():
    class Limited(lr.LRScheduler):
        def _get_closed_form_lr(self):
            return self.last_epoch.clamp_(max=3).double() * 0.1

    class Functions(lr.LambdaLR):
        def set_lr_lambda(self):
            return [lambda t: t.clamp_(max=3).double(), lambda t: t.double()]

    for kind in (Limited, functools.partial(Functions, initial_learning_rate=0.1)):
        with fresh():
            rate = torch.tensor(0.1, dtype=torch.float64)
            one, other = kind(sgd(lr=rate)), kind(sgd())
            take = by_hand(one.step)
            for _ in range(6):
                take()
                other.step()
            assert int(one.last_epoch) == int(other.last_epoch) == 6
            assert rate == pytest.approx(other.get_last_lr()[0], abs=1e-15)


def test_the_count_of_a_scale_function_is_exact():
    class Scaled(lr.CyclicLR):
        def set_scale_fn(self):
            return lambda x: (x == 2**24 + 1).double()

    one = Scaled(sgd(), 0.1, 0.3, 1, 1, scale_mode="iterations")
    one.last_epoch = 2**24
    one.step()
    assert one.get_last_lr() == [pytest.approx(0.3, rel=1e-15)]


# What a user overrides


def test_an_override_that_is_wrapped():
    class Wrapped(lr.CosineDecayLR):
        @functools.wraps(lr.CosineDecayLR._get_closed_form_lr)
        def _get_closed_form_lr(self):
            return torch.tensor(7.0)

        @functools.wraps(lr.CosineDecayLR.get_lr)
        def get_lr(self):
            return [value * 2 for value in super().get_lr()]

    one = Wrapped(sgd(), 1.0, 0.0, 10)
    assert one.get_last_lr() == [14.0]
    one.step()
    assert one.get_last_lr() == [14.0]


def test_get_wd_may_be_overridden():
    class Halved(wd.ConstantWD):
        def get_wd(self):
            return [value * 0.5 for value in super().get_wd()]

    one = Halved(sgd(), 0.2)
    one.step()
    assert one.get_last_wd() == [0.1]


# Groups


def test_a_later_group_that_shares_the_tensor():
    optimizer = sgd({"tags": "a"}, lr=torch.tensor(0.1))  # torch gives every group the same tensor
    one = lr.LinearLR(optimizer, 0.1, 0.5, 4, param_group_tags="a")
    optimizer.add_param_group({"params": [Parameter(torch.zeros(1))], "tags": "b"})
    with pytest.raises(ValueError, match="share one tensor"):
        one.step()
    assert int(one.last_epoch) == 0 and rates(optimizer) == [pytest.approx(0.1)] * 2


def test_the_count_is_where_the_first_tensor_is():
    optimizer = sgd({}, {"lr": torch.tensor(0.1)})
    one = lr.LinearLR(optimizer, 0.1, 0.5, 4)
    with fresh():
        assert isinstance(one._count, torch.Tensor)
    one.step()
    assert rates(optimizer) == pytest.approx([0.2, 0.2])


def test_tags_from_a_generator():
    optimizer = sgd({"tags": "a"}, {"tags": "b"})
    one = lr.LinearLR(optimizer, 0.1, 0.5, 4, param_group_tags=(tag for tag in "a"))
    optimizer.add_param_group({"params": [Parameter(torch.zeros(1))], "tags": "a"})
    one.step()
    assert rates(optimizer) == [0.2, 1.0, 0.2] and one.state_dict()["schedule"]["param_group_tags"] == ["a"]


def test_the_tags_of_a_group_are_names():
    with pytest.raises(ValueError, match="tags=3"):
        lr.ConstantLR(sgd({"tags": 3}), 0.1, param_group_tags="a")


# Who drives what, and for how long


def test_one_that_nobody_holds_any_more():
    """Whether or not the garbage collector has been there."""
    gc.disable()
    try:
        optimizer = sgd()
        for make in (Ramp, lambda on: lr.SequentialLR(on, [Ramp(on), lr.ConstantLR(on, 0.2)], [3])):
            for _ in range(3):
                one = make(optimizer)
            one.step()
            del one
        with pytest.raises(ValueError):
            lr.SequentialLR(optimizer, [lr.ConstantLR(optimizer, 0.1), lr.ConstantLR(optimizer, 0.2)], [3, 4])
        timesched.bind(timesched.LinearScheduler(), optimizer, Clock("4ba"))
    finally:
        gc.enable()


def test_schedulers_keep_no_optimizer_alive():
    gc.disable()
    try:
        for make in (Ramp, lambda on: lr.SequentialLR(on, [lr.ConstantLR(on, 0.1), lr.ConstantLR(on, 0.2)], [3])):
            optimizer = sgd()
            one, seen = make(optimizer), weakref.ref(optimizer)
            one.step()
            del optimizer, one
            assert seen() is None
    finally:
        gc.enable()


def test_an_unbound_scheduler_is_out_of_use():
    optimizer = sgd()
    one = lr.ConstantLR(optimizer, 0.1)
    one.unbind()
    other = lr.ConstantLR(optimizer, 0.2)
    other.step()
    state = {**one.state_dict(), "last_epoch": 3}
    for call in (one.step, one.refresh, functools.partial(one.load_state_dict, state)):
        with pytest.raises(ValueError, match="ConstantLR of 'lr' was unbound: make another one"):
            call()
    with pytest.raises(ValueError, match="unbound"):
        one.update_groups([0.7])
    assert rates(optimizer) == [0.2] and int(one.last_epoch) == 0
    twin, on = copy.deepcopy((one, optimizer))
    lr.ConstantLR(on, 0.3).step()
    assert rates(on) == [0.3] and twin.optimizer is on


def test_a_copy_of_what_is_bound():
    optimizer, clock = sgd(), Clock("10ba")
    bound = timesched.bind(timesched.LinearScheduler(), optimizer, clock)
    on, copied, timer = copy.deepcopy((optimizer, bound, clock))
    clock.tick()
    timer.load_state_dict(clock.state_dict())
    assert copied.get_last_lr() == [0.9] and bound.get_last_lr() == [1.0]
    timesched.bind(timesched.LinearScheduler(), on, timer)
    with pytest.raises(ValueError, match="superseded"):
        copied.step()
    bound.step()


@pytest.mark.parametrize("three_phase", [False, True])
@pytest.mark.parametrize("rate", [1.0, torch.tensor(1.0, dtype=torch.float64)])
def test_a_cycle_whose_way_up_is_its_first_step(three_phase, rate):
    """torch divides by zero there."""
    optimizer = sgd(lr=rate)
    one = lr.OneCycleLR(optimizer, 0.1, 1.0, 4, 0.25, 10.0, three_phase, "linear")
    down = [0.1, 0.07, 0.04, 0.01] if three_phase else [0.1, 0.67, 0.34, 0.01]
    assert one.values(5) == pytest.approx([*down, 0.01], abs=1e-15)
    for expected in (*down, 0.01):
        assert rates(optimizer) == [pytest.approx(expected, abs=1e-15)]
        one.step()


@pytest.mark.parametrize("rate", [1.0, torch.tensor(1.0, dtype=torch.float64)])
def test_a_power_that_no_float_holds(rate):
    """The limit, as on tensors, and no OverflowError."""
    optimizer = sgd(lr=rate)
    one = lr.InverseExponentialTimeDecayLR(optimizer, 0.1, 20.0, 5, 0.5)
    one.load_state_dict({**one.state_dict(), "last_epoch": 2**62})
    assert rates(optimizer) == [0.0] and one._function((torch.tensor(2**62),)) == 0.0
