"""Runs: counts that are times on a clock, and closed forms that go on where they were. Units and ratios: tests/laws."""

import copy
import json
import pickle
from types import SimpleNamespace

import pytest
import torch

from optim import lr_scheduler
from tests.optim.schedulers.building import KIND, count, make, name_of, optimizer, rates, stepped, ticked, value
from tests.optim.schedulers.rows import CASES, COSINE, EXAMPLES, IDS, TWO_DEEP
from timesched import Clock, Time, Timestamp


def sequence(kind="numbers", clock=None, ramp=10, decay=20, milestone=10):
    """Up to 0.1 in ten batches, and down in twenty."""
    on = optimizer(kind)
    children = [
        lr_scheduler.LinearLR(on, 0.0, 0.1, ramp, clock=clock),
        lr_scheduler.CosineDecayLR(on, 0.1, 0.0, decay, clock=clock),
    ]
    return lr_scheduler.SequentialLR(on, children, [milestone], clock=clock)


@KIND
@pytest.mark.parametrize(
    "times",
    [
        ("10ba", "20ba", "10ba"),
        ("80sp", "160sp", "80sp"),
        ("1280tok", "2560tok", "1280tok"),
        (Time.from_timestring("80sp"), "0.5dur", "1280tok"),
    ],
    ids=str,
)
def test_values_foretell_the_run(kind, times):
    """On numbers and tensors, for times in any unit, in a run half as long: every other value of the plain counts."""
    clock = Clock("40ba", batches_per_epoch=4, samples_per_batch=8, tokens_per_sample=16, ssr=0.5)
    one, expected = sequence(kind, clock, *times), sequence().values(41)[::2]
    one.step()  # the value stays, as nobody ticked
    assert one.values(21) == expected == ticked(one, clock, 20)


def test_a_child_that_starts_between_two_batches():
    on, clock = optimizer(), Clock("10ba")
    children = [lr_scheduler.ConstantLR(on, 0.1), lr_scheduler.MultiplicativeLR(on, 0.1, 0.25)]
    one = lr_scheduler.SequentialLR(on, children, ["0.25dur"], clock=clock)
    assert ticked(one, clock, 3)[3] == pytest.approx(0.05, rel=1e-15)  # half a batch after it


COUNTS = [(stem, key) for stem, several in EXAMPLES.items() for key in several[0] if "iters" in key or "T_0" in key]
COUNTS += [("Step", "step_size"), ("MultiStep", "milestones"), ("Cyclic", "step_size_up"), ("OneCycle", "total_steps")]


@pytest.mark.parametrize(("stem", "key"), COUNTS)
def test_a_time_without_a_clock(stem, key):
    on, given = optimizer(), EXAMPLES[stem][0]
    for time in ("0.1dur", "2000000000tok", "3ep", "16sp"):
        with pytest.raises(ValueError, match=rf"{time}.*clock"):
            make(stem, {**given, key: [time] if key == "milestones" else time}, on)
    assert rates(on) == [0.5]


@pytest.mark.parametrize(
    ("time", "words"), [("100tok", "samples_per_batch|tokens_per_sample"), ("2ep", "batches_per_epoch")]
)
def test_a_rate_that_is_missing_is_named(time, words):
    """A one-cycle schedule ends one step before its total: the two have to go together."""
    on = optimizer()
    with pytest.raises(ValueError, match=words):
        lr_scheduler.OneCycleLR(on, 0.1, 1.0, time, clock=Clock("10ba"))
    assert rates(on) == [0.5]


def test_each_time_is_compared_on_its_own_counter():
    """No rate is asked for where none is needed: tokens are counted as tokens."""
    clock = Clock("10ba")
    on = optimizer("numbers", {}, {"tags": "a"})
    one = lr_scheduler.LinearLR(on, 1.0, 0.0, "1000tok", clock=clock, param_group_tags="a")
    assert one.base_lrs == [0.5, 1.0]
    for tokens in (100, 350, 50):
        clock.tick(tokens=tokens)
        one.step()
    assert rates(on) == [0.5, 0.5] and one.base_lrs == [0.5, 1.0]


