"""States of another schedule or of a run of another length: when they load, which schedule goes on, and cooldowns."""

import copy
import json
import logging
from dataclasses import dataclass
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given

import optim
import timesched
from optim import lr_scheduler, scheduler
from timesched import (
    Clock,
    ConstantScheduler,
    CooldownScheduler,
    CosineAnnealingScheduler,
    CosineAnnealingWithWarmupScheduler,
    Horizon,
    InverseSquareRootWithWarmupScheduler,
    LinearScheduler,
    PowerScheduler,
    ProductScheduler,
    Schedule,
    SequenceScheduler,
    TimeError,
    WarmupStableDecayScheduler,
    bind,
)
from timesched.description import plain
from timesched.integrations.common import Binding, Schedulers
from timesched.resuming import read_horizon, rebuilt
from timesched.testing.strategies import horizons, schedules

COSINE = CosineAnnealingScheduler()
STABLE = WarmupStableDecayScheduler("10ba", t_decay="0.1dur")
HEAD = "The checkpoint was trained under another schedule:\n"


def sgd(*groups, lr=1.0):
    return torch.optim.SGD(
        [{"params": [torch.nn.Parameter(torch.ones(1))], **each} for each in groups or ({},)], lr=lr, weight_decay=0.5
    )


def made(schedule, duration, *groups, on_change="same", key="lr", tags=None, **rates):
    clock, optimizer = Clock(duration, **rates), sgd(*groups)
    return clock, optimizer, bind(schedule, optimizer, clock, key, tags, on_change=on_change)


def run(one, batches):
    clock, _, bound = one
    values = []
    for _ in range(batches):
        clock.tick(tokens=3)
        bound.step()
        values.append(bound.get_last_value()[-1])
    return values


def saved(schedule, duration, batches, **more):
    one = made(schedule, duration, **more)
    run(one, batches)
    return json.loads(json.dumps(one[2].state_dict()))


def assert_refused(one, state, words):
    clock, optimizer, bound = one
    optimizer.param_groups[0]["lr"] = 0.123  # as of a checkpoint that is loaded already
    before = clock.state_dict(), bound.state_dict(), copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=words) as error:
        bound.load_state_dict(state)
    assert (clock.state_dict(), bound.state_dict(), optimizer.state_dict()) == before
    return str(error.value)


# What loads without a word


@pytest.mark.parametrize(
    ("schedule", "batches"),
    [
        (STABLE, 50),
        (WarmupStableDecayScheduler("10ba", t_decay="0.1dur"), 5),
        (InverseSquareRootWithWarmupScheduler("10ba", t_scale="10ba", t_cooldown="0.1dur"), 50),
        (ConstantScheduler(0.3), 50),
        (CosineAnnealingScheduler("200ba"), 50),
        (PowerScheduler("7ba"), 50),
        ([STABLE, PowerScheduler("7ba")], 50),
        (lambda state: 1 / (1 + state.timestamp.batch.value), 50),
    ],
)
def test_a_longer_run_goes_on_where_the_value_is_the_same(schedule, batches, caplog):
    state, longer = saved(schedule, "100ba", batches), made(schedule, "200ba")
    through = made(schedule, "200ba")
    expected = run(through, 190)
    with caplog.at_level(logging.INFO, "timesched"):
        longer[2].load_state_dict(state)  # no warning, which would be an error here
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "max_duration: 100ba -> 200ba" in caplog.text and "saved and now" in caplog.text
    assert run(longer, 190 - batches) == expected[batches:]


def test_the_same_run_says_nothing(caplog):
    with caplog.at_level(logging.DEBUG, "timesched"):
        made(COSINE, "10ba")[2].load_state_dict(saved(COSINE, "10ba", 4))
    assert not caplog.records


def test_another_schedule_of_the_same_value():
    state = saved(STABLE, "100ba", 50)
    other = made(WarmupStableDecayScheduler("20ba", t_decay="40ba", decay="1-sqrt"), "300ba")
    other[2].load_state_dict(state)
    assert run(other, 230)[-1] == pytest.approx(1 - 0.5**0.5)


