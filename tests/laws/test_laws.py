"""Every law on every row of the one table of schedules."""

import math
import pickle
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import timesched
from optim.closed_form import formulas
from optim.closed_form.formulas import ClosedForm
from tests.laws.growing_runs import GrowingRun, check_same_point, runs_with_batch_sizes
from tests.laws.rows import CLOSED_FORMS, ROWS
from timesched.batch_size.schedule import BatchSizeFactor
from timesched.testing.laws import LAWS, evaluate
from timesched.testing.runs import RATIOS, runs
from timesched.time.units import TimeUnit

# Where batches change their size: not the ratio, as a threshold that is stretched may lie within another batch.
WITH_BATCH_SIZES = ("unit", "ends", "purity", "one formula", "cost")


def examples_of(law):
    """How many examples a law gets. test-deep tries thousands; the others repeat the same few every time.

    With 12, 15, 20 and 25, the mistakes in test_broken.py are all caught; with 8 and 10, one is not.
    """
    count = settings.default.max_examples // (2 if law in ("purity", "cost", "a closed form") else 1)
    return count if count > 100 else min(count, 12)


# What depends on the length of a step: tests/unit/test_half_lives.py has what these laws then say.
OF_TIMES = [(row, law) for row in ROWS for law in LAWS if not (law in ("ratio", "rates", "epochs") and row.in_steps)]


@pytest.mark.parametrize(("row", "law"), OF_TIMES, ids=lambda each: getattr(each, "name", each))
def test_law(row, law):
    """The examples that the documentation draws are among the schedules: in shares of a run, they suit any."""
    examples = [eval(example, vars(timesched)) for example in row.examples]
    assert examples and all(type(schedule) is row.schedule for schedule in examples)

    @settings(max_examples=examples_of(law))
    @given(st.data())
    def holds(data):
        run = data.draw(runs() | runs_with_batch_sizes() if law in WITH_BATCH_SIZES else runs())
        schedule = data.draw(row.schedules(run) | st.sampled_from(examples))
        if law == "unit" and isinstance(run, GrowingRun):  # no unit converts to another by one number
            check_same_point(schedule, run, data.draw(st.integers(0, 2 * run.batches)))
        else:
            LAWS[law](schedule, run, data.draw, row.promise)

    holds()


# Not those with a child, which the ratio stretches: it moves the end of the warmup.
WITH_WARMUP = [
    row for row in ROWS if {"t_warmup", "schedule"} & row.schedule.__dataclass_fields__.keys() == {"t_warmup"}
]


@pytest.mark.parametrize("row", WITH_WARMUP, ids=lambda row: row.name)
def test_a_warmup_that_the_ratio_does_not_stretch(row):
    """Without `scale_warmup`, the ramp is the unstretched ramp. The promise says what its end is (law 'ends')."""

    @given(st.data())
    def holds(data):
        run = data.draw(runs())
        schedule, sigma = data.draw(row.schedules(run)), data.draw(RATIOS)
        assume(schedule.t_warmup.exact > 0 and schedule.t_warmup.unit is not TimeUnit.DURATION)
        assume(not getattr(schedule, "scale_warmup", False))
        end = run.horizon().change(*run.horizon().place(schedule.t_warmup), TimeUnit.BATCH)
        batch = data.draw(st.integers(0, math.ceil(end) - 1))
        assert evaluate(schedule, run.state(batch)) == evaluate(schedule, run.state(batch, sigma))

    holds()


# A number among the arguments of a closed form counts batches: two laws are for those that have times alone.
OF_CLOSED_FORMS = [
    (row, law) for row in CLOSED_FORMS for law in LAWS if not (law in ("rates", "epochs") and row.in_steps)
]


@pytest.mark.parametrize(("row", "law"), OF_CLOSED_FORMS, ids=lambda each: getattr(each, "name", each))
def test_law_of_a_closed_form(row, law):
    units = [TimeUnit.EPOCH, TimeUnit.SAMPLE, TimeUnit.TOKEN, TimeUnit.DURATION]

    @settings(max_examples=examples_of("a closed form"))
    @given(st.data())
    def holds(data):
        run = data.draw(runs())
        schedules = row.schedules(run, units) if law == "rates" else row.schedules(run)
        LAWS[law](data.draw(schedules), run, data.draw, row.promise)

    holds()


def test_each_schedule_has_a_row():
    public = [getattr(timesched, name) for name in timesched.__all__]
    schedules = {thing for thing in public if isinstance(thing, type) and issubclass(thing, timesched.Schedule)}
    assert {row.schedule for row in ROWS} == schedules - {timesched.Schedule}
    closed = {thing for thing in vars(formulas).values() if isinstance(thing, type) and issubclass(thing, ClosedForm)}
    without_row = {ClosedForm, formulas.Between, formulas.Lambda, formulas.Chain}
    assert {row.schedule for row in CLOSED_FORMS} == closed - without_row


def test_all_are_frozen_and_compare_as_schedules_do():
    def below(cls):
        return {cls, *(each for inner in cls.__subclasses__() for each in below(inner))}

    ours = {each for each in below(timesched.Schedule) if each.__module__.partition(".")[0] in ("timesched", "optim")}
    assert {BatchSizeFactor, *(row.schedule for row in (*ROWS, *CLOSED_FORMS))} < ours
    for each in ours - {timesched.Schedule}:
        assert each.__init__ is timesched.Schedule.__init__ or each.__dataclass_params__.frozen, each
        assert (each.__eq__, each.__hash__) == (timesched.Schedule.__eq__, timesched.Schedule.__hash__), each
    own = {each for each in ours if each.__repr__ is not timesched.Schedule.__repr__}
    assert own == {BatchSizeFactor, timesched.HalfLife}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_schedule_is_a_record(row):
    """It reads back and never changes; times of other units are not equal, and comparing them raises nothing."""

    @settings(max_examples=settings.default.max_examples // 10 + 1)
    @given(st.data())
    def holds(data):
        run = data.draw(runs())
        one, other = (data.draw(row.schedules(run)) for _ in range(2))
        for same in (eval(repr(one), {**vars(timesched), "Fraction": Fraction}), pickle.loads(pickle.dumps(one))):
            assert same == one and hash(same) == hash(one) and repr(same) == repr(one)
        assert one != other or hash(one) == hash(other)
        with pytest.raises(AttributeError):
            setattr(one, next(iter(one.__dataclass_fields__)), None)

    holds()
