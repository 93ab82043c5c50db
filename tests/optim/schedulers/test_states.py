"""State dicts: snapshots in plain values; those of another schedule are refused, and change nothing."""

import copy
import enum
import json

import numpy as np
import pytest
import torch

import timesched
from optim import lr_scheduler, scheduler
from tests.optim.schedulers.building import Ramp, count, make, moved, name_of, optimizer, stepped, value
from tests.optim.schedulers.rows import CASES, COSINE, HALVING, IDS, STEPS, WARMUP, Nested

TWO_KINDS = pytest.mark.parametrize("kind", ["numbers", "our tensors"])
TWO = Nested("Sequential", {"schedulers": [WARMUP, COSINE], "milestones": [5]})


# Snapshots


def is_plain(state):
    if isinstance(state, dict):
        return all(type(key) is str and is_plain(each) for key, each in state.items())
    if type(state) in (list, tuple):
        return all(map(is_plain, state))
    return state is None or type(state) in (str, int, float, bool)


@pytest.mark.parametrize(("row", "arguments"), CASES, ids=IDS)
@TWO_KINDS
def test_plain_small_and_taken_at_that_moment(row, arguments, kind):
    one = make(row.stem, arguments, optimizer(kind))
    stepped(one, 4)
    state = one.state_dict()
    kept = copy.deepcopy(state)
    stepped(one, 3)
    assert state == kept and is_plain(state)
    assert state["last_epoch"] == 3 and type(state["last_epoch"]) is int and state["key"] == "lr"
    assert name_of(row.stem, "lr") in json.dumps(state["schedule"])
    assert len(json.dumps(state)) < 1500
    state["schedule"].clear()  # nor does the scheduler follow its snapshot
    one.load_state_dict(kept)
    assert count(one) == 3


# Arguments in a state


class Letter(str, enum.Enum):
    A = "a"


class Given(Ramp):
    """With arguments of any kind."""

    def __init__(self, optimizer, x=0.5, **more):
        self.x = x
        super().__init__(optimizer)


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
    one = Given(optimizer(), argument)
    one.step()
    torch.save(one.state_dict(), tmp_path / "state")
    state = torch.load(tmp_path / "state", weights_only=True)
    assert state["schedule"]["arguments"] == {"x": kept}
    other = Given(optimizer(), argument)
    other.load_state_dict(state)
    assert count(other) == 1


def test_arguments_that_have_no_plain_form():
    one = Given(optimizer(), iter([1, 2]))
    assert one.state_dict() == one.state_dict() and list(one.x) == [1, 2]
    nan = Given(optimizer(), float("nan"))
    nan.load_state_dict(nan.state_dict())


def test_lists_that_are_changed_later():
    points, more = [1, [2]], {"a": {"b": [3]}}
    one = Given(optimizer(), points, more=more)
    before = one.state_dict()
    points[1].append(5)
    more["a"]["b"].clear()
    assert one.state_dict() == before == Given(optimizer(), [1, [2]], more={"a": {"b": [3]}}).state_dict()


def test_equal_schedules_written_differently():
    class Passing(lr_scheduler.CosineDecayLR):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)

    state = Passing(optimizer(), 1.0, 0.0, 10).state_dict()
    Passing(torch.optim.AdamW([torch.zeros(1)]), 1.0, end_learning_rate=0.0, total_iters=10).load_state_dict(state)
    Given(optimizer()).load_state_dict(Given(optimizer(), 0.5).state_dict())
    with pytest.raises(ValueError, match="x is 0.5 in the state, and 0.7 here"):
        Given(optimizer(), 0.7).load_state_dict(Given(optimizer()).state_dict())


def test_arguments_of_a_mixin():
    class Mixin:
        def __init__(self, *args, extra, **kwargs):
            super().__init__(*args, **kwargs)

    class Mixed(Mixin, lr_scheduler.CosineDecayLR):
        pass

    state = Mixed(optimizer(), 1.0, 0.0, 10, extra="x").state_dict()
    with pytest.raises(ValueError, match="extra is 'x' in the state, and 'y' here"):
        Mixed(optimizer(), 1.0, 0.0, 10, extra="y").load_state_dict(state)


