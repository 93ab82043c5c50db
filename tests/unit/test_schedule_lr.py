"""ScheduleLR: one object and one call. It equals a clock and bind, to the bit, after every kind of change."""

import copy
import math
import pickle
import warnings
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import LambdaLR

import optim
from tests.building import parameters, sgd, values
from timesched import (
    BatchSizeSchedule,
    Clock,
    ConstantScheduler,
    CosineAnnealingScheduler,
    LinearScheduler,
    MultiStepScheduler,
    PiecewiseScheduler,
    Schedule,
    ScheduleLR,
    SequenceScheduler,
    Time,
    WarmupScheduler,
    WarmupStableDecayScheduler,
    bind,
)
from timesched.binding import BoundLR

FACTORS = {"samples_per_batch": 4, "tokens_per_sample": 8, "batches_per_epoch": 5}


def by_batch(clock):
    return 1 / (1 + clock.timestamp.batch.value)


def step(scheduler, steps=1, **counts):
    for _ in range(steps):
        scheduler.step(**counts)


# What it is


def test_a_plain_loop():
    optimizer = sgd({"adjust_learning_rate": 0.5}, {}, lr=0.4)
    scheduler = ScheduleLR(optimizer, "Linear", "1000sp", samples_per_batch=250)
    assert isinstance(scheduler, BoundLR) and isinstance(scheduler, LambdaLR)
    rates = [values(optimizer)]
    while not scheduler.clock.done:
        optimizer.step()
        scheduler.step()
        rates.append(scheduler.get_last_lr())
    assert rates == [[0.2 * m, 0.4 * m] for m in (1.0, 0.75, 0.5, 0.25, 0.0)]
    assert scheduler.last_epoch == 4 and scheduler.clock.timestamp == "1000sp"


SAME = WarmupStableDecayScheduler("0.1dur", t_decay="0.2dur")
FORMS = [
    (SAME, {}),
    ("WarmupStableDecay('0.1dur', t_decay='0.2dur')", {}),
    (" WarmupStableDecayScheduler(t_warmup='0.1dur', t_decay='0.2dur')\n", {}),
    ("WSD('0.1dur', t_decay='0.2dur')", {}),
    ("[WSD('0.1dur', t_decay='0.2dur')]", {}),
    (["WSD('0.1dur', t_decay='0.2dur')", LinearScheduler(1.0, 1.0)], {}),
    ("WSD", {"t_warmup": "0.1dur", "t_decay": "0.2dur"}),
    (" WSD ", {"t_warmup": "0.1dur", "t_decay": "0.2dur"}),
    (repr(SAME), {}),
]


@pytest.mark.parametrize(("schedule", "arguments"), FORMS)
def test_forms_of_a_schedule(schedule, arguments):
    optimizer, clock = sgd(), Clock("50ba")
    scheduler, other = ScheduleLR(sgd(), schedule, 50, **arguments), bind(SAME, optimizer, clock)
    for _ in range(50):
        scheduler.step(), clock.tick(), other.step()
        assert scheduler.get_last_lr() == values(optimizer)


TEXTS = [
    (
        "Sequence([Constant(), CosineAnnealing()], milestones=['10ba'])",
        SequenceScheduler([ConstantScheduler(), CosineAnnealingScheduler()], milestones=["10ba"]),
    ),
    ("Warmup(CosineAnnealing(), t_warmup='5ba')", WarmupScheduler(CosineAnnealingScheduler(), t_warmup="5ba")),
    (
        "[Linear(), MultiStep(milestones=['0.5dur'])]",
        [LinearScheduler(), MultiStepScheduler(milestones=["0.5dur"])],
    ),
    ("timesched.Linear(alpha_f=-0.5)", LinearScheduler(alpha_f=-0.5)),
]


@pytest.mark.parametrize(("text", "schedule"), TEXTS)
def test_a_text_is_what_the_calls_are(text, schedule):
    one, other, clock = sgd(), sgd(), Clock("50ba")
    scheduler, bound = ScheduleLR(one, text, "50ba"), bind(schedule, other, clock)
    for _ in range(50):
        scheduler.step(), clock.tick(), bound.step()
        assert values(one) == values(other)


def test_lengths():
    """An int counts steps in the unit."""
    assert ScheduleLR(sgd(), by_batch, 7).clock.max_duration == "7ba"
    assert ScheduleLR(sgd(), by_batch, 7, unit="ep").clock.max_duration == "7ep"
    assert ScheduleLR(sgd(), by_batch, Time(8, "sp"), samples_per_batch=2).clock.max_duration == "8sp"
    growing = BatchSizeSchedule({"0ba": 2, "2ba": 4})
    scheduler = ScheduleLR(sgd(), "Linear", "12sp", samples_per_batch=growing)
    step(scheduler, 4)
    assert scheduler.clock.timestamp.sample.value == 12 and scheduler.clock.done


