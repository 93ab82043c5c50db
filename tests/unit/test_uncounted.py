"""A count of samples or tokens that nobody counted is not known: every place that reads it raises an error."""

import copy
import json
import pickle
from types import SimpleNamespace

import pytest
import torch

from optim.lr_scheduler import LinearLR
from tests.building import sgd, tick
from timesched import *  # noqa: F403  # these are tests of all that is public
from timesched.integrations.common import Schedulers

SAMPLES, TOKENS = LinearScheduler(t_max="100sp"), LinearScheduler(t_max="100tok")
NO_COUNT = r"timestamp.{0}=0: the run is at batch 1, and nobody has counted its {0}s. Pass {1}=.* or tick\({0}s="
NO_SAMPLES = NO_COUNT.format("sample", "samples_per_batch")
NO_TOKENS = NO_COUNT.format("token", "tokens_per_sample")
SIZES = BatchSizeSchedule({"0tok": 8, "100tok": 16})


def clock_after(batches, **factors):
    clock = Clock("10ba", **factors)
    tick(clock, batches)
    return clock


def state_after(batches):
    return SimpleNamespace(timestamp=Timestamp(batch=batches), max_duration="10ba", dataloader_len=None)


def bind_and_step(schedule, run, **arguments):
    scheduler = bind(schedule, sgd(), run, **arguments)
    scheduler.step()


READERS = {
    "a call": lambda run: TOKENS(run),
    "at the timestamp": lambda run: TOKENS.at(run.timestamp, run),
    "a list": lambda run: bind_and_step([TOKENS, ConstantScheduler()], run),
    "a product": lambda run: ProductScheduler([ConstantScheduler(), TOKENS])(run),
    "a sequence": lambda run: SequenceScheduler([ConstantScheduler(), TOKENS], milestones=["5tok"])(run),
    "bind": lambda run: bind_and_step(TOKENS, run),
    "an absolute-value scheduler": lambda run: LinearLR(sgd(), 1.0, 0.0, "100tok", clock=run).step(),
    "a batch size": lambda run: SIZES.at(run),
    "a cooldown": lambda run: ConstantScheduler().cooldown(run, t_decay="100tok"),
}


@pytest.mark.parametrize("make_run", [clock_after, state_after])
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_after_batch_0_it_is_an_error(read, make_run):
    read(make_run(0))
    with pytest.raises(ValueError, match=NO_TOKENS):
        read(make_run(1))


def test_samples():
    assert SAMPLES(clock_after(1, samples_per_batch=10)) == 0.9
    with pytest.raises(ValueError, match=NO_SAMPLES):
        SAMPLES(clock_after(1))


def test_a_loop_that_forgets_its_tokens_raises_in_the_first_step():
    """Nothing is written or counted, and counting the next batch is enough to go on."""
    optimizer, clock = sgd(), Clock("10ba")
    scheduler = bind(TOKENS, optimizer, clock)
    clock.tick()
    with pytest.raises(ValueError, match=NO_TOKENS):
        scheduler.step()
    assert scheduler.last_epoch == 0 and optimizer.param_groups[0]["lr"] == 1.0
    clock.tick(tokens=10)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.9


def test_a_schedule_in_batches_needs_no_other_count():
    assert LinearScheduler()(clock_after(5)) == 0.5 and LinearScheduler(t_max="1dur")(state_after(5)) == 0.5


# A count of 0


@pytest.mark.parametrize(
    "duplicate",
    [
        lambda clock: clock,
        copy.copy,
        copy.deepcopy,
        lambda clock: pickle.loads(pickle.dumps(clock)),
        lambda clock: load(json.loads(json.dumps(clock.state_dict()))),
    ],
)
def test_an_explicit_0_was_counted(duplicate):
    clock = Clock("10ba")
    clock.tick(tokens=0)
    clock = duplicate(clock)
    assert TOKENS(clock) == 1.0 and not clock.passed("5tok")
    clock.tick(tokens=10)
    assert TOKENS(clock) == 0.9
    assert set(clock.state_dict()).isdisjoint({"tokens_counted", "samples_counted"})
    with pytest.raises(ValueError, match="nobody has counted its samples"):
        SAMPLES(clock)


def load(state, **factors):
    clock = Clock("10ba", **factors)
    clock.load_state_dict(state)
    return clock


def test_an_explicit_0_in_the_state_of_a_scheduler():
    clock = Clock("10ba", samples_per_batch=2, tokens_per_sample=5)
    scheduler = bind(TOKENS, sgd(), clock)
    clock.tick(tokens=0)
    scheduler.step()
    resumed_clock = Clock("10ba", samples_per_batch=2, tokens_per_sample=5)
    resumed = bind(TOKENS, sgd(), resumed_clock)
    resumed.load_state_dict(scheduler.state_dict())
    assert resumed.get_last_lr() == [1.0] and resumed_clock.timestamp.token == 0 and resumed_clock.timestamp.sample == 2