class Late(lr_scheduler.CosineDecayLR):
    def __init__(self, optimizer, last_epoch=-1):
        super().__init__(optimizer, 1.0, 0.0, 10)
        self.last_epoch = last_epoch + 1
        self.refresh()


def late_sequence(**more):
    on = optimizer()
    return lr_scheduler.SequentialLR(on, [make(*WARMUP, on), make(*COSINE, on)], [4], **more)


def test_where_it_starts_is_not_what_schedule_it_is():
    for early, late in ((late_sequence(), late_sequence(last_epoch=5)), (Late(optimizer()), Late(optimizer(), 5))):
        late.load_state_dict(early.state_dict())
        assert count(late) == 0 and late.get_last_lr() == early.get_last_lr()


# States that are refused


def assert_refused(one, state, words, error=ValueError):
    before = value(one), count(one), copy.deepcopy(one.state_dict()), one.get_last_value()
    with pytest.raises(error, match=words):
        one.load_state_dict(state)
    assert (value(one), count(one), one.state_dict(), one.get_last_value()) == before


def sequence(*schedulers, milestones):
    return Nested("Sequential", {"schedulers": list(schedulers), "milestones": milestones})


def chain(*schedulers):
    return Nested("Chained", {"schedulers": list(schedulers)})


def cosine(**changes):
    return Nested("CosineDecay", {**COSINE.arguments, **changes})


SHORTER = Nested("Linear", {**WARMUP.arguments, "total_iters": 6})
OTHERS = {  # and after how many steps they differ
    "another class": (3, COSINE, Nested("Linear", COSINE.arguments), "CosineDecayLR.*LinearLR|LinearLR.*CosineDecayLR"),
    "another value": (3, COSINE, cosine(end_val=0.02), "end_learning_rate.*0.0[12]"),
    "another count": (3, COSINE, cosine(total_iters=31), "total_iters.*3[01]"),
    "another child": (7, TWO, sequence(WARMUP, HALVING, milestones=[5]), "CosineDecay.*Expon|Expon.*CosineDecay"),
    "another argument of a child": (3, TWO, sequence(SHORTER, COSINE, milestones=[5]), "total_iters.*[56]"),
    "another milestone": (7, TWO, sequence(WARMUP, COSINE, milestones=[6]), "milestones.*[56]"),
    "one child more": (10, TWO, sequence(WARMUP, COSINE, STEPS, milestones=[5, 9]), "schedulers|milestones"),
    "two deep": (7, chain(TWO, STEPS), chain(sequence(WARMUP, COSINE, milestones=[4]), STEPS), "milestones"),
    "one wrapped": (3, Nested("ScalePerParam", {"scheduler": COSINE}), COSINE, "ScalePerParamLR"),
}


@pytest.mark.parametrize(("steps", "first", "second", "words"), OTHERS.values(), ids=OTHERS)
@TWO_KINDS
def test_of_another_schedule(steps, first, second, words, kind):
    """The message says what differs; whichever of the two is loaded into the other."""
    one, other = make(*first, optimizer(kind)), make(*second, optimizer(kind))
    stepped(one, steps)
    stepped(other, steps)
    for mine, loaded in ((one, other), (other, one)):
        assert_refused(mine, loaded.state_dict(), words)


def test_of_another_key():
    lr, wd = make(*STEPS, optimizer()), make(*STEPS, optimizer(), "wd")
    assert_refused(lr, wd.state_dict(), "weight_decay.*lr|StepWD.*StepLR")
    assert_refused(wd, lr.state_dict(), "weight_decay|StepWD")
    classes = [type("Mine", (scheduler.StepScheduler,), {"param_group_key": key}) for key in ("momentum", "dampening")]
    one, other = (cls(optimizer(), **STEPS.arguments) for cls in classes)
    assert_refused(one, other.state_dict(), "dampening.*momentum")


def test_of_other_tags():
    def tagged(tags):
        return make(*STEPS, optimizer("numbers", {"tags": "a"}, {"tags": "b"}), param_group_tags=tags)

    assert_refused(tagged("a"), tagged("b").state_dict(), "param_group_tags.*'b'.*'a'")
    one, other = tagged(["a", "b"]), tagged(("b", "a"))  # in another order they are the same
    stepped(one, 3)
    other.load_state_dict(one.state_dict())
    assert count(other) == 2


