"""BatchSizeSchedule: how it is written, how batches convert by it, and how clocks and schedules follow it."""

import copy
import json
import math
import pickle
from dataclasses import FrozenInstanceError
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from optim.lr_scheduler import CyclicLR, OneCycleLR, WarmupStableDecayLR
from tests.building import count_calls, sgd, tick
from tests.laws.growing_runs import runs_with_batch_sizes
from timesched import *  # noqa: F403  # repr evaluates in this namespace
from timesched.testing import check_schedule_laws
from timesched.testing.runs import COUNTED, RATIOS, runs

# An example takes long, as its batches are counted one by one. The profile "deep" has all its examples.
COUNT = settings.default.max_examples
FEWER = settings(max_examples=COUNT if COUNT > 100 else min(COUNT, 25))

SIZES = BatchSizeSchedule({"0sp": 8, "160sp": 16})  # 20 batches of 8, then batches of 16
CASES = json.loads((Path(__file__).parents[1] / "golden" / "batch_plans.json").read_text(encoding="utf-8"))
SAME = [case for case in CASES if case["checked_against_peer_code"]]
UNFIXED = [TimeUnit.BATCH, TimeUnit.SAMPLE, TimeUnit.TOKEN]


def state(batch, sample, token=0):
    return SimpleNamespace(
        timestamp=Timestamp(batch=batch, sample=sample, token=token), max_duration="10000000ba", dataloader_len=None
    )


# How it is written


def test_a_schedule_of_sizes_cannot_be_changed():
    sizes = BatchSizeSchedule({"0sp": 8})
    with pytest.raises(FrozenInstanceError):
        sizes.entries = ()


def test_ways_to_write_sizes():
    sizes = BatchSizeSchedule({"0tok": 768, "250e9tok": 1536})
    assert sizes == BatchSizeSchedule("0:768 250B:1536", unit="tok") == BatchSizeSchedule("0tok:768 250e9tok:1536")
    assert (
        sizes
        == BatchSizeSchedule({0: 768, 250e9: 1536}, "tok")
        == BatchSizeSchedule({Time(0, "tok"): 768, "0.25T": 1536}, "tok")
    )
    assert (
        sizes != BatchSizeSchedule("0:768 250B:1536", unit="sp")
        and sizes != 768
        and len({sizes, copy.copy(sizes)}) == 1
    )
    thousands = [time.exact for time, _ in BatchSizeSchedule("0:1 1.5K:2 1M:3 2e7:4", unit="sp").entries]
    assert thousands == [0, 1500, 10**6, 2 * 10**7]
    assert BatchSizeSchedule("0:8 0.5:16", unit="dur") == BatchSizeSchedule({"0dur": 8, "1/2dur": 16})


@FEWER
@given(runs_with_batch_sizes())
def test_a_schedule_reads_back(run):
    sizes, factor = run.batch_sizes, run.batch_sizes.factor(0.25)
    assert eval(repr(sizes)) == BatchSizeSchedule(str(sizes)) == pickle.loads(pickle.dumps(sizes)) == sizes
    assert eval(repr(factor)) == pickle.loads(pickle.dumps(factor)) == factor
    horizon = run.horizon()
    for same in (eval(repr(horizon)), pickle.loads(pickle.dumps(horizon)), copy.deepcopy(horizon)):
        assert same == horizon and hash(same) == hash(horizon) and same.samples_per_batch == sizes


