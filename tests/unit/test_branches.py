"""Branches: the plan, its errors, and that a branch from a saved state is its own run from scratch, bit for bit."""

from dataclasses import dataclass
from fractions import Fraction

import pytest
import torch

from tests.building import sgd
from timesched import *  # noqa: F403  # these are tests of all that is public

WSD = WarmupStableDecayScheduler("7ba", t_decay="0.2dur")
POWER = WarmupScheduler(PowerScheduler("9ba", power=0.51), "9ba", alpha_s=0.1)
KINDS = {
    "stable": WSD,
    "fixed decay": WarmupStableDecayScheduler("700sp", t_decay="1900sp", decay="1-sqrt", alpha_f=0.1),
    "inverse square root": InverseSquareRootWithWarmupScheduler("7ba", t_scale="11ba", t_cooldown="0.15dur"),
    "cooldown": CooldownScheduler(POWER, t_decay="0.3dur", decay="geometric", alpha_f=0.01),
    "product": ProductScheduler([WSD, PowerScheduler("500sp"), MultiStepScheduler(["20ba"], gamma=0.7)]),
    "warmup of a product": WarmupScheduler(ProductScheduler([WSD, ConstantScheduler(0.3)]), "13ba", warmup="cosine"),
}
GROWING = BatchSizeSchedule("0:16 400:32 1700:48", unit="sp")
IN_BATCHES = BatchSizeSchedule({"0ba": 8, "10ba": 24, "25ba": 32})
RUNS = {
    **{f"batches of {size}": {"samples_per_batch": size, "tokens_per_sample": 10} for size in (4, 7, 32, 50, 64, 250)},
    "growing batches": {"samples_per_batch": GROWING, "tokens_per_sample": 10},
    "growing in batches": {"samples_per_batch": IN_BATCHES, "tokens_per_sample": 10},
}
LENGTHS = {"samples": ["9000sp", "5000sp", "7001sp"], "tokens": ["90001tok", "50000tok", "70010tok"]}


@dataclass(frozen=True, eq=False, repr=False)
class Spike(Schedule):
    """1, and 2 at one count of a run of 1000 batches. It has no marks."""

    count: Fraction

    def resolve(self, frame):
        spike = self.count if frame.horizon.max_duration == Time(1000, "ba") else None
        return lambda counts: 2.0 if counts[0] == spike else 1.0


def make_run(schedule, length, run, state=None):
    clock, optimizer = Clock(length, **run), sgd({"params": [torch.nn.Parameter(torch.ones(1))]})
    scheduler = bind(schedule, optimizer, clock)
    if state is not None:
        scheduler.load_state_dict(state)
    return clock, optimizer, scheduler


def rates(clock, optimizer, scheduler, events=(), saved=None):
    """The learning rates of a run by batch, until its end; states are saved at the last batch before each event."""
    values = {clock.timestamp.batch.value: optimizer.param_groups[0]["lr"]}
    while not clock.done:
        clock.tick()
        scheduler.step()
        values[clock.timestamp.batch.value] = optimizer.param_groups[0]["lr"]
        for event in events:
            if clock.before(event):
                saved[event] = scheduler.state_dict()
    return values


@pytest.mark.parametrize("unit", LENGTHS)
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_branch_is_its_own_run_bit_for_bit(kind, run, unit):
    schedule, run = KINDS[kind], RUNS[run]
    plan = plan_branches(schedule, Horizon("1ba", **run), LENGTHS[unit])
    starts, states = [branch.start for branch in plan.branches], {}
    stable = rates(*make_run(schedule, plan.branches[-1].length, run), starts, states)
    for branch in plan.branches:
        scratch = rates(*make_run(schedule, branch.length, run))
        state = states[branch.start]
        continued = rates(*make_run(schedule, branch.length, run, state))
        first = min(continued)
        assert first == state["clock"]["batch"]
        assert continued == {batch: rate for batch, rate in scratch.items() if batch >= first}
        before = {batch: rate for batch, rate in scratch.items() if batch <= first}
        assert before == {batch: stable[batch] for batch in before} and len(before) == first + 1


