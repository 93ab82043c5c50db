"""Cooldowns: branches of a checkpoint that decay from the value that was reached."""

import json

import pytest
import torch

import timesched
from timesched import (
    Clock,
    CooldownScheduler,
    CosineAnnealingScheduler,
    Horizon,
    LinearScheduler,
    PowerScheduler,
    ProductScheduler,
    SequenceScheduler,
    TimeError,
    WarmupStableDecayScheduler,
    bind,
)

COSINE = CosineAnnealingScheduler()
STABLE = WarmupStableDecayScheduler("10ba", t_decay="0.1dur")


def sgd():
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)


def made(schedule, duration, **rates):
    clock, optimizer = Clock(duration, **rates), sgd()
    return clock, optimizer, bind(schedule, optimizer, clock)


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
    assert eval(repr(branch), vars(timesched)) == branch


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
