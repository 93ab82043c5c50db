"""Steps in graphs and around them: nothing is patched onto the optimizer, so no order of calls is warned of.

That every scheduler steps in one graph, and that this graph is not compiled again: tests/optim/test_compile*.py.
"""

import copy
import functools
import itertools
import warnings

import pytest
import torch
from torch.torch_version import TorchVersion

from optim import lr_scheduler
from tests.optim.compiling import by_hand, fresh, graphs
from tests.optim.schedulers.building import KEYS, KIND, TENSORS, count, make, one_group, optimizer, rates, value
from tests.optim.schedulers.rows import COSINE, TWO_DEEP

EAGER = "eager"  # captures graphs, and compiles nothing
IN_TENSORS = pytest.mark.parametrize("kind", TENSORS)
OLD = TorchVersion(torch.__version__) < "2.13"  # what its graphs cannot do is said in timesched/binding.py


@pytest.fixture(autouse=True)
def _fresh():
    with fresh():
        yield


def give_gradients(on):
    for group in on.param_groups:
        for p in group["params"]:
            p.grad = torch.ones_like(p)


@KIND
def test_any_order_of_steps_and_loads(kind):
    """o: the optimizer's step, s: the scheduler's, l: a load. The value is always that of the scheduler's steps."""
    for order in sorted({*itertools.permutations("oossl"), tuple("sssoo"), tuple("lss")}):
        on = optimizer(kind)
        one = make(*COSINE, on)
        values, state = one.values(5), one.state_dict()
        calls = {"o": on.step, "s": one.step, "l": functools.partial(one.load_state_dict, state)}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for each in order:
                give_gradients(on)
                calls[each]()
                assert value(one) == values[count(one)], order
        assert not caught, order


@KIND
def test_the_step_is_the_optimizers_own(kind):
    """No wrapper, no counter, no hook; nor an initial value beside the one in use."""
    on = optimizer(kind)
    before, hooks = set(vars(on)), [len(v) for k, v in vars(on).items() if k.endswith("_hooks")]
    step, keys = on.step.__func__, set(on.param_groups[0])
    make(*TWO_DEEP, on).step()
    assert on.step.__func__ is step and set(vars(on)) == before and "step" not in vars(on)
    assert [len(v) for k, v in vars(on).items() if k.endswith("_hooks")] == hooks
    assert set(on.param_groups[0]) <= keys | {"initial_lr"} and not hasattr(on.step, "_wrapped_by_lr_sched")


@pytest.mark.parametrize("family", KEYS)
def test_stepping_many_times_leaves_nothing_behind(family):
    """The attributes are the same after a thousand steps."""
    one = make(*TWO_DEEP, optimizer("our tensors"), family)
    one.step()
    before = set(vars(one))
    for _ in range(1000):
        one.step()
    assert set(vars(one)) == before and count(one) == 1001


@pytest.mark.parametrize(
    ("kind", "when", "first"),
    [
        ("numbers", "before", "optimizer"),
        ("numbers", "after", "scheduler"),
        ("our tensors", "before", "scheduler"),
        ("our tensors", "after", "optimizer"),
    ],
)
def test_a_compiled_step_of_the_optimizer(kind, when, first):
    """Compiled before or after the scheduler is made, and whichever steps first."""
    on = optimizer(kind)
    give_gradients(on)
    one = make(*TWO_DEEP, on) if when == "after" else None
    step = torch.compile(on.step, backend=EAGER)
    one = one or make(*TWO_DEEP, on)
    used, values = [], one.values(12)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(10):
            if first == "scheduler":
                one.step()
            used.append(value(one))
            step()
            if first == "optimizer":
                one.step()
    assert not [each for each in caught if "r.step" in str(each.message)]
    assert used == (values[:10] if first == "optimizer" else values[1:11])
    plain = optimizer()
    give_gradients(plain)
    for rate in used:
        plain.param_groups[0]["lr"] = rate
        plain.step()
    assert torch.allclose(on.param_groups[0]["params"][0], plain.param_groups[0]["params"][0], rtol=1e-6)


