"""Schedules as records: what they accept, how they compare, and what they do at the edges."""

import math
import re
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import timesched
from timesched import *  # noqa: F403  # these are tests of all that is public

RUN = Horizon("100ba", batches_per_epoch=10)

# Calls that each class refuses, after the argument that the error names.
BAD = """
StepScheduler.step_size: "0ba" | "-1ba" | "ten ba" | 10 | None
StepScheduler.gamma: "1ba", gamma=nan | "1ba", gamma="0.1" | "1ba", gamma=True
MultiStepScheduler.milestones: "10ba" | None | ["10ba", "-1ba"] | ["10ba", "x"]
ConstantScheduler.alpha: inf
ConstantScheduler.t_max: 1.0, "-1dur"
LinearScheduler.t_max: t_max="1"
LinearScheduler.alpha_f: alpha_f=None
ExponentialScheduler.gamma: -0.5
ExponentialScheduler.decay_period: 0.5, "0ep"
CosineAnnealingScheduler.t_max: "nandur"
CosineAnnealingWarmRestartsScheduler.t_0: "0ba"
CosineAnnealingWarmRestartsScheduler.t_mult: "1ba", t_mult=0 | "1ba", t_mult=-1 | "1ba", t_mult=0.5
CosineAnnealingWarmRestartsScheduler.t_mult: "1ba", t_mult=1.0000000000000002 | "1ba", t_mult=1.09
PolynomialScheduler.power: -1 | nan
LinearWithWarmupScheduler.t_warmup: "-1ba"
LinearWithWarmupScheduler.scale_warmup: "1ba", scale_warmup=1
LinearWithWarmupScheduler.alpha_s: "1ba", alpha_s=nan
MultiStepWithWarmupScheduler.milestones[0]: "1ba", ["0.5"]
ProductScheduler.schedules: [] | [function]
SequenceScheduler.milestones: [LinearScheduler()] * 2, ["1ba", "2ba"]
WarmupStableDecayScheduler.t_warmup: "-1ba"
WarmupStableDecayScheduler.t_decay: "1ba", "-1ba" | "1ba", t_decay=0.1
WarmupStableDecayScheduler.decay_rate: "1ba", decay_rate=0
WarmupStableDecayScheduler.decay: "1ba", decay=None
WarmupStableDecayScheduler.alpha_f: "1ba", decay="geometric" | "1ba", alpha_f=-0.1, decay="harmonic"
WarmupStableDecayScheduler.alpha_f: "1ba", alpha_f=5e-324, decay="harmonic"
InverseSquareRootWithWarmupScheduler.t_scale: "1ba", "0ba", "1ba"
InverseSquareRootWithWarmupScheduler.alpha_f_decay: "1ba", "1ba", "1ba", alpha_f_decay=0.1, alpha_f_cooldown=0.2
PowerScheduler.t_scale: "0ba"
PowerScheduler.power: "1ba", power=-0.5
RexScheduler.d: d=1.0 | d=-0.1
OneCycleScheduler.pct_start: pct_start=1.1 | pct_start=0.6, three_phase=True
OneCycleScheduler.div_factor: div_factor=0
OneCycleScheduler.anneal: anneal="cos"
CyclicScheduler.t_up: "0ba"
CyclicScheduler.t_down: "1ba", "0ba"
CyclicScheduler.mode: "1ba", mode="square"
CyclicScheduler.gamma: "1ba", gamma=-0.5
PiecewiseScheduler.points: [] | "0ba" | [["0ba", 0.0], ["1ba", 0.5, "geometric"]] | [["2ba", 0.0], ["1ba", 0.5]]
PiecewiseScheduler.points[0]: ["0ba"] | [["0ba"]] | [["0ba", 1.0, "linear", 2]]
PiecewiseScheduler.points[0][0]: [["0", 1.0]]
PiecewiseScheduler.points[0][1]: [["0ba", "1.0"]]
PiecewiseScheduler.points[1][2]: [["0ba", 1.0], ["1ba", 0.5, "sqrt"]]
WarmupScheduler.schedule: function, "1ba" | LinearScheduler, "1ba"
WarmupScheduler.warmup: LinearScheduler(), "1ba", warmup="exponential"
CooldownScheduler.schedule: [LinearScheduler()], "1ba"
CooldownScheduler.alpha_f: LinearScheduler(), "1ba", decay="harmonic"
CooldownScheduler.t_start: LinearScheduler(), "5ba", horizon=RUN
CooldownScheduler.horizon: LinearScheduler(), "5ba", "5ba", horizon="10ba"
"""
ROWS = [row.split(": ", 1) for row in BAD.strip().splitlines()]


