"""Counts that are times: a scheduler with a clock, and what needs one. Units and ratios: the laws, in tests/laws."""

from types import SimpleNamespace

import pytest

from optim import lr_scheduler
from tests.optim.schedulers.building import KIND, make, optimizer, rates, ticked, value
from tests.optim.schedulers.rows import EXAMPLES
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