def test_numbers_in_a_graph_are_refused_with_the_way_out():
    one = make(*COSINE, optimizer("numbers"))
    with pytest.raises(RuntimeError, match=r"torch\.tensor"):
        by_hand(one.step, EAGER)()


@IN_TENSORS
def test_a_load_between_steps_in_a_graph(kind):
    on = optimizer(kind)
    one = lr_scheduler.LinearLR(on, 0.0, 1.0, 10)
    take = by_hand(one.step, EAGER)
    for _ in range(2):
        on.load_state_dict(copy.deepcopy(on.state_dict()))
        take()
    assert rates(on) == [pytest.approx(0.2, rel=1e-15)] and count(one) == 2 and graphs() == 1


def test_groups_that_were_replaced_in_a_graph():
    """Older versions of torch cannot look in a graph: there, it is the next eager call that refuses."""
    on = optimizer("tensors", {}, {})
    one = lr_scheduler.LinearLR(on, 0.0, 1.0, 10)
    take = by_hand(one.step, EAGER)
    take()
    on.param_groups[0] = {**on.param_groups[0], **one_group(lr=torch.tensor(0.7, dtype=torch.float64))}
    if not OLD:
        with pytest.raises(torch._dynamo.exc.Unsupported, match="Observed exception"):
            take()
        assert rates(on)[0] == 0.7 and count(one) == 1
    with pytest.raises(ValueError, match="group 0 is not the one"):
        one.step()


def test_a_rate_that_requires_a_gradient_in_a_graph():
    rate = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    one = lr_scheduler.LinearLR(optimizer(lr=rate), 1.0, 0.0, 10)
    take = by_hand(one.step)
    for step in range(3):
        assert rate.item() == pytest.approx(1.0 - 0.1 * step, rel=1e-15)
        take()
    assert one.optimizer.param_groups[0]["lr"] is rate and rate.requires_grad and rate.is_leaf


class Limited(lr_scheduler.LRScheduler):
    def _get_closed_form_lr(self):
        return self.last_epoch.clamp_(max=3).double() * 0.1


class Functions(lr_scheduler.LambdaLR):
    def set_lr_lambda(self):
        return [lambda t: t.clamp_(max=3).double(), lambda t: t.double()]


@pytest.mark.parametrize("new", [Limited, functools.partial(Functions, initial_learning_rate=0.1)])
def test_the_step_tensor_belongs_to_the_closed_form(new):
    """It may be changed in place, in a graph and outside of one."""
    one, other = new(optimizer("tensors")), new(optimizer())
    take = by_hand(one.step)
    for _ in range(6):
        take()
        other.step()
    assert count(one) == count(other) == 6 and value(one) == pytest.approx(value(other), abs=1e-15)


def test_groups_with_other_factors_in_a_graph():
    factors = [0.5, 0.25, 2.0]
    for factor in factors:
        on = optimizer("tensors", {"adjust_learning_rate": factor})
        one = lr_scheduler.ScalePerParamLR(on, lr_scheduler.LinearLR(on, 0.0, 1.0, 10))
        by_hand(one.step, EAGER)()
        assert rates(on) == [pytest.approx(0.1 * factor, rel=1e-15)]
    assert graphs() <= len(factors)


class Double(lr_scheduler.LinearLR):
    def increment_last_epoch(self):
        self.last_epoch = self.last_epoch + 2


def test_a_count_that_a_graph_sets():
    """It would be read there."""
    one = Double(optimizer("tensors"), 0.0, 1.0, 10)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="call increment_last_epoch"):
        by_hand(one.step)()
    assert count(one) == 0 and value(one) == 0.0
    for _ in range(3):
        one.step()
    assert count(one) == 6 and value(one) == pytest.approx(0.6, rel=1e-15)