# What is refused


def test_a_cosine_is_refused_with_both_values():
    state = saved(COSINE, "10ep", 12, batches_per_epoch=3)
    message = assert_refused(made(COSINE, "20ep", batches_per_epoch=3), state, "another schedule")
    assert message == (
        f"{HEAD}    {COSINE!r}\n    max_duration: 10ep -> 20ep\n  multiplier at 4ep: 0.6545 saved, 0.9045 now.\n"
        'Load with on_change="new" to go on with the present one, "saved" to go on with the saved one (past its end '
        "its last value holds), or cool down from here: schedule.cooldown(at=clock, t_decay=...)."
    )
    within = saved(COSINE, "10ep", 13, batches_per_epoch=3)
    words = "multiplier at 13ba: 0.604 saved, 0.8886 now"
    assert_refused(made(COSINE, "20ep", batches_per_epoch=3), within, words)


@pytest.mark.parametrize(
    ("schedule", "duration", "more", "words"),
    [
        (
            LinearScheduler(),
            "100ba",
            {},
            r"class is 'CosineAnnealingScheduler' in the state, .*\n  multiplier at 30ba: 0\.7",
        ),
        (CosineAnnealingScheduler(alpha_f=0.5), "100ba", {}, r"alpha_f is 0\.0 in the state, and 0\.5 here\n"),
        (COSINE, "100ba", {"ssr": 0.5}, r"\n    ssr: 1\.0 -> 0\.5\n  multiplier at 30ba: 0\.7939 saved, 0\.3455 now"),
        (COSINE, "100.0000001ep", {"batches_per_epoch": 1}, r"0\.793892626 saved, 0\.793892627 now"),
        (lambda state: 0.25, "100ba", {}, r"and '.*<lambda>' here\n  multiplier at 30ba: 0\.7939 saved, 0\.25 now"),
    ],
)
def test_what_differs_and_both_values(schedule, duration, more, words):
    state = saved(COSINE, "100ba" if duration == "100ba" else "100ep", 30, **(more if "ssr" not in more else {}))
    assert_refused(made(schedule, duration, **more), state, words)


def test_what_only_one_of_two_has():
    one, two = (made([COSINE] * n, "10ba") for n in (1, 2))
    for (*_, bound), (*_, other), words in ((one, two, "here"), (two, one, "in the state")):
        other.clock.load_state_dict({**other.clock.state_dict(), "batch": 5})
        with pytest.raises(ValueError, match=rf"schedule\[1\] is only {words}"):
            other.load_state_dict({**bound.state_dict(), "clock": other.clock.state_dict()})


def test_a_rate_that_a_schedule_reads():
    def of(duration, tokens):
        return made(LinearScheduler(t_max=duration), "10ba", samples_per_batch=2, tokens_per_sample=tokens)

    for duration in ("10ba", "100tok"):
        state = of(duration, 4)[2].state_dict()
        assert state["horizon"] == "Horizon('10ba', samples_per_batch=2, tokens_per_sample=4)"
        of(duration, 1)[2].load_state_dict(state)
    mixed = saved(
        CosineAnnealingWithWarmupScheduler("8tok", "10ba"), "10ba", 5, samples_per_batch=1, tokens_per_sample=3
    )
    other = made(CosineAnnealingWithWarmupScheduler("8tok", "10ba"), "10ba", samples_per_batch=1, tokens_per_sample=6)
    assert_refused(other, mixed, "tokens_per_sample: 3 -> 6\n  multiplier at 5ba: ")


def third(state):
    return 1 / 3 if state.max_duration == "10ba" else 2 / 3


