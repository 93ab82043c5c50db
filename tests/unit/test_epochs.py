"""The law of epochs in whole runs: epochs are epochs, also after a change of the batch size."""

from types import SimpleNamespace

import pytest
import torch

import optim
from tests.building import sgd, tick
from timesched import (
    Clock,
    CosineAnnealingScheduler,
    LinearWithWarmupScheduler,
    MultiStepScheduler,
    WarmupStableDecayScheduler,
    bind,
)
from timesched.testing.laws import Moment
from timesched.time import Time, Timestamp


def scheduled(schedule, batches_per_epoch, epochs=12, **options):
    optimizer = sgd()
    clock = Clock(f"{epochs}ep", batches_per_epoch=batches_per_epoch)
    return optimizer.param_groups[0], clock, bind(schedule, optimizer, clock, **options)


@pytest.mark.parametrize("lengths", [(10, 5), (5, 10), (10, 7), (7, 1)])
@pytest.mark.parametrize("done", [30, 33, 58])
@pytest.mark.parametrize(
    "schedule",
    [
        MultiStepScheduler(["4ep", "0.75dur"]),
        WarmupStableDecayScheduler("1ep", "0.25dur"),
        CosineAnnealingScheduler(t_max="12ep"),
        LinearWithWarmupScheduler("2ep"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_run_goes_on_with_other_batches(schedule, done, lengths):
    """It ends after the same number of epochs, and every epoch begins with the same value."""
    before, after = lengths
    _, clock, scheduler = scheduled(schedule, before)
    tick(clock, done, scheduler)
    epoch, share = divmod(done, before)
    group, resumed, again = scheduled(schedule, after)
    again.load_state_dict(scheduler.state_dict())
    stamp = resumed.timestamp
    assert (stamp.epoch, stamp.batch_in_epoch, stamp.batch) == (epoch, share * after // before, done)
    left = (12 - epoch) * after - share * after // before
    for _ in range(left):
        assert not resumed.done
        assert group["lr"] == schedule.at(Time(stamp.epoch.value, "ep"), resumed) or stamp.batch_in_epoch > 0
        tick(resumed, 1, again)
        stamp = resumed.timestamp
    assert resumed.done and stamp.epoch == 12 and stamp.batch == done + left


def test_values_are_compared_at_the_place_that_was_saved():
    """Batch 5 of 10 is between two batches of 5: a cosine has the same value there, and goes on from the batch before.

    What mixes units has another one.
    """
    for schedule, alike in ((CosineAnnealingScheduler(), True), (LinearWithWarmupScheduler("20ba"), False)):
        _, clock, scheduler = scheduled(schedule, 10)
        tick(clock, 45, scheduler)
        group, resumed, again = scheduled(schedule, 5)
        if not alike:
            with pytest.raises(ValueError, match="on_change='new'"):
                again.load_state_dict(scheduler.state_dict())
            assert resumed.timestamp == Timestamp()
        group, resumed, again = scheduled(schedule, 5, on_change="same" if alike else "new")
        again.load_state_dict(scheduler.state_dict())
        assert resumed.timestamp.batch_in_epoch == 2 and group["lr"] == schedule(resumed)


def test_an_epoch_is_at_most_as_long_as_its_batches():
    """The batches beyond those of an epoch, which a state of other epochs may have, do not reach into the next one."""
    clock = Clock("4ep", batches_per_epoch=10)
    late = Moment(clock.horizon, Timestamp(epoch=1, batch=17, batch_in_epoch=25))
    assert CosineAnnealingScheduler()(late) == CosineAnnealingScheduler().at("2ep", clock)
    assert clock.horizon.progress(late.timestamp) == 0.5


def test_epochs_of_their_own_lengths():
    """A clock that is told so counts each by its own batches, and stands where it is told."""
    schedule = CosineAnnealingScheduler(t_max="3ep")
    group, clock, scheduler = scheduled(schedule, 4, epochs=3)
    for epoch, length in enumerate((4, 8, 2)):
        clock._set_epochs(length, clock.timestamp)
        for batch in range(length):
            assert group["lr"] == pytest.approx(schedule.at(Time((epoch * length + batch) / length, "ep"), clock))
            tick(clock, 1, scheduler)
    assert clock.done and clock.timestamp.epoch == 3 and clock.timestamp.batch == 14
    clock._set_epochs(8, Timestamp(epoch=1, batch=9, batch_in_epoch=5))
    assert group["lr"] == schedule.at("13/8ep", clock) and clock.state_dict()["batches_per_epoch"] == 8
    clock._set_epochs(None, clock.timestamp.to_next_epoch())
    assert group["lr"] == schedule.at("2ep", clock) and clock.dataloader_len is None
    with pytest.raises(ValueError, match="batches_per_epoch=0"):
        clock._set_epochs(0, clock.timestamp)


def test_a_branch_of_a_run_of_epochs():
    """A cooldown begins at an epoch, too."""
    clock = Clock("10ep", batches_per_epoch=10)
    tick(clock, 40)
    branch = CosineAnnealingScheduler().cooldown(at=clock, t_decay="2ep", decay="linear")
    assert branch.t_start == Time(4, "ep")
    other = Clock("10ep", batches_per_epoch=5)
    assert [branch.at(time, other) for time in ("4ep", "6ep")] == [CosineAnnealingScheduler()(clock), 0.0]


def test_a_closed_form_of_epochs():
    """The closed forms count the epochs of their clock likewise."""
    rates, saved = [], None
    for length in (10, 5):
        optimizer = sgd()
        clock = Clock("10ep", batches_per_epoch=length)
        scheduler = optim.lr_scheduler.MultiStepLR(optimizer, 1.0, 0.5, ["2ep", "6ep"], clock=clock)
        if saved is not None:
            scheduler.load_state_dict(saved)
        while clock.timestamp.epoch < (4 if not rates else 7):
            tick(clock, 1, scheduler)
            rates.append((clock.timestamp.epoch.value, optimizer.param_groups[0]["lr"]))
        saved = scheduler.state_dict()
    assert [dict(rates)[epoch] for epoch in range(1, 8)] == [1.0, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25]


def test_a_state_of_tensors_is_not_read():
    """Several times at once, each with the value that it has alone, and counts beyond the length of an epoch."""
    epochs, batches = torch.tensor([0, 2, 3, 5]), torch.tensor([3, 9, 10, 40])
    schedule, run = MultiStepScheduler(["3ep", "0.5dur"]), {"max_duration": Time(10, "ep"), "dataloader_len": 10}
    stamp = SimpleNamespace(epoch=epochs, batch_in_epoch=batches)
    alone = [
        schedule(SimpleNamespace(timestamp=Timestamp(epoch=e, batch_in_epoch=b), **run))
        for e, b in zip(epochs.tolist(), batches.tolist())
    ]
    assert schedule(SimpleNamespace(timestamp=stamp, **run)).tolist() == alone == [1.0, 1.0, 0.1, 0.1**2]


def test_stop_at_follows_the_length_of_the_epochs():
    clock = Clock("4ep", batches_per_epoch=10)
    clock.stop_at = "2.5ep"
    clock._set_epochs(20, clock.timestamp)
    while not clock.done:
        clock.tick()
    assert clock.timestamp.batch == "50ba"


@pytest.mark.parametrize(("length", "longer", "stop"), [("10ba", "20ba", 5), ("4ep", "8ep", 8)])
def test_a_stop_stays_in_place_if_the_run_is_extended_and_its_epochs_change(length, longer, stop):
    clock = Clock(length, batches_per_epoch=5, stop_at="0.5dur")
    clock.extend(longer)
    clock._set_epochs(4, clock.timestamp)
    while not clock.done:
        clock.tick()
    assert clock.timestamp.batch == stop and clock.stop_at == "0.5dur"
