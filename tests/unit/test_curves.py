"""The tensor path: dtypes, gradients, large counts, and whole graphs."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import timesched
from tests.extent import IS_DEEP
from tests.laws.rows import ROWS
from timesched import *  # noqa: F403  # curves of many schedules are compiled
from timesched.maths.curves import mix
from timesched.maths.ops import exponential

finite = st.floats(-1e6, 1e6)


@given(finite, finite, st.floats(0, 1))
def test_mixed_tensors_are_exact_at_both_ends_and_never_outside(start, end, share):
    found = mix(torch.tensor([0.0, share, 1.0], dtype=torch.float64), start, end)
    assert found.tolist() == [mix(0.0, start, end), mix(share, start, end), end]
    assert min(start, end) <= found.min() and found.max() <= max(start, end)


def test_a_power_that_is_too_large_keeps_its_sign():
    for base, count, power in ((1e200, 3, math.inf), (-1e200, 3, -math.inf), (-1e200, 2, math.inf)):
        assert exponential(base, count) == exponential(base, torch.tensor(count)).item() == power
    assert StepScheduler("1ba", -10.0).curve(RUN, "ba")(torch.tensor([400, 401])).tolist() == [math.inf, -math.inf]


RUN = Horizon("100ba", batches_per_epoch=10, samples_per_batch=4, tokens_per_sample=8)
RAMP = LinearScheduler(0.0, 1.0, "30ba")
SAMPLES = [eval(row.examples[-1], vars(timesched)) for row in ROWS] + [
    MultiStepScheduler(["10ba", "0.5dur", "80sp"]),
    CosineAnnealingWarmRestartsScheduler("10ba", t_mult=1.1),
    PiecewiseScheduler(
        [["5ba", 0.1], ["20ba", 1.0, "geometric"], ["0.5dur", 0.5, "harmonic"], ["80ba", 0.0, "cosine"]]
    ),
    WarmupStableDecayScheduler("10ba", "80ba", alpha_f=0.1, warmup="1-sqrt", decay="exponential"),
    CooldownScheduler(WarmupScheduler(PowerScheduler("10ba", 0.51), "20ba"), "0.1dur", decay="1-square"),
    *(SequenceScheduler([RAMP, LinearScheduler(t_max="20ba")], [start]) for start in ("30ba", "1/3dur", "2.9ep")),
]


# A single count or many, as integers or floats: one of the four for each schedule, in make test-deep one of each dtype.
DTYPES = torch.int64, torch.float64
GRAPHS = [
    (schedule, dtype, (i + dtype.is_floating_point) % 2 == 0)
    for i, schedule in enumerate(SAMPLES)
    for dtype in (DTYPES if IS_DEEP else DTYPES[i // 2 % 2 :][:1])
]


@pytest.mark.parametrize(("schedule", "dtype", "single"), GRAPHS, ids=repr)
def test_compiles_as_one_graph(schedule, dtype, single):
    torch._dynamo.reset()
    counter, curve = CompileCounter(), schedule.curve(RUN, "ba")
    compiled = torch.compile(curve, fullgraph=True, backend=counter)
    counts = torch.tensor(30, dtype=dtype) if single else torch.arange(201).to(dtype)
    for each in (counts, counts + 1):
        assert torch.equal(compiled(each), curve(each))
    assert counter.frame_count == 1


def test_compiles_to_machine_code():
    schedule = CosineAnnealingWithWarmupScheduler("10ba", alpha_f=0.1)
    curve = schedule.curve(RUN, "tok")
    counts = torch.arange(0, 4000, 7)
    out = torch.compile(curve, fullgraph=True)(counts)
    assert (out - curve(counts)).abs().max() <= 2e-15 and out.dtype is torch.float64


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_shapes_and_dtypes(row, shape):
    """Floats keep their dtype and counts give float64, whatever torch's default is."""
    curve = eval(row.examples[0], vars(timesched)).curve(RUN, "ba")
    for dtype in (torch.int64, torch.int32, torch.float64, torch.float32, torch.bfloat16):
        result = dtype if dtype.is_floating_point else torch.float64
        out = curve(torch.full(shape, 30, dtype=dtype))
        assert out.shape == shape and out.dtype is result
        expected = torch.full(shape, curve(30), dtype=torch.float64)
        assert torch.allclose(out.double(), expected, rtol=4e-3 * (result != torch.float64))
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    try:
        assert curve(torch.tensor(30)).dtype is torch.float64 and curve(torch.tensor(30)).item() == curve(30)
    finally:
        torch.set_default_dtype(previous)