def test_functions_of_a_user():
    """Their names are compared; under another length, their values."""
    state = saved(third, "10ba", 4)
    same = made(third, "10ba")
    same[2].load_state_dict(state)
    assert run(same, 1) == [1 / 3]
    assert "0.3333 saved, 0.6667 now" in assert_refused(made(third, "20ba"), state, "another schedule")
    longer = made(third, "20ba", on_change="saved")
    longer[2].load_state_dict(state)
    assert run(longer, 15) == [1 / 3] * 15
    for on_change in ("same", "saved"):
        message = assert_refused(made(COSINE, "10ba", on_change=on_change), state, "'third' in the state")
        assert '"saved" to' not in message and "'third' is a function or an object" in message
    new = made(COSINE, "10ba", on_change="new")
    new[2].load_state_dict(state)
    assert run(new, 6) == run(made(COSINE, "10ba"), 10)[4:]


@dataclass(frozen=True, eq=False, repr=False)
class Own(Schedule):
    def resolve(self, frame):
        return lambda counts: 0.5


def test_schedules_of_a_user():
    state = saved(Own(), "10ba", 4)
    made(Own(), "20ba")[2].load_state_dict(state)
    for nested in (COSINE, [COSINE], ProductScheduler([COSINE])):
        assert_refused(made(nested, "10ba"), state, "Own is not a schedule of timesched")
    assert_refused(made(COSINE, "10ba"), saved([third, COSINE], "10ba", 4), "'third' is a function")


def test_a_saved_schedule_that_does_not_fit_the_run():
    long, state = WarmupStableDecayScheduler("50ba", t_decay="50ba"), saved(STABLE, "100ba", 30)
    state["schedule"] = plain(long)
    state["horizon"] = "Horizon('60ba')"
    assert_refused(made(COSINE, "100ba"), state, r"now\.\n.*The saved one cannot be made again: .*50ba")


@pytest.mark.parametrize(
    "text", ["", "Horizon", "Horizon(__import__('os'))", "5", "Clock('5ba')", "Horizon('5')", None]
)
def test_a_broken_horizon(text):
    for on_change in ("same", "saved"):
        state = {**saved(COSINE, "10ba", 4), "horizon": text}
        assert_refused(made(COSINE, "10ba", on_change=on_change), state, "the horizon in the state")


def test_tags_and_keys_are_refused_whatever_is_to_change():
    groups = {"tags": "a"}, {"tags": "b"}
    state = made(COSINE, "10ba", *groups, tags="a")[2].state_dict()
    for on_change in ("same", "new", "saved"):
        assert_refused(made(COSINE, "10ba", *groups, tags="b", on_change=on_change), state, "another schedule: tags")
        assert_refused(made(COSINE, "10ba", key="weight_decay", on_change=on_change), state, "another schedule: key")


def test_on_change_is_one_of_three():
    for wrong in ("old", None, 3):
        with pytest.raises(ValueError, match="on_change=.* it is one of 'same', 'new', 'saved'"):
            made(COSINE, "10ba", on_change=wrong)
    with pytest.raises(ValueError, match="needs a timesched.Clock"):
        bind(COSINE, sgd(), _State(), on_change="saved")


class _State:
    timestamp, max_duration, dataloader_len = timesched.Timestamp(batch=3), "10ba", None


def test_a_state_of_another_package_as_clock_compares_the_schedule_alone():
    state = bind(COSINE, sgd(), _State()).state_dict()
    with pytest.raises(ValueError, match="the state is of another schedule: schedule.class is"):
        bind(LinearScheduler(), sgd(), _State()).load_state_dict(state)
    new = bind(LinearScheduler(), sgd(), _State(), on_change="new")
    new.load_state_dict(state)
    assert new.get() == [0.7]


# Which one goes on


@pytest.mark.parametrize("schedule", [COSINE, LinearScheduler(), [COSINE, LinearScheduler()]])
def test_new_goes_on_with_the_present_one(schedule):
    one = made(schedule, "20ba", on_change="new")
    one[2].load_state_dict(saved(COSINE, "10ba", 4))
    assert run(one, 16) == run(made(schedule, "20ba"), 20)[4:]


