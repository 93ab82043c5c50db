"""State dicts: snapshots in plain values; those of another schedule are refused, and change nothing."""

import copy
import json

import numpy as np
import pytest
import torch

import timesched
from optim import lr_scheduler, scheduler
from tests.optim.schedulers.building import count, make, name_of, optimizer, stepped, value
from tests.optim.schedulers.parts import Nested
from tests.optim.schedulers.rows import CASES, COSINE, HALVING, IDS, STEPS, WARMUP

CASE = pytest.mark.parametrize(("row", "arguments"), CASES, ids=IDS)
TWO = Nested("Sequential", {"schedulers": [WARMUP, COSINE], "milestones": [5]})


def is_plain(state):
    if isinstance(state, dict):
        return all(type(key) is str and is_plain(each) for key, each in state.items())
    if type(state) in (list, tuple):
        return all(map(is_plain, state))
    return state is None or type(state) in (str, int, float, bool)


@CASE
@pytest.mark.parametrize("kind", ["numbers", "ours"])
def test_plain_small_and_taken_at_that_moment(row, arguments, kind, tmp_path):
    one = make(row.stem, arguments, optimizer(kind))
    stepped(one, 4)
    state = one.state_dict()
    kept = copy.deepcopy(state)
    stepped(one, 3)
    assert state == kept and is_plain(state)
    assert state["last_epoch"] == 3 and type(state["last_epoch"]) is int and state["key"] == "lr"
    assert name_of(row.stem, "lr") in json.dumps(state["schedule"])
    assert len(json.dumps(state)) < 1500
    torch.save(state, tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True) == state
    state["schedule"].clear()  # nor does the scheduler follow its snapshot
    one.load_state_dict(kept)
    assert count(one) == 3


def cosine(**changes):
    return Nested("CosineDecay", {**COSINE.arguments, **changes})


def sequence(*schedulers, milestones):
    return Nested("Sequential", {"schedulers": list(schedulers), "milestones": milestones})


def chain(*schedulers):
    return Nested("Chained", {"schedulers": list(schedulers)})


SHORTER = Nested("Linear", {**WARMUP.arguments, "total_iters": 6})
OTHERS = {
    "another class": (COSINE, Nested("Linear", COSINE.arguments), "CosineDecayLR.*LinearLR|LinearLR.*CosineDecayLR"),
    "another value": (COSINE, cosine(end_val=0.02), "end_learning_rate.*0.0[12]"),
    "another count": (COSINE, cosine(total_iters=31), "total_iters.*3[01]"),
    "another child": (TWO, sequence(WARMUP, HALVING, milestones=[5]), "CosineDecay.*Expon|Expon.*CosineDecay"),
    "another argument of a child": (TWO, sequence(SHORTER, COSINE, milestones=[5]), "total_iters.*[56]"),
    "another milestone": (TWO, sequence(WARMUP, COSINE, milestones=[6]), "milestones.*[56]"),
    "one child more": (TWO, sequence(WARMUP, COSINE, STEPS, milestones=[5, 9]), "schedulers|milestones"),
    "two deep": (chain(TWO, STEPS), chain(sequence(WARMUP, COSINE, milestones=[4]), STEPS), "milestones"),
    "one wrapped": (Nested("ScalePerParam", {"scheduler": COSINE}), COSINE, "ScalePerParamLR"),
}


@pytest.mark.parametrize("case", OTHERS)
@pytest.mark.parametrize("kind", ["numbers", "tensors", "ours"])
def test_of_another_schedule(case, kind):
    """The message says what differs; whichever of the two is loaded into the other."""
    first, second, words = OTHERS[case]
    one, other = make(*first, optimizer(kind)), make(*second, optimizer(kind))
    stepped(one, 3)
    stepped(other, 6)
    for mine, theirs in ((one, other), (other, one)):
        assert_refused(mine, theirs.state_dict(), words)


def assert_refused(one, state, words, error=ValueError):
    before = value(one), count(one), copy.deepcopy(one.state_dict()), one.get_last_value()
    with pytest.raises(error, match=words):
        one.load_state_dict(state)
    assert (value(one), count(one), one.state_dict(), one.get_last_value()) == before


def test_of_another_key():
    lr = make("Step", STEPS.arguments, optimizer())
    wd = make("Step", STEPS.arguments, optimizer(), "wd")
    assert_refused(lr, wd.state_dict(), "weight_decay.*lr|StepWD.*StepLR")
    assert_refused(wd, lr.state_dict(), "weight_decay|StepWD")