@pytest.mark.parametrize(("argument", "call"), [(name, each) for name, calls in ROWS for each in calls.split(" | ")])
def test_refused_when_constructed(argument, call):
    more = {"nan": math.nan, "inf": math.inf, "RUN": RUN, "function": lambda state: 1.0}
    with pytest.raises((TypeError, ValueError), match=rf"^{re.escape(argument)}(=|: | at |\[)"):
        eval(f"{argument.partition('.')[0]}({call})", {**vars(timesched), **more})


def test_schedules_in_different_units_compare():
    assert StepScheduler("1ep") != StepScheduler("1ba") and StepScheduler("1ep") == StepScheduler(Time(1, "ep"))
    assert len({StepScheduler("1ep"), StepScheduler("1ba"), StepScheduler("1e0ep")}) == 2


def test_composers_attributes():
    warm = CosineAnnealingWithWarmupScheduler("10ba", alpha_f=0.1)
    assert (warm.t_warmup, warm.t_max, warm.alpha_f, warm.scale_warmup) == ("10ba", "1dur", 0.1, False)
    assert warm.warmup_scheduler == LinearScheduler(0.0, 1.0, "10ba")
    line = LinearWithWarmupScheduler("10ba", 3, 2, alpha_s=0.5)
    assert line.warmup_scheduler == LinearScheduler(alpha_i=0.5, alpha_f=3.0, t_max="10ba")
    assert ConstantWithWarmupScheduler("10ba", 3.0).scheduler == LinearWithWarmupScheduler("10ba", 3.0, 3.0)
    steps = MultiStepWithWarmupScheduler("10ba", ["20ba"], 0.5)
    assert steps.step_scheduler == MultiStepScheduler(["20ba"], 0.5) and not hasattr(steps, "t_max")
    assert PolynomialScheduler(2).power == 2.0 and ExponentialScheduler(np.float32(0.5)).decay_period == "1ep"
    assert isinstance(steps, timesched.ComposerScheduler)


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (StepScheduler("2.9ep", 0.5), {28: 1.0, 29: 0.5, 57: 0.5, 58: 0.25}),
        (MultiStepScheduler(["0.29dur", "29ba", "5ep"], 0.5), {28: 1.0, 29: 0.25, 49: 0.25, 50: 0.125}),
        (MultiStepScheduler([]), {0: 1.0, 99: 1.0}),
        (MultiStepScheduler(["0ba"], -0.5), {0: -0.5}),
        (ExponentialScheduler(0.0), {0: 1.0, 1: 0.0}),
        (ExponentialScheduler(4.0, "20ba"), {0: 1.0, 10: 2.0, 20: 4.0}),
        (PolynomialScheduler(0.0), {0: 1.0, 100: 1.0}),
        (LinearWithWarmupScheduler("100ba"), {50: 0.5, 100: 1.0, 101: 1.0}),
        (LinearWithWarmupScheduler("10ba", alpha_s=0.5), {0: 0.5, 5: 0.75, 10: 1.0}),
        (MultiStepWithWarmupScheduler("10ba", [], alpha_s=0.5), {0: 0.5, 5: 0.75, 10: 1.0}),
        (LinearWithWarmupScheduler("0tok"), {0: 1.0, 50: 0.5}),
        (CosineAnnealingWarmRestartsScheduler("10ba", 2.0), {0: 1.0, 10: 1.0, 30: 1.0, 70: 1.0, 150: 1.0}),
        (CosineAnnealingWarmRestartsScheduler("1000ba", 1.1), {1000: 1.0, 2100: 1.0, 3310: 1.0}),
        (CosineAnnealingWarmRestartsScheduler("10ba"), {10: 1.0, 10**6: 1.0, 10**15: 1.0}),
    ],
)
def test_values(schedule, values):
    assert {batch: schedule.at(Time(batch, "ba"), RUN) for batch in values} == values


