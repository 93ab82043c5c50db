"""Counts that are times: the unit law, the ratio, resuming with the clock in any order, and what needs a clock."""

import itertools
from types import SimpleNamespace

import pytest

import timesched
from optim import lr_scheduler, weight_decay_scheduler
from tests.optim.schedulers.building import KEYS, KINDS, make, optimizer, value
from tests.optim.schedulers.parts import Nested
from tests.optim.schedulers.rows import BY_STEM, CASES, COSINE, IDS
from timesched import Clock, Time, Timestamp

KIND = pytest.mark.parametrize("kind", KINDS)
RATES = {"batches_per_epoch": 4, "samples_per_batch": 8, "tokens_per_sample": 16}
LENGTH = 40  # batches in the run
UNITS = {"ba": 1, "sp": 8, "tok": 128, "ep": 0.25, "dur": 1 / LENGTH}
# By the step itself, not by its share of a count: in another unit, or stretched, they are another schedule.
BY_STEP = {"Multiplicative", "Lambda", "InverseSquareRootDecay"}


def by_step(row, arguments):
    return row.stem in BY_STEP or arguments.get("step_exponent", 1) != 1 or by_iterations(arguments)


def by_iterations(arguments):
    return arguments.get("mode") == "exp_range" and "scale_mode" not in arguments


def clock_of(unit="ba", ssr=1.0, length=LENGTH):
    return Clock(f"{length * UNITS[unit]:g}{unit}" if unit != "dur" else f"{length}ba", **RATES, ssr=ssr)


def written(stem, arguments, unit):
    """The arguments with every count as a time in the unit, parts included; a count left to its default too."""

    def text(count):
        return f"{count * UNITS[unit]:.12g}{unit}"

    found = {}
    for key, given in arguments.items():
        if isinstance(given, Nested):
            found[key] = Nested(given.stem, written(*given, unit))
        elif key == "schedulers":
            found[key] = [Nested(each.stem, written(*each, unit)) for each in given]
        elif key in BY_STEM[stem].counts and given is not None:
            found[key] = [text(each) for each in given] if isinstance(given, list) else text(given)
        else:
            found[key] = given
    return found


def run(one, clock, steps=LENGTH + 10):
    """The values in force at each batch."""
    seen = [value(one)]
    for _ in range(steps):
        clock.tick()
        one.step()
        seen.append(value(one))
    return seen


MEANT = [(row, arguments) for row, arguments in CASES if not by_step(row, arguments)]
MEANT_IDS = [name for name, case in zip(IDS, CASES) if not by_step(*case)]


@pytest.mark.parametrize(("row", "arguments"), MEANT, ids=MEANT_IDS)
def test_the_unit_law(row, arguments):
    """The same schedule in any unit, on a run measured in any unit: the same values, bit for bit."""
    plain = make(row.stem, arguments, optimizer()).values(LENGTH + 11)
    for unit in UNITS:
        for length in ("ba", unit):
            clock = clock_of(length)
            one = make(row.stem, written(row.stem, arguments, unit), optimizer(), clock=clock)
            assert one.values(LENGTH + 11) == plain, unit
            assert run(one, clock) == plain, unit


@pytest.mark.parametrize(("row", "arguments"), CASES, ids=IDS)
def test_values_foretell_the_run(row, arguments):
    """In each unit, and also where the values depend on the unit that is counted."""
    for unit in UNITS:
        clock = clock_of()
        one = make(row.stem, written(row.stem, arguments, unit), optimizer(), clock=clock)
        foreseen = one.values(LENGTH)
        assert run(one, clock, LENGTH - 1) == foreseen == one.values(LENGTH), unit


@pytest.mark.parametrize(("row", "arguments"), CASES, ids=IDS)
def test_whole_numbers_on_a_clock_are_batches(row, arguments):
    clock = clock_of("tok")
    one = make(row.stem, arguments, optimizer(), clock=clock)
    assert run(one, clock) == make(row.stem, arguments, optimizer()).values(LENGTH + 11)


@pytest.mark.parametrize("family", KEYS)
@KIND
def test_families_and_optimizers(family, kind):
    clock = clock_of()
    one = make(*Nested("CosineDecay", written(*COSINE, "tok")), optimizer(kind), family, clock=clock)
    assert run(one, clock) == make(*COSINE, optimizer()).values(LENGTH + 11)


# One-cycle schedules end one step before their total, and a step is not stretched.
STRETCHED = [(case, name) for case, name in zip(MEANT, MEANT_IDS) if case[0].stem != "OneCycle"]