def test_tensors_are_not_read():
    tokens = torch.zeros((), device="meta", dtype=torch.int64)  # reading it would raise
    stamp = SimpleNamespace(batch=1, sample=tokens, token=tokens, epoch=0, batch_in_epoch=1)
    TOKENS(SimpleNamespace(timestamp=stamp, max_duration="10ba", dataloader_len=None))


# Counts that the conversion factors give


FACTORS = {"samples_per_batch": 2, "tokens_per_sample": 5}


@pytest.mark.parametrize(
    ("timestamp", "counts"),
    [
        (Timestamp(batch=5), (10, 50)),
        (Timestamp(batch=5, sample=9), (9, 45)),
        (Timestamp(batch=5, token=7), (10, 7)),
        (Timestamp(), (0, 0)),
    ],
)
def test_go_to_computes_what_the_factors_know(timestamp, counts):
    clock = Clock("10ba", **FACTORS)
    clock.go_to(timestamp)
    assert (clock.timestamp.sample, clock.timestamp.token) == counts
    clock = Clock("10ba")
    clock.go_to(timestamp)
    assert clock.timestamp == timestamp


@pytest.mark.parametrize(
    ("timestamp", "counts"),
    [
        (Timestamp(batch=7, batch_in_epoch=3), (6, 30)),
        (Timestamp(batch=7, batch_in_epoch=3, sample=9, sample_in_epoch=4), (4, 20)),
        (Timestamp(batch=7, batch_in_epoch=3, sample=9), (0, 0)),  # a count of 0 in the epoch is a count
        (Timestamp(batch=7), (0, 0)),
    ],
)
def test_the_counts_of_the_epoch_follow_with_their_totals(timestamp, counts):
    clock = Clock("10ba", **FACTORS)
    clock.go_to(timestamp)
    assert (clock.timestamp.sample_in_epoch, clock.timestamp.token_in_epoch) == counts


@pytest.mark.parametrize("load", [Clock.go_to, lambda clock, timestamp: clock.load_state_dict(timestamp.state_dict())])
def test_the_counts_of_the_epoch_under_a_batch_size_schedule(load):
    sizes = BatchSizeSchedule("0sp:8 400sp:16")
    clock = Clock("100ba", samples_per_batch=sizes)
    load(clock, Timestamp(batch=60, epoch=1, batch_in_epoch=20))
    assert clock.timestamp.sample == 400 + 10 * 16 and clock.timestamp.sample_in_epoch == 80 + 10 * 16
    assert next(iter(BatchSizeSampler(range(1000), sizes, clock))) == list(range(240, 256))
    optimizer = sgd()
    optimizer.param_groups[0]["initial_lr"] = 1.0
    scheduler = ScheduleLR(optimizer, ConstantScheduler(), "100ba", samples_per_batch=sizes, last_epoch=19)
    assert scheduler.clock.timestamp.batch == 20 and scheduler.clock.timestamp.sample_in_epoch == 160


def test_the_counts_of_an_epoch_that_a_state_did_not_count():
    """The epochs of the present run give the batch in the epoch, and this gives the samples."""
    loaded = load(clock_after(7).state_dict(), batches_per_epoch=4, **FACTORS).timestamp
    assert (loaded.epoch, loaded.batch_in_epoch, loaded.sample_in_epoch, loaded.token_in_epoch) == (1, 3, 6, 30)


def test_a_state_without_tokens():
    """It is computed where the new clock has the factors. Otherwise the load is refused, and changes nothing."""
    saved = clock_after(5).state_dict()
    assert load(saved, **FACTORS).timestamp.token == 50
    clock = Clock("10ba")
    scheduler = bind(TOKENS, sgd(), clock)
    with pytest.raises(ValueError, match="at batch 5, and nobody has counted its tokens"):
        clock.load_state_dict(saved)
    assert clock.timestamp.batch == 0 and scheduler.get_last_lr() == [1.0]


@pytest.mark.parametrize(
    "make",
    [
        lambda schedule, clock, **options: bind(schedule, sgd(), clock, **options),
        lambda schedule, clock, **options: Schedulers(sgd(), clock, [schedule], **options),
    ],
)
def test_a_schedule_in_tokens_continues_a_run_that_counted_none(make):
    saved = make(LinearScheduler(), clock := Clock("10ba"))
    tick(clock, 5, saved)
    new = make(TOKENS, Clock("10ba", **FACTORS), on_change="new")
    new.load_state_dict(saved.state_dict())
    assert new.get_last_lr() == [0.5]
    new = make(TOKENS, clock := Clock("10ba"), on_change="new")
    with pytest.raises(ValueError, match="at batch 5, and nobody has counted its tokens"):
        new.load_state_dict(saved.state_dict())
    assert new.get_last_lr() == [1.0] and clock.timestamp.batch == 0


def test_tokens_that_were_counted_as_0_are_known_ahead():
    clock = Clock("1000tok", samples_per_batch=SIZES, tokens_per_sample=4)
    clock.tick(samples=8, tokens=0)
    assert not clock.before("500tok")
    batches = BatchSizeSampler(range(80), SIZES, clock, rank=0, world_size=1)
    assert [len(batch) for batch in batches] == [8, 8, 8, 8, 16, 16, 8]