def taken():
    one = make(*TWO, optimizer())
    stepped(one, 3)
    return one, one.state_dict()


@pytest.mark.parametrize("key", ["schedule", "key", "last_epoch"])
def test_missing_keys(key):
    one, state = taken()
    del state[key]
    assert_refused(one, state, key)


OF_TORCH = {"last_epoch": 3, "_step_count": 4, "base_lrs": [0.1], "_last_lr": [0.1]}


@pytest.mark.parametrize("state", [{}, None, OF_TORCH, []])
def test_no_state_of_ours(state):
    assert_refused(taken()[0], state, "schedule|state", (TypeError, ValueError))


@pytest.mark.parametrize("schedule", [None, [], "StepLR", {}, {"class": "StepLR"}, 3])
def test_a_broken_description(schedule):
    one, state = taken()
    assert_refused(one, {**state, "schedule": schedule}, "schedule")


@pytest.mark.parametrize(
    "wrong", [10**400, 1j, float("nan"), None, [[1.0]], torch.ones(2), np.ones(2), np.ones(0)], ids=repr
)
@pytest.mark.parametrize("argument", ["initial_learning_rate", "milestones"])
def test_arguments_that_are_no_such_numbers(wrong, argument):
    one = lr_scheduler.MultiStepLR(optimizer(), 0.1, 0.5, [2, 4])
    stepped(one, 3)
    state = one.state_dict()
    state["schedule"]["arguments"][argument] = wrong
    place = argument + r"\[0\]" * (type(wrong) is list and argument == "milestones")  # the element that differs
    assert_refused(one, state, f"another schedule:\n    schedule.arguments.{place} is .* in the state, and .* here")


def test_times_are_compared_as_they_were_written():
    clock = timesched.Clock("10ba")
    half, five = (
        make("Linear", {**WARMUP.arguments, "total_iters": end}, optimizer(), clock=clock) for end in ("0.5dur", "5dur")
    )
    clock.tick()
    assert_refused(five, half.state_dict(), "total_iters is '0.5dur' in the state, and '5dur' here")


def test_a_state_at_which_there_is_no_value():
    one = lr_scheduler.ExponentialLR(optimizer(), 1.0, 1, 10.0)
    assert_refused(one, {**one.state_dict(), "last_epoch": 400}, "to inf at step 400")


# States of earlier versions


@pytest.mark.parametrize("tags", [None, "a"])
def test_children_as_earlier_versions_described_them(tags):
    """Without tags, since a child has the groups of its parent."""
    on = optimizer("numbers", {"tags": "a"}, {"tags": "a"})
    children = [make(*each, on, param_group_tags=tags) for each in (WARMUP, COSINE)]
    one = lr_scheduler.ScalePerParamLR(on, lr_scheduler.SequentialLR(on, children, [5]))
    stepped(one, 4)
    state = one.state_dict()
    assert state["schedule"]["param_group_tags"] == ([] if tags is None else ["a"])
    inner = state["schedule"]["arguments"]["scheduler"]
    assert inner.keys() == inner["arguments"]["schedulers"][1].keys() == {"class", "arguments"}
    moved(one, 3)


class Rising(lr_scheduler.LRScheduler):
    def __init__(self, optimizer, function, end, clock=None):
        self.function = function
        super().__init__(optimizer, clock=clock)

    def _get_closed_form_lr(self):
        return self.function(self.last_epoch)


def tenth(step):
    return step / 10


def test_names_as_earlier_versions_wrote_them():
    """A function with its module, and a time as it was given."""
    one = Rising(optimizer(), tenth, timesched.Time(1, "dur"), clock=timesched.Clock("10ba"))
    state = one.state_dict()
    arguments = state["schedule"]["arguments"]
    assert arguments == {"function": "tenth", "end": "1dur"}
    arguments.update(function=f"{__name__}.tenth", end="1.0dur")
    one.load_state_dict({**state, "last_epoch": 4})
    assert count(one) == 4
    others = ({"end": "0.1dur"}, {"end": "1.0ba"}, {"function": f"{__name__}.twentytenth"}, {"function": "tenth.x"})
    for other in others:
        changed = {**state["schedule"], "arguments": {**arguments, **other}}
        assert_refused(one, {**state, "schedule": changed}, "another schedule")