def test_stop_at_and_extend():
    scheduler = ScheduleLR(sgd(), "Constant", "8ba")
    scheduler.clock.stop_at = "0.5dur"
    step(scheduler, 4)
    assert scheduler.clock.done and scheduler.clock.stop_at == "0.5dur"
    scheduler.clock.stop_at = None
    scheduler.clock.extend("20ba")
    assert not scheduler.clock.done and scheduler.clock.stop_at is None
    with pytest.raises(ValueError, match="'x' is not a time"):
        scheduler.clock.stop_at = "x"


def test_other_schedules_on_its_clock():
    optimizer = optim.AdamW(parameters(), lr=0.1, weight_decay=0.2)
    scheduler = ScheduleLR(optimizer, "Linear", "4ba")
    decay = bind(LinearScheduler(), optimizer, scheduler.clock, key="weight_decay")
    average = optim.WeightAverage(parameters(), scheduler.clock)
    for left in (0.75, 0.5, 0.25, 0.0):
        optimizer.step(), scheduler.step(), decay.step(), average.step()
        assert (values(optimizer), values(optimizer, "weight_decay")) == ([0.1 * left], [0.2 * left])


# Equal to bind


@dataclass(frozen=True, eq=False, repr=False)
class Doubled(Schedule):
    """Its multiplier is a number of another library."""

    def resolve(self, frame):
        done = frame.span("1dur").done
        return lambda counts: numpy.float64(2 * done(counts))


SCHEDULES = [
    (CosineAnnealingScheduler(), "40ba"),
    (WarmupStableDecayScheduler("100tok", t_decay="0.3dur"), "800tok"),
    (MultiStepScheduler(["1ep", "7ba", "60sp"], 0.3), "6ep"),
    ([LinearScheduler(), LinearScheduler(0.5, t_max="3ep")], "100sp"),
    (by_batch, "40ba"),
    (Doubled(), "40ba"),
]
CHANGES = [
    "steps", "counts", "epoch", "copy", "pickle", "state", "state of bind", "extend", "group", "optimizer",
    "next_epoch", "values", "jump", "tensor", "new dict", "new dicts",
]  # fmt: skip


class Pair:
    """A ScheduleLR, and a clock with bind, of equal optimizers in equal changes."""

    def __init__(self, schedule, length, factors):
        self.schedule, self.length, self.factors = schedule, length, factors
        self.one, self.clock, self.other = self.make()
        self.assert_equal()

    def make(self):
        one = ScheduleLR(self.optimizer(), self.schedule, self.length, **self.factors)
        clock = Clock(self.length, **self.factors)
        return one, clock, bind(self.schedule, self.optimizer(), clock)

    def optimizer(self):
        return optim.AdamW([{"params": parameters()}, {"params": parameters(), "adjust_learning_rate": 0.3}], lr=0.7)

    def optimizers(self):
        return self.one.optimizer, self.other.optimizer

    def assert_equal(self):
        rates = [group["lr"] for group in self.one.optimizer.param_groups]
        others = [group["lr"] for group in self.other.optimizer.param_groups]
        assert rates == others and list(map(type, rates)) == list(map(type, others))
        assert self.one.get_lr() == self.other.get_lr()
        assert self.one.last_epoch == self.other.last_epoch
        states = [scheduler.state_dict() for scheduler in (self.one, self.other)]
        for state in states:
            state["clock"] = {name: count for name, count in state["clock"].items() if not name.endswith("wct")}
        assert states[0] == states[1]

    def steps(self, count, **counts):
        for _ in range(count):
            self.one.step(**counts)
            self.clock.tick(**counts), self.other.step()
            self.assert_equal()

    def change(self, kind, number):
        one, clock, other = self.one, self.clock, self.other
        match kind:
            case "steps":
                self.steps(number)
            case "counts":
                self.steps(1, samples=number, tokens=3 * number)
            case "epoch":
                one.step(one.last_epoch + 1)
                clock.tick(), other.step()
            case "copy":
                self.one, (self.clock, self.other) = copy.deepcopy(one), copy.deepcopy((clock, other))
            case "pickle":
                self.one, (self.clock, self.other) = pickle.loads(pickle.dumps((one, (clock, other))))
            case "state":
                groups, states = len(one.optimizer.param_groups), (one.state_dict(), other.state_dict())
                self.one, self.clock, self.other = self.make()
                for _ in range(2, groups):
                    self.add_group()
                self.one.load_state_dict(states[0]), self.other.load_state_dict(states[1])
            case "state of bind":
                states = one.state_dict(), other.state_dict()
                one.load_state_dict(states[1]), other.load_state_dict(states[0])
            case "extend":
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of a jump in a decay
                    one.clock.extend(2 * one.clock.max_duration), clock.extend(2 * clock.max_duration)
            case "group":
                self.add_group()
            case "optimizer":
                for optimizer in self.optimizers():
                    optimizer.load_state_dict(optimizer.state_dict())
            case "next_epoch":
                if clock.timestamp.batch_in_epoch == "0ba":
                    self.steps(1)
                one.clock.next_epoch(), clock.next_epoch()
            case "values":
                for optimizer in self.optimizers():
                    optimizer.param_groups[0]["lr"] = 0.01 * number
                one.refresh(), other.refresh()
            case "jump":
                one.clock.go_to(one.clock.timestamp.to_next_batch(number, 2 * number))
                clock.go_to(clock.timestamp.to_next_batch(number, 2 * number))
            case "tensor":
                for optimizer in self.optimizers():
                    optimizer.param_groups[0]["lr"] = torch.tensor(0.5)
                one.refresh(), other.refresh()
            case "new dict":
                for optimizer in self.optimizers():
                    optimizer.param_groups[0] = dict(optimizer.param_groups[0])
            case "new dicts":
                for optimizer in self.optimizers():
                    optimizer.param_groups = list(map(dict, optimizer.param_groups))
        self.assert_equal()

    def add_group(self):
        for optimizer in self.optimizers():
            optimizer.add_param_group({"params": parameters(), "lr": 0.2})
        self.one.refresh(), self.other.refresh()