@pytest.mark.parametrize("schedule", [COSINE, LinearScheduler(), [COSINE, LinearScheduler()]])
def test_saved_goes_on_with_the_saved_one_which_is_saved_again(schedule):
    expected, one = run(made(schedule, "10ba", ssr=2.0), 30), made(STABLE, "100ba", on_change="saved")
    one[2].load_state_dict(saved(schedule, "10ba", 4, ssr=2.0))
    assert run(one, 6) == expected[4:10]
    again = made(ConstantScheduler(), "70ba", on_change="saved")
    again[2].load_state_dict(json.loads(json.dumps(one[2].state_dict())))
    kept = copy.deepcopy(again)
    assert run(again, 20) == run(kept, 20) == expected[10:]
    assert again[2].state_dict()["horizon"] == "Horizon('10ba', ssr=2.0)" and expected[-1] == 0.0
    assert not again[0].done


def test_two_keys_on_one_clock():
    clock, optimizer = Clock("10ba"), sgd()
    pair = [bind(STABLE, optimizer, Clock("100ba")), bind(COSINE, optimizer, Clock("100ba"), "weight_decay")]
    for one in pair:
        run((one.clock, optimizer, one), 50)
    states = [one.state_dict() for one in pair]
    clock, optimizer = Clock("200ba"), sgd()
    rates, decays = bind(STABLE, optimizer, clock), bind(COSINE, optimizer, clock, "weight_decay", on_change="saved")
    for one, state in zip((rates, decays), states):
        one.load_state_dict(state)
    for _ in range(25):
        clock.tick(tokens=3)
        rates.step(), decays.step()
    assert optimizer.param_groups[0]["lr"] == 1.0
    assert optimizer.param_groups[0]["weight_decay"] == 0.5 * COSINE.at("75ba", Horizon("100ba"))


def several(duration, on_change="same", first=STABLE):
    clock, optimizer = Clock(duration), sgd()
    return clock, optimizer, Schedulers(optimizer, clock, [first, Binding(COSINE, "weight_decay")], on_change)


def test_several_on_one_clock_load_together_or_not_at_all():
    one = several("100ba")
    for _ in range(50):
        one[0].tick()
        one[2].step()
    state = one[2].state_dict()
    for first in (STABLE, third):
        clock, optimizer, schedulers = several("200ba", first=first)
        optimizer.param_groups[0]["lr"] = 0.123
        before = schedulers.state_dict(), copy.deepcopy(optimizer.state_dict())
        with pytest.raises(ValueError, match="another schedule"):
            schedulers.load_state_dict(state)
        assert (schedulers.state_dict(), optimizer.state_dict()) == before and clock.timestamp.batch == 0
    broken = copy.deepcopy(state)
    broken["schedulers"][1]["base"] = [None]
    mixed = several("200ba", "saved", third)
    before = mixed[2].state_dict()
    with pytest.raises(ValueError, match="initial weight_decay"):
        mixed[2].load_state_dict(broken)
    assert mixed[2].state_dict() == before  # the function, too
    for on_change, decay in (("new", 0.5 * COSINE.at("50ba", Horizon("200ba"))), ("saved", 0.25)):
        clock, optimizer, schedulers = several("200ba", on_change)
        schedulers.load_state_dict(state)
        assert clock.timestamp.batch == 50 and optimizer.param_groups[0]["weight_decay"] == decay


# Schedules from their descriptions


@given(schedules())
def test_every_schedule_is_made_again_from_its_state(schedule):
    assert rebuilt(json.loads(json.dumps(plain(schedule)))) == schedule


@given(horizons())
@example(Horizon("1/3ep"))
@example(Horizon("7tok", batches_per_epoch=Fraction(1, 3), samples_per_batch=2.5, ssr=0.1))
@example(Horizon(None))
def test_every_horizon_is_read_again(horizon):
    assert read_horizon(repr(horizon)) == horizon


# Cooldowns


DECAYS = ("linear", "cosine", "1-sqrt", "1-square", "exponential", "geometric", "harmonic")