def test_a_wrong_shape_names_the_nearest_right_one():
    near = {"sqrt": "1-sqrt", "minus_sqrt": "1-sqrt", "Cosine": "cosine", "exp": "exponential", "square": "1-square"}
    for wrong, right in near.items():
        with pytest.raises(ValueError, match=rf"decay='{wrong}': .* Did you mean '{right}'\?") as error:
            WarmupStableDecayScheduler("1ba", decay=wrong)
        assert str(error.value).count(", ") == 6  # of seven shapes
    with pytest.raises(ValueError, match="Did you mean 'square'"):
        WarmupScheduler(LinearScheduler(), "1ba", warmup="1-square")


LINE = LinearScheduler()


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (
            WarmupStableDecayScheduler("10ba", "20ba", alpha_s=0.5),
            {0: 0.5, 5: 0.75, 10: 1.0, 80: 1.0, 90: 0.5, 100: 0.0},
        ),
        (WarmupStableDecayScheduler("0ba", "0ba", alpha_s=0.5), {0: 1.0, 99: 1.0, 100: 0.0, 101: 0.0}),
        (WarmupStableDecayScheduler("0tok", "0tok", alpha_f=0.5), {0: 1.0, 99: 1.0, 100: 0.5}),
        (WarmupStableDecayScheduler("50ba", "50ba"), {25: 0.5, 50: 1.0, 75: 0.5, 100: 0.0}),
        (WarmupStableDecayScheduler("0ba", "1dur", decay="1-sqrt"), {0: 1.0, 25: 0.5, 100: 0.0}),
        (WarmupStableDecayScheduler("50ba", warmup="1-sqrt"), {0: 0.0, 32: 0.4, 50: 1.0}),
        (WarmupStableDecayScheduler("50ba", warmup="square"), {0: 0.0, 25: 0.25, 50: 1.0}),
        # a cooldown that has no room begins after the warmup, and takes its time
        (InverseSquareRootWithWarmupScheduler("50ba", "10ba", "80ba"), {50: 1.0, 90: 0.5, 130: 0.0}),
        (PowerScheduler("25ba", alpha_f=2.0), {0: 2.0, 100: 2.0}),
        (PiecewiseScheduler([["10ba", 0.5], ["0.3dur", 0.1], ["30ba", 0.2]]), {0: 0.5, 20: 0.3, 30: 0.2, 100: 0.2}),
        (OneCycleScheduler(pct_start=0.0, div_factor=2.0, final_div_factor=1.0), {0: 1.0, 50: 0.75, 100: 0.5}),
        (OneCycleScheduler("1dur", 0.5, 2.0, 2.0, "linear", True), {0: 0.5, 50: 1.0, 75: 0.75, 100: 0.25}),
        (CyclicScheduler("10ba", "30ba", 0.0, 1.0), {0: 0.0, 10: 1.0, 25: 0.5, 40: 0.0, 45: 0.5}),
        (CyclicScheduler("10ba", "10ba", 0.0, 1.0, "exp_range", 0.25), {10: 0.5, 20: 0.0, 30: 0.125}),
        (WarmupScheduler(LINE, "50ba", 0.25), {0: 0.25, 25: 0.375, 50: 0.5, 75: 0.25}),
        (CooldownScheduler(LINE, "0ba", "50ba", alpha_f=0.1), {49: 0.51, 50: 0.1, 100: 0.1}),
        (CooldownScheduler(CooldownScheduler(LINE, "50ba"), "20ba", "60ba"), {50: 0.5, 60: 0.4, 70: 0.2, 80: 0.0}),
    ],
    ids=repr,
)
def test_values_of_what_people_train_with(schedule, values):
    found = {batch: schedule.at(Time(batch, "ba"), RUN) for batch in values}
    assert found == pytest.approx(values, rel=1e-15, abs=1e-16)


