"""HalfLife and weight_decay_for: the values in exact rationals, how they are bound, and where they are refused."""

import copy
import inspect
import math
import pickle
import re
from decimal import Decimal, localcontext
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import optim
from tests.building import sgd, tick, values
from tests.laws.growing_runs import runs_with_batch_sizes
from timesched import (
    BatchSizeSchedule,
    Clock,
    ConstantScheduler,
    CooldownScheduler,
    HalfLife,
    Horizon,
    LinearScheduler,
    ProductScheduler,
    SequenceScheduler,
    Time,
    Timestamp,
    TimeUnit,
    WarmupScheduler,
    bind,
    compile_composer_scheduler,
    weight_decay_for,
)
from timesched.integrations.common import Binding, Schedulers
from timesched.testing.runs import COUNTED, RATIOS, runs

BETAS = st.one_of(st.just(0.5), st.floats(1e-3, 0.99999))
RUN = Horizon("1e9tok", batches_per_epoch=50, samples_per_batch=64, tokens_per_sample=1000)


def adam(**group):
    return torch.optim.Adam([torch.nn.Parameter(torch.ones(1))], **{"lr": 0.1, "betas": (0.9, 0.95), **group})


# The values


def lengths(run, batches):
    """The samples of each step of a run, by its batch-size schedule on a clock."""
    clock = Clock(
        run.time(run.batches, run.unit),
        batches_per_epoch=run.batches_per_epoch,
        samples_per_batch=getattr(run, "batch_sizes", run.samples_per_batch),
        tokens_per_sample=run.tokens_per_sample,
    )
    found = []
    for _ in range(batches):
        found.append(run.batch_sizes.at(clock) if hasattr(run, "batch_sizes") else run.samples_per_batch)
        clock.tick()
    return found


def amount(run, unit, samples):
    """How much of a unit a step of so many samples is."""
    sizes = {TimeUnit.BATCH: 1, TimeUnit.SAMPLE: samples, TimeUnit.TOKEN: samples * run.tokens_per_sample}
    return Fraction(sizes[unit]) if unit in sizes else Fraction(1, run.batches_per_epoch)


def exponents(run, time, samples):
    """The oracle: the length of each step over the time, in rationals."""
    if time.unit is TimeUnit.DURATION:
        end = run.time(run.batches, run.unit)
        time = Time._make(time.exact * end.exact, run.unit)
    return [amount(run, time.unit, each) / Fraction(time.exact) for each in samples]


@st.composite
def times(draw, run):
    unit = draw(st.sampled_from((*COUNTED, TimeUnit.DURATION)))
    if unit in (TimeUnit.EPOCH, TimeUnit.DURATION):
        return Time(draw(st.fractions(Fraction(1, 10**4), 100)), unit)
    return Time(draw(st.integers(1, 10**12)), unit)


@given(st.data(), runs() | runs_with_batch_sizes(), BETAS)
def test_the_exponent_is_exact(data, run, beta):
    """At every step of a run: the power of the one float that is nearest to the exponent."""
    time = data.draw(times(run))
    schedule, n = HalfLife.of(beta, time), min(run.batches, 30)
    expected = [beta ** float(x) for x in exponents(run, time, lengths(run, n))]
    assert [schedule._current_value(run.state(batch), None) for batch in range(n)] == expected
    assert [schedule.at(Time(batch, "ba"), run.horizon()) for batch in range(n)] == expected


@given(st.fractions(Fraction(1, 10**6), 20), BETAS)
def test_the_power_is_right_to_its_last_bits(x, beta):
    run = Horizon("10ba", batches_per_epoch=Fraction(1) / x)
    with localcontext() as context:
        context.prec = 60
        exact = Decimal(beta) ** (Decimal(x.numerator) / Decimal(x.denominator))
        found = Decimal(HalfLife.of(beta, "1ep").at("0ba", run))
        # half a last bit of the exponent, and one of the power
        assert abs(found / exact - 1) <= Decimal((abs(math.log(beta)) * float(x) / 2 + 1) * 2.0**-52)