def test_of_another_key_of_the_same_class():
    classes = [type("Mine", (scheduler.StepScheduler,), {"param_group_key": key}) for key in ("momentum", "dampening")]
    one, other = (cls(optimizer(), **STEPS.arguments) for cls in classes)
    with pytest.raises(ValueError, match="dampening.*momentum"):
        one.load_state_dict(other.state_dict())
    assert count(one) == 0


def test_of_other_tags():
    one = make("Step", STEPS.arguments, optimizer("numbers", {"tags": "a"}, {"tags": "b"}), param_group_tags="a")
    other = make("Step", STEPS.arguments, optimizer("numbers", {"tags": "a"}, {"tags": "b"}), param_group_tags="b")
    assert_refused(one, other.state_dict(), "param_group_tags.*'b'.*'a'")
    # the same tags in another order are the same
    groups = {"tags": "a"}, {"tags": "b"}
    both = (["a", "b"], ("b", "a"))
    tagged = [make("Step", STEPS.arguments, optimizer("numbers", *groups), param_group_tags=tags) for tags in both]
    stepped(tagged[0], 3)
    tagged[1].load_state_dict(tagged[0].state_dict())
    assert count(tagged[1]) == 2


@pytest.mark.parametrize(
    "last_epoch", [-1, -5, 1.0, 2.5, float("nan"), float("inf"), "3", None, True, [3], torch.tensor(3), 2**63, 2**70]
)
@pytest.mark.parametrize("kind", ["numbers", "ours"])
def test_bad_counts(last_epoch, kind):
    one = make(*TWO, optimizer(kind))
    stepped(one, 3)
    assert_refused(one, {**one.state_dict(), "last_epoch": last_epoch}, "last_epoch")


@pytest.mark.parametrize("key", ["schedule", "key", "last_epoch"])
def test_missing_keys(key):
    one = make(*TWO, optimizer())
    stepped(one, 3)
    state = one.state_dict()
    del state[key]
    assert_refused(one, state, key)


@pytest.mark.parametrize("state", [{}, None, {"last_epoch": 3, "_step_count": 4, "base_lrs": [0.1], "_last_lr": [0.1]}])
def test_no_state_of_ours(state):
    """Nothing, and a state of torch's scheduler."""
    one = make(*TWO, optimizer())
    stepped(one, 3)
    assert_refused(one, state, "schedule|state")


@pytest.mark.parametrize("state", [[], 5, "state", [1, 2]])
def test_no_dict(state):
    one = make(*TWO, optimizer())
    assert_refused(one, state, "state", (TypeError, ValueError))


@pytest.mark.parametrize("schedule", [None, [], "StepLR", {}, {"class": "StepLR"}, 3])
def test_a_broken_description(schedule):
    one = make(*TWO, optimizer())
    assert_refused(one, {**one.state_dict(), "schedule": schedule}, "schedule")


@pytest.mark.parametrize(
    "wrong", [10**400, 1j, float("nan"), None, [[1.0]], torch.ones(2), np.ones(2), np.ones(0)], ids=repr
)
@pytest.mark.parametrize("argument", ["initial_learning_rate", "milestones"])
def test_arguments_that_are_no_such_numbers(wrong, argument):
    one = make("MultiStep", {"initial_val": 0.1, "gamma": 0.5, "milestones": [2, 4]}, optimizer())
    stepped(one, 3)
    state = one.state_dict()
    state["schedule"]["arguments"][argument] = wrong
    assert_refused(one, state, f"of another schedule: schedule.arguments.{argument} is .* in the state, and .* here")


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
    one.load_state_dict(state)
    assert count(one) == 3


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
    on, clock = optimizer("numbers"), timesched.Clock("10ba")
    one = Rising(on, tenth, timesched.Time(1, "dur"), clock=clock)
    state = one.state_dict()
    arguments = state["schedule"]["arguments"]
    assert arguments == {"function": "tenth", "end": "1dur"}
    arguments.update(function=f"{__name__}.tenth", end="1.0dur")
    one.load_state_dict({**state, "last_epoch": 4})
    assert count(one) == 4
    for other in (
        {"end": "0.1dur"},
        {"end": "1.0ba"},
        {"function": f"{__name__}.twentytenth"},
        {"function": "tenth.x"},
    ):
        with pytest.raises(ValueError, match="of another schedule"):
            one.load_state_dict({**state, "schedule": {**state["schedule"], "arguments": {**arguments, **other}}})
    half, five = (
        make("Linear", {**WARMUP.arguments, "total_iters": end}, optimizer("numbers"), clock=clock)
        for end in ("0.5dur", "5dur")
    )
    with pytest.raises(ValueError, match="'0.5dur' in the state, and '5dur' here"):
        five.load_state_dict(half.state_dict())
