"""Counts that are times: the unit law, the ratio, and what needs a clock."""

import itertools
from types import SimpleNamespace

import pytest

from optim import lr_scheduler, weight_decay_scheduler
from tests.optim.schedulers.building import (
    KEYS,
    KIND,
    LENGTH,
    UNITS,
    clock_of,
    in_unit,
    make,
    optimizer,
    rates,
    ticked,
    value,
)
from tests.optim.schedulers.rows import BY_STEM, CASES, COSINE, IDS, Nested
from timesched import Clock, Time, Timestamp

CASE = pytest.mark.parametrize(("row", "arguments"), CASES, ids=IDS)


def counts_steps(row, arguments):
    """Whether the value depends on the step itself, not on its share of a count: in another unit it is another one."""
    by_iterations = arguments.get("mode") == "exp_range" and "scale_mode" not in arguments
    by_step = row.stem in ("Multiplicative", "Lambda", "InverseSquareRootDecay")
    return by_step or by_iterations or arguments.get("step_exponent", 1) != 1


SHARES = {name: case for name, case in zip(IDS, CASES) if not counts_steps(*case)}


@pytest.mark.parametrize(("row", "arguments"), SHARES.values(), ids=SHARES)
def test_the_unit_law(row, arguments):
    """The same schedule in any unit, on a run measured in any unit: the same values, bit for bit."""
    plain = make(row.stem, arguments, optimizer()).values(LENGTH + 11)
    for unit in UNITS:
        for length in ("ba", unit):
            clock = clock_of(length)
            one = make(*in_unit(Nested(row.stem, arguments), unit), optimizer(), clock=clock)
            assert one.values(LENGTH + 11) == plain, unit
            assert ticked(one, clock, LENGTH + 10) == plain, unit


@CASE
def test_values_foretell_the_run(row, arguments):
    """In each unit, and also where the values depend on the unit that is counted."""
    for unit in UNITS:
        clock = clock_of()
        one = make(*in_unit(Nested(row.stem, arguments), unit), optimizer(), clock=clock)
        foreseen = one.values(LENGTH)
        assert ticked(one, clock, LENGTH - 1) == foreseen == one.values(LENGTH), unit


@CASE
def test_plain_numbers_on_a_clock_are_batches(row, arguments):
    clock = clock_of("tok")
    one = make(row.stem, arguments, optimizer(), clock=clock)
    assert ticked(one, clock, LENGTH + 10) == make(row.stem, arguments, optimizer()).values(LENGTH + 11)


@pytest.mark.parametrize("family", KEYS)
@KIND
def test_families_and_optimizers(family, kind):
    clock = clock_of()
    one = make(*in_unit(COSINE, "tok"), optimizer(kind), family, clock=clock)
    assert ticked(one, clock, LENGTH + 10) == make(*COSINE, optimizer()).values(LENGTH + 11)


STRETCHED = {name: case for name, case in zip(IDS, CASES) if case[0].stem != "Lambda"}  # functions take the steps


@pytest.mark.parametrize(("row", "arguments"), STRETCHED.values(), ids=STRETCHED)
def test_the_ratio_stretches(row, arguments):
    """At t the value of t / ratio, where that is a count: exactly."""
    units = ("ba", "tok", "dur") if (row, arguments) in SHARES.values() and row.stem != "OneCycle" else ("ba",)
    plain = make(row.stem, arguments, optimizer()).values(4 * LENGTH + 1)
    for ratio, unit in itertools.product((0.25, 0.5, 2.0), units):
        clock = clock_of(ssr=ratio)
        one = make(*in_unit(Nested(row.stem, arguments), unit), optimizer(), clock=clock)
        seen = ticked(one, clock, LENGTH)
        pairs = [(seen[t], plain[int(t / ratio)]) for t in range(LENGTH + 1) if (t / ratio).is_integer()]
        assert len(pairs) > LENGTH // 3 and all(mine == other for mine, other in pairs), (unit, ratio)


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


@pytest.mark.parametrize("stem", [row.stem for row in BY_STEM.values() if row.counts])
def test_a_time_without_a_clock(stem):
    row = BY_STEM[stem]
    on = optimizer()
    for key, time in itertools.product(row.counts, ("0.1dur", "2000000000tok", "3ep", "16sp")):
        times = [time, *row.examples[0][key][1:]] if key == "milestones" else time
        with pytest.raises(ValueError, match=rf"{key}.*{time}.*clock"):
            make(stem, {**row.examples[0], key: times}, on)
    if stem != "Sequential":  # whose children came first
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
    for _ in range(4):
        clock.tick()
        for one in several:
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


def test_a_parent_takes_the_clock_of_its_children():
    on, clock = optimizer(), clock_of()
    children = [lr_scheduler.LinearLR(on, 1.0, 0.0, "0.5dur", clock=clock), lr_scheduler.ConstantLR(on, 0.25)]
    one = lr_scheduler.SequentialLR(on, children, ["0.25dur"])
    assert one.clock is clock
    seen = ticked(one, clock, 20)
    assert seen[9] == 1 - 9 / 20 and seen[10] == 0.25