@given(st.data(), runs() | runs_with_batch_sizes(), BETAS)
def test_what_is_kept_depends_on_the_time_alone(data, run, beta):
    """After n steps of any lengths, as much is kept as after one step that is as long as all of them."""
    n = data.draw(st.integers(1, min(run.batches, 40)))
    horizon = run.horizon()
    done = int(horizon.change(n, TimeUnit.BATCH, TimeUnit.TOKEN))
    time = Time(data.draw(st.integers(max(1, done // 20), done * 20)), "tok")
    steps = [HalfLife.of(beta, time).at(Time(batch, "ba"), horizon) for batch in range(n)]
    one = HalfLife.of(beta, time).at("0ba", Horizon("1ba", samples_per_batch=done, tokens_per_sample=1))
    x = abs(math.log(beta)) * done / time.exact
    assume(one > 1e-300)  # smaller ones have fewer bits
    assert math.prod(steps) == pytest.approx(one, rel=(2 * n + 2 + x) * 2.0**-52, abs=0)


def test_two_batch_sizes_and_a_schedule_of_sizes_keep_the_same_share():
    """By hand: 64,000 samples in 1000, in 250, and in 400 steps, some of 64 and some of 256; half-life 32,000."""
    sizes = BatchSizeSchedule({"0sp": 64, "12800sp": 256})
    for samples, steps in ((64, 1000), (256, 250), (sizes, 400)):
        optimizer, clock = adam(), Clock("64000sp", samples_per_batch=samples)
        scheduler, kept = bind(HalfLife("32000sp"), optimizer, clock, key="betas[1]"), 1.0
        while not clock.done:
            kept *= optimizer.param_groups[0]["betas"][1]
            clock.tick()
            scheduler.step()
        assert (clock.timestamp.batch, kept) == (steps, pytest.approx(0.25, rel=1e-12))


@given(st.data(), runs(), BETAS, RATIOS)
def test_the_ratio_stretches_a_share_of_the_run_alone(data, run, beta, sigma):
    """The ratio and the length of a step: that of a batch is not stretched, nor is a time in it."""
    time, batch = data.draw(times(run)), data.draw(st.integers(0, run.batches))
    found = HalfLife.of(beta, time)._current_value(run.state(batch, sigma), None)
    longer = time.exact * sigma if time.unit is TimeUnit.DURATION else time.exact
    (x,) = exponents(run, Time._make(longer, time.unit), [run.samples_per_batch])
    assert found == beta ** float(x)


@given(BETAS, st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_known_beta_is_exactly_that_at_its_batch(beta, samples, tokens):
    run = Horizon("1000ba", batches_per_epoch=samples, samples_per_batch=samples, tokens_per_sample=tokens)
    batch = (Time(samples * tokens, "tok"), f"{samples}sp", "1ba", Time(Fraction(1, samples), "ep"), "1/1000dur")
    assert [HalfLife.of(beta, each).at("7ba", run) for each in batch] == [beta] * 5


def test_the_pair_of_a_known_beta_is_kept_and_shown():
    known = HalfLife.of(0.95, batch="0.5Mtok")
    assert (known.beta, str(known.time), repr(known)) == (0.95, "500000tok", "HalfLife.of(0.95, batch='500000tok')")
    assert repr(HalfLife("2B tok")) == "HalfLife('2000000000tok')" == repr(HalfLife.of(0.5, "2e9tok"))
    assert known == HalfLife("5e5tok", beta=0.95) != HalfLife("5e5tok")
    assert eval(repr(known)) == pickle.loads(pickle.dumps(known)) == copy.deepcopy(known) == known


def test_a_curve_while_batches_change_is_differentiated_and_compiled_in_its_own_unit():
    run = Horizon("100ba", samples_per_batch=BatchSizeSchedule({"0sp": 8, "160sp": 16, "320sp": 64}))
    curve = HalfLife.of(0.9, "16sp").curve(run, "sp")
    counts = torch.tensor([0, 159, 160, 319, 320, 5000])
    expected = [0.9**0.5, 0.9**0.5, 0.9, 0.9, 0.9**4.0, 0.9**4.0]
    assert curve(counts).tolist() == torch.compile(curve, fullgraph=True, backend="eager")(counts).tolist() == expected
    assert HalfLife.of(0.9, "16sp").curve(run, "ba")(torch.tensor([19, 20, 30])).tolist() == [0.9**0.5, 0.9, 0.9**4.0]


@pytest.mark.parametrize(
    ("time", "rates", "words"),
    [
        ("5tok", {}, "1ba cannot be converted to tok without samples_per_batch and tokens_per_sample."),
        ("5tok", {"samples_per_batch": 8}, "to tok without tokens_per_sample"),
        ("5tok", {"samples_per_batch": BatchSizeSchedule({"0sp": 8, "160sp": 16})}, "to tok without tokens_per_sample"),
        ("5sp", {"batches_per_epoch": 8, "tokens_per_sample": 8}, "to sp without samples_per_batch"),
        ("5ep", {"samples_per_batch": 8}, "to ep without batches_per_epoch"),
        ("5sec", {}, "to sec: no conversion factor"),
        ("5iter", {}, "to iter: no conversion factor"),
    ],
)
def test_a_missing_conversion_factor_is_named(time, rates, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        HalfLife(time).at("0ba", Horizon("10ba", **rates))


def test_a_beta_follows_the_rates_and_not_what_tick_is_given():
    optimizer, clock = sgd(momentum=0.9), Clock("10ba", samples_per_batch=4)
    scheduler = bind(HalfLife("4sp"), optimizer, clock, key="momentum")
    for samples in (4, 1, 100):
        clock.tick(samples=samples), scheduler.step()
        assert optimizer.param_groups[0]["momentum"] == 0.5


def test_a_share_of_a_run_needs_its_length():
    assert HalfLife("1ba").at("0ba", Horizon(None)) == 0.5  # nothing is known, and nothing is needed
    with pytest.raises(ValueError, match="0.1dur needs the length of the run"):
        HalfLife("0.1dur").at("0ba", Horizon(None))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: HalfLife("0tok"), "HalfLife.time='0tok'"),
        (lambda: HalfLife("-5ba"), "HalfLife.time='-5ba'"),
        (lambda: HalfLife(5), "HalfLife.time: 5 has no unit"),
        (lambda: HalfLife("5"), "HalfLife.time: '5' has no unit"),
        (lambda: HalfLife("infba"), "'infba' is not a time"),
        (lambda: HalfLife.of(0.95, batch="0sp"), "HalfLife.time='0sp'"),
        (lambda: HalfLife.of(0.95, batch=256), "256 has no unit"),
        *(((lambda b=b: HalfLife.of(b, "1ba")), f"beta={b}: the value is not below 1") for b in (1, 1.0, 1.5)),
        *(((lambda b=b: HalfLife.of(b, "1ba")), f"beta={b}: the value is not above 0") for b in (0, -0.5)),
        (lambda: HalfLife.of(math.nan, "1ba"), "HalfLife.beta=nan: it is not finite"),
        (lambda: HalfLife.of(True, "1ba"), "HalfLife.beta=True: a bool"),
        (lambda: weight_decay_for("0tok", 0.1, RUN), "weight_decay_for.time='0tok'"),
        (lambda: weight_decay_for(5, 0.1, RUN), "weight_decay_for.time: 5 has no unit"),
        (lambda: weight_decay_for("5tok", 0.0, RUN), "weight_decay_for.lr=0.0: it is not above 0"),
        (lambda: weight_decay_for("5tok", -0.1, RUN), "weight_decay_for.lr=-0.1: it is not above 0"),
        (lambda: weight_decay_for("5tok", 0.1, Horizon("9ba")), "without samples_per_batch and tokens_per_sample"),
        (lambda: weight_decay_for("5sec", 0.1, RUN), "5sec cannot be converted to ba: no"),
        *(
            (
                lambda time=time: weight_decay_for(
                    time, 0.1, Clock("9ba", samples_per_batch=BatchSizeSchedule({"0sp": 8, "16sp": 16}))
                ),
                f"{time} has no single number of steps",
            )
            for time in ("5sp", "5ba")
        ),
    ],
)
def test_what_is_refused(call, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        call()


# Bound


def test_it_is_written_as_it_is():
    """To floats and tensors, of one group or all, whatever was there; on a clock and on another state."""
    tensor = torch.tensor(0.3, dtype=torch.float64)
    optimizer = sgd(momentum=0.9)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], "momentum": tensor, "tags": "head"})
    clock = Clock("100ba", samples_per_batch=BatchSizeSchedule({"0sp": 8, "16sp": 16}))
    scheduler = bind(HalfLife("8sp"), optimizer, clock, key="momentum")
    seen = []
    for _ in range(3):
        seen.append(values(optimizer, "momentum"))
        clock.tick()
        scheduler.step()
    assert seen == [[0.5, 0.5], [0.5, 0.5], [0.25, 0.25]] and optimizer.param_groups[1]["momentum"] is tensor
    assert [group["initial_momentum"] for group in optimizer.param_groups] == [0.9, 0.3]
    bind(HalfLife("1ba"), optimizer, clock, key="momentum", tags="head")
    assert values(optimizer, "momentum") == [0.25, 0.5]
    state = SimpleNamespace(timestamp=Timestamp(), max_duration="8ep", dataloader_len=4)
    other = adam()
    bind(HalfLife("0.25ep"), other, state, key="betas[1]")
    assert other.param_groups[0]["betas"] == (0.9, 0.5)


HALF_LIVES = [HalfLife("6400sp"), HalfLife("1600sp")]


def resumed(schedule, length, size, saved=None, on_change="same"):
    """A run with a half-life, after ten batches or from a state."""
    clock, optimizer = Clock(length, samples_per_batch=size), adam()
    scheduler = bind(schedule, optimizer, clock, key="betas[1]", on_change=on_change)
    if saved is not None:
        scheduler.load_state_dict(saved)
        return optimizer.param_groups[0]["betas"][1], clock
    tick(clock, 10, scheduler)
    return scheduler.state_dict()


@pytest.mark.parametrize(
    ("schedule", "length", "value"),
    [
        (HalfLife("6400sp"), "64000sp", 0.5 ** (128 / 6400)),
        (HalfLife("6400sp"), "128000sp", 0.5 ** (128 / 6400)),  # a longer run too, where no time is a share of it
        (HalfLife("0.1dur"), "64000sp", 0.5 ** (128 / 6400)),
        (SequenceScheduler(HALF_LIVES, ["100sp"]), "64000sp", 0.5 ** (128 / 1600)),
        (SequenceScheduler(HALF_LIVES, ["0.5dur"]), "64000sp", 0.5 ** (128 / 6400)),
    ],
)
def test_a_run_is_resumed_with_another_batch_size(schedule, length, value):
    """The same number of tokens is remembered."""
    saved = resumed(schedule, "64000sp", 64)
    beta, clock = resumed(schedule, length, 128, saved)
    assert beta == value and clock.timestamp.sample == 640


@pytest.mark.parametrize(
    ("schedule", "other", "length"),
    [
        (HalfLife("6400sp"), HalfLife("640sp"), "64000sp"),
        (HalfLife("0.1dur"), HalfLife("0.1dur"), "100000sp"),
        (SequenceScheduler(HALF_LIVES, ["0.005dur"]), SequenceScheduler(HALF_LIVES, ["0.005dur"]), "1e6sp"),
    ],
)
def test_another_half_life_is_refused_or_taken_as_new(schedule, other, length):
    saved = resumed(schedule, "64000sp", 64)
    with pytest.raises(ValueError, match=r"\[0\.9\d+\] saved, \[0\.\d+\] now"):
        resumed(other, length, 128, saved)
    _, clock = resumed(other, length, 128, saved, on_change="new")
    assert clock.timestamp.sample == 640


def test_a_state_of_a_half_life_has_its_value_alone():
    saved = resumed(HALF_LIVES[0], "64000sp", 64)
    same = bind(HALF_LIVES[0], adam(), Clock("64000sp", samples_per_batch=64), key="betas[1]")
    same.load_state_dict(saved)
    assert same.state_dict() == saved and "base" not in saved and saved["value"] == [0.5**0.01]
    assert not pickle.loads(pickle.dumps(same)).relative


def test_it_comes_from_a_config():
    config = """
        max_duration: 1e6tok
        samples_per_batch: 10
        tokens_per_sample: 100
        optimizer: {AdamW: {lr: 1e-3}}
        schedulers:
        - HalfLife: {time: 4000tok, key: "betas[1]"}
        - SequenceScheduler:
            {schedules: [HalfLife: {time: 500tok, beta: 0.9}, HalfLife: {time: 2K tok}], milestones: [1500tok],
             key: "betas[0]"}
    """
    pytest.importorskip("ruamel.yaml")
    built = optim.build(torch.nn.Linear(2, 2), config)
    seen = []
    for _ in range(3):
        seen.append(built.optimizer.param_groups[0]["betas"])
        built.clock.tick()
        for scheduler in built.schedulers:
            scheduler.step()
    assert seen == [(0.9**2.0, 0.5**0.25), (0.9**2.0, 0.5**0.25), (0.5**0.5, 0.5**0.25)]
    with pytest.raises(TypeError, match=re.escape("schedulers[0].HalfLife: HalfLife('4000tok')")):
        optim.build(torch.nn.Linear(2, 2), config.replace(', key: "betas[1]"', "", 1))


# Values and multipliers

ONE, LINE = HalfLife("8sp"), LinearScheduler()
VALUES = SequenceScheduler([ONE, HalfLife("16sp")], ["10ba"])


@pytest.mark.parametrize("value", [ONE, VALUES], ids=["one", "sequence"])
@pytest.mark.parametrize(
    "call",
    [
        lambda value, clock: value(clock),
        lambda value, clock: value(SimpleNamespace(timestamp=Timestamp(), max_duration="8ep", dataloader_len=4)),
        lambda value, clock: torch.optim.lr_scheduler.LambdaLR(adam(), lambda step: value(clock)),
        lambda value, clock: bind(value, adam(), clock),
        lambda value, clock: bind([value], adam(), clock, key="betas[1]"),
        lambda value, clock: bind([LINE, value], adam(), clock, key="betas[1]"),
        lambda value, clock: Binding([LINE, value], "betas[1]"),
        lambda value, clock: Schedulers(adam(), clock, [value]),
        lambda value, clock: compile_composer_scheduler(value, SimpleNamespace(optimizers=[adam()], **vars(clock))),
        lambda value, clock: ProductScheduler([LINE, value]),
        lambda value, clock: ProductScheduler([value]),
        lambda value, clock: SequenceScheduler([LINE, value], ["1ba"]),
        lambda value, clock: SequenceScheduler([value, LINE], ["1ba"]),
        lambda value, clock: WarmupScheduler(value, "1ba"),
        lambda value, clock: CooldownScheduler(value, "1ba"),
        lambda value, clock: value.cooldown(clock, "1ba"),
    ],
    ids=range(16),
)
def test_where_it_would_multiply_the_error_says_how_to_bind_it(value, call):
    with pytest.raises(TypeError) as error:
        call(value, Clock("100ba", samples_per_batch=8))
    assert repr(value) in str(error.value) and "returns values, not multipliers" in str(error.value)
    assert "key='betas[1]'" in str(error.value) and "Binding(..., 'betas[1]')" in str(error.value)


def test_a_refused_learning_rate_is_left_as_it_was():
    optimizer = adam()
    owner = bind(LINE, optimizer, Clock("100ba"))
    with pytest.raises(TypeError, match="not multipliers"):
        bind(ONE, optimizer, Clock("100ba", samples_per_batch=8))
    assert optimizer.param_groups[0]["lr"] == 0.1 and owner.refusal is None


def test_sequences_are_of_values_or_of_multipliers():
    assert not VALUES.relative and SequenceScheduler([LINE, ConstantScheduler()], ["1ba"]).relative
    nested = SequenceScheduler([VALUES, HalfLife("4sp")], ["20ba"])
    run = Horizon("100ba", samples_per_batch=8)
    assert [nested.at(f"{n}ba", run) for n in (9, 10, 20)] == [0.5, 0.5**0.5, 0.25]


@given(st.data(), runs_with_batch_sizes(), BETAS)
def test_in_a_sequence_the_batch_sizes_are_those_of_the_run(data, run, beta):
    """Wherever a half-life begins, each step has the length that it has on the run."""
    assume(run.unit in (TimeUnit.BATCH, TimeUnit.SAMPLE, TimeUnit.TOKEN))
    n = min(run.batches, 60)
    milestone, unit = data.draw(st.integers(1, n)), data.draw(st.sampled_from(COUNTED[1:]))
    first, then = HalfLife(data.draw(times(run))), HalfLife.of(beta, data.draw(times(run)))
    sequence = SequenceScheduler([first, then], [run.time(milestone, unit)])
    found = [sequence._current_value(run.state(batch), None) for batch in range(n)]
    assert found == [
        (first if batch < milestone else then)._current_value(run.state(batch), None) for batch in range(n)
    ]


# The weight decay


@given(st.data(), runs(), st.floats(1e-6, 10))
def test_weight_decay_is_one_over_the_steps_and_the_rate(data, run, lr):
    time = data.draw(times(run))
    (x,) = exponents(run, time, [run.samples_per_batch])
    expected = float(x / Fraction(repr(lr)))
    assert weight_decay_for(time, lr, run.horizon()) == weight_decay_for(str(time), lr, run.state(0)) == expected
    doubled = weight_decay_for(time, lr, run.horizon(2))
    assert doubled == (float(x / 2 / Fraction(repr(lr))) if time.unit is TimeUnit.DURATION else expected)


@pytest.mark.parametrize("make", [torch.optim.AdamW, optim.AdamW, optim.Lion, optim.Muon], ids=lambda cls: repr(cls))
def test_a_weight_shrinks_to_its_share_in_that_time(make):
    """Without gradients, in 1000 steps to (1 - 1 / 1000) ** 1000, which is 1 / e to five parts in ten thousand."""
    weight = torch.nn.Parameter(torch.eye(2, dtype=torch.float64))
    run = Horizon("1e9tok", samples_per_batch=64, tokens_per_sample=1000)
    decay = weight_decay_for("64e6tok", 0.02, run)
    more = {"adjust_lr_fn": "original"} if make is optim.Muon else {}
    optimizer = make([weight], lr=0.02, weight_decay=decay, **more)
    weight.grad = torch.zeros_like(weight)
    for _ in range(1000):
        optimizer.step()
    assert decay == 0.05 and weight[0, 0].item() == pytest.approx(0.999**1000, rel=1e-12)
    assert weight[0, 0].item() == pytest.approx(1 / math.e, rel=1e-3)


# The docstrings


@pytest.mark.parametrize(
    ("thing", "names", "expected"),
    [
        (HalfLife, {"beta": 0.95, "step": 64_000, "time": 500_000}, HalfLife.of(0.95, "0.5Mtok").at("0ba", RUN)),
        (weight_decay_for, {"lr": 0.25, "steps": 1000}, weight_decay_for("64e6tok", 0.25, RUN)),
    ],
    ids=["HalfLife", "weight_decay_for"],
)
def test_equations_of_docstrings(thing, names, expected):
    (equation,) = re.findall(r"\n    (?:y|weight_decay) = (.+)\n", inspect.getdoc(thing))
    assert eval(equation, {}, names) == expected


def test_a_state_of_a_multiplier_is_not_that_of_a_value():
    """Also where both would write the same number."""
    made = []
    for schedule in (ConstantScheduler(0.5), HalfLife("1ba")):
        optimizer = sgd(momentum=0.9)
        made.append(bind(schedule, optimizer, Clock("10ba"), key="momentum"))
    multiplier, value = made
    with pytest.raises(ValueError, match="the state is of a different schedule"):
        value.load_state_dict(multiplier.state_dict())
    with pytest.raises(ValueError, match="it lacks 'base'"):
        multiplier.load_state_dict(value.state_dict())