@pytest.mark.parametrize("base", [COSINE, STABLE, PowerScheduler("7ba"), SequenceScheduler([COSINE], [])])
@pytest.mark.parametrize("decay", DECAYS)
def test_a_cooldown_starts_at_exactly_the_saved_value(base, decay):
    one = made(base, "100ba")
    run(one, 37)
    clock, branch = one[0], base.cooldown(one[0], "20ba", alpha_f=0.01, decay=decay)
    assert isinstance(branch, CooldownScheduler) and branch(clock) == base(clock)
    values = [branch.at(f"{n}ba", Horizon("1000ba", ssr=0.3)) for n in range(100)]
    assert values[37] == base(clock) and values[57:] == [0.01] * 43 and values[57] < values[56]
    assert values[:37] == [base.at(f"{n}ba", Horizon("100ba")) for n in range(37)]
    assert eval(repr(branch), vars(timesched)) == branch == rebuilt(json.loads(json.dumps(plain(branch))))


def test_the_decay_branch_of_a_checkpoint():
    """Loaded silently into a run of any length or ratio, resumed twice, and a branch of the branch."""
    state = saved(COSINE, "100ba", 40)
    clock = Clock("100ba")
    clock.load_state_dict(state["clock"])
    branch = COSINE.cooldown(at=clock, t_decay="0.2dur", decay="linear")
    start = COSINE.at("40ba", Horizon("100ba"))
    values = [start * (20 - n) / 20 for n in range(1, 21)] + [0.0] * 5
    for duration, ratio in (("100ba", 1.0), ("60ba", 1.0), ("1000ba", 0.5)):
        one = made(branch, duration, ssr=ratio)
        one[2].load_state_dict(state)
        assert one[2].get_last_lr() == [start]
        first = run(one, 5)
        again = made(branch, "70ba")
        again[2].load_state_dict(json.loads(json.dumps(one[2].state_dict())))
        assert first + run(again, 20) == pytest.approx(values, abs=1e-15)
        inner = branch.cooldown(at=one[0], t_decay="4ba", alpha_f=0.1)
        deeper = made(inner, "10ba", ssr=3.0)
        deeper[2].load_state_dict(one[2].state_dict())
        assert deeper[2].get_last_lr() == one[2].get_last_lr() and run(deeper, 8)[3:] == [0.1] * 5
        taken = made(COSINE, "70ba", on_change="saved")
        taken[2].load_state_dict(deeper[2].state_dict())
        assert taken[2].schedule == inner


def test_the_ratio_of_the_run_stretches_the_decay_and_not_the_moment():
    one = made(COSINE, "100ba", ssr=0.5)
    run(one, 20)
    branch = COSINE.cooldown(one[0], "10ba", decay="linear")
    half = branch(one[0]) / 2
    for horizon in (Horizon("100ba", ssr=0.5), Horizon("7ep")):
        assert [branch.at(f"{n}ba", horizon) for n in (20, 25)] == [2 * half, 0.0]


@pytest.mark.parametrize("t_decay", ["30tok", "10ba", "10sp", "0.1dur", "2ep", "5sec"])
def test_a_cooldown_in_any_unit_of_a_schedule_in_several(t_decay):
    """No rate is needed: the value is that of the moment, and the decay is counted in its own unit."""
    base = ProductScheduler([LinearScheduler(t_max="100ba"), LinearScheduler(t_max="500tok")])
    clock = Clock("100ba")
    for _ in range(40):
        clock.tick(samples=1, tokens=3)
    branch = base.cooldown(clock, t_decay)
    assert branch(clock) == base(clock)
    assert bind(branch, sgd(), clock).get_last_lr() == [base(clock)]


def test_what_is_no_moment_of_a_run():
    with pytest.raises(TypeError, match="at='5ba' is no moment of a run"):
        COSINE.cooldown("5ba", "5ba")
    with pytest.raises(ValueError, match="harmonic"):
        COSINE.cooldown(Clock("10ba"), "5ba", decay="harmonic")
    with pytest.raises(TimeError, match="needs t_start"):
        CooldownScheduler(COSINE, "5ba", horizon=Horizon("10ba"))
    with pytest.raises(TypeError, match="is not a Horizon"):
        CooldownScheduler(COSINE, "5ba", "5ba", horizon="10ba")


