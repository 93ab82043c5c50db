"""Schedules as records: what they accept, how they compare, and what they do at the edges."""

import decimal
import math
import pickle
import threading
import types
from decimal import Decimal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import timesched
from timesched import *  # noqa: F403  # repr evaluates in this namespace
from timesched import (
    Clock,
    ConstantScheduler,
    ConstantWithWarmupScheduler,
    CosineAnnealingScheduler,
    CosineAnnealingWarmRestartsScheduler,
    CosineAnnealingWithWarmupScheduler,
    ExponentialScheduler,
    Horizon,
    LinearScheduler,
    LinearWithWarmupScheduler,
    MultiStepScheduler,
    MultiStepWithWarmupScheduler,
    PolynomialScheduler,
    ProductScheduler,
    Schedule,
    StepScheduler,
    Time,
    Timestamp,
)
from timesched.testing.rows import ROWS

RUN = Horizon("100ba", batches_per_epoch=10)

BAD = [
    lambda: StepScheduler("0ba"),
    lambda: StepScheduler("-1ba"),
    lambda: StepScheduler("ten ba"),
    lambda: StepScheduler(10),
    lambda: StepScheduler(None),
    lambda: StepScheduler("1ba", gamma=float("nan")),
    lambda: StepScheduler("1ba", gamma="0.1"),
    lambda: StepScheduler("1ba", gamma=True),
    lambda: StepScheduler("1ba", gamma=10**400),
    lambda: MultiStepScheduler("10ba"),
    lambda: MultiStepScheduler(None),
    lambda: MultiStepScheduler(["10ba", "-1ba"]),
    lambda: MultiStepScheduler(["10ba", "x"]),
    lambda: ConstantScheduler(math.inf),
    lambda: ConstantScheduler(1.0, "-1dur"),
    lambda: LinearScheduler(t_max="1"),
    lambda: LinearScheduler(alpha_f=None),
    lambda: ExponentialScheduler(-0.5),
    lambda: ExponentialScheduler(0.5, "0ep"),
    lambda: CosineAnnealingScheduler("nandur"),
    lambda: CosineAnnealingWarmRestartsScheduler("0ba"),
    lambda: CosineAnnealingWarmRestartsScheduler("1ba", t_mult=0),
    lambda: CosineAnnealingWarmRestartsScheduler("1ba", t_mult=-1),
    lambda: PolynomialScheduler(-1),
    lambda: PolynomialScheduler(math.nan),
    lambda: LinearWithWarmupScheduler("-1ba"),
    lambda: LinearWithWarmupScheduler("1ba", scale_warmup=1),
    lambda: MultiStepWithWarmupScheduler("1ba", ["0.5"]),
    lambda: ProductScheduler([]),
    lambda: ProductScheduler([lambda state: 1.0]),
]


@pytest.mark.parametrize("bad", BAD)
def test_refused_when_constructed(bad):
    with pytest.raises((TypeError, ValueError)) as error:
        bad()
    assert "Scheduler." in str(error.value)


def test_every_schedule_has_a_row():
    classes = {getattr(timesched, name) for name in timesched.__all__ if name.endswith("Scheduler")}
    assert classes - {timesched.ComposerScheduler} == {row.schedule for row in ROWS}


@given(st.from_type(Schedule))
def test_a_record(schedule):
    for same in (eval(repr(schedule)), pickle.loads(pickle.dumps(schedule))):
        assert same == schedule and hash(same) == hash(schedule) and repr(same) == repr(schedule)
    field = next(iter(schedule.__dataclass_fields__))
    with pytest.raises(AttributeError):
        setattr(schedule, field, None)
    assert schedule != LinearScheduler(0.123, 0.456) and schedule != "schedule"
    assert isinstance(schedule, timesched.ComposerScheduler)


def test_schedules_in_different_units_compare():
    assert StepScheduler("1ep") != StepScheduler("1ba") and StepScheduler("1ep") == StepScheduler(Time(1, "ep"))
    assert len({StepScheduler("1ep"), StepScheduler("1ba"), StepScheduler("1e0ep")}) == 2


