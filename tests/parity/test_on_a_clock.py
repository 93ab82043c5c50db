"""Schedulers written for Composer on our `Clock`: its own classes and subclasses have the values of its own State."""

from __future__ import annotations

import copy
import datetime
import pickle
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import composer.optim
import pytest
import torch
from composer.core import State
from composer.core import Time as ComposerTime
from composer.core import TimeUnit as ComposerUnit
from composer.optim import ComposerScheduler
from composer.optim.scheduler import _convert_time

from tests.building import sgd, tick, values
from tests.parity.rows import BATCHES_PER_EPOCH, LENGTHS, RATIOS, TABLE, scaled, state_of, variants
from timesched import Clock, LinearScheduler, bind
from timesched.drawing.schedulers import sources
from timesched.integrations.common import Binding, CountingSchedulers, Schedulers
from timesched.time.units import TimeUnit

SAMPLES, TOKENS = 4, 40  # of a batch

Line, Cosine = composer.optim.LinearScheduler, composer.optim.CosineAnnealingWithWarmupScheduler


class RootWithCooldown(ComposerScheduler):
    """An inverse root after a warmup, and a line at the end: it reads and compares times as LLM Foundry's does."""

    def __init__(self, t_warmup: Any, t_cooldown: Any, t_max: Any = "1dur") -> None:
        self.t_warmup, self.t_cooldown, self.t_max = t_warmup, t_cooldown, t_max
        self.warmup = composer.optim.LinearScheduler(0.0, 1.0, t_warmup)

    def __call__(self, state: State, ssr: float = 1.0) -> float:
        assert state.max_duration is not None
        if ComposerTime.from_input(self.t_warmup).unit != ComposerTime.from_input(state.max_duration).unit:
            raise ValueError("The warmup is not in the unit of the run.")
        t_warmup = _convert_time(self.t_warmup, state)
        if state.timestamp < t_warmup:
            return float(self.warmup(state))
        start = _convert_time(self.t_max, state, ssr) - _convert_time(self.t_cooldown, state, ssr)
        now = state.timestamp.get(t_warmup.unit)
        if now <= start:
            return float((t_warmup / now).value ** 0.5)
        left = 1.0 - ((now - start) / _convert_time(self.t_cooldown, state, ssr)).value
        return float((t_warmup / start).value ** 0.5 * max(0.0, left))


class HalfInEpochs(ComposerScheduler):
    """It reads the length of an epoch and each counter by its name, and keeps what it has computed once."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        self.batches: int | None = None

    def __call__(self, state: State, ssr: float = 1.0) -> float:
        if self.batches is None:
            assert isinstance(state.dataloader_len, ComposerTime)
            self.batches = int(self.epochs * int(state.dataloader_len) * ssr)
        stamp = state.timestamp
        done = stamp.batch.value / self.batches
        assert stamp.sample == ComposerTime(SAMPLES, "sp") * stamp.batch.value and stamp.token >= stamp.sample.value
        assert stamp.batch_in_epoch < state.dataloader_len and stamp.epoch <= stamp.batch.value
        assert stamp.get("sec").value == int(stamp.total_wct.total_seconds())
        return float(0.5**done)


class OfStateAlone(ComposerScheduler):
    """It cannot follow a ratio."""

    def __call__(self, state: State) -> float:  # type: ignore[override]
        return 1.0 if state.timestamp < ComposerTime(1, ComposerUnit.EPOCH) else 0.5


class ReadsTheModel(ComposerScheduler):
    """It needs more of the state than a clock has."""

    def __call__(self, state: State, ssr: float = 1.0) -> float:
        return float(state.model.factor)  # type: ignore[arg-type]


def counts() -> dict[str, int]:
    return {"samples": SAMPLES, "tokens": TOKENS}


def after_a_batch(state: State) -> None:
    """Count as Composer's Trainer does after a batch and after an epoch."""
    state.timestamp = state.timestamp.to_next_batch(SAMPLES, TOKENS, datetime.timedelta(0))
    if state.timestamp.batch_in_epoch == BATCHES_PER_EPOCH:
        state.timestamp = state.timestamp.to_next_epoch()


def clock_of(length: str, ratio: float = 1.0, **rates: Any) -> Clock:
    return Clock(length, ssr=ratio, **{"batches_per_epoch": BATCHES_PER_EPOCH, **rates})