BEFORE_THE_END = [
    LinearWithWarmupScheduler("1ba", t_max="99ba"),
    WarmupStableDecayScheduler("1ba", "1ba", "99ba"),
    InverseSquareRootWithWarmupScheduler("1ba", "1ba", "1ba", "99ba"),
    RexScheduler("99ba"),
    OneCycleScheduler("99ba"),
    CooldownScheduler(LINE, "1ba", t_max="99ba"),
]
MIXED = [
    LinearWithWarmupScheduler("10ba", t_max="1000tok"),
    WarmupStableDecayScheduler("10ba", "100tok", "1000tok"),
    WarmupStableDecayScheduler("10tok", "10ba", "1000tok"),
    InverseSquareRootWithWarmupScheduler("10ba", "10tok", "10tok"),
    WarmupScheduler(PowerScheduler("10tok"), "10ba"),
]
NO_FACTOR = "Cannot use warmup.*samples_per_batch"
NO_ROOM = r"t_warmup \({}ba\) and t_decay \({}ba\)"
STABLE, POINTS = WarmupStableDecayScheduler("0.5dur", "51ba"), PiecewiseScheduler([["0.5dur", 1.0], ["60ba", 0.5]])


@pytest.mark.parametrize(
    ("schedule", "run", "words"),
    [
        *((each, Clock("100ba"), "t_max 99ba must be greater") for each in BEFORE_THE_END),
        *((each, Clock("1000tok"), NO_FACTOR) for each in MIXED),
        *((each, Clock("1000tok", samples_per_batch=2), "tokens_per_sample") for each in MIXED),
        (LinearWithWarmupScheduler("10ba", t_max="0.9dur"), Clock("100ba", ssr=2.0), "must be greater"),
        (STABLE, Clock("100ba"), NO_ROOM.format(50, 51)),
        (WarmupStableDecayScheduler("40ba", "40ba"), Clock("100ba", ssr=0.5), NO_ROOM.format(40, 20)),
        (CooldownScheduler(LINE, "101ba"), Clock("100ba"), "t_decay='101ba'"),
        (
            CooldownScheduler(LINE, "1ba", "100ba", alpha_f=0.5, decay="harmonic"),
            Clock("100ba"),
            "no harmonic decay from 0.0 to 0.5",
        ),
        (POINTS, Clock("200ba"), "on this run 100ba comes after 60ba"),
    ],
)
def test_a_run_that_does_not_suit_a_schedule(schedule, run, words):
    with pytest.raises(ValueError, match=words):
        schedule(run)


def test_runs_that_suit_such_schedules():
    assert STABLE.at("110ba", Horizon("200ba")) == 1.0 and POINTS.at("55ba", RUN) == 0.75
    stretched = WarmupStableDecayScheduler("40ba", "40ba", scale_warmup=True)
    assert stretched.at("10ba", Horizon("100ba", ssr=0.5)) == 0.5
    assert LinearWithWarmupScheduler("10ba", t_max="99ba").at("10ba", Horizon("100ba", ssr=0.5)) == 1.0
    assert LinearWithWarmupScheduler("10ba", t_max="5ba")(Clock("1000tok")) == 0.0  # nothing links the two units
    assert MultiStepWithWarmupScheduler("10ba", ["1ba"])(Clock("1000tok")) == 0.0
    clock = Clock("1000tok", samples_per_batch=2, tokens_per_sample=5)
    assert [schedule(clock) for schedule in MIXED] == [0.0] * 5
    for schedule in BEFORE_THE_END:  # in a sequence it may end before the run
        sequence = SequenceScheduler([schedule, schedule], ["100ba"])
        for batch in (0, 50, 98, 99):
            times = Time(batch, "ba"), Time(100 + batch, "ba")
            assert len({sequence.at(time, Horizon("200ba")) for time in times}) == 1


def run_of(batch, max_duration, length=None, **more):
    """A state without a horizon."""
    stamp = types.SimpleNamespace(batch=batch, get=lambda unit: batch)
    return types.SimpleNamespace(timestamp=stamp, max_duration=max_duration, dataloader_len=length, **more)


def test_any_state_will_do():
    state = run_of(25, "100ba", 10, horizon=7)  # an attribute that is none of ours
    assert LinearScheduler()(state) == 0.75
    state.max_duration = None
    assert StepScheduler("10ba", 0.5)(state) == 0.25
    with pytest.raises(ValueError, match="length of the run"):
        LinearScheduler()(state)
    with pytest.raises(TypeError, match="'10ba' is not a run"):
        LinearScheduler().at("1ba", "10ba")


