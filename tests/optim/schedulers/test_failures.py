"""What is easy to get wrong about failing steps, states and graphs; each was once."""

import enum
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import Parameter

from optim import lr_scheduler as lr
from tests.optim.compiling import by_hand, fresh, graphs
from tests.optim.schedulers.edges import Ramp, rates, sgd
from timesched import Clock, LinearScheduler, bind

# Steps that fail


def test_a_step_that_fails_does_not_count():
    class Failing(Ramp):
        bad = False

        def _get_closed_form_lr(self):
            if self.bad:
                raise RuntimeError("no value")
            return super()._get_closed_form_lr()

    for optimizer in (sgd(), sgd(lr=torch.tensor(0.1))):
        one = Failing(optimizer)
        one.step()
        one.bad = True
        for _ in range(3):
            with pytest.raises(RuntimeError, match="no value"):
                one.step()
        assert int(one.last_epoch) == 1 and rates(optimizer) == [pytest.approx(0.1)]


@pytest.mark.parametrize("rate", [1.0, torch.tensor(1.0, dtype=torch.float64)])
def test_a_value_that_is_no_number(rate):
    optimizer = sgd(lr=rate)
    growing = lr.MultiplicativeLR(optimizer, 1.0, 10.0)
    growing.last_epoch = 308
    growing.refresh()
    with pytest.raises(ValueError, match="inf at step 309"):
        growing.step()
    assert int(growing.last_epoch) == 308 and rates(optimizer) == [1e308]


def test_what_is_no_count():
    one = lr.ConstantLR(sgd(), 0.1)
    for count in (-5, 2.7, 2**70, "3", True):
        with pytest.raises(ValueError, match="last_epoch="):
            one.last_epoch = count
    assert int(one.last_epoch) == 0


@pytest.mark.parametrize(
    "count",
    [2.0, np.float64(1), 2**63 - 1, *map(torch.tensor, (2.5, True, -3, 2**63 - 1, 1j, [1, 2]))],
    ids=repr,
)
def test_what_no_optimizer_counts_either(count):
    for rate in (1.0, torch.tensor(1.0)):
        one = lr.LinearLR(sgd(lr=rate), 0.0, 0.1, 4)
        with pytest.raises(ValueError, match=r"last_epoch=.*a whole number, from 0"):
            one.last_epoch = count
        assert int(one.last_epoch) == 0
    with pytest.raises(ValueError, match=r"last_epoch=.*or -1, to start at 0"):
        lr.SequentialLR(optimizer := sgd(), [lr.ConstantLR(optimizer, 0.1)], [], last_epoch=count)


def test_counts_of_numpy_and_of_tensors():
    optimizer = sgd()
    one = lr.SequentialLR(optimizer, [lr.LinearLR(optimizer, 0.0, 0.1, 10)], [], last_epoch=np.int64(3))
    assert int(one.last_epoch) == 4
    for count in (np.int32(2), torch.tensor(2, dtype=torch.int32), torch.tensor(2)):
        one.last_epoch = count
        one.step()
        assert rates(optimizer) == [pytest.approx(0.03)]


@pytest.mark.parametrize("bad", [None, "x", float("nan"), float("inf"), torch.tensor(float("nan")), torch.ones(2)])
def test_what_is_no_value(bad):
    for rate in (1.0, torch.tensor(1.0)):
        optimizer = sgd({"tags": "a"}, {"tags": "b"}, {"tags": "a"}, lr=rate)
        optimizer.param_groups[1]["lr"] = 0.5
        one = lr.LinearLR(optimizer, 0.25, 0.0, 4, param_group_tags="a")
        with pytest.raises(ValueError, match="LinearLR: the value for parameter group 2 is"):
            one.update_groups([0.75, None, bad])
        assert rates(optimizer) == [0.25, 0.5, 0.25]


def test_a_state_at_which_there_is_no_value():
    one = lr.ExponentialLR(optimizer := sgd(), 1.0, 1, 10.0)
    with pytest.raises(ValueError, match="to inf at step 400"):
        one.load_state_dict({**one.state_dict(), "last_epoch": 400})
    assert int(one.last_epoch) == 0 and rates(optimizer) == [1.0]