@pytest.fixture(autouse=True)
def no_warning_of_an_empty_warmup() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The warmup duration is 0")
        yield


def refuses(schedule: Any, state: State, clock: Clock) -> bool:
    """Whether a scheduler does not suit a run: then `bind` raises its own error, and changes nothing."""
    try:
        copy.deepcopy(schedule)(state, clock.ssr)
    except ValueError as error:
        optimizer = sgd()
        with pytest.raises(ValueError) as refusal:
            bind(schedule, optimizer, clock)
        assert str(refusal.value) == str(error) and values(optimizer) == [1.0]
        assert "initial_lr" not in optimizer.param_groups[0]
        return True
    return False


def count_equal_runs(schedules: list[Any], unit: str, ratio: float) -> int:
    """How many of the schedulers suit a run in a unit; asserts that they have Composer's values, bit for bit."""
    state, clock = state_of(scaled(unit, ratio)), clock_of(f"{LENGTHS[unit]}{unit}", ratio)
    assert str(clock.max_duration) == str(state.max_duration)
    suitable = [one for one in schedules if not refuses(one, state, clock)]
    optimizers = [sgd() for _ in suitable]
    bound = [bind(copy.deepcopy(one), optimizer, clock) for one, optimizer in zip(suitable, optimizers)]
    for batch in range(int(64 * ratio) + 4):  # and past the end
        if batch % 4 in (0, 3):  # all times of the table are a multiple of 4 batches
            for one, optimizer, scheduler in zip(suitable, optimizers, bound):
                scheduler.step()
                assert values(optimizer) == [one(state, ratio)], (vars(one), unit, batch)
        assert clock.done is (batch >= 64 * ratio)
        after_a_batch(state)
        tick(clock, 1, duration=datetime.timedelta(0), **counts())
    return len(suitable)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("name", TABLE)
def test_the_thirteen_of_composer(name: str, ratio: float) -> None:
    schedules = [getattr(composer.optim, name)(**given) for given in variants(name)]
    for unit in ("ba", "ep"):
        assert count_equal_runs(schedules, unit, ratio) >= 2


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize(("unit", "t_warmup", "t_cooldown"), [("ba", "8ba", "20ba"), ("ep", "1ep", "2ep")])
def test_subclasses(unit: str, t_warmup: str, t_cooldown: str, ratio: float) -> None:
    roots = [RootWithCooldown(t_warmup, t_cooldown, t_max) for t_max in ("1dur", f"{LENGTHS[unit]}{unit}")]
    assert count_equal_runs([*roots, HalfInEpochs(2)], unit, ratio) == 3


def test_a_subclass_that_takes_the_state_alone() -> None:
    clock, optimizer = clock_of("2ep"), sgd()
    scheduler = bind(OfStateAlone(), optimizer, clock)
    tick(clock, BATCHES_PER_EPOCH - 1, scheduler)
    assert values(optimizer) == [1.0]
    tick(clock, 1, scheduler)
    assert values(optimizer) == [0.5]
    with pytest.raises(ValueError, match="ssr=0.5: .* takes the state alone"):
        bind(OfStateAlone(), optimizer, clock_of("2ep", 0.5))


# Errors

ADVICE = "Give the clock batches_per_epoch"


@pytest.mark.parametrize(
    ("schedule", "clock", "message"),
    [
        (Line(t_max="2ep"), Clock("64ba"), rf"LinearScheduler: .* is None\. {ADVICE}"),
        (Line(), Clock("8ep"), rf"LinearScheduler: .*dataloader_len .*{ADVICE}"),
        (Cosine("8sp"), Clock("64ba"), "Cannot use warmup scheduler .* 64ba"),
        (Line(t_max="60sec"), Clock("64ba"), "Wall clock time not an allowed time unit"),
        (
            Line(),
            Clock("101ba", ssr=0.5),
            r"Clock.max_duration=50\.5ba: Composer",
        ),
        (
            Line(),
            Clock("0.5ep", batches_per_epoch=8),
            r"Clock.max_duration=0\.5ep: Composer",
        ),
    ],
)
def test_what_bind_refuses(schedule: Any, clock: Clock, message: str) -> None:
    optimizer = sgd()
    keys = set(optimizer.param_groups[0])
    with pytest.raises(ValueError, match=message):
        bind(schedule, optimizer, clock)
    assert values(optimizer) == [1.0] and set(optimizer.param_groups[0]) == keys