@pytest.mark.parametrize(
    ("sizes", "unit", "message"),
    [
        ({}, None, "sizes is empty"),
        ("", "tok", "sizes is empty"),
        (8, None, "sizes=8: it is neither"),
        ({"8sp": 8}, None, "the first threshold is 8sp"),
        ({"-8sp": 8}, None, "the first threshold is -8sp"),
        ({"0sp": 8, "16sp": 16, "8sp": 4}, None, "8sp follows 16sp"),
        ("0:8 16:9 16:10", "sp", "16sp follows 16sp"),
        ({"0sp": 8, "16tok": 16}, None, "0sp and 16tok have different units"),
        ("0:8 16:16", None, "the threshold '0' has no unit"),
        ({0: 8}, None, "0 has no unit"),
        ("0:8 16Q:16", "sp", "'16Q' is not a time"),
        ("0:8 0.0005K:16", "sp", "0.5sp is not a whole count"),
        ("0:8 16ba:16", "sp", "16ba is in another unit. Use one of sp."),
        ({"0ep": 8}, None, "0ep is in another unit. Use one of sp, tok, ba, dur."),
        *(({"0sp": size}, None, f"size={size}: it is not a number") for size in (0, -8, 8.5, 2**63)),
        *(({"0sp": size}, None, f"size={size}: a {type(size).__name__}") for size in (True, None)),
        ("0:x", "sp", "size='x': a str"),
        ("0", "sp", "sizes='0': it has no size"),
        ({"0sp": 8, "nansp": 16}, None, "'nansp' is not a time"),
        ({0: 8, math.nan: 16}, "sp", "nan: it is not finite"),
        ({"0sp": 8}, "bytes", "'bytes' is not a time unit"),
    ],
)
def test_sizes_that_are_refused(sizes, unit, message):
    with pytest.raises(TimeError) as error:
        BatchSizeSchedule(sizes, unit)
    assert message in str(error.value)


HALVES = BatchSizeSchedule({"0dur": 8, "0.5dur": 16})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: Horizon("9ba", samples_per_batch=BatchSizeSchedule("0tok:8 160tok:16")),
            "without tokens_per_sample",
        ),
        (lambda: Horizon(None, samples_per_batch=HALVES), "0.5dur needs the length of the run"),
        (lambda: Horizon("9ep", samples_per_batch=HALVES), "batches_per_epoch"),
        (lambda: Horizon("9sec", samples_per_batch=HALVES), "4.5sec cannot be converted"),
        (lambda: Horizon("9ba", samples_per_batch=SIZES).convert("1ba", "tok"), "to tok without tokens_per_sample"),
        (lambda: Horizon("9ba", samples_per_batch=SIZES).convert("1ep", "sp"), "batches_per_epoch"),
        (lambda: Horizon("9ba", samples_per_batch=SIZES).convert("1sp", "ep"), "batches_per_epoch"),
        (lambda: Horizon("9ba", samples_per_batch={"0sp": 8}), "a dict is not a number"),
        (lambda: SIZES.at(Horizon("9ba")), "has no counters"),
        (
            lambda: CyclicScheduler("10ba", "80sp").at("0ba", Horizon("9ba", samples_per_batch=SIZES)),
            "80sp: under a batch-size schedule",
        ),
    ],
)
def test_what_a_schedule_needs_of_a_run(call, message):
    with pytest.raises((ValueError, TypeError)) as error:
        call()
    assert message in str(error.value)


# The sizes


@pytest.mark.parametrize("case", SAME, ids=lambda case: case["name"])
def test_the_sizes_of_other_projects(case):
    length, sizes = case.get("seq_length"), case["plan"]
    text = isinstance(sizes, str)
    sizes = (
        BatchSizeSchedule(sizes, unit="tok" if length else "sp") if text else BatchSizeSchedule(dict(sizes), unit="ba")
    )
    run = Horizon("10000000ba", samples_per_batch=sizes, tokens_per_sample=length)
    for batch, before, size, root, ratio in case["rows"]:
        at = Time(batch, "ba")
        assert run.convert(at, "sp") == Time(before, "sp") and run.convert(Time(before, "sp"), "ba") == at
        assert sizes.at(state(batch, before, before * (length or 0))) == size
        factors = [sizes.factor(power).at(at, run) for power in (0.5, 1.0)]
        assert factors == pytest.approx([root, ratio], rel=0, abs=1e-12)


def test_one_batch_may_pass_several_thresholds():
    run = Horizon("9ba", samples_per_batch=BatchSizeSchedule("0:100 10:2 20:3 150:5", unit="sp"))
    assert [run.convert(f"{n}ba", "sp").value for n in (1, 2, 17, 18, 19)] == [100, 103, 148, 151, 156]


