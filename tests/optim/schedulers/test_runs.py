"""Runs: counts that are times on a clock, and closed forms that go on where they were. Units and ratios: tests/laws."""

import copy
import json

import pytest
import torch

from optim import lr_scheduler
from tests.optim.schedulers.building import KIND, count, make, name_of, optimizer, rates, stepped, ticked, value
from tests.optim.schedulers.rows import CASES, COSINE, EXAMPLES, IDS
from timesched import Clock, Time


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


# Runs that go on: at every step, in any order of loads, and as copies. States in general: tests/unit


STEPS = 33


def through_a_file(state, path):
    torch.save(state, path)
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize(("stem", "arguments"), CASES, ids=IDS)
def test_every_step_through_a_file_and_as_a_copy(stem, arguments, tmp_path):
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
    one = copy.deepcopy(resumed)  # which goes on by itself, with an optimizer of its own
    assert stepped(one, 4) == one.values(STEPS + 6)[-4:] and value(resumed) == values[STEPS + 2]
    assert one.optimizer is not resumed.optimizer


@KIND
@pytest.mark.parametrize("order", ["os", "so", "ocs", "cso", "sco", "c"])
def test_loads_in_any_order(kind, order, tmp_path):
    """o: the optimizer, s: the scheduler, c: its clock. The value of the moment is there with the last of them."""

    def new():
        clock = Clock("40ba", samples_per_batch=8)
        one = sequence(kind, clock, "40sp", 30, "0.125dur") if "c" in order else make(*COSINE, optimizer(kind))
        return {"o": one.optimizer, "s": one, "c": clock}

    run, again = new(), new()
    resumed, values = again["s"], run["s"].values(30)
    assert ticked(run["s"], run["c"], 12) == values[:13]
    saved = through_a_file({name: each.state_dict() for name, each in run.items()}, tmp_path / "state.pt")
    held = resumed.optimizer.param_groups[0]["lr"]
    for name in order:
        again[name].load_state_dict(saved[name])
    assert value(resumed) == values[12]
    assert kind != "our tensors" or resumed.optimizer.param_groups[0]["lr"] is held
    assert ticked(resumed, again["c"], 10) == values[12:23]