def test_groups_that_were_removed():
    optimizer = sgd({}, {"lr": 0.5})
    one, bound = lr.LinearLR(optimizer, 0.25, 0.0, 4), sgd({}, {})
    clock = Clock("4ba")
    schedule = bind(LinearScheduler(), bound, clock)
    del optimizer.param_groups[1], bound.param_groups[1]
    values = partial(one.update_groups, [0.1])
    for step in (one.step, one.refresh, one.get_last_lr, values, schedule.step, schedule.refresh, schedule.get_last_lr):
        with pytest.raises(ValueError, match="has 1 parameter groups, and had 2"):
            step()
    assert int(one.last_epoch) == 0 and rates(optimizer) == [0.25]


def test_milestones_that_fall():
    clock = Clock("10ba")
    for milestones in (["0.5dur", "0.1dur"], [8, "0.1dur"], ["4ba", "0.3dur"]):
        with pytest.raises(ValueError, match="put them in order"):
            lr.PiecewiseConstantLR(sgd(), [0.1, 0.2, 0.3], milestones, clock=clock)
        with pytest.raises(ValueError, match="put them in order"):
            lr.MultiStepLR(sgd(), 0.1, 0.5, milestones, clock=clock)


# States


class Letter(str, enum.Enum):
    A = "a"


@pytest.mark.parametrize(
    ("argument", "kept"),
    [
        (np.float64(0.5), 0.5),
        (Letter.A, "a"),
        (np.ones(2), [1.0, 1.0]),
        ({"c", "a", "b"}, ["a", "b", "c"]),
        (torch.ones(2), [1.0, 1.0]),
        ((1, None), [1, None]),
    ],
    ids=["numpy", "enum", "array", "set", "tensor", "tuple"],
)
def test_arguments_as_plain_values(argument, kept, tmp_path):
    class Custom(Ramp):
        def __init__(self, optimizer, x):
            super().__init__(optimizer)

    one = Custom(sgd(), argument)
    one.step()
    torch.save(one.state_dict(), tmp_path / "state")
    state = torch.load(tmp_path / "state", weights_only=True)
    assert state["schedule"]["arguments"] == {"x": kept}
    other = Custom(sgd(), argument)
    other.load_state_dict(state)
    assert int(other.last_epoch) == 1


def test_arguments_that_have_no_plain_form():
    class Custom(Ramp):
        def __init__(self, optimizer, x):
            self.x = x
            super().__init__(optimizer)

    one = Custom(sgd(), iter([1, 2]))
    assert one.state_dict() == one.state_dict() and list(one.x) == [1, 2]
    nan = Custom(sgd(), float("nan"))
    nan.load_state_dict(nan.state_dict())


def test_equal_schedules_written_differently():
    class Passing(lr.CosineDecayLR):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)

    class Default(Ramp):
        def __init__(self, optimizer, rate=0.5):
            super().__init__(optimizer)

    state = Passing(sgd(), 1.0, 0.0, 10).state_dict()
    other = torch.optim.AdamW([Parameter(torch.zeros(1))])
    Passing(other, 1.0, end_learning_rate=0.0, total_iters=10).load_state_dict(state)
    Default(other).load_state_dict(Default(sgd(), 0.5).state_dict())
    with pytest.raises(ValueError, match="rate is 0.5 in the state, and 0.7 here"):
        Default(sgd(), 0.7).load_state_dict(Default(sgd()).state_dict())


def test_where_it_starts_is_not_what_schedule_it_is():
    class Late(lr.CosineDecayLR):
        def __init__(self, a, last_epoch=-1):
            super().__init__(a, 1.0, 0.0, 10)
            self.last_epoch = last_epoch + 1
            self.refresh()

    def sequence(**more):
        optimizer = sgd()
        parts = [lr.LinearLR(optimizer, 0.0, 0.1, 4), lr.ConstantLR(optimizer, 0.5)]
        return lr.SequentialLR(optimizer, parts, [4], **more)

    other = torch.optim.AdamW([Parameter(torch.zeros(1))])
    for fresh_one, late in ((sequence(), sequence(last_epoch=5)), (Late(sgd()), Late(other, 5))):
        late.load_state_dict(fresh_one.state_dict())
        assert int(late.last_epoch) == 0 and late.get_last_lr() == fresh_one.get_last_lr()