@FEWER
@given(runs_with_batch_sizes(), RATIOS)
def test_a_clock_counts_by_the_schedule(run, sigma):
    """Batch by batch; and the horizon says beforehand where it will be."""
    sigma = sigma if run.unit is TimeUnit.BATCH else Fraction(1)
    horizon = run.horizon(sigma)
    rates = {"batches_per_epoch": run.batches_per_epoch, "tokens_per_sample": run.tokens_per_sample}
    clock = Clock(run.time(run.batches, run.unit), samples_per_batch=run.batch_sizes, ssr=float(sigma), **rates)
    assert clock.horizon == horizon
    factor, samples = run.batch_sizes.factor(1.0), 0
    for n in range(min(run.batches, 40)):
        size = run.batch_sizes.at(clock)
        assert factor(clock) == pytest.approx(size / run.batch_sizes.entries[0][1], rel=1e-15)
        clock.tick()
        samples += size
        assert clock.timestamp.sample == samples and clock.timestamp.token == samples * run.tokens_per_sample
        assert horizon.change(n + 1, TimeUnit.BATCH, TimeUnit.SAMPLE) == samples


@FEWER
@given(runs_with_batch_sizes(), st.integers(0, 10**6), st.data())
def test_conversion_is_exact_and_turns_back(run, batches, data):
    horizon = run.horizon()
    there, back = data.draw(st.sampled_from(COUNTED)), data.draw(st.sampled_from(COUNTED))
    count = horizon.change(Fraction(batches, 7), TimeUnit.BATCH, there)
    assert horizon.change(horizon.change(count, there, back), back, there) == count
    length = Time(data.draw(st.integers(0, 10**6)), data.draw(st.sampled_from(UNFIXED)))
    assert horizon.before(horizon.after(count, there, length), there, length) == count


def test_the_ratio_stretches_the_thresholds():
    run = Horizon("100ba", samples_per_batch=SIZES, ssr=2.0)
    assert run.convert("40ba", "sp") == "320sp" and run.convert("41ba", "sp") == "336sp"
    clock = Clock("40ba", samples_per_batch=BatchSizeSchedule({"0dur": 4, "0.5dur": 8}), ssr=0.5)
    while not clock.done:
        clock.tick()
    assert clock.timestamp.sample == 10 * 4 + 10 * 8


def test_a_run_that_is_extended_keeps_its_sizes():
    """A loop may count its samples itself."""
    clock = Clock("30ba", samples_per_batch=SIZES)
    clock.tick(samples=159)
    assert SIZES.at(clock) == 8
    clock.tick(samples=1)
    assert SIZES.at(clock) == 16
    clock.extend("480sp")
    clock.tick()
    assert clock.horizon == Horizon("480sp", samples_per_batch=SIZES) and clock.timestamp.sample == 176
    with pytest.raises(ValueError, match="480sp cannot be extended to 40ba"):
        clock.extend("40ba")


# Laws


@FEWER
@given(runs())
def test_a_schedule_with_one_size_is_a_number(run):
    sizes = BatchSizeSchedule({"0tok": run.samples_per_batch})
    rates = {"batches_per_epoch": run.batches_per_epoch, "tokens_per_sample": run.tokens_per_sample}
    one = Horizon(run.time(run.batches, run.unit), samples_per_batch=sizes, **rates)
    assert one == run.horizon() and hash(one) == hash(run.horizon()) and repr(one) == repr(run.horizon())


@FEWER
@given(runs_with_batch_sizes(), st.data())
def test_the_times_of_a_schedule_may_be_written_in_any_unit(run, data):
    """Where they are reached is the same; what lies between is measured in the unit of the times."""
    one, other = data.draw(st.sampled_from(COUNTED)), data.draw(st.sampled_from(COUNTED))
    places = sorted(data.draw(st.lists(st.integers(0, 2 * run.batches), min_size=3, max_size=3)))
    first, second = ([run.time(place, unit) for place in places] for unit in (one, other))
    batch = data.draw(st.one_of(st.sampled_from(places), st.integers(0, 2 * run.batches)))
    now = run.state(batch)
    assert MultiStepScheduler(first, gamma=0.5)(now) == MultiStepScheduler(second, gamma=0.5)(now)
    assert ConstantScheduler(0.5, t_max=first[1])(now) == ConstantScheduler(0.5, t_max=second[1])(now)
    for before, after in ((first, second), (second, first)):  # milestones of one unit, children of another
        children = [LinearScheduler(1.0, 0.5, t_max=time) for time in before[1:]]
        values = [SequenceScheduler(children, milestones=[times[0]])(now) for times in (before, after)]
        assert values[0] == values[1]