@pytest.mark.parametrize(
    ("schedule", "slopes"),
    [
        (LinearScheduler(), {5.0: -0.01, 150.0: 0.0}),
        (PolynomialScheduler(2.0), {50.0: -0.01, 150.0: 0.0}),
        (PolynomialScheduler(0.5), {75.0: -0.01, 150.0: 0.0, 100.0: 0.0}),
        (CosineAnnealingWithWarmupScheduler("10ba"), {5.0: 0.1, 55.0: -torch.pi / 180, 150.0: 0.0}),
        (StepScheduler("10ba"), {5.0: 0.0}),
        (CosineAnnealingWarmRestartsScheduler("10ba", 2.0), {5.0: -torch.pi / 20, 20.0: -torch.pi / 40}),
        (WarmupStableDecayScheduler("10ba", "25ba", decay="1-sqrt"), {5.0: 0.1, 50.0: 0.0, 75.0: 0.0, 81.25: -0.04}),
        (InverseSquareRootWithWarmupScheduler("10ba", "10ba", "0ba"), {5.0: 0.1, 40.0: -0.00625, 150.0: 0.0}),
        (PowerScheduler("10ba"), {5.0: 0.0, 40.0: -0.00625}),
        (RexScheduler(), {50.0: -1 / 112.5, 150.0: 0.0}),
        (CyclicScheduler("10ba", alpha_i=0.0), {5.0: 0.1, 15.0: -0.1}),
    ],
    ids=repr,
)
def test_gradients(schedule, slopes):
    at = torch.tensor(list(slopes), dtype=torch.float64, requires_grad=True)
    out = schedule.curve(RUN, "ba")(at)
    if out.requires_grad:
        out.sum().backward()
        assert torch.allclose(at.grad, torch.tensor(list(slopes.values()), dtype=torch.float64), atol=1e-15)
    else:
        assert not any(slopes.values())


@pytest.mark.parametrize("last", [2**24 + 1, 2**52 + 1])
def test_large_counts(last):
    """A milestone is met to the token, in numbers and in tensors, where float32 and float64 have no such number."""
    schedule, run = MultiStepScheduler([Time(last, "tok")], 0.5), Horizon(Time(2 * last, "tok"))
    curve = schedule.curve(run, "tok")
    assert curve(torch.tensor([last - 1, last, last + 1])).tolist() == [1.0, 0.5, 0.5]
    assert [curve(last - 1), curve(last), schedule.at(Time(last - 1, "tok"), run)] == [1.0, 0.5, 1.0]
    steps = StepScheduler(Time(last, "tok"), 0.5).curve(run, "tok")
    assert steps(torch.tensor([last - 1, last])).tolist() == [1.0, 0.5] == [steps(last - 1), steps(last)]
    beyond = MultiStepScheduler(["1e20tok"]).curve(run, "tok")
    assert beyond(torch.tensor([last])).tolist() == [1.0] and beyond(10**20) == 0.1


@pytest.mark.parametrize("schedule", SAMPLES, ids=repr)
def test_gradients_are_finite(schedule):
    counts = torch.linspace(0, 210, 421, dtype=torch.float64, requires_grad=True)
    out = schedule.curve(RUN, "ba")(counts)
    if out.requires_grad:
        out.sum().backward()
        assert counts.grad.isfinite().all()


@pytest.mark.parametrize("fake_first", [True, False])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_fake_tensors_leave_nothing_behind(fake_first, dtype):
    """A curve that is made, and first called, under FakeTensorMode has its values on real tensors, and the reverse."""
    parts = MultiStepScheduler(["5ba", "0.5dur"], 0.5), CosineAnnealingWarmRestartsScheduler("10ba", t_mult=1.5)
    schedule, counts = SequenceScheduler(parts, ["0.1dur"]), torch.arange(30).to(dtype)

    def at(run):
        return pytest.approx([schedule.at(Time(batch, "ba"), run) for batch in range(30)], abs=1e-15)

    def real():
        assert schedule.curve(RUN, "ba")(counts).tolist() == at(Horizon("100ba"))

    def fake():
        with FakeTensorMode() as mode:
            out = schedule.curve(RUN, "ba")(mode.from_tensor(counts))
        assert isinstance(out, FakeTensor) and (out.shape, out.dtype) == ((30,), torch.float64)

    for call in (fake, real, fake, real) if fake_first else (real, fake, real):
        call()
    with torch.device("meta"):
        assert schedule.curve(Horizon("99ba"), "ba")(counts).tolist() == at(Horizon("99ba"))


def test_what_holds_no_counts_is_refused():
    for bad in (torch.tensor([True]), torch.tensor([1j])):
        with pytest.raises(TypeError, match="holds no counts"):
            LinearScheduler().curve(RUN, "ba")(bad)
    for unit, words in (("dur", "unit='dur'"), ("iter", "to iter: no conversion factor")):
        with pytest.raises(ValueError, match=words):
            LinearScheduler().curve(RUN, unit)