def test_the_plan():
    run = Clock("1ba", samples_per_batch=10, tokens_per_sample=10, batches_per_epoch=40)
    plan = plan_branches(WSD, run, ["300ba", Time(101, "ba"), "200ba"])
    rows = [tuple(map(str, (branch.length, branch.start, branch.own))) for branch in plan.branches]
    # 80.8ba is rounded down
    assert rows == [("101ba", "80ba", "21ba"), ("200ba", "160ba", "40ba"), ("300ba", "240ba", "60ba")]
    assert tuple(map(str, (plan.stable, plan.together, plan.separately))) == ("240ba", "361ba", "601ba")
    horizon = Horizon("101ba", samples_per_batch=10, tokens_per_sample=10, batches_per_epoch=40)
    assert plan.branches[0].horizon == horizon
    with pytest.raises(AttributeError):
        plan.branches = ()
    with pytest.raises(AttributeError):
        plan.branches[0].start = Time(1, "ba")


@pytest.mark.parametrize(
    "lengths, starts",
    [
        (["10ep", "3.5ep"], [Fraction(14, 5), 8]),  # not rounded
        (["101sec", "33sec"], [Fraction(132, 5), Fraction(404, 5)]),
        (["33iter", "101iter"], [26, 80]),
        (["3333sp", "101sp"], [80, 2666]),
        (["101tok"], [80]),
    ],
)
def test_a_start_is_a_whole_count_but_in_epochs_and_seconds(lengths, starts):
    schedule = WarmupStableDecayScheduler("0ba", t_decay="0.2dur")
    for run in (Horizon("1ba"), Horizon("1ba", batches_per_epoch=7, samples_per_batch=3, tokens_per_sample=10)):
        plan = plan_branches(schedule, run, lengths)
        assert [branch.start.exact for branch in plan.branches] == starts
        assert all(branch.start + branch.own == branch.length for branch in plan.branches)
        assert {time.unit for time in (plan.stable, plan.together, plan.separately)} == {plan.branches[0].length.unit}


def test_the_earliest_decay_of_several_schedules_counts_and_others_need_none():
    late = WarmupStableDecayScheduler("3ba", t_decay="5ba")
    schedules = [late, WSD, ConstantScheduler(), HalfLife("9ba")]
    assert [str(branch.start) for branch in plan_branches(schedules, Horizon("1ba"), ["50ba", "10ba"]).branches] == [
        "5ba", "40ba",
    ]  # fmt: skip


def test_a_decay_that_starts_at_the_end():
    schedule = InverseSquareRootWithWarmupScheduler("5ba", t_scale="5ba", t_cooldown="0ba")
    (branch,) = plan_branches(schedule, Horizon("9ba"), ["20ba"]).branches
    assert (str(branch.start), str(branch.own)) == ("20ba", "0ba")


BATCH_SIZES = {"samples_per_batch": BatchSizeSchedule({"0dur": 8, "0.5dur": 16})}
TWICE = SequenceScheduler([WarmupStableDecayScheduler("0ba", t_decay="5ba", t_max="20ba"), WSD], ["20ba"])
AT = "at 50ba its value is 0.5 in the run of 100ba, and 1.0 in the run of 200ba"


