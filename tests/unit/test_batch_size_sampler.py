"""BatchSizeSampler: the batches of loops, interrupted, shuffled, cut at the end of an epoch, and shared by ranks."""

import collections
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler

from timesched import BatchSizeSampler, BatchSizeSchedule, Clock, Horizon

# An example takes long, as its batches are counted one by one. The profile "deep" has all its examples.
COUNT = settings.default.max_examples
FEWER = settings(max_examples=COUNT if COUNT > 100 else min(COUNT, 25))

SIZES = BatchSizeSchedule("0sp:2 10sp:4 30sp:8")
TOKENS = 3  # of a sample


def make_clock(state=None, **arguments):
    clock = Clock("60sp", **arguments)
    if state is not None:
        clock.load_state_dict(state)
    return clock


def shuffled(length):
    return DistributedSampler(range(length), num_replicas=1, rank=0, seed=5)


def run_loop(clock, batches, steps=None, epochs=None, world_size=1):
    """The batches of a loop until the clock is done or has begun so many epochs, or for some steps."""
    rows = []
    while not clock.done and clock.timestamp.epoch.value != epochs:
        for batch in batches:
            rows.append((clock.timestamp.epoch.value, [int(index) for index in batch]))
            clock.tick(samples=len(batch) * world_size)
            if clock.done or len(rows) == steps:
                return rows
        clock.next_epoch()
    return rows


def sizes_of(rows):
    return [len(batch) for _, batch in rows]


# A loop


def test_batches_have_the_size_at_their_first_sample():
    """The last batch of an epoch is cut."""
    clock = make_clock()
    rows = run_loop(clock, BatchSizeSampler(range(20), SIZES, clock))
    assert sizes_of(rows) == [2, 2, 2, 2, 2, 4, 4, 2, 4, 4, 4, 8, 8, 8, 4]
    for epoch in range(3):
        assert [index for row_epoch, batch in rows if row_epoch == epoch for index in batch] == [*range(20)]


def test_a_batch_that_is_cut_may_be_left_out():
    clock = make_clock()
    rows = run_loop(clock, BatchSizeSampler(range(20), SIZES, clock, drop_last=True))
    assert sizes_of(rows) == [2, 2, 2, 2, 2, 4, 4, 4, 4, 4, 8, 8, 8, 8]
    assert rows[7] == (1, [0, 1, 2, 3])


@pytest.mark.parametrize(("order", "num_workers"), [(range, 0), (shuffled, 0), (shuffled, 2)])
def test_a_loader_that_is_interrupted_after_any_batch(order, num_workers):
    """Workers have read ahead when the loop stops."""

    def train(clock, steps=None):
        batches = BatchSizeSampler(order(20), SIZES, clock)
        return run_loop(clock, DataLoader(range(20), batch_sampler=batches, num_workers=num_workers), steps)

    rows = train(make_clock())
    assert len(rows) == 15
    for steps in range(1, len(rows)):
        clock = make_clock()
        assert train(clock, steps) == rows[:steps]
        assert train(make_clock(clock.state_dict())) == rows[steps:]


def test_each_epoch_has_its_own_order():
    clock = make_clock()
    rows = run_loop(clock, BatchSizeSampler(shuffled(20), SIZES, clock))
    orders = [[index for epoch, batch in rows if epoch == wanted for index in batch] for wanted in range(3)]
    for epoch, order in enumerate(orders):
        sampler = shuffled(20)
        sampler.set_epoch(epoch)
        assert order == [*sampler]
    assert orders[0] != orders[1] != orders[2]


def test_the_epoch_of_the_clock_counts():
    batches = BatchSizeSampler(shuffled(20), SIZES, make_clock())
    first = [*batches]
    batches.set_epoch(7)
    assert [*batches] == first


def test_a_size_that_changes_with_iterations():
    clock = Clock("4iter")
    batches = BatchSizeSampler(range(20), BatchSizeSchedule({"0dur": 8, "0.5dur": 16}), clock)
    assert len(next(iter(batches))) == 8
    clock.next_iteration()
    clock.next_iteration()
    assert len(next(iter(batches))) == 16


def test_the_number_of_batches_until_the_epoch_ends():
    clock = make_clock()
    batches = BatchSizeSampler(range(20), SIZES, clock)
    assert batches.num_batches() == len([*batches]) == 8
    run_loop(clock, batches, steps=3)
    assert batches.num_batches() == len([*batches]) == 5
    assert BatchSizeSampler(range(20), SIZES, clock, from_epoch_start=True).num_batches() == 5
    run_loop(clock, batches, steps=5)
    assert batches.num_batches() == len([*batches]) == 0
    clock.next_epoch()
    assert batches.num_batches() == len([*batches]) == 4
    for has_length in (batches, DataLoader(range(20), batch_sampler=batches)):
        with pytest.raises(TypeError, match="num_batches"):
            len(has_length)