@FEWER
@given(runs_with_batch_sizes(), st.data())
def test_a_warmup_and_a_decay_are_of_any_units(run, data):
    """The phases begin and end at the same batches, whatever units the three times are in."""
    end, unit = run.batches, st.sampled_from(COUNTED)
    warm, begin = sorted(data.draw(st.lists(st.integers(0, end), min_size=2, max_size=2)))
    assume(warm > 0 and begin < end)
    horizon, decay_in = run.horizon(), data.draw(unit)
    t_warmup, t_start, t_max = (run.time(place, data.draw(unit)) for place in (warm, begin, end))
    t_decay = run.time(end, decay_in) - run.time(begin, decay_in)
    stable = WarmupStableDecayScheduler(t_warmup, t_decay, t_max)
    cooled = CooldownScheduler(ConstantScheduler(1.0), t_decay, t_max=t_max)
    started = CooldownScheduler(ConstantScheduler(1.0), t_decay, t_start=t_start)
    root = InverseSquareRootWithWarmupScheduler("0ba", "1ba", t_decay, t_max=t_max)

    def at(schedule, *batches):
        return [schedule.at(Time(batch, "ba"), horizon) for batch in batches]

    assert 0.0 < at(stable, warm - 1)[0] < 1.0 or warm == 1
    assert at(stable, warm, begin, end) == [1.0, 1.0, 0.0]
    for schedule in (cooled, started):
        assert at(schedule, begin, end) == [1.0, 0.0]
        assert at(schedule, begin + 1)[0] < 1.0 and at(schedule, end - 1)[0] > 0.0
    assert at(root, end)[0] == 0.0 < at(root, end - 1)[0]


@pytest.mark.parametrize(
    "sizes", [SIZES, BatchSizeSchedule("0:4 0.3:6 0.7:1", unit="dur"), BatchSizeSchedule({"0tok": 3, "1000tok": 9})]
)
def test_the_factor_keeps_the_laws(sizes):
    check_schedule_laws(sizes.factor(), max_examples=30)


@pytest.mark.parametrize("samples_per_batch", [SIZES, 8])
@pytest.mark.parametrize("milestone", ["10ba", "100sp", "25ba"])
def test_in_a_sequence_the_factor_follows_the_batch_sizes_of_the_run(samples_per_batch, milestone):
    """Whether the horizon knows the schedule, or only the loop."""
    run, factor = Horizon("100ba", samples_per_batch=samples_per_batch), SIZES.factor()
    sequence = SequenceScheduler([factor, factor], [milestone])
    nested = SequenceScheduler([factor, SequenceScheduler([ConstantScheduler(), factor], ["5ba"])], [milestone])
    for n in range(0, 40, 5):
        assert sequence.at(f"{n}ba", run) == factor.at(f"{n}ba", run)
        assert nested.at(f"{n}ba", run) in (1.0, factor.at(f"{n}ba", run))
    assert nested.at("35ba", run) == factor.at("35ba", run) == 2**0.5


# Schedules


def test_a_decay_that_crosses_a_threshold_is_as_long_as_it_says():
    run = Horizon("30ba", samples_per_batch=SIZES)  # 20 batches of 8, 10 of 16: 320 samples
    schedule = WarmupStableDecayScheduler("0ba", "240sp", t_max="30ba")
    assert [schedule.at(f"{n}ba", run) for n in (10, 20, 30)] == [1.0, 0.5, 0.0]  # a line over batches, as t_max is
    schedule = WarmupStableDecayScheduler("0ba", "20ba", t_max="320sp")
    assert [schedule.at(f"{n}ba", run) for n in (10, 20, 30)] == [1.0, pytest.approx(2 / 3), 0.0]  # over samples
    with pytest.raises(ValueError, match="the decay takes 31.25ba"):
        CooldownScheduler(LinearScheduler(), "330sp").at("0ba", run)