@pytest.mark.parametrize(
    "schedule, run, lengths, words",
    [
        (WSD, {"ssr": 0.5}, ["100ba"], ["ratio is 0.5"]),
        (WSD, {}, [], ["lengths is empty"]),
        (WSD, {}, ["100ba", "10ep"], ["100ba and 10ep have different units"]),
        (WSD, {}, ["100ba", "50ba", "100ba"], ["100ba is listed twice"]),
        (WSD, {}, ["0.5dur"], ["0.5dur is not the length of a run"]),
        (WSD, {}, ["0ba"], ["0ba is not the length of a run"]),
        (WSD, {}, ["-5ba"], ["-5ba is not the length of a run"]),
        (WSD, {}, ["100"], ["'100' has no unit"]),
        ([], {}, ["100ba"], ["no schedule has a mark 'decay'"]),
        (CosineAnnealingScheduler(), {}, ["100ba"], ["no schedule has a mark 'decay' above 0", "run of 100ba"]),
        (WarmupStableDecayScheduler("0ba", t_decay="50ba"), {}, ["100ba", "50ba"], ["in a run of 50ba, no schedule"]),
        (TWICE, {}, ["100ba", "200ba"], [repr(TWICE), "it decays 2 times, at 15ba and 100ba"]),
        (CooldownScheduler(ConstantScheduler(), "5ba", "50ba", t_max="9dur"), {}, ["40ba", "100ba"],
         ["the run of 40ba ends before its decay starts, at 50ba"]),
        # another value before the start
        (ProductScheduler([WSD, CosineAnnealingScheduler()]), {}, ["100ba", "200ba"],
         ["ProductScheduler", "at 0.08ba its value is", "in the run of 100ba", "in the run of 200ba"]),
        ([WSD, LinearScheduler()], {}, ["100ba", "200ba"], [repr(LinearScheduler()), "at 0.08ba"]),
        (WarmupStableDecayScheduler("0.1dur", t_decay="5ba"), {}, ["100ba", "200ba"], ["at 0.095ba its value is"]),
        ([WSD, MultiStepScheduler(["0.5dur"], 0.5)], {}, ["200ba", "100ba"], [AT]),
        ([WSD, PiecewiseScheduler([["0ba", 1], ["0.5dur", 1], ["0.5dur", 0.5]])], {}, ["200ba", "100ba"], [AT]),
        # at the start itself, where the state is saved
        (CooldownScheduler(ConstantScheduler(), "0ba"), {}, ["100ba", "200ba"],
         ["at 100ba its value is 0.0 in the run of 100ba, and 1.0 in the run of 200ba"]),
        # for a time between the even ones, and only at a mark
        ([WSD, PiecewiseScheduler([["0ba", 1], ["0.1dur", 1], ["0.1dur", 2], ["0.10001dur", 1]])], {},
         ["100000ba", "200000ba"], ["at 10000ba its value is 2.0"]),
        # units and batch sizes
        (WarmupStableDecayScheduler("9tok"), {}, ["100ba", "200ba"], ["9tok cannot be converted to ba without"]),
        (WSD, BATCH_SIZES, ["100ba", "200ba"], ["the batch size becomes 16 at 50ba in the run of 100ba, and at 100ba"]),
        (WSD, BATCH_SIZES, ["9000sp", "4000sp"], ["becomes 16 at 2000sp in the run of 4000sp, and at 4500sp"]),
    ],
)  # fmt: skip
def test_errors(schedule, run, lengths, words):
    with pytest.raises(ValueError) as error:
        plan_branches(schedule, Horizon("10ba", **run), lengths)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize("step", [0, 1, 517, 999, 1000])
def test_values_are_compared_at_1001_even_steps(step):
    """The decay starts at 800 batches, so a step has four fifths of a batch."""
    plan = [WSD, Spike(Fraction(800 * step, 1000))], Horizon("1ba"), ["1000ba", "2000ba"]
    with pytest.raises(ValueError, match="its value is 2.0 in the run of 1000ba, and 1.0 in the run of 2000ba"):
        plan_branches(*plan)
    between = Spike(Fraction(800 * step, 1000) + Fraction(1, 3))
    assert len(plan_branches([WSD, between], *plan[1:]).branches) == 2


def test_what_is_no_schedule():
    for schedule in (lambda state: 1.0, [WSD, 3], "WSD"):
        with pytest.raises(TypeError, match="is not a schedule of timesched"):
            plan_branches(schedule, Horizon("10ba"), ["100ba"])
    with pytest.raises(TypeError, match="is not a run"):
        plan_branches(WSD, None, ["100ba"])


def test_batch_sizes_that_change_in_the_decay_may_be_in_dur():
    sizes = BatchSizeSchedule({"0dur": 8, "0.9dur": 16})
    plan = plan_branches(WSD, Horizon("1ba", samples_per_batch=sizes), ["4000sp", "9000sp"])
    assert [str(branch.start) for branch in plan.branches] == ["3200sp", "7200sp"]