@KIND
def test_a_state_like_composers(kind):
    """What has timestamp, max_duration and dataloader_len; its counters may be replaced by others of its kind."""
    state = SimpleNamespace(timestamp=Timestamp(), max_duration=Time.from_timestring("10ep"), dataloader_len=4)
    one = lr_scheduler.LinearLR(optimizer(kind), 1.0, 0.0, "1dur", clock=state)
    for _ in range(10):
        state.timestamp = state.timestamp.to_next_batch()
        one.step()
    assert value(one) == 0.75
    state.max_duration = Time.from_timestring("5ep")
    one.step()
    assert value(one) == 0.5


# Runs that go on: at every step, in any order of loads, and as copies. States in general: tests/unit


STEPS = 33


def through_a_file(state, path):
    torch.save(state, path)
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize(("stem", "arguments"), CASES, ids=IDS)
def test_every_step_through_a_file(stem, arguments, tmp_path):
    """Each resumed run goes on bit for bit, from a new optimizer whose groups hold something else."""
    one = make(stem, arguments, optimizer())
    values, states = one.values(STEPS + 4), []
    for _ in range(STEPS):
        states.append(one.state_dict())
        one.step()
    resumed = make(stem, arguments, optimizer(lr=3.0))
    for t, state in enumerate(through_a_file(states, tmp_path / "state.pt")):
        resumed.optimizer.param_groups[0]["lr"] = 123.0
        resumed.load_state_dict(state)
        assert count(resumed) == t and resumed.get_last_lr() == [values[t]]
        assert stepped(resumed, 4) == values[t : t + 4]
        assert len(json.dumps(state)) < 1500 and name_of(stem, "lr") in state["schedule"]


@KIND
@pytest.mark.parametrize("order", [("optimizer", "scheduler"), ("scheduler", "optimizer")])
def test_with_the_optimizers_checkpoint_in_either_order(kind, order, tmp_path):
    """The value; and the tensor in the group is the one there was, where the optimizer keeps it."""

    def new():
        on = optimizer(kind, {"tags": "a"}, {})
        return {"optimizer": on, "scheduler": make(*COSINE, on)}

    run, again = new(), new()
    stepped(run["scheduler"], 8)
    saved = through_a_file({name: each.state_dict() for name, each in run.items()}, tmp_path / "both.pt")
    on, resumed = again.values()
    held = [group["lr"] for group in on.param_groups]
    for name in order:
        again[name].load_state_dict(saved[name])
    assert rates(on) == resumed.values(8)[7:] * 2
    if kind == "our tensors":
        assert all(group["lr"] is tensor for group, tensor in zip(on.param_groups, held))
    assert stepped(resumed, 5) == resumed.values(12)[7:]


@KIND
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda several: pickle.loads(pickle.dumps(several))])
def test_copies_go_on_by_themselves(kind, copied):
    on, clock = optimizer(kind), Clock("40ba")
    one, timed = make(*TWO_DEEP, on), lr_scheduler.LinearLR(optimizer(kind), 0.1, 0.0, "1dur", clock=clock)
    stepped(one, 4)
    other, copy_, timer, timed_copy = copied((on, one, clock, timed))
    assert copy_.optimizer is other and other is not on
    values = one.values(30)
    assert stepped(copy_, 20) == values[3:23] and (value(one), count(one)) == (values[3], 3)
    assert stepped(one, 5) == values[3:8] and value(copy_) == values[22]
    alone = copied(one)  # has an optimizer of its own
    alone.step()
    assert alone.optimizer is not on and value(one) == values[7]
    assert ticked(timed_copy, timer, 2) == timed.values(3) and value(timed) == 0.1


@KIND
@pytest.mark.parametrize("order", [("clock", "scheduler"), ("scheduler", "clock"), ("clock",)])
def test_resuming_with_a_clock_in_any_order(kind, order, tmp_path):
    """The value is that of the clock's moment as soon as the clock is there, whichever comes last."""

    def new():
        clock = Clock("40ba", samples_per_batch=8)
        return {"clock": clock, "scheduler": sequence(kind, clock, "40sp", 30, "0.125dur")}

    run, again = new(), new()
    values = run["scheduler"].values(30)
    assert ticked(run["scheduler"], run["clock"], 12) == values[:13]
    saved = through_a_file({name: each.state_dict() for name, each in run.items()}, tmp_path / "state.pt")
    for name in order:
        again[name].load_state_dict(saved[name])
    assert value(again["scheduler"]) == values[12]
    assert ticked(again["scheduler"], again["clock"], 10) == values[12:23]