def test_a_child_counts_from_its_milestone():
    run = Horizon("100ba", samples_per_batch=SIZES)
    warm = WarmupStableDecayScheduler("20ba", "5ba", t_max="560sp")  # from batch 10 on: 10 of 8 and 30 of 16
    nested = SequenceScheduler([ConstantScheduler(0.5), SequenceScheduler([warm, warm], ["560sp"])], ["80sp"])
    values = {10: 0.0, 20: 0.5, 30: 1.0, 45: 1.0, 50: 0.0, 60: 0.5, 70: 1.0, 80: 1.0, 84: 0.2, 85: 0.0}  # all of 16
    assert {n: nested.at(f"{n}ba", run) for n in values} == pytest.approx(values, rel=1e-15)


def test_the_root_of_the_batch_size_in_a_product():
    def bound(sizes):
        schedule = ProductScheduler([CosineAnnealingScheduler(t_max="1440sp"), sizes.factor()])
        return bind(schedule, sgd(), Clock("100ba", samples_per_batch=SIZES))

    scheduler = bound(SIZES)
    for n in range(1, 31):
        scheduler.clock.tick()
        scheduler.step()
        cosine = (1 + math.cos(math.pi * (8 * min(n, 20) + 16 * max(0, n - 20)) / 1440)) / 2
        assert scheduler.get_last_lr() == [pytest.approx(cosine * math.sqrt(2 if n >= 20 else 1), rel=1e-14)]
    with pytest.raises(ValueError, match="640sp"):
        bound(BatchSizeSchedule({"0sp": 8, "640sp": 16})).load_state_dict(scheduler.state_dict())


def test_tensors_of_counts_in_another_unit():
    run = Horizon("1440sp", samples_per_batch=SIZES)
    schedule = WarmupStableDecayScheduler("10ba", "20ba")
    curve, counts = schedule.curve(run, "ba"), torch.arange(0, 100, 5).reshape(4, 5)
    assert curve(counts).tolist() == [[curve(n) for n in row] for row in counts.tolist()]
    assert curve(counts.double()).dtype is torch.float64 and curve(counts.float()).dtype is torch.float32
    with pytest.raises(ValueError, match="not with a gradient"):
        curve(torch.ones(1, requires_grad=True))
    in_samples = WarmupStableDecayScheduler("80sp", "320sp").curve(run, "sp")
    compiled = torch.compile(in_samples, fullgraph=True, backend="eager")
    assert compiled(torch.tensor([40, 80, 1440])).tolist() == [0.5, 1.0, 0.0]


# The closed-form schedulers


def test_closed_forms_on_a_clock_whose_batches_change():
    clock = Clock("1440sp", samples_per_batch=SIZES)
    times = {"total_iters": "1440sp", "warmup_iters": "10ba", "decay_iters": "20ba"}
    stable = WarmupStableDecayLR(sgd(), 1.0, **times, clock=clock)
    values = stable.values(101)
    assert values == pytest.approx([min(1.0, n / 10, (100 - n) / 20) for n in range(101)], rel=1e-15, abs=0)
    cycle = OneCycleLR(sgd(), 0.1, max_lr=1.0, total_steps="1440sp", pct_start=0.5, clock=clock)
    assert cycle.values(100)[99] == pytest.approx(0.1 / 1e4)  # the last batch, as torch has it
    assert cycle.values(56)[54] == pytest.approx(1.0)  # one batch before 720 samples, which 55 batches have
    with pytest.raises(ValueError, match="under a batch-size schedule"):
        CyclicLR(sgd(), 0.1, 1.0, step_size_up="10ba", step_size_down="80sp", clock=clock)
    tick(clock, 85, stable)
    assert stable.optimizer.param_groups[0]["lr"] == values[85]


def test_the_cost_of_a_tick_does_not_grow_with_the_sizes():
    def clock_with(sizes):
        schedule = BatchSizeSchedule({f"{1000 * i}sp": 8 + i for i in range(sizes)})
        clock = Clock(f"{1000 * sizes + 9999}sp", samples_per_batch=schedule)
        while clock.timestamp.sample < 1000 * (sizes - 1):
            clock.tick()
        clock.tick()
        return clock

    assert count_calls(clock_with(4).tick) == count_calls(clock_with(100).tick)