@given(
    st.sampled_from(SCHEDULES),
    st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(1, 9)), max_size=12),
    st.booleans(),
)
def test_equal_to_bind_after_every_kind_of_change(case, changes, has_factors):
    schedule, length = case
    pair = Pair(schedule, length, FACTORS if has_factors or length != "40ba" else {"samples_per_batch": 4})
    pair.steps(3)  # the watch over the first steps has ended
    for kind, number in changes:
        pair.change(kind, number)
        pair.steps(2)


@pytest.mark.parametrize("case", SCHEDULES)
@pytest.mark.parametrize("kind", CHANGES)
def test_equal_to_bind_after_a_change(case, kind):
    pair = Pair(*case, FACTORS)
    pair.steps(4)
    assert (pair.one._fast_step is not None) == (
        case in (*SCHEDULES[:2], SCHEDULES[-1])
    )  # else nothing but the full steps are compared
    pair.change(kind, 3)
    pair.steps(3)


@pytest.mark.parametrize("factors", [{}, {"batches_per_epoch": 5}])
@pytest.mark.parametrize("schedule", ["Linear(t_max='3ep')", "MultiStep(['2ep'])", by_batch])
def test_a_step_counts_an_epoch(schedule, factors):
    """The batches that are left in it, if their number is known. The seconds since the last step, always."""
    optimizer, clock, before = sgd(), Clock("4ep", **factors), monotonic()
    scheduler = ScheduleLR(optimizer, schedule, 4, unit="ep", **factors)
    assert scheduler.clock.every("1ep") is False
    for epoch in range(1, 5):
        scheduler.step()
        clock.go_to(clock.timestamp.copy(epoch=epoch, batch=5 * epoch if factors else 0))
        own = scheduler.schedule(clock) if callable(scheduler.schedule) else None
        assert values(optimizer) == [own]
        stamp = scheduler.clock.timestamp
        assert (stamp.epoch, stamp.batch) == (clock.timestamp.epoch, clock.timestamp.batch)
        rounding = timedelta(microseconds=stamp.batch.value + epoch)
        assert timedelta(0) < stamp.total_wct <= timedelta(seconds=monotonic() - before) + rounding
        assert scheduler.clock.every("1ep")
        assert scheduler.clock.passed(f"{epoch}ep")
    assert scheduler.clock.done


GROWING = {**FACTORS, "samples_per_batch": BatchSizeSchedule({"0ba": 2, "3ba": 4})}