def test_what_a_clock_does_not_have() -> None:
    with pytest.raises(AttributeError) as error:
        bind(ReadsTheModel(), sgd(), clock_of("64ba"))
    assert str(error.value) == (
        "state.model: a clock has timestamp, max_duration and dataloader_len alone. Use this scheduler in Composer's "
        "Trainer."
    )


def test_units_that_meet_late_in_a_run() -> None:
    """Composer compares them when it comes to them; the step that fails writes nothing."""
    clock, optimizer = clock_of("64ba"), sgd()
    scheduler = bind(RootWithCooldown("8ba", "16sp"), optimizer, clock)
    tick(clock, 7, scheduler)
    clock.tick()
    with pytest.raises(ValueError, match=r"RootWithCooldown: Cannot subtract 16sp"):
        scheduler.step()
    assert values(optimizer) == [7 / 8] and scheduler.last_epoch == 7


def test_a_length_that_is_no_whole_count_leaves_the_run_as_it_is() -> None:
    clock, optimizer = clock_of("8ep"), sgd()
    scheduler = bind(Line(), optimizer, clock)
    tick(clock, 16, scheduler)
    with pytest.raises(ValueError, match=r"Clock.max_duration=8\.5ep"):
        clock.extend("8.5ep")
    assert str(clock.max_duration) == "8ep"
    clock.extend("16ep")
    assert values(optimizer) == [1 - 16 / 128]
    clock.end_after("2ep")
    assert values(optimizer) == [0.5]


# Binding, saving and drawing


def test_any_hyperparameter_and_products() -> None:
    """With tags, and multiplied by a schedule of timesched and by a function, which is given the clock itself."""
    clock = clock_of("64ba")

    def half(state: Any) -> float:
        assert state is clock
        return 0.5

    optimizer = sgd({"tags": "body"}, {"tags": "head"}, weight_decay=0.5)
    decay = bind(Line(), optimizer, clock, "weight_decay", tags="body")
    rate = bind([Line(), LinearScheduler(), half], optimizer, clock)
    tick(clock, 32, decay, rate)
    assert values(optimizer, "weight_decay") == [0.25, 0.5] and values(optimizer) == [0.125, 0.125]
    assert decay.named_values() == {"weight_decay/body": 0.25}
    assert rate.named_values() == {"lr/body": 0.125, "lr/head": 0.125}
    assert "LinearScheduler, on <Clock at 32ba" in repr(decay)


def test_a_resumed_run(tmp_path: Any) -> None:
    """Its state is plain values, and a copy, a pickle and a load continue with the same values."""
    schedule = RootWithCooldown("8ba", "20ba")
    clock, optimizer = clock_of("64ba"), sgd()
    scheduler = bind(schedule, optimizer, clock)
    tick(clock, 20, scheduler, **counts())
    torch.save(scheduler.state_dict(), tmp_path / "state.pt")
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    copies = [copy.deepcopy(scheduler), pickle.loads(pickle.dumps(scheduler))]
    resumed = bind(RootWithCooldown("8ba", "20ba"), sgd(), clock_of("64ba"))
    resumed.load_state_dict(saved)
    for other in (resumed, *copies):
        tick(other.clock, 30, other, **counts())
    tick(clock, 30, scheduler, **counts())
    assert {other.get_last_lr()[0] for other in (scheduler, resumed, *copies)} == {(8 / 44) ** 0.5 * 14 / 20}


def test_a_state_of_other_arguments() -> None:
    """A load compares the values at that moment, as the text in a state is the name of the class alone."""
    saved_by = bind(Cosine("8ba", alpha_f=0.1), sgd(), clock_of("64ba"))
    tick(saved_by.clock, 4, saved_by)
    in_warmup = saved_by.state_dict()
    assert in_warmup["schedule"] == "CosineAnnealingWithWarmupScheduler"
    other = bind(Cosine("8ba", alpha_f=0.2), sgd(), clock_of("64ba"))
    other.load_state_dict(in_warmup)
    tick(saved_by.clock, 32, saved_by)
    halfway = saved_by.state_dict()
    with pytest.raises(ValueError, match=r"\[0\.55\] saved, \[0\.60+1"):
        other.load_state_dict(halfway)
    assert other.clock.timestamp.batch == 4 and other.get_last_lr() == [0.5]
    anew = bind(Cosine("8ba", alpha_f=0.2), sgd(), clock_of("64ba"), on_change="new")
    anew.load_state_dict(halfway)
    assert anew.clock.timestamp.batch == 36 and anew.get_last_lr()[0] == pytest.approx(0.6, rel=1e-15)


