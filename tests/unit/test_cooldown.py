"""Cooldowns: branches of a checkpoint that decay from the value that was reached."""

import json

import pytest

import timesched
from tests import building
from timesched import *  # noqa: F403  # these are tests of all that is public

COSINE = CosineAnnealingScheduler()
STABLE = WarmupStableDecayScheduler("10ba", t_decay="0.1dur")


def made(schedule, duration, **rates):
    return bind(schedule, building.sgd(), Clock(duration, **rates))


def run(bound, batches):
    return building.run(batches, bound.clock, bound.optimizer, bound, samples=1, tokens=3)


DECAYS = ("linear", "cosine", "1-sqrt", "1-square", "exponential", "geometric", "harmonic")


@pytest.mark.parametrize("base", [COSINE, STABLE, PowerScheduler("7ba"), SequenceScheduler([COSINE], [])])
@pytest.mark.parametrize("decay", DECAYS)
def test_a_cooldown_starts_at_exactly_the_saved_value(base, decay):
    bound = made(base, "100ba")
    run(bound, 37)
    clock, branch = bound.clock, base.cooldown(bound.clock, "20ba", alpha_f=0.01, decay=decay)
    assert isinstance(branch, CooldownScheduler) and branch(clock) == base(clock)
    values = [branch.at(f"{n}ba", Horizon("1000ba", ssr=0.3)) for n in range(100)]
    assert values[37] == base(clock) and values[57:] == [0.01] * 43 and values[57] < values[56]
    assert values[:37] == [base.at(f"{n}ba", Horizon("100ba")) for n in range(37)]
    assert eval(repr(branch), vars(timesched)) == branch


@pytest.mark.parametrize(("rate", "middle"), [({}, 2**0.5 - 1), ({"decay_rate": 0.25}, 1 / 3)])
def test_an_exponential_cooldown(rate, middle):
    """(r**x - r) / (1 - r) at the share x, where r is 0.5 if it is not given."""
    cooldown = CooldownScheduler(LinearScheduler(1.0, 1.0), "10ba", decay="exponential", **rate)
    assert cooldown.at("15ba", Horizon("20ba")) == pytest.approx(middle, rel=1e-15)


def test_the_decay_branch_of_a_checkpoint():
    """Loaded silently into a run of any length or ratio, resumed twice, and a branch of the branch."""
    bound, clock = made(COSINE, "100ba"), Clock("100ba")
    run(bound, 40)
    state = json.loads(json.dumps(bound.state_dict()))
    clock.load_state_dict(state["clock"])
    branch = COSINE.cooldown(at=clock, t_decay="0.2dur", decay="linear")
    start = COSINE.at("40ba", Horizon("100ba"))
    values = [start * (20 - n) / 20 for n in range(1, 21)] + [0.0] * 5
    for duration, ratio in (("100ba", 1.0), ("60ba", 1.0), ("1000ba", 0.5)):
        one, again = made(branch, duration, ssr=ratio), made(branch, "70ba")
        one.load_state_dict(state)
        assert one.get_last_lr() == [start]
        first = run(one, 5)
        again.load_state_dict(json.loads(json.dumps(one.state_dict())))
        assert first + run(again, 20) == pytest.approx(values, abs=1e-15)
        deeper = made(branch.cooldown(at=one.clock, t_decay="4ba", alpha_f=0.1), "10ba", ssr=3.0)
        deeper.load_state_dict(one.state_dict())
        assert deeper.get_last_lr() == one.get_last_lr() and run(deeper, 8)[3:] == [0.1] * 5


def test_the_ratio_of_the_run_stretches_the_decay_and_not_the_moment():
    bound = made(COSINE, "100ba", ssr=0.5)
    run(bound, 20)
    branch = COSINE.cooldown(bound.clock, "10ba", decay="linear")
    for horizon in (Horizon("100ba", ssr=0.5), Horizon("7ep")):
        assert [branch.at(f"{n}ba", horizon) for n in (20, 25)] == [branch(bound.clock), 0.0]


@pytest.mark.parametrize("t_decay", ["30tok", "10ba", "10sp", "0.1dur", "2ep", "5sec"])
def test_a_cooldown_in_any_unit_of_a_schedule_in_several(t_decay):
    """No rate is needed: the value is that of the moment, and the decay is counted in its own unit."""
    schedule = ProductScheduler([LinearScheduler(t_max="100ba"), LinearScheduler(t_max="500tok")])
    bound = made(schedule, "100ba")
    run(bound, 40)
    assert schedule.cooldown(bound.clock, t_decay)(bound.clock) == schedule(bound.clock) == bound.get_last_lr()[0]


def test_what_is_no_moment_of_a_run():
    with pytest.raises(TypeError, match="at='5ba'"):
        COSINE.cooldown("5ba", "5ba")
    with pytest.raises(ValueError, match="harmonic"):
        COSINE.cooldown(Clock("10ba"), "5ba", decay="harmonic")