@pytest.mark.parametrize(("row", "arguments"), [case for case, _ in STRETCHED], ids=[name for _, name in STRETCHED])
def test_the_ratio_stretches(row, arguments):
    """At t the value of t / ratio, exactly, where that is a count."""
    plain = make(row.stem, arguments, optimizer()).values(4 * LENGTH + 1)
    for ratio in (0.25, 0.5, 2.0):
        pairs = [(t, int(t / ratio)) for t in range(LENGTH + 1) if (t / ratio).is_integer()]
        assert len(pairs) > LENGTH // 3
        for unit in ("ba", "tok", "dur"):
            clock = clock_of(ssr=ratio)
            one = make(row.stem, written(row.stem, arguments, unit), optimizer(), clock=clock)
            seen = run(one, clock, LENGTH)
            assert [seen[t] for t, _ in pairs] == [plain[before] for _, before in pairs], (unit, ratio)


def test_mixed_units_and_times_of_every_type():
    clock = clock_of()
    on = optimizer()
    first = lr_scheduler.LinearLR(on, 0.0, 0.1, Time.from_timestring("80sp"), clock=clock)
    second = lr_scheduler.CosineDecayLR(on, 0.1, 0.0, total_iters="0.5dur", clock=clock)
    one = lr_scheduler.SequentialLR(on, [first, second], ["1280tok"], clock=clock)
    expected = lr_scheduler.SequentialLR(
        other := optimizer(),
        [lr_scheduler.LinearLR(other, 0.0, 0.1, 10), lr_scheduler.CosineDecayLR(other, 0.1, 0.0, 20)],
        [10],
    )
    assert run(one, clock) == expected.values(LENGTH + 11)


def test_a_fraction_of_a_batch_is_reached_by_the_next():
    clock = Clock("30ba")
    one = lr_scheduler.MultiStepLR(optimizer(), 1.0, 0.5, ["0.1dur", "0.29dur", "0.49dur"], clock=clock)
    seen = run(one, clock, 29)
    assert [t for t in range(1, 30) if seen[t] != seen[t - 1]] == [3, 9, 15]


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
        arguments = {**row.examples[0], key: time}
        if key == "milestones":
            arguments[key] = [time, *row.examples[0][key][1:]]
        with pytest.raises(ValueError, match=rf"{key}.*{time}.*clock"):
            make(stem, arguments, on)
    if stem != "Sequential":  # whose parts came first
        assert on.param_groups[0]["lr"] == 0.5


def test_a_rate_that_is_missing_is_named():
    for clock, time, words in (
        (Clock("10ba"), "100tok", "samples_per_batch|tokens_per_sample"),
        (Clock("10ba"), "2ep", "batches_per_epoch"),
    ):
        on = optimizer()
        # a one-cycle schedule ends one step before its total: the two have to go together
        with pytest.raises(ValueError, match=words):
            lr_scheduler.OneCycleLR(on, 0.1, 1.0, time, clock=clock)
        assert on.param_groups[0]["lr"] == 0.5


def test_each_time_is_compared_on_its_own_counter():
    """No rate is asked for where none is needed: tokens are counted as tokens."""
    clock = Clock("10ba")
    one = lr_scheduler.LinearLR(optimizer(), 1.0, 0.0, "1000tok", clock=clock)
    for tokens in (100, 350, 50):
        clock.tick(tokens=tokens)
        one.step()
    assert value(one) == 0.5


def test_a_step_without_a_tick_writes_the_same_value():
    clock = clock_of()
    one = lr_scheduler.LinearLR(optimizer(), 1.0, 0.0, "1dur", clock=clock)
    clock.tick()
    for _ in range(3):
        one.step()
        assert value(one) == 1 - 1 / LENGTH


def test_two_on_one_clock_and_another_optimizer():
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


def test_parts_of_other_clocks():
    on, first, second = optimizer(), clock_of(), clock_of()
    parts = [lr_scheduler.LinearLR(on, 1.0, 0.0, "1dur", clock=clock) for clock in (first, second)]
    with pytest.raises(ValueError, match="clock"):
        lr_scheduler.SequentialLR(on, parts, [5], clock=first)
    for part in parts:
        assert part.clock in (first, second)


def test_the_whole_takes_the_clock_of_its_parts():
    on, clock = optimizer(), clock_of()
    parts = [lr_scheduler.LinearLR(on, 1.0, 0.0, "0.5dur", clock=clock), lr_scheduler.ConstantLR(on, 0.25)]
    one = lr_scheduler.SequentialLR(on, parts, ["0.25dur"])
    assert one.clock is clock or one.clock is None
    seen = run(one, clock, 20)
    assert seen[9] == 1 - 9 / 20 and seen[10] == 0.25


def test_it_leaves_the_clock_when_it_is_unbound():
    clock = clock_of()
    on = optimizer()
    one = lr_scheduler.LinearLR(on, 1.0, 0.0, "1dur", clock=clock)
    one.unbind()
    on.param_groups[0]["lr"] = 3.0
    clock.load_state_dict(clock.state_dict())
    assert on.param_groups[0]["lr"] == 3.0
    assert timesched.bind(timesched.ConstantScheduler(0.5), on, clock).get_last_lr() == [1.5]