def test_clocks_that_are_not_ours():
    """A state with the counters, and a function that is asked again in each iteration."""
    clock = make_clock()
    run_loop(clock, BatchSizeSampler(range(20), SIZES, clock), steps=6)
    state = SimpleNamespace(timestamp=clock.timestamp, max_duration="60sp", dataloader_len=None)
    for other in (state, lambda: clock, lambda: state):
        assert next(iter(BatchSizeSampler(range(20), SIZES, other))) == [14, 15, 16, 17]
    batches = BatchSizeSampler(range(20), SIZES, lambda: clock)
    clock = make_clock()
    assert next(iter(batches)) == [0, 1]


def test_one_size_with_epochs_that_the_clock_counts():
    clock = Clock("2ep", batches_per_epoch=3)
    rows = []
    for _ in range(2):
        for batch in BatchSizeSampler(range(10), BatchSizeSchedule({"0tok": 4}), clock):
            rows.append(batch)
            clock.tick(samples=len(batch))
    assert [len(batch) for batch in rows] == [4, 4, 2] * 2 and clock.done


# Properties


@st.composite
def cases(draw):
    """A run of one to three ranks: its number of ranks, its data, and what a sampler and a clock are made with."""
    world_size = draw(st.integers(1, 3))
    unit, scale = draw(st.sampled_from([("sp", 1), ("tok", TOKENS), ("ba", 1), ("dur", 0.01)]))
    thresholds = [0, *sorted(draw(st.sets(st.integers(1, 30), max_size=3)))]
    sizes = draw(st.lists(st.integers(1, 5), min_size=len(thresholds), max_size=len(thresholds)))
    entries = {f"{threshold * scale}{unit}": size * world_size for threshold, size in zip(thresholds, sizes)}
    ssr = draw(st.sampled_from([1.0, 0.5, 1.3]))
    return SimpleNamespace(
        world_size=world_size,
        length=draw(st.integers(1, 40)),
        sizes=BatchSizeSchedule(entries),
        drop_last=draw(st.booleans()),
        clock=lambda: Clock("100sp", tokens_per_sample=TOKENS, ssr=ssr),
    )


def samplers(case, clock, **options):
    order, options = shuffled(case.length), {"drop_last": case.drop_last, **options}
    return [
        BatchSizeSampler(order, case.sizes, clock, rank, case.world_size, **options) for rank in range(case.world_size)
    ]


def run_ranks(case, clock, steps=None):
    """The batches of the first three epochs, each as the parts of all ranks, and the schedule's sizes at them."""
    rows, ranks = [], samplers(case, clock)
    while clock.timestamp.epoch.value < 3:
        for parts in zip(*ranks, strict=True):
            rows.append((clock.timestamp.epoch.value, case.sizes.at(clock), parts))
            clock.tick(samples=sum(len(part) for part in parts))
            if len(rows) == steps:
                return rows
        clock.next_epoch()
    return rows


@FEWER
@given(cases())
def test_each_sample_once_an_epoch(case):
    """But for what ranks cannot share, and a last batch that is left out. All parts of a batch have one size."""
    rows = run_ranks(case, case.clock())
    order = shuffled(case.length)
    for epoch in range(3):
        order.set_epoch(epoch)
        batches = [parts for row_epoch, _, parts in rows if row_epoch == epoch]
        indices = [index for parts in batches for part in parts for index in part]
        assert indices == [*order][: len(indices)]
        if not case.drop_last:
            assert case.length - len(indices) == case.length % case.world_size
    assert all(len({len(part) for part in parts}) == 1 and parts[0] for _, _, parts in rows)


@FEWER
@given(cases())
def test_sizes_are_the_schedules(case):
    """A batch has the size of the schedule at its first sample. Only the last one of an epoch is smaller."""
    rows, left = run_ranks(case, case.clock()), collections.Counter({epoch: case.length for epoch in range(3)})
    for epoch, size, parts in rows:
        samples = sum(len(part) for part in parts)
        assert samples == size or (samples == left[epoch] - left[epoch] % case.world_size < size)
        left[epoch] -= samples
    assert not case.drop_last or all(sum(map(len, parts)) == size for _, size, parts in rows)


