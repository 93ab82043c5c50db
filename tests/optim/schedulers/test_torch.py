"""torch's class of the same name as a second oracle, to 1e-12 of the largest value in float64."""

import warnings

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.optim.schedulers.building import make, optimizer, stepped, value
from tests.optim.schedulers.parts import SOME, Nested
from tests.optim.schedulers.rows import CASES, IDS, ROWS

BOUND = 1e-12  # of the largest value; torch multiplies its way along, which costs a rounding each step


def theirs(twin, steps):
    """The values of torch's scheduler in force at the steps from 0 on."""
    one = optimizer(lr=twin.base)
    with warnings.catch_warnings():
        # torch's SequentialLR steps with an epoch, and warns its users of it
        warnings.filterwarnings("ignore", message="The epoch parameter in `scheduler.step")
        scheduler = twin.make(one)
        seen = [one.param_groups[0]["lr"]]
        while len(seen) < steps:
            one.step()
            scheduler.step()
            seen.append(scheduler._get_closed_form_lr()[0] if twin.closed else one.param_groups[0]["lr"])
    return seen


def assert_equal(row, arguments, twin, steps):
    steps = min(steps, twin.steps)
    mine, other = stepped(make(row.stem, arguments, optimizer()), steps), theirs(twin, steps)
    largest = max(map(abs, other))
    worst = max(range(steps), key=lambda t: abs(mine[t] - other[t]))
    assert abs(mine[worst] - other[worst]) <= BOUND * largest, (worst, mine[worst], other[worst])


@pytest.mark.parametrize(("row", "arguments"), CASES, ids=IDS)
def test_examples(row, arguments):
    twin = row.twin(arguments)
    if twin is not None:
        assert_equal(row, arguments, twin, 300)


WITH_TWIN = {row.stem: row for row in ROWS if any(row.twin(arguments) for arguments in row.examples)}


def test_every_class_that_torch_has_is_compared():
    classes = {*WITH_TWIN, "Sequential"}
    assert classes == {
        *(
            "Constant",
            "Polynomial",
            "Linear",
            "Exponential",
            "MultiStep",
            "Step",
            "CosineAnnealing",
            "Cyclic",
            "Chained",
        ),
        *("CosineAnnealingWarmRestarts", "OneCycle", "Multiplicative", "Lambda", "Sequential"),
    }


@pytest.mark.parametrize("stem", WITH_TWIN)
@settings(max_examples=SOME // 2, suppress_health_check=[HealthCheck.filter_too_much])
@given(data=st.data())
def test_any_arguments(stem, data):
    row = WITH_TWIN[stem]
    arguments = data.draw(row.drawn)
    twin = row.twin(arguments)
    assume(twin is not None and twin.base > 0)
    assert_equal(row, arguments, twin, 150)


SEQUENCES = [
    ([Nested("Linear", {"initial_val": 0.01, "end_val": 0.1, "total_iters": 5})], []),
    (
        [
            Nested("Linear", {"initial_val": 0.01, "end_val": 0.1, "total_iters": 5}),
            Nested("Exponential", {"initial_val": 0.1, "total_iters": 10, "decay_rate": 0.5}),
        ],
        [5],
    ),
    (
        [
            Nested("Step", {"initial_val": 0.1, "step_size": 3, "gamma": 0.5}),
            Nested("MultiStep", {"initial_val": 0.1, "milestones": [4, 9], "gamma": 0.1}),
            Nested("Exponential", {"initial_val": 0.1, "total_iters": 1, "decay_rate": 0.9}),
        ],
        [10, 30],
    ),
]


@pytest.mark.parametrize(("schedulers", "milestones"), SEQUENCES, ids=["one", "two", "three"])
def test_sequences(schedulers, milestones):
    arguments = {"schedulers": schedulers, "milestones": milestones}
    row = next(row for row in ROWS if row.stem == "Sequential")
    twin = row.twin(arguments)
    assert twin is not None
    assert_equal(row, arguments, twin, 100)


@pytest.mark.parametrize("kind", ["numbers", "tensors", "ours"])
def test_every_optimizer_gets_the_values(kind):
    """Numbers of torch's optimizer, its tensors, and the tensors that ours make of numbers."""
    row = next(row for row in ROWS if row.stem == "CosineAnnealing")
    arguments = row.examples[1]
    one = make(row.stem, arguments, optimizer(kind))
    for t, expected in enumerate(theirs(row.twin(arguments), 50)):
        assert abs(value(one) - expected) <= BOUND, t
        one.optimizer.step()
        one.step()