def test_a_state_that_changes_under_its_timestamp():
    """Loading a timestamp in place, moving max_duration, the epoch length or the ratio: always the value of now."""
    state = run_of(10, Time(100, "ba"))
    state.timestamp = Timestamp(batch=10)
    schedule, absolute = LinearScheduler(), LinearScheduler(t_max="10ep")
    assert schedule(state, 1.0) == 0.9
    state.timestamp.load_state_dict(Timestamp(batch=50).state_dict())
    assert schedule(state, 1.0) == 0.5
    state.max_duration = Time(200, "ba")
    assert schedule(state, 1.0) == 0.75
    state.timestamp = Timestamp(batch=50, epoch=2, batch_in_epoch=5)
    for length, value in ((None, 0.8), (10, 0.75), (20, 0.775)):
        state.dataloader_len = length
        assert absolute(state, 1.0) == value
    assert absolute(state, 0.5) == 0.55


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


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0, 0.5, -1, True, "3", None, [3], Time(-1, "ba")], ids=repr)
def test_what_is_no_count_is_refused(wrong):
    """Of batches, alone and beside another unit, in a call and at a timestamp of a run; a whole float is a count."""
    state = run_of(wrong, "100ba")
    state.timestamp.sample, state.timestamp.batch_in_epoch, state.timestamp.get = 0, 0, None
    for schedule in (LinearScheduler(), MultiStepScheduler(["10ba", "10sp"])):
        for call in (schedule, lambda state, schedule=schedule: schedule.at(state.timestamp, state)):
            with pytest.raises(ValueError, match="counter|number"):
                call(state)
    state.timestamp.batch = 25.0
    assert LinearScheduler()(state) == 0.75


def test_epochs_and_seconds_may_be_fractional():
    stamp = types.SimpleNamespace(epoch=0.5, get=lambda unit: Time(0.25, unit))
    state = types.SimpleNamespace(timestamp=stamp, max_duration="2ep", dataloader_len=None)
    assert LinearScheduler()(state) == 0.75
    assert LinearScheduler(t_max="0.5sec")(state) == 0.5
    stamp.epoch = -0.5
    with pytest.raises(ValueError, match="timestamp.epoch=-0.5: .* negative"):
        LinearScheduler()(state)


@pytest.mark.parametrize("unit", [unit for unit in TimeUnit if unit is not TimeUnit.DURATION])
def test_all_units_that_count(unit):
    run = Horizon(Time(100, unit))
    for schedule in (LinearScheduler(), LinearScheduler(t_max=Time(100, unit))):
        assert schedule.at(Time(25, unit), run) == schedule.at("0.25dur", run) == 0.75
        for count in (-1, -0.5, math.nan):
            with pytest.raises(ValueError):
                schedule.at(f"{count}{unit.value}", run)
            with pytest.raises(ValueError):
                schedule.curve(run, unit)(count)


def test_threads_share_a_schedule():
    schedule, runs = LinearScheduler(), [Horizon(Time(batches, "ba")) for batches in range(10, 50)] * 45
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda run: schedule.at("5ba", run), runs))
    assert found == [1 - 5 / run.max_duration.value for run in runs]


@pytest.mark.parametrize(
    "schedule",
    [
        CosineAnnealingWithWarmupScheduler("5ba", t_max="40ba", alpha_f=0.1),
        WarmupStableDecayScheduler("5ba", t_decay="10ba", t_max="40ba"),
        LinearWithWarmupScheduler("5ba", t_max="40ba", alpha_f=0.25),
    ],
)
def test_a_schedule_that_ends_before_the_run_keeps_its_last_value_in_a_sequence_of_one(schedule):
    """The error names this form, which is exact: the values of a run of this length, and then the last of them."""
    with pytest.raises(ValueError, match=r"SequenceScheduler\(\[schedule\], \[\]\) in its place"):
        schedule.at("3ba", Horizon("100ba"))
    held = SequenceScheduler([schedule], [])
    for batch in range(101):
        assert held.at(f"{batch}ba", Horizon("100ba")) == schedule.at(f"{min(batch, 40)}ba", Horizon("40ba"))