@FEWER
@given(cases(), st.data())
def test_a_run_that_resumes_has_the_same_rest(case, data):
    rows = run_ranks(case, case.clock())
    if not rows:
        return
    steps = data.draw(st.integers(1, len(rows)))
    clock, resumed = case.clock(), case.clock()
    assert run_ranks(case, clock, steps) == rows[:steps]
    resumed.load_state_dict(clock.state_dict())
    epoch = clock.timestamp.epoch.value
    rest = [parts for row_epoch, _, parts in rows[steps:] if row_epoch == epoch]
    assert {sampler.num_batches() for sampler in samplers(case, resumed)} == {len(rest)}
    whole = [parts for row_epoch, _, parts in rows if row_epoch == epoch]
    assert [*zip(*samplers(case, resumed, from_epoch_start=True), strict=True)] == whole
    assert run_ranks(case, resumed) == rows[steps:]


# Errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 2, "world_size": 2}, "BatchSizeSampler.rank=2: it is out of range. Pass one from 0 to 1."),
        ({"rank": -1, "world_size": 2}, "BatchSizeSampler.rank=-1"),
        ({"rank": "0", "world_size": 2}, "BatchSizeSampler.rank='0': it is out of range"),
        ({"rank": 0.5, "world_size": 2}, "BatchSizeSampler.rank=0.5: it is out of range"),
        ({"world_size": 0}, "BatchSizeSampler.world_size=0"),
        ({"world_size": 2.0}, "BatchSizeSampler.world_size=2.0"),
        ({"world_size": 4}, "BatchSizeSampler.world_size=4: the batch size 2 at 0sp is not a multiple of 4"),
        ({"sampler": DistributedSampler(range(20), num_replicas=2, rank=0)}, "num_replicas=1, rank=0"),
    ],
)
def test_arguments_that_are_refused(arguments, message):
    with pytest.raises(ValueError) as error:
        BatchSizeSampler(**{"sampler": range(20), "sizes": SIZES, "clock": make_clock(), **arguments})
    assert message in str(error.value)


def test_sizes_that_are_no_schedule():
    with pytest.raises(TypeError, match="BatchSizeSampler.sizes=8"):
        BatchSizeSampler(range(20), 8, make_clock())


HALVES = BatchSizeSchedule({"0dur": 8, "0.5dur": 16})


@pytest.mark.parametrize(
    ("sizes", "clock", "message"),
    [
        (BatchSizeSchedule("0tok:8 160tok:16"), make_clock(), "160tok is in tokens"),
        (HALVES, Clock("90tok"), "0.5dur is in tokens"),
        (HALVES, Clock("90sec"), "0.5dur is in seconds"),
        (SIZES, make_clock(batches_per_epoch=5), "batches_per_epoch=5"),
    ],
)
def test_clocks_that_are_refused_when_iteration_begins(sizes, clock, message):
    batches = BatchSizeSampler(range(20), sizes, clock)
    for call in (batches.__iter__, batches.num_batches):
        with pytest.raises(ValueError) as error:
            call()
        assert message in str(error.value)


@pytest.mark.parametrize("clock", [None, lambda: None, "60sp"])
def test_what_is_no_clock(clock):
    with pytest.raises(TypeError, match="is not a run"):
        iter(BatchSizeSampler(range(20), SIZES, clock))


def test_a_rank_without_torch_distributed():
    batches = BatchSizeSampler(range(20), SIZES, make_clock(), rank=1)
    with pytest.raises(ValueError, match="rank=1: it is out of range"):
        iter(batches)


# Microbatches


def test_microbatches():
    sizes, clock = BatchSizeSchedule("0sp:8 16sp:24"), make_clock()
    counts = []
    for _ in range(3):
        counts.append([sizes.microbatches(clock, 4), sizes.microbatches(clock, 2, world_size=4)])
        clock.tick(samples=sizes.at(clock))
    assert counts == [[2, 1], [2, 1], [6, 3]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((16,), "size=16, world_size=1: the batch size 8 at 0sp is not a multiple of 16"),
        ((8,), "size=8, world_size=1: the batch size 20 at 16sp is not a multiple of 8"),
        ((2, 4), "size=2, world_size=4: the batch size 20 at 16sp is not a multiple of 8"),
        ((0,), "microbatches.size=0"),
        ((True,), "microbatches.size=True"),
        ((4, 0.5), "microbatches.world_size=0.5"),
    ],
)
def test_microbatches_that_do_not_divide_a_batch(arguments, message):
    """A size that comes later raises at once."""
    with pytest.raises(ValueError) as error:
        BatchSizeSchedule("0sp:8 16sp:20").microbatches(make_clock(), *arguments)
    assert message in str(error.value)


def test_microbatches_need_counters():
    with pytest.raises(TypeError, match="has no counters"):
        SIZES.microbatches(Horizon("60sp"), 2)