@pytest.mark.parametrize("factors", [{}, FACTORS, GROWING], ids=["none", "known", "growing"])
@pytest.mark.parametrize("unit", ["ba", "ep"])
def test_a_run_begins_later(unit, factors):
    """`last_epoch=n` is a run of n + 1 full steps."""
    for steps in range(12):
        groups = [{"initial_lr": 0.5}, {"initial_lr": 0.25}]
        one, other = sgd(*groups), sgd(*groups)
        whole = ScheduleLR(one, "Linear", 15, unit=unit, **factors)
        step(whole, steps)
        late = ScheduleLR(other, "Linear", 15, unit=unit, last_epoch=steps - 1, **factors)
        assert values(one) == values(other) and late.last_epoch == steps
        for field in ("epoch", "batch", "batch_in_epoch", "sample", "token"):
            assert getattr(late.clock.timestamp, field) == getattr(whole.clock.timestamp, field), field
        step(whole), step(late)
        assert values(one) == values(other)


# Errors, after which nothing has changed


def moments(scheduler):
    return scheduler.last_epoch, scheduler.clock.timestamp._numbers, scheduler.get_last_lr()


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize(
    ("spoil", "arguments", "message"),
    [
        (lambda scheduler: bind(by_batch, scheduler.optimizer, Clock("4ba")), {}, "no longer controls it"),
        (lambda scheduler: scheduler.unbind(), {}, "was unbound"),
        (lambda scheduler: scheduler.optimizer.param_groups.pop(), {}, "parameter groups"),
        (lambda scheduler: None, {"epoch": 7}, r"ScheduleLR.step.epoch=7: the next step is [13], .* last_epoch=7"),
        (lambda scheduler: None, {"samples": -1}, "sample=-1"),
    ],
)
def test_a_step_that_raises_counts_nothing(steps, spoil, arguments, message):
    scheduler = ScheduleLR(sgd({}, {}), "Linear", "8ba", samples_per_batch=2)
    step(scheduler, steps)
    spoil(scheduler)
    before = scheduler.clock.timestamp, scheduler.last_epoch
    with pytest.raises(ValueError, match=message):
        scheduler.step(**arguments)
    assert (scheduler.clock.timestamp, scheduler.last_epoch) == before


def broken(clock):
    return math.nan if clock.timestamp.batch >= "4ba" else 0.5


@pytest.mark.parametrize("schedule", [broken, PiecewiseScheduler([("3ba", 1.0), ("4ba", 1e308)])])
def test_a_value_that_is_not_finite_is_not_counted(schedule):
    scheduler = ScheduleLR(sgd({}, {"lr": 4.0}), schedule, "8ba")
    step(scheduler, 3)
    before = moments(scheduler)
    with pytest.raises(ValueError, match="finite number"):
        scheduler.step()
    assert moments(scheduler) == before
    assert scheduler.clock.passed("3ba")


@dataclass(frozen=True, eq=False, repr=False)
class Halved(Schedule):
    """Its multiplier is a tensor without dimensions."""

    def resolve(self, frame):
        done = frame.span("1dur").done
        return lambda counts: torch.tensor(0.5 * done(counts), dtype=torch.float64)


def test_a_multiplier_that_is_a_tensor_leaves_the_group_a_float():
    scheduler = ScheduleLR(sgd(lr=0.5), Halved(), "8ba")
    for steps in range(1, 7):
        scheduler.step()
        assert values(scheduler.optimizer) == [steps / 32]
        assert type(scheduler.optimizer.param_groups[0]["lr"]) is float


def test_a_warning_that_raises_counts_nothing():
    """The clock warns in the tick after the last one in which the other scheduler may step."""
    scheduler = ScheduleLR(sgd(weight_decay=0.1), "Linear", "200ba", batches_per_epoch=1)
    decay = bind(LinearScheduler(), scheduler.optimizer, scheduler.clock, key="weight_decay")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(scheduler, 100)
        before = moments(scheduler)
        with pytest.raises(UserWarning, match="was not stepped"):
            scheduler.step()
    assert moments(scheduler) == before and decay.last_epoch == 0


def test_ticks_beside_it_are_found():
    """Once. Moves of the clock that the loop has to make are none."""
    scheduler = ScheduleLR(sgd(), "Linear", "20ba", batches_per_epoch=5)
    step(scheduler, 4)
    scheduler.clock.next_epoch()
    step(scheduler, 2)
    scheduler.clock.extend("40ba")
    step(scheduler)
    scheduler.clock.load_state_dict(scheduler.clock.state_dict() | {"batch": 20})
    scheduler.step()
    scheduler.load_state_dict(scheduler.state_dict())
    scheduler.step()
    scheduler.clock.tick()
    text = (
        r"ScheduleLR is at batch 23, and its steps have counted to batch 22. Leave out clock.tick\(\): step\(\) counts."
    )
    with pytest.warns(UserWarning, match=text):
        scheduler.step()
    scheduler.clock.tick()
    scheduler.step()
    assert scheduler.clock.timestamp == "26ba"