def test_lists_that_are_changed_later():
    class Custom(Ramp):
        def __init__(self, optimizer, points, **more):
            super().__init__(optimizer)

    points, more = [1, [2]], {"a": {"b": [3]}}
    one = Custom(sgd(), points, more=more)
    before = one.state_dict()
    points[1].append(5)
    more["a"]["b"].clear()
    assert one.state_dict() == before == Custom(sgd(), [1, [2]], more={"a": {"b": [3]}}).state_dict()


def test_arguments_of_a_mixin():
    class Mixin:
        def __init__(self, *args, extra, **kwargs):
            super().__init__(*args, **kwargs)

    class Mixed(Mixin, lr.CosineDecayLR):
        pass

    state = Mixed(sgd(), 1.0, 0.0, 10, extra="x").state_dict()
    with pytest.raises(ValueError, match="extra is 'x' in the state, and 'y' here"):
        Mixed(sgd(), 1.0, 0.0, 10, extra="y").load_state_dict(state)


def test_base_rates_with_a_clock_in_tokens():
    one = lr.CosineDecayLR(sgd({}, {"tags": "a"}), 0.1, 0.0, "50tok", clock=Clock("100tok"), param_group_tags="a")
    assert one.base_lrs == [1.0, 0.1]


# Graphs


def test_groups_with_other_factors_in_a_graph():
    factors = [0.5, 0.25, 2.0]
    with fresh():
        for factor in factors:
            rate = torch.tensor(0.1, dtype=torch.float64)
            optimizer = sgd({"adjust_learning_rate": factor}, lr=rate)
            one = lr.ScalePerParamLR(optimizer, lr.LinearLR(optimizer, 0.0, 1.0, 10))
            by_hand(one.step)()
            assert rate == pytest.approx(0.1 * factor, rel=1e-15)
        assert graphs() <= len(factors)


def test_a_count_that_a_graph_sets():
    class Double(lr.LinearLR):
        def increment_last_epoch(self):
            self.last_epoch = self.last_epoch + 2

    with fresh():
        rate = torch.tensor(0.1, dtype=torch.float64)
        one = Double(sgd(lr=rate), 0.0, 1.0, 10)
        take = by_hand(one.step)
        with pytest.raises(torch._dynamo.exc.Unsupported, match="call increment_last_epoch"):  # it would be read there
            take()
        assert int(one.last_epoch) == 0 and rate == 0.0
        for _ in range(3):
            one.step()
        assert int(one.last_epoch) == 6 and rate == pytest.approx(0.6, rel=1e-15)


def test_the_ratio_stretches_what_counts_in_steps():
    """At twice the step, the value that the unstretched schedule has."""

    def values(ssr, make):
        optimizer, clock = sgd(), Clock("10ba", ssr=ssr)
        one, seen = make(optimizer, clock), []
        while not clock.done:
            seen += rates(optimizer)
            clock.tick()
            one.step()
        return seen

    for make in (
        lambda on, clock: lr.InverseSquareRootDecayLR(on, 0.1, 2.0, 2, clock=clock),
        lambda on, clock: lr.InverseExponentialTimeDecayLR(on, 0.1, 2, 5, 0.5, clock=clock),
        lambda on, clock: lr.MultiplicativeLR(on, 0.1, 0.5, clock=clock),
        lambda on, clock: lr.CyclicLR(on, 0.1, 0.2, 3, mode="exp_range", gamma=0.5, clock=clock),
        lambda on, clock: lr.OneCycleLR(on, 0.1, 0.2, 10, clock=clock),
    ):
        assert values(2.0, make)[::2] == pytest.approx(values(1.0, make), rel=1e-15)