def test_composers_attributes():
    warm = CosineAnnealingWithWarmupScheduler("10ba", alpha_f=0.1)
    assert (warm.t_warmup, warm.t_max, warm.alpha_f, warm.scale_warmup) == ("10ba", "1dur", 0.1, False)
    assert warm.warmup_scheduler == LinearScheduler(0.0, 1.0, "10ba")
    line = LinearWithWarmupScheduler("10ba", 3, 2)
    assert line.warmup_scheduler == LinearScheduler(alpha_i=0.0, alpha_f=3.0, t_max="10ba")
    assert ConstantWithWarmupScheduler("10ba", 3.0).scheduler == LinearWithWarmupScheduler("10ba", 3.0, 3.0)
    steps = MultiStepWithWarmupScheduler("10ba", ["20ba"], 0.5)
    assert steps.step_scheduler == MultiStepScheduler(["20ba"], 0.5) and not hasattr(steps, "t_max")
    assert PolynomialScheduler(2).power == 2.0 and ExponentialScheduler(np.float32(0.5)).decay_period == "1ep"


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (StepScheduler("2.9ep", 0.5), {28: 1.0, 29: 0.5, 57: 0.5, 58: 0.25}),
        (MultiStepScheduler(["0.29dur", "29ba", "5ep"], 0.5), {28: 1.0, 29: 0.25, 49: 0.25, 50: 0.125}),
        (MultiStepScheduler([]), {0: 1.0, 99: 1.0}),
        (MultiStepScheduler(["0ba"], -0.5), {0: -0.5}),
        (ConstantScheduler(0.5, "29ba"), {28: 0.5, 29: 1.0}),
        (LinearScheduler(t_max="0ba"), {0: 0.0, 1: 0.0}),
        (ExponentialScheduler(0.0), {0: 1.0, 1: 0.0}),
        (ExponentialScheduler(4.0, "20ba"), {0: 1.0, 10: 2.0, 20: 4.0}),
        (PolynomialScheduler(0.0), {0: 1.0, 100: 1.0}),
        (CosineAnnealingScheduler("30ba", 0.5), {0: 1.0, 15: 0.75, 30: 0.5, 1000: 0.5}),
        (LinearWithWarmupScheduler("100ba"), {50: 0.5, 100: 1.0, 101: 1.0}),
        (LinearWithWarmupScheduler("200ba"), {100: 0.5, 200: 1.0, 201: 1.0}),
        (LinearWithWarmupScheduler("0ba"), {0: 1.0, 50: 0.5}),
        (LinearWithWarmupScheduler("0tok"), {0: 1.0, 50: 0.5}),
        (CosineAnnealingWarmRestartsScheduler("10ba", 2.0), {0: 1.0, 10: 1.0, 30: 1.0, 70: 1.0, 150: 1.0}),
        (CosineAnnealingWarmRestartsScheduler("1000ba", 1.1), {1000: 1.0, 2100: 1.0, 3310: 1.0}),
        (CosineAnnealingWarmRestartsScheduler("10ba"), {10: 1.0, 10**6: 1.0, 10**15: 1.0}),
        (ProductScheduler([LinearScheduler(), ConstantScheduler(0.5)]), {50: 0.25}),
    ],
)
def test_values(schedule, values):
    assert {batch: schedule.at(Time(batch, "ba"), RUN) for batch in values} == values


def test_shrinking_cycles_end_at_their_limit():
    """With t_mult 0.5, cycles of 50, 25, 12.5, ... batches fill 100 batches; then the value stays at alpha_f."""
    schedule = CosineAnnealingWarmRestartsScheduler("50ba", t_mult=0.5, alpha_f=0.25)
    starts = [0, 50, 75]
    assert [schedule.at(Time(batch, "ba"), RUN) for batch in starts] == [1.0, 1.0, 1.0]
    assert schedule.curve(RUN, "ba")(62.5) == pytest.approx(0.625) == schedule.at("25ba", RUN)
    assert 0.25 < schedule.at("99ba", RUN) < 1.0
    assert [schedule.at(Time(batch, "ba"), RUN) for batch in (100, 101, 10**12)] == [0.25, 0.25, 0.25]


def exact_cycle(t_0, t_mult, count):
    """The cycle that a count is in, and the fraction of it that is done, by walking through the cycles."""
    with decimal.localcontext() as context:
        context.prec = 60
        start, step, cycle = Decimal(0), Decimal(t_0), 1
        while start + step <= count:
            start, step, cycle = start + step, step * Decimal(str(t_mult)), cycle + 1
        return cycle, float((count - start) / step)