def test_steps_after_a_load_are_watched():
    """The steps before the load were fast steps. Afterwards, other code that writes the value is noticed again."""
    scheduler = ScheduleLR(sgd(), "Linear", "5000ba")
    step(scheduler, 5)
    scheduler.load_state_dict(scheduler.state_dict())
    step(scheduler, 1200)  # without the warning of a scheduler that is never stepped
    assert scheduler.optimizer.param_groups[0]["lr"] == pytest.approx(1 - 1205 / 5000, abs=1e-15)
    scheduler.load_state_dict(scheduler.state_dict())
    scheduler.step()
    scheduler.optimizer.param_groups[0]["lr"] = 0.3
    with pytest.warns(UserWarning, match="lr"):
        scheduler.step()


@pytest.mark.parametrize(
    ("error", "schedule", "length", "arguments", "message"),
    [
        (TypeError, "Linear", 8, {"sample_per_batch": 3}, "'sample_per_batch': did you mean 'samples_per_batch'"),
        (TypeError, "Linear", 8, {"t_mx": "3ba"}, "no argument 't_mx': did you mean 't_max'"),
        (TypeError, LinearScheduler(), 8, {"t_max": "3ba"}, "no argument 't_max'"),
        (TypeError, "Linear()", 8, {"t_max": "3ba"}, "no argument 't_max'"),
        (TypeError, 3, 8, {}, "it is not a schedule"),
        (TypeError, ["Linear", 3], 8, {}, "it is not a schedule"),
        (ValueError, "LinearSchedular", 8, {}, "no schedule 'LinearSchedular': did you mean"),
        (ValueError, "os.system('true')", 8, {}, "no schedule 'system'"),
        (ValueError, "Linear(t_max=len('3'))", 8, {}, "schedule"),
        (ValueError, "lambda step: 0.5", 8, {}, "schedule"),
        (ValueError, "CosineDecayLR", 8, {}, "not a schedule, but a scheduler that sets the value itself"),
        (ValueError, "Linear", "1dur", {}, "max_duration"),
        (ValueError, "Linear", 8, {"unit": "sp"}, "ScheduleLR.unit='sp': a step counts a batch or an epoch"),
        (ValueError, "Linear", "3ep", {}, "='3ep': each step counts one batch. .* Pass batches_per_epoch=... to the"),
        (ValueError, "Linear", "3iter", {}, "='3iter': each step counts one batch. .*no conversion factor"),
        (ValueError, "Linear(t_max='3iter')", "8ep", {"unit": "ep"}, "t_max='3iter'.*: each step counts one epoch. "),
        (ValueError, "Linear", "8ba", {"unit": "ep"}, "='8ba': each step counts one epoch. .* Pass batches_per_epoch="),
        (ValueError, "Linear", "8sp", {"unit": "ep"}, "='8sp': .* batches_per_epoch=... and samples_per_batch=... to"),
        (ValueError, "Linear(t_max='500ba')", 8, {"unit": "ep"}, r"schedule=LinearScheduler\(.*Pass batches_per_epoch"),
        (ValueError, "MultiStep(['1ep'])", 8, {}, "schedule=.*one batch. 1ba cannot be converted to ep"),
        (KeyError, "Linear", 8, {"last_epoch": 0}, "group 0 has no 'initial_lr'"),
        (ValueError, "Linear", 8, {"last_epoch": -2}, "last_epoch"),
        (ValueError, "Linear", 8, {"tags": "head"}, "no parameter group has such a tag"),
    ],
)  # fmt: skip
def test_wrong_arguments(error, schedule, length, arguments, message):
    optimizer = sgd()
    before = dict(optimizer.param_groups[0])
    with pytest.raises(error, match=message):
        ScheduleLR(optimizer, schedule, length, **arguments)
    assert optimizer.param_groups[0] == before


def test_counts_of_a_batch_in_a_step_of_an_epoch():
    scheduler = ScheduleLR(sgd(), "Linear", 4, unit="ep")
    with pytest.raises(ValueError, match="a step counts an epoch, since unit='ep'"):
        scheduler.step(samples=3)
    assert scheduler.clock.timestamp == "0ep"