def test_a_load_in_the_middle_of_an_epoch_with_another_batch_size() -> None:
    """The value is compared at a fraction of a batch, 15/8, and the run continues at the batch before."""
    saved_by = bind(Line(), sgd(), clock_of("8ep"))
    tick(saved_by.clock, 3, saved_by)
    longer = bind(Line(), sgd(), clock_of("8ep", batches_per_epoch=5), on_change="new")
    longer.load_state_dict(saved_by.state_dict())
    assert longer.clock.timestamp.batch_in_epoch == 1 and longer.get_last_lr() == [1 - 3 / 40]
    with pytest.raises(ValueError, match="the state is of a different schedule"):
        bind(Line(), sgd(), clock_of("8ep", batches_per_epoch=5)).load_state_dict(saved_by.state_dict())


def test_it_cannot_be_drawn() -> None:
    scheduler = bind(Line(), sgd(), clock_of("64ba"))
    with pytest.raises(TypeError, match="cannot be drawn"):
        sources(scheduler)
    assert "no picture: BoundLR cannot be drawn" in scheduler._repr_html_()


@pytest.mark.parametrize(
    ("schedule", "length", "units"),
    [
        (Line(), "64ba", {TimeUnit.BATCH}),
        (Line(), "8ep", {TimeUnit.BATCH}),  # into which Composer converts epochs
        (Line(t_max="640tok"), "64ba", {TimeUnit.TOKEN}),
        (composer.optim.MultiStepScheduler(["4sp", "0.5dur"]), "64ba", {TimeUnit.SAMPLE, TimeUnit.BATCH}),
        ([Line(t_max="640tok"), LinearScheduler(t_max="64sp")], "64ba", {TimeUnit.TOKEN, TimeUnit.SAMPLE}),
    ],
)
def test_the_units_that_it_reads(schedule: Any, length: str, units: set[TimeUnit]) -> None:
    """The adapters refuse a run that does not count one of these units."""
    assert bind(schedule, sgd(), clock_of(length)).units() == units


def test_in_the_adapters_of_trainers() -> None:
    """Their common base counts, steps, saves and refuses as with the schedules of timesched."""
    entries = [Line(t_max="640tok"), Binding(Cosine("8ba"), "weight_decay")]
    optimizer = sgd(weight_decay=0.5)
    schedulers = CountingSchedulers(optimizer, clock_of("64ba"), entries)
    with pytest.raises(ValueError, match="tokens: the run counts them"):
        schedulers.tick({"samples": SAMPLES})
    for _ in range(8):
        schedulers.tick(counts())
        schedulers.step()
    assert values(optimizer) == [0.5] and values(optimizer, "weight_decay") == [0.5]
    resumed = Schedulers(sgd(weight_decay=0.5), clock_of("64ba"), entries)
    resumed.load_state_dict(schedulers.state_dict())
    assert resumed.named_values() == {"lr": 0.5, "weight_decay": 0.5} and resumed.clock.timestamp.token == 320


def test_composers_own_state_is_passed_on() -> None:
    class Asks(ComposerScheduler):
        def __call__(self, state: State, ssr: float = 1.0) -> float:
            assert isinstance(state, State)
            return ssr

    scheduler = bind(Asks(), sgd(), state_of("64ba"), ssr=0.5)
    assert scheduler.get_last_lr() == [0.5]
    scheduler.load_state_dict(scheduler.state_dict())  # its moment is not known, so no value is compared


WITHOUT_COMPOSER = """
import sys, torch, optim, timesched

class Half(timesched.ComposerScheduler):
    def __call__(self, state, ssr=1.0):
        return 0.5

optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
clock = timesched.Clock("4ba")
scheduler = timesched.bind([timesched.LinearScheduler(), Half(), lambda state: 0.5], optimizer, clock)
clock.tick(); scheduler.step(); scheduler.load_state_dict(scheduler.state_dict()); scheduler.units(); repr(scheduler)
assert optimizer.param_groups[0]["lr"] == 0.1875
print([name for name in sys.modules if name.partition(".")[0] == "composer"])
"""


def test_composer_is_imported_for_its_own_classes_only() -> None:
    run = [sys.executable, "-c", WITHOUT_COMPOSER]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == "[]\n"