@pytest.mark.parametrize("t_mult", [1.0001, 1.001, 0.9999])
def test_every_cycle_of_a_run_is_exact(t_mult):
    """To the last batch of the longest run that is taken; after it, the value stays at alpha_f."""
    schedule = CosineAnnealingWarmRestartsScheduler("10ba", t_mult, alpha_f=0.25)
    reach = 10 * (t_mult**4096 - 1) / (t_mult - 1)
    run = Horizon(Time(math.floor(reach), "ba"))
    curve = schedule.curve(run, "ba")
    for batch in (*range(5), math.floor(reach) // 2, math.floor(reach) - 1, math.floor(reach)):
        cycle, done = exact_cycle(10, t_mult, batch)
        value = 0.25 + 0.75 * (0.5 + 0.5 * math.cos(math.pi * done))
        assert curve(batch) == pytest.approx(value, abs=1e-14)
        assert curve(torch.tensor(batch)).item() == pytest.approx(value, abs=1e-14)
    assert cycle == 4096
    later = [math.ceil(reach), 2 * math.ceil(reach), 10**18]
    assert [curve(batch) for batch in later] == curve(torch.tensor(later)).tolist() == [0.25] * 3
    assert [curve(float(batch)) for batch in later] == [0.25] * 3
    with pytest.raises(ValueError, match=rf"t_mult={t_mult} is too near to 1 for this run: at most 4096 cycles"):
        schedule.curve(Horizon(Time(math.ceil(reach), "ba")), "ba")


@pytest.mark.parametrize("t_mult", [1.0000000000000002, 1.001, 1.009, 0.97, 0.9999999])
def test_a_growth_too_near_to_1_needs_a_run_of_known_length(t_mult):
    schedule = CosineAnnealingWarmRestartsScheduler("1ba", t_mult)
    assert schedule.at("1ba", Horizon("10ba")) == 1.0 == schedule.at("1ba", Horizon("100sp", samples_per_batch=10))
    for run in (Horizon(None), Horizon("100sp"), Clock("100sec")):
        with pytest.raises(ValueError, match=r"the run has no length known in that unit. Use 1"):
            schedule.at("1ba", run)


@pytest.mark.parametrize("t_mult", [1.0, 1.011, 2.0, 0.9, 0.5])
def test_other_growths_do_not(t_mult):
    assert CosineAnnealingWarmRestartsScheduler("1ba", t_mult).at("1ba", Horizon(None)) == 1.0


def test_a_warmup_needs_a_common_unit():
    schedule = LinearWithWarmupScheduler("10ba", t_max="1000tok")
    with pytest.raises(ValueError, match=r"Cannot use warmup scheduler .* samples_per_batch is not known.*Clock"):
        schedule(Clock("1000tok"), 1.0)
    with pytest.raises(ValueError, match="tokens_per_sample"):
        schedule.at("1ba", Horizon("100tok", samples_per_batch=2))
    run = Horizon("1000tok", samples_per_batch=2, tokens_per_sample=5)
    assert [schedule.at(t, run) for t in ("5ba", "10ba", "100tok", "550tok")] == [0.5, 1.0, 1.0, 0.5]


def test_a_warmup_refuses_a_schedule_that_ends_before_the_run():
    short = LinearWithWarmupScheduler("10ba", t_max="99ba")
    with pytest.raises(ValueError, match="t_max 99ba must be greater than or equal to max_duration 100ba"):
        short.at("1ba", RUN)
    assert short.at("10ba", Horizon("100ba", ssr=0.5)) == 1.0
    assert LinearWithWarmupScheduler("10ba", t_max="5ba")(Clock("1000tok")) == 0.0
    assert MultiStepWithWarmupScheduler("10ba", ["1ba"])(Clock("1000tok")) == 0.0
    with pytest.raises(ValueError, match="must be greater"):
        LinearWithWarmupScheduler("10ba", t_max="0.9dur").at("1ba", Horizon("100ba", ssr=2.0))


def test_the_ratio_of_the_state():
    schedule = LinearScheduler()
    clock = Clock("100ba", ssr=0.5)
    clock.timestamp = Timestamp(batch=25)
    assert schedule(clock) == schedule(clock, 0.5) == 0.5
    with pytest.raises(ValueError, match=r"ssr=1.0 contradicts the state's own ratio 0.5"):
        schedule(clock, 1.0)
    state = types.SimpleNamespace(timestamp=Timestamp(batch=25), max_duration="50ba", dataloader_len=None)
    assert schedule(state) == schedule(state, 0.5) == 0.5
    state.ssr = 2.0
    with pytest.raises(ValueError, match="contradicts"):
        schedule(state, 0.5)
    for bad in (0.0, -1.0, float("nan"), math.inf):
        with pytest.raises(ValueError, match="ratio|finite"):
            schedule(types.SimpleNamespace(timestamp=Timestamp(), max_duration="1ep", dataloader_len=None), bad)


def test_any_state_will_do():
    counters = types.SimpleNamespace(batch=25, get=lambda unit: 25)
    state = types.SimpleNamespace(timestamp=counters, max_duration="100ba", dataloader_len=10)
    assert LinearScheduler()(state) == 0.75
    state.max_duration = None
    assert StepScheduler("10ba", 0.5)(state) == 0.25
    with pytest.raises(ValueError, match="length of the run"):
        LinearScheduler()(state)


def test_a_state_that_changes_under_its_timestamp():
    """Loading a timestamp in place, moving max_duration, the epoch length or the ratio: always the value of now."""
    state = types.SimpleNamespace(timestamp=Timestamp(batch=10), max_duration=Time(100, "ba"), dataloader_len=None)
    schedule = LinearScheduler()
    assert schedule(state, 1.0) == 0.9
    state.timestamp.load_state_dict(Timestamp(batch=50).state_dict())
    assert schedule(state, 1.0) == 0.5
    state.max_duration = Time(200, "ba")
    assert schedule(state, 1.0) == 0.75
    absolute = LinearScheduler(t_max="10ep")
    for length, value in ((None, 1.0), (10, 0.5), (20, 0.75)):
        state.dataloader_len = length
        assert absolute(state, 1.0) == value
    assert absolute(state, 0.5) == 0.5


def run_of(batch, max_duration, **more):
    """A state without a horizon."""
    stamp = types.SimpleNamespace(batch=batch)
    return types.SimpleNamespace(timestamp=stamp, max_duration=max_duration, dataloader_len=None, **more)


def test_a_ratio_of_one_state_is_not_that_of_another():
    """The ratio of a state is a part of what its values depend on."""
    short = 1 - 40 / 50
    schedule, length = LinearScheduler(t_max="100ba"), Time(100, "ba")
    stretched, plain = run_of(40, length, ssr=0.5), run_of(40, length)
    assert [schedule(state) for state in (stretched, plain, stretched, plain)] == [short, 0.6, short, 0.6]
    for ratio, value in ((None, 0.6), (0.5, short), (2.0, 0.8), (None, 0.6), (1.0, 0.6)):
        plain.ssr = ratio
        assert schedule(plain) == value
    rated = run_of(40, length, horizon=Horizon("100ba", ssr=0.5))
    assert [schedule(rated), schedule(plain), schedule(rated)] == [short, 0.6, short]
    rated.horizon = Horizon("100ba", ssr=2.0)
    assert schedule(rated) == 0.8


@pytest.mark.parametrize("own", [Time(40, "ba"), 40, types.SimpleNamespace(value=40, unit="ba")], ids=repr)
def test_counts_and_lengths_that_change_in_place(own):
    """Only what cannot change is known by its identity."""
    count, length = types.SimpleNamespace(value=10, unit="ba"), types.SimpleNamespace(value=100, unit="ba")
    epoch = types.SimpleNamespace(value=10)
    state = run_of(count, length)
    state.dataloader_len = epoch
    schedule, by_epoch = LinearScheduler(), LinearScheduler(t_max="10ep")
    for batch, batches, of_epoch in ((10, 100, 10), (20, 100, 10), (20, 200, 10), (20, 200, 20), (10, 100, 10)):
        count.value, length.value, epoch.value = batch, batches, of_epoch
        for _ in range(4):
            assert schedule(state, 1.0) == 1 - batch / batches
            assert by_epoch(state, 1.0) == 1 - batch / (10 * of_epoch)
    state.timestamp.batch = own
    assert [schedule(state, 1.0) for _ in range(4)] == [0.6] * 4
    length.value, length.unit = 10, "ep"
    assert [schedule(state, 1.0) for _ in range(4)] == [0.6] * 4
    length.unit, epoch.value = "ba", 1
    assert schedule(state, 1.0) == 0.0


def test_a_tensor_of_a_count_that_changes_in_place():
    state, schedule = run_of(torch.tensor(10), "100ba"), LinearScheduler()
    assert [float(schedule(state)) for _ in range(4)] == [0.9] * 4
    state.timestamp.batch.add_(40)
    assert [float(schedule(state)) for _ in range(4)] == [0.5] * 4


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0, 0.5, -1, True, "3", None, [3], Time(-1, "ba")], ids=repr)
def test_what_is_no_count_is_refused(wrong):
    """Of batches, alone and beside another unit, in a call and at a timestamp of a run; a whole float is a count."""
    stamp = types.SimpleNamespace(batch=wrong, sample=0, batch_in_epoch=0, get=None)
    state = types.SimpleNamespace(timestamp=stamp, max_duration="100ba", dataloader_len=None)
    for schedule in (LinearScheduler(), MultiStepScheduler(["10ba", "10sp"])):
        for call in (schedule, lambda state, schedule=schedule: schedule.at(state.timestamp, state)):
            with pytest.raises(ValueError, match="counter|number"):
                call(state)
    stamp.batch = 25.0
    assert LinearScheduler()(state) == 0.75