# Closed forms


def test_closed_forms():
    def one(end=0.0, total=10, **more):
        return lr_scheduler.LinearLR(sgd(), 1.0, end, total, **more)

    state = one()
    for _ in range(4):
        state.step()
    state = state.state_dict()
    with pytest.raises(ValueError) as error:
        one(0.5).load_state_dict(state)
    assert str(error.value) == (
        f"{HEAD}    schedule.arguments.end_learning_rate is 0.0 in the state, and 0.5 here\n"
        "  value at step 4: 0.6 saved, 0.8 now.\n"
        'Load with on_change="new" to go on with the present one, "saved" to go on with the saved one (past its end '
        "its last value holds)."
    )
    new, old = one(0.5, on_change="new"), one(0.5, on_change="saved")
    for each, value in ((new, 0.8), (old, 0.6)):
        each.load_state_dict(state)
        assert each.get_last_lr() == [pytest.approx(value, abs=1e-15)]
    assert (old.end_learning_rate, old.state_dict()) == (0.0, state)
    again = one()  # resumed a second time, as the one that was saved
    again.load_state_dict(old.state_dict())
    other = lr_scheduler.CosineDecayLR(sgd(), 1.0, 0.0, 10, on_change="saved")
    with pytest.raises(ValueError, match="a CosineDecayLR makes a schedule of the arguments of one formula"):
        other.load_state_dict(state)


def test_closed_forms_of_several_on_a_clock_are_extended_in_their_first_part():
    def one(duration, total="1dur"):
        optimizer, clock = sgd(), Clock(duration)
        parts = [
            lr_scheduler.LinearLR(optimizer, 0.0, 1.0, 10, clock=clock),
            lr_scheduler.CosineDecayLR(optimizer, 1.0, 0.0, total, clock=clock),
        ]
        return clock, optimizer, lr_scheduler.SequentialLR(optimizer, parts, [10], clock=clock)

    early, late = one("100ba"), one("100ba")
    run(early, 7), run(late, 30)
    longer = one("200ba")
    longer[2].load_state_dict(early[2].state_dict())
    assert longer[2].get_last_lr() == early[2].get_last_lr()
    with pytest.raises(ValueError, match=r"value at 30ba: 0\.9.* saved, 0\..* now"):
        longer[2].load_state_dict(late[2].state_dict())
    with pytest.raises(ValueError, match="a SequentialLR makes a schedule of the arguments of one formula"):
        one("100ba", "0.5dur")[2].load_state_dict(early[2].state_dict())


class Heights(scheduler.CyclicScheduler):
    param_group_key = "momentum"

    def __init__(self, optimizer, height, **more):
        self.height = height
        super().__init__(optimizer, 0.1, 0.5, 10, **more)


def test_an_argument_that_a_formula_has_not():
    state = Heights(torch.optim.SGD([torch.zeros(1)], lr=0.1, momentum=0.5), 1.0).state_dict()
    other = Heights(torch.optim.SGD([torch.zeros(1)], lr=0.1, momentum=0.5), 2.0)
    with pytest.raises(ValueError, match="a Heights makes a schedule of the arguments of one formula"):
        other.load_state_dict(state)


def test_a_config_says_what_goes_on():
    def built(on_change, *entry):
        config = {"optimizer": {"AdamW": {"lr": 1.0}}, "schedulers": [{entry[0]: {**entry[1], "on_change": on_change}}]}
        return optim.build(torch.nn.Linear(1, 1), {**config, "max_duration": "20ba"}).schedulers[0]

    cosine = {"initial_learning_rate": 1.0, "end_learning_rate": 0.0, "total_iters": "1dur"}
    for entry in (("CosineAnnealingScheduler", {}), ("CosineDecayLR", cosine)):
        assert built("saved", *entry).on_change == "saved"
        with pytest.raises(ValueError, match="on_change='old'"):
            built("old", *entry)
