"""Counts that are times: a scheduler with a clock, and what needs one. Units and ratios: the laws, in tests/laws."""

import itertools
from types import SimpleNamespace

import pytest

from optim import lr_scheduler, weight_decay_scheduler
from tests.optim.schedulers.building import KIND, make, optimizer, rates, ticked, value
from tests.optim.schedulers.rows import EXAMPLES
from timesched import Clock, Time, Timestamp

LENGTH = 40


def clock_of(ssr=1.0):
    return Clock(f"{LENGTH}ba", batches_per_epoch=4, samples_per_batch=8, tokens_per_sample=16, ssr=ssr)


@KIND
@pytest.mark.parametrize("unit", ["ba", "sp", "tok", "dur"])
def test_values_foretell_the_run(kind, unit):
    """On numbers and tensors, for times in any unit, also in an added group of a sequence."""
    per_batch = {"ba": 1, "sp": 8, "tok": 128, "dur": 1 / LENGTH}[unit]
    clock, on = clock_of(ssr=0.5), optimizer(kind)
    children = [
        lr_scheduler.LinearLR(on, 0.0, 0.1, f"{10 * per_batch:g}{unit}", clock=clock),
        lr_scheduler.CosineDecayLR(on, 0.1, 0.0, total_iters=f"{20 * per_batch:g}{unit}", clock=clock),
    ]
    one = lr_scheduler.SequentialLR(on, children, [f"{10 * per_batch:g}{unit}"])
    other = optimizer()
    plain = [lr_scheduler.LinearLR(other, 0.0, 0.1, 10), lr_scheduler.CosineDecayLR(other, 0.1, 0.0, 20)]
    expected = lr_scheduler.SequentialLR(other, plain, [10]).values(LENGTH + 1)[::2]  # half as long: every other value
    assert one.values(21) == expected == ticked(one, clock, 20)


def test_mixed_units_and_times_of_every_type():
    clock, on, other = clock_of(), optimizer(), optimizer()
    first = lr_scheduler.LinearLR(on, 0.0, 0.1, Time.from_timestring("80sp"), clock=clock)
    second = lr_scheduler.CosineDecayLR(on, 0.1, 0.0, total_iters="0.5dur", clock=clock)
    one = lr_scheduler.SequentialLR(on, [first, second], ["1280tok"], clock=clock)
    children = [lr_scheduler.LinearLR(other, 0.0, 0.1, 10), lr_scheduler.CosineDecayLR(other, 0.1, 0.0, 20)]
    assert ticked(one, clock, LENGTH + 10) == lr_scheduler.SequentialLR(other, children, [10]).values(LENGTH + 11)


def test_a_fraction_of_a_batch_is_reached_by_the_next():
    clock = Clock("30ba")
    one = lr_scheduler.MultiStepLR(optimizer(), 1.0, 0.5, ["0.1dur", "0.29dur", "0.49dur"], clock=clock)
    seen = ticked(one, clock, 29)
    assert [t for t in range(1, 30) if seen[t] != seen[t - 1]] == [3, 9, 15]


def test_a_child_that_starts_between_two_batches():
    on, clock = optimizer(), Clock("10ba")
    children = [lr_scheduler.ConstantLR(on, 0.1), lr_scheduler.MultiplicativeLR(on, 0.1, 0.25)]
    one = lr_scheduler.SequentialLR(on, children, ["0.25dur"], clock=clock)
    assert ticked(one, clock, 3)[3] == pytest.approx(0.05, rel=1e-15)  # half a batch after it


def test_huge_counts_of_tokens_are_exact():
    clock = Clock(f"{2**60}tok")
    one = lr_scheduler.PiecewiseConstantLR(optimizer(), [1.0, 2.0], [f"{2**53 + 1}tok"], clock=clock)
    for tokens, expected in ((2**53, 1.0), (2**53 + 1, 2.0), (2**53 + 2, 2.0)):
        clock.timestamp = Timestamp(token=tokens)
        one.refresh()
        assert value(one) == expected


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


def test_a_step_without_a_tick_writes_the_same_value():
    clock = clock_of()
    one = lr_scheduler.LinearLR(optimizer(), 1.0, 0.0, "1dur", clock=clock)
    clock.tick()
    for _ in range(3):
        one.step()
        assert value(one) == 1 - 1 / LENGTH


def test_several_on_one_clock_and_another_optimizer():
    clock = clock_of()
    on, other = optimizer(), optimizer("ours")
    several = [
        lr_scheduler.LinearLR(on, 1.0, 0.0, "1dur", clock=clock),
        weight_decay_scheduler.LinearWD(on, 0.0, 1.0, "1dur", clock=clock),
        lr_scheduler.StepLR(other, 1.0, "1ep", 0.5, clock=clock),
    ]
    for _, one in itertools.product(range(4), several):
        clock.tick() if one is several[0] else None
        one.step()
    assert [value(one) for one in several] == [0.9, 0.1, 0.5]


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