def test_epochs_and_seconds_may_be_fractional():
    stamp = types.SimpleNamespace(epoch=0.5, get=lambda unit: Time(0.25, unit))
    state = types.SimpleNamespace(timestamp=stamp, max_duration="2ep", dataloader_len=None)
    assert LinearScheduler()(state) == 0.75
    assert LinearScheduler(t_max="0.5sec")(state) == 0.5
    stamp.epoch = -0.5
    with pytest.raises(ValueError, match="-0.5 epochs: a counter is a number, 0 or more"):
        LinearScheduler()(state)


def test_a_state_does_not_inherit_the_rates_of_a_clock():
    clock = Clock("1000tok", samples_per_batch=2, tokens_per_sample=5)
    bare = types.SimpleNamespace(timestamp=clock.timestamp, max_duration=clock.max_duration, dataloader_len=None)
    schedule = LinearWithWarmupScheduler("10ba", t_max="1000tok")
    assert schedule(clock) == 0.0
    with pytest.raises(ValueError, match="samples_per_batch"):
        schedule(bare)
    assert schedule(clock) == 0.0


@pytest.mark.parametrize("unit", ["iter", "ep", "ba", "sp", "tok", "sec", "dur"])
def test_all_seven_units(unit):
    schedule = LinearScheduler(t_max=Time(1 if unit == "dur" else 100, unit))
    run = Horizon(Time(100, "ba" if unit == "dur" else unit))
    assert schedule.at(Time(25, "ba" if unit == "dur" else unit), run) == 0.75
    assert schedule.at("0.25dur", run) == 0.75


def test_times_before_the_start_are_refused():
    curve = LinearScheduler().curve(RUN, "ba")
    for bad in (
        lambda: curve(-1),
        lambda: curve(-0.5),
        lambda: curve(math.nan),
        lambda: LinearScheduler().at("-1ba", RUN),
    ):
        with pytest.raises(ValueError):
            bad()


def test_threads_share_a_schedule():
    schedule, runs, wrong = LinearScheduler(), [Horizon(Time(batches, "ba")) for batches in range(10, 50)], []

    def use(first):
        for i in range(300):
            run = runs[(first + i) % len(runs)]
            if schedule.at("5ba", run) != 1 - 5 / run.max_duration.value:
                wrong.append(run)

    threads = [threading.Thread(target=use, args=(first,)) for first in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_strange_horizon_attribute_is_not_ours():
    state = types.SimpleNamespace(timestamp=Timestamp(batch=5), max_duration="10ba", dataloader_len=None, horizon=7)
    assert LinearScheduler()(state) == 0.5
    schedule = LinearScheduler()
    assert schedule(state) == 0.5
    state.max_duration = "20ba"
    assert schedule(state) == 0.75
    with pytest.raises(TypeError, match="is no run"):
        schedule.at("1ba", "10ba")
