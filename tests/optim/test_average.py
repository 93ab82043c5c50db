"""`WeightAverage` against rational numbers, on clocks of all units; how it is saved, swapped in and refused."""

import copy
import io
import math
import pickle
import re
from datetime import timedelta
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor

import optim
from optim.average.share import LAST, START
from optim.base import sharding
from tests.building import bits, count_calls, counts
from timesched import Clock

EPOCH = 5  # batches


def clock_of(length="400ba", **options):
    return Clock(length, **({"batches_per_epoch": EPOCH, "samples_per_batch": 4, "tokens_per_sample": 8} | options))


class Module(torch.nn.Module):
    """A parameter, and a buffer that is another tensor after each change."""

    def __init__(self, value):
        super().__init__()
        self.weight = parameter(value)
        self.register_buffer("running_level", self.weight.detach().clone())

    def change(self, change):
        self.weight.detach().add_(change)
        self.running_level = self.weight.detach().clone()


def parameter(*values, dtype=torch.float64):
    return torch.nn.Parameter(torch.tensor(values, dtype=dtype))


def position(clock):
    """Where a clock is in each unit; "end": in the unit of the run's length."""
    found = counts(clock, EPOCH)
    return found | {"end": found[clock.max_duration.unit.value]}


class Oracle:
    """The definition, in rational numbers where it is rational."""

    def __init__(self, weight, clock, half_life, start):
        self.half_life, self.start = half_life, start
        self.average, self.begun = Fraction(weight), start is None
        self.first = self.last = position(clock)

    def step(self, weight, clock):
        now, half_life = position(clock), self.half_life
        begins, unit = self.place(self.start) if self.start else (self.first["end"], "end")
        measured = unit
        if isinstance(half_life, str):
            length, measured = self.place(half_life)
        if now[measured] == self.last[measured]:
            return
        if not self.begun or now[unit] < begins or self.last[unit] < begins:
            k = Fraction(0)
        elif isinstance(half_life, str):
            k = Fraction(2.0 ** -float((now[measured] - self.last[measured]) / length))
        else:
            k = (self.last[unit] - begins) / (now[unit] - begins)
            k = k if half_life is None else Fraction(float(k) ** (math.log(2) / half_life))
        self.average = k * self.average + (1 - k) * Fraction(weight)
        self.begun, self.last = now[unit] >= begins, now

    @staticmethod
    def place(time):
        number, unit = re.fullmatch(r"([0-9./]+)([a-z]+)", time).groups()
        return Fraction(number), unit


TIMES = st.sampled_from(["3ba", "17sp", "200tok", "1ep", "0.4ep", "0.1dur", "2sec", "40ba"])
RUNS = {
    "length": st.sampled_from(["40ba", "300sp", "1500tok", "9ep"]),
    "half_life": st.one_of(st.none(), TIMES, st.sampled_from([0.05, 0.3, math.log(2), 2.0])),
    "start": st.one_of(st.none(), TIMES, st.sampled_from(["0ba", "0.8dur"])),
    "moves": st.lists(
        st.tuples(
            st.integers(1, 9),  # samples of a batch
            st.sampled_from(["step", "step", "step", "skip", "twice", "load", "copy"]),
            st.integers(-8, 8),  # what the weight moves by
        ),
        min_size=1,
        max_size=40,
    ),
}


@given(**RUNS)
@settings(deadline=None)
def test_against_rational_numbers(length, half_life, start, moves):
    """Uneven batches, steps left out or made twice, loads and copies in between; of a parameter and of a buffer."""
    clock, model = clock_of(length), Module(1.0)
    average = optim.WeightAverage([model.weight], clock, half_life=half_life, start=start, buffers=model)
    oracle, largest = Oracle(1.0, clock, half_life, start), 1.0
    for samples, what, change in moves:
        model.change(change)
        largest = max(largest, abs(model.weight.item()))
        clock.tick(samples=samples, duration=timedelta(milliseconds=700))
        if what == "skip":
            continue
        if what == "load":
            state, loaded, model = average.state_dict(), clock_of(length), Module(model.weight.item())
            loaded.load_state_dict(clock.state_dict())
            options = {"half_life": half_life, "start": start, "buffers": model}
            clock, average = loaded, optim.WeightAverage([model.weight], loaded, **options)
            average.load_state_dict(state)
        elif what == "copy":
            model, clock, average = pickle.loads(pickle.dumps((model, clock, average)))
        average.step()
        if what == "twice":
            average.step()
        oracle.step(model.weight.item(), clock)
        assert abs(average.state[model.weight]["average"].item() - float(oracle.average)) <= 1e-12 * largest
        assert torch.equal(average.state[model.running_level]["average"], average.state[model.weight]["average"])
        assert average.param_groups[0]["begun"] is oracle.begun


def final(half_life, start, size, steps, changes):
    """The average after 40 times 4 samples, in batches of a size, with a step after those of `steps`."""
    clock, weight = Clock("400sp", batches_per_epoch=20 // size, tokens_per_sample=8), parameter(1.0)
    average = optim.WeightAverage([weight], clock, half_life=half_life, start=start)
    for i in range(1, 41):
        for _ in range(4 // size):
            clock.tick(samples=size, duration=timedelta(seconds=size / 8))
        if i in steps:
            average.step()
        if i in changes:
            with torch.no_grad():
                weight.mul_(-2).add_(i).clamp_(-99, 99)
    return average.state[weight]["average"].item()


@given(half_life=RUNS["half_life"], start=RUNS["start"], changes=st.sets(st.integers(1, 39)))
@settings(deadline=None)
def test_the_past_weighs_by_time(half_life, start, changes):
    """Two steps without a change of the weights between them are one, and the size of a batch changes nothing."""
    every, needed = set(range(1, 41)), {*changes, 40}
    exact = final(half_life, start, 4, every, changes)
    assert final(half_life, start, 4, needed, changes) == pytest.approx(exact, rel=0, abs=1e-10)
    if not any(str(time).endswith("ba") for time in (half_life, start)):
        assert final(half_life, start, 2, needed, changes) == pytest.approx(exact, rel=0, abs=1e-10)


def test_peers():
    """torch's AveragedModel in float32: its exponential average from its first call on, its mean one batch earlier."""
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn

    torch.manual_seed(0)
    model, clock = torch.nn.Linear(7, 5), Clock("100ba")
    params = list(model.parameters())
    exponential = optim.WeightAverage(params, clock, half_life="10ba", start="3ba")
    mean = optim.WeightAverage(params, clock, start="2ba")
    theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(2 ** (-1 / 10)))
    their_mean = AveragedModel(model, multi_avg_fn=get_swa_multi_avg_fn())
    for i in range(1, 60):
        with torch.no_grad():
            for p in params:
                p.add_(torch.randn_like(p) * 0.1)
        clock.tick()
        exponential.step()
        mean.step()
        if i >= 3:
            theirs.update_parameters(model)
            their_mean.update_parameters(model)
    for ours, peer in ((exponential, theirs), (mean, their_mean)):
        for p, q in zip(params, peer.module.parameters()):
            assert (ours.state[p]["average"] - q).abs().max() <= 2e-7 * p.abs().max()


def test_the_power_function():
    """arXiv:2312.02696, equation 121: a profile t**gamma; its discrete form is beta = (1 - 1/t)**(gamma + 1)."""
    gamma = 6.94
    clock, weight = Clock("100ba"), parameter(0.0)
    average = optim.WeightAverage([weight], clock, half_life=math.log(2) / (gamma + 1))
    theirs = 0.0
    for t in range(1, 100):
        with torch.no_grad():
            weight.fill_(math.sin(t))
        clock.tick()
        average.step()
        beta = (1 - 1 / t) ** (gamma + 1)
        theirs = beta * theirs + (1 - beta) * math.sin(t)
    assert average.state[weight]["average"].item() == pytest.approx(theirs, rel=1e-12)


@pytest.mark.parametrize(
    ("dtype", "kept"),
    [
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float64, torch.float64),
        (torch.complex64, torch.complex64),
        (torch.complex128, torch.complex128),
    ],
)
def test_dtypes(dtype, kept):
    """There before the first step, equal to the weights; a bfloat16 average would stand still."""
    clock, weight = Clock("100ba"), torch.nn.Parameter(torch.ones(3, dtype=dtype))
    average = optim.WeightAverage([weight], clock, half_life="50ba")
    assert average.state[weight]["average"].dtype is kept and average.state[weight]["average"].tolist() == [1.0] * 3
    assert optim.state_bytes(average) == 3 * kept.itemsize
    with torch.no_grad():
        weight.fill_(1.0078125)  # the next bfloat16
    clock.tick()
    average.step()
    expected = 1 + (1 - 2 ** (-1 / 50)) * 0.0078125
    assert average.state[weight]["average"][0].item().real == pytest.approx(expected, rel=2e-7)


@pytest.mark.parametrize("has_buffers", [False, True])
def test_made_on_meta_before_to_empty(has_buffers):
    """The model has other parameters then. Buffers are those of the module at any time."""
    model = normed_model().to("meta")
    clock = Clock("10ba")
    average = optim.WeightAverage(model.parameters(), clock, buffers=model if has_buffers else None)
    model.to_empty(device="cpu")
    clock.tick()
    with pytest.raises(RuntimeError, match="Make the WeightAverage after it"):
        average.step()
    assert average.param_groups[0]["last_batch"] == 0
    average = optim.WeightAverage(model.parameters(), clock, buffers=model if has_buffers else None)
    clock.tick()
    average.step()
    assert average.param_groups[0]["last_batch"] == 2


def test_a_nan_before_the_start_does_not_stay():
    clock, weight = Clock("100ba"), parameter(math.nan)
    average = optim.WeightAverage([weight], clock, half_life="5ba", start="3ba")
    for i in range(5):
        clock.tick()
        average.step()
        with torch.no_grad():
            weight.fill_(float(i))
    assert math.isfinite(average.state[weight]["average"].item())


def test_master_weights():
    """The average of the float32 values behind bfloat16 parameters is that of the float32 run, to the bit."""
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        start = torch.randn(40).bfloat16()
        weight, other = torch.nn.Parameter(start.to(dtype)), torch.nn.Parameter(torch.ones(2))
        options = {"master_weights": True} if dtype is torch.bfloat16 else {}
        optimizer = optim.AdamW([weight], lr=1e-3, **options)
        clock = Clock("100ba")
        average = optim.WeightAverage([weight, other], clock, half_life="5ba", optimizer=optimizer)
        for i in range(20):
            weight.grad = torch.sin(torch.arange(40.0) + i).bfloat16().to(dtype)
            optimizer.step()
            with torch.no_grad():
                other.add_(1)
            clock.tick()
            average.step()
        found.append([average.state[p]["average"] for p in (weight, other)])
    assert all(torch.equal(x, y) for x, y in zip(*found))
    assert found[1][0].dtype is torch.float32 and not torch.equal(found[1][0], found[1][0].bfloat16().float())


def test_extended():
    """The start in `dur` moves: an average that had begun before it begins again there."""
    clock, weight = Clock("10ba"), parameter(0.0)
    average = optim.WeightAverage([weight], clock, start="0.5dur")
    values = []
    for i in range(1, 17):
        with torch.no_grad():
            weight.fill_(float(i))
        clock.tick()
        average.step()
        values.append(average.state[weight]["average"].item())
        if i == 7:
            clock.extend("20ba")
    assert values[4:10] == [5.0, 6.0, 6.5, 8.0, 9.0, 10.0]
    assert values[10] == 11.0 and values[11] == 11.5 and values[15] == pytest.approx(13.5)


def test_groups_that_are_added():
    clock, first, second = Clock("10ba"), parameter(0.0), parameter(0.0)
    average = optim.WeightAverage([first], clock)
    for i in range(1, 5):
        with torch.no_grad():
            first.fill_(float(i))
            second.fill_(float(i))
        if i == 3:
            average.add_param_group({"params": [second]})
        clock.tick()
        average.step()
    assert average.state[first]["average"].item() == pytest.approx((1 + 2 + 3 + 4) / 4)
    assert average.state[second]["average"].item() == pytest.approx((3 + 4) / 2)
    assert average.param_groups[1]["start_batch"] == 2


def test_reset_and_loaded_weights():
    clock, weight = Clock("10ba"), parameter(0.0)
    average = optim.WeightAverage([weight], clock, half_life="2ba")
    for _ in range(3):
        clock.tick()
        average.step()
    with torch.no_grad():
        weight.fill_(8.0)
    clock.go_to(Clock("10ba").timestamp)
    with pytest.raises(ValueError, match=re.escape("at 0ba, and the last step was at 3ba")):
        average.step()
    average.reset_state()
    assert average.state[weight]["average"].item() == 8.0
    clock.tick()
    average.step()
    assert average.state[weight]["average"].item() == 8.0 and average.param_groups[0]["last_batch"] == 1


def run(average, weight, clock, batches, optimizer=None):
    for _ in range(batches):
        with torch.no_grad():
            weight.mul_(1.1).add_(clock.timestamp.batch.value % 3)
        clock.tick(samples=1 + clock.timestamp.batch.value % 4)
        average.step()


@pytest.mark.parametrize("half_life", [None, 0.1, "6sp"])
@pytest.mark.parametrize("form", ["torch", "flattened", "nested"])
def test_saved_and_loaded(half_life, form):
    """Through torch.save, and by name as torch's checkpoints do; to the bit."""

    def made():
        model, clock = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64), clock_of()
        torch.nn.init.ones_(model.weight)
        return model, clock, optim.WeightAverage(model.parameters(), clock, half_life=half_life, start="3ba")

    model, clock, average = made()
    run(average, model.weight, clock, 12)
    options = StateDictOptions(flatten_optimizer_state_dict=form == "flattened")
    state = average.state_dict() if form == "torch" else get_optimizer_state_dict(model, average, options=options)
    file = io.BytesIO()
    torch.save({"average": state, "clock": clock.state_dict(), "model": model.state_dict()}, file)
    run(average, model.weight, clock, 7)
    other, other_clock, loaded = made()
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other.load_state_dict(saved["model"])
    other_clock.load_state_dict(saved["clock"])
    if form == "torch":
        loaded.load_state_dict(saved["average"])
    else:
        set_optimizer_state_dict(other, loaded, saved["average"], options=options)
    run(loaded, other.weight, other_clock, 7)
    assert torch.equal(other.weight, model.weight)
    assert torch.equal(loaded.state[other.weight]["average"], average.state[model.weight]["average"])
    assert loaded.param_groups[0]["begun"] is True


@pytest.mark.parametrize("form", ["torch", "names", "flattened", "nested"])
def test_a_state_without_the_average_of_a_parameter(form):
    """torch's checkpoints drop the entries of frozen parameters. The cures of the error load all averages."""

    def made(frozen=True):
        model = torch.nn.Linear(2, 1)
        model.weight.requires_grad_(not frozen)
        params = model.named_parameters() if form == "names" else model.parameters()
        return model, optim.WeightAverage(params, Clock("10ba"), half_life="1ba")

    model, average = made()
    for _ in range(2):
        model.weight.detach().add_(1.0)
        average.clock.tick()
        average.step()
    other, loaded = made()
    before = averages(loaded)
    in_checkpoint = form in ("flattened", "nested")
    options = StateDictOptions(flatten_optimizer_state_dict=form == "flattened")
    saved = get_optimizer_state_dict(model, average, options=options) if in_checkpoint else average.state_dict()
    if not in_checkpoint:
        del saved["state"][0]
    with pytest.raises(ValueError, match=r"(weight|parameters 0)\. torch's.*'average': average, or set requires_grad"):
        if in_checkpoint:
            set_optimizer_state_dict(other, loaded, saved, options=options)
        else:
            loaded.load_state_dict(saved)
    assert equal(averages(loaded), before)
    with pytest.raises(ValueError, match="average"):
        loaded.load_state_dict({**average.state_dict(), "state": {}})
    for key in ("state", "param_groups"):
        with pytest.raises(ValueError, match=f"WeightAverage: the state dict has no '{key}'"):
            loaded.load_state_dict({name: x for name, x in average.state_dict().items() if name != key})
    if in_checkpoint:
        other.weight.requires_grad_(True)
        set_optimizer_state_dict(other, loaded, saved, options=options)
    else:
        loaded.load_state_dict(average.state_dict())
    assert equal(averages(loaded), averages(average))


def test_epochs_of_another_length():
    """Resumed in the middle of an epoch with twice the batch: half as many batches, the same share is done."""
    clock, weight = Clock("4ep", batches_per_epoch=8), parameter(1.0)
    average = optim.WeightAverage([weight], clock, half_life="1ep")
    for _ in range(6):
        clock.tick()
        average.step()
    resumed = Clock("4ep", batches_per_epoch=4)
    resumed.load_state_dict(clock.state_dict())
    other = optim.WeightAverage([weight], resumed, half_life="1ep")
    other.load_state_dict(average.state_dict())
    with torch.no_grad():
        weight.fill_(2.0)
    other.step()
    assert other.state[weight]["average"].item() == 1.0  # no time has passed
    resumed.tick()
    other.step()
    assert other.state[weight]["average"].item() == pytest.approx(2 - 2**-0.25)


def test_beside_the_optimizer_in_one_dict_one_is_lost():
    """Why docs/averages.md saves it under a key of its own: torch merges the states of several by name."""
    model = torch.nn.Linear(2, 2)
    optimizer = optim.AdamW(model.parameters())
    average = optim.WeightAverage(model.parameters(), Clock("10ba"))
    _, merged = get_state_dict(model, [optimizer, average])
    assert {name: list(state) for name, state in merged["state"].items()} == {
        "weight": ["average"],
        "bias": ["average"],
    }


def normed_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))


def train_normed(model, average, first, last):
    for i in range(first, last + 1):
        torch.manual_seed(i)
        y = model(torch.randn(6, 3).to(model[0].weight.dtype) + i)
        y.square().mean().backward()
        for p in model.parameters():
            p.detach().sub_(p.grad, alpha=0.1)
            p.grad = None
        average.clock.tick()
        average.step()


def of_buffers(model, average):
    return [average.state[x]["average"] for x in (model[1].running_mean, model[1].running_var)]


def test_which_buffers():
    """Persistent floating-point ones of which the own name begins with running_, at any depth, in their order."""
    model = torch.nn.Sequential(Module(1.0), torch.nn.BatchNorm1d(2))
    model.register_buffer("mask", torch.tensor([0.0, -math.inf]))
    model.register_buffer("running_passing", torch.zeros(1), persistent=False)
    model.register_buffer("running_count", torch.zeros(1, dtype=torch.int64))
    model[1].register_buffer("running_short", torch.zeros(1, dtype=torch.bfloat16))
    average = optim.WeightAverage(model.parameters(), Clock("10ba"), buffers=model)
    expected = [model[0].running_level, model[1].running_mean, model[1].running_var, model[1].running_short]
    assert all(x is y for x, y in zip(average.param_groups[1]["params"], expected, strict=True))
    assert average.state[model[1].running_short]["average"].dtype is torch.float32
    assert len(optim.WeightAverage(model.parameters(), Clock("10ba"), buffers=torch.nn.Linear(2, 2)).param_groups) == 1
    planned = copy.deepcopy(model).to("meta")  # where no value is known
    assert len(optim.WeightAverage(planned.parameters(), Clock("10ba"), buffers=planned).param_groups[1]["params"]) == 4
    named = optim.WeightAverage(model.named_parameters(), Clock("10ba"), buffers=model)
    names = ["0.running_level", "1.running_mean", "1.running_var", "1.running_short"]
    assert named.param_groups[1]["param_names"] == names


def test_swapped_buffers():
    """As in a model that holds the averages; the count of batches is the present one, and the same afterwards."""
    model = normed_model()
    average = optim.WeightAverage(model.parameters(), Clock("10ba"), half_life="2ba", buffers=model)
    train_normed(model, average, 1, 4)
    expected = copy.deepcopy(model)
    for x, state in zip((*expected.parameters(), *expected.buffers()), average.state.values()):
        x.detach().copy_(state["average"])
    own = {name: x.clone() for name, x in model.state_dict().items()}
    with average.swapped():
        assert torch.equal(model.eval()(torch.ones(2, 3)), expected.eval()(torch.ones(2, 3)))
        assert model[1].num_batches_tracked == 4
        model.train()(torch.ones(2, 3))  # which moves the averages that are in place
        model.double()
    assert all(torch.equal(x, own[name]) for name, x in model.state_dict().items())
    assert model[1].running_mean.dtype is torch.float64
    held = of_buffers(expected, optim.WeightAverage(expected.parameters(), Clock("10ba"), buffers=expected))
    assert all(torch.equal(x, y.double()) for x, y in zip(of_buffers(model, average), held))


def test_the_unit_vectors_of_a_spectral_norm():
    """They are copied: the weight of the averaged parameters has the norm 1 again after some evaluations."""
    torch.manual_seed(0)
    model = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(8, 8))
    clock = Clock("50ba")
    average = optim.WeightAverage(model.parameters(), clock, half_life="20ba", buffers=model)
    for _ in range(50):
        with torch.no_grad():
            model.parametrizations.weight.original.add_(torch.randn(8, 8), alpha=0.5)
        model(torch.randn(4, 8))
        clock.tick()
        average.step()
    present = {name: x.clone() for name, x in model.named_buffers()}
    with average.swapped(model):
        for name, x in model.named_buffers():
            assert torch.equal(x, present[name]) and abs(x.norm() - 1) < 1e-6
        for _ in range(100):  # in training mode each makes the vectors fit better
            model(torch.randn(4, 8))
        assert abs(torch.linalg.matrix_norm(model.eval().weight, 2) - 1) < 1e-3
    assert all(torch.equal(x, present[name]) for name, x in model.named_buffers())


@pytest.mark.parametrize("way", ["swapped(model)", "buffers=model"])
def test_statistics_of_the_average_from_data(way):
    """update_bn in the block, for the average; the model that trains has its own again, the same tensors."""
    model, twin = normed_model(), normed_model()
    averages = []
    for each in (model, twin):
        options = {"buffers": each} if way == "buffers=model" else {}
        averages.append(optim.WeightAverage(each.parameters(), Clock("10ba"), half_life="2ba", **options))
        train_normed(each, averages[-1], 1, 4)
    before, own = {name: x.clone() for name, x in model.named_buffers()}, dict(model.named_buffers())
    loader = [torch.randn(6, 3) for _ in range(3)]
    with averages[0].swapped(model if way == "swapped(model)" else None):
        torch.optim.swa_utils.update_bn(loader, model)
        assert model[1].num_batches_tracked == 3 and not torch.equal(model[1].running_mean, before["1.running_mean"])
    assert all(x is own[name] and torch.equal(x, before[name]) for name, x in model.named_buffers())
    for each, average in zip((model, twin), averages):
        train_normed(each, average, 5, 6)
    assert equal(model.state_dict().values(), twin.state_dict().values())


@pytest.mark.parametrize("kind", ["load", "copy", "pickle"])
@pytest.mark.parametrize("half_life", ["2ba", None])
def test_buffers_continue(kind, half_life):
    """Bit for bit, from a state dict and in copies with or without the model; also where buffers were replaced."""

    def made():
        model = normed_model()
        return model, optim.WeightAverage(model.parameters(), Clock("10ba"), half_life=half_life, buffers=model)

    model, average = made()
    train_normed(model, average, 1, 3)
    model.double()
    train_normed(model, average, 4, 4)
    if kind == "load":
        other, continued = made()
        continued.clock.load_state_dict(average.clock.state_dict())
        other.load_state_dict(model.state_dict())
        other.double().load_state_dict(model.state_dict())
        continued.load_state_dict(saved_and_read(average.state_dict()))
    elif kind == "copy":
        continued = copy.deepcopy(average)
        other = continued.buffers
    else:
        other, continued = pickle.loads(pickle.dumps((model, average)))
        assert continued.buffers is other
    train_normed(model, average, 5, 7)
    train_normed(other, continued, 5, 7)
    assert equal(averages(continued), averages(average))
    assert equal(of_buffers(other, continued), of_buffers(model, average))


def saved_and_read(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


def test_buffers_and_a_state_without():
    """A state as it was before averages of buffers, without a mention of them."""
    model = normed_model()
    plain = optim.WeightAverage(model.parameters(), Clock("10ba"), half_life="2ba")
    train_normed(model, plain, 1, 2)
    state = plain.state_dict()
    assert set(state["param_groups"][0]) == {
        "params",
        "begun",
        *START.values(),
        *LAST.values(),
    }
    both = optim.WeightAverage(model.parameters(), plain.clock, half_life="2ba", buffers=model)
    before = averages(both)
    with pytest.raises(ValueError, match="WeightAverage.* has 1 parameter groups, but this optimizer has 2"):
        both.load_state_dict(state)
    assert equal(averages(both), before)
    with pytest.raises(ValueError, match="WeightAverage.* has 2 parameter groups, but this optimizer has 1"):
        plain.load_state_dict(both.state_dict())


def test_buffers_next_to_master_weights():
    """In a bfloat16 model: the master weights of its parameters, and its buffers as they are."""
    model = normed_model().bfloat16()
    optimizer = optim.SGD(model.parameters(), lr=0.01, master_weights=True)
    options = {"half_life": "2ba", "optimizer": optimizer, "buffers": model}
    average = optim.WeightAverage(model.parameters(), Clock("10ba"), **options)
    level = model[1].running_mean
    expected = level.float()
    for _ in range(3):
        model(torch.randn(6, 3).bfloat16()).square().mean().backward()
        optimizer.step()
        average.clock.tick()
        average.step()
        expected.lerp_(level.float(), -math.expm1(-math.log(2) / 2))
    assert torch.equal(average.state[level]["average"], expected)
    own = optimizer.float32_parameters()
    with average.swapped():
        assert torch.equal(level, expected.bfloat16())
    assert all(torch.equal(x, own[p]) for p, x in optimizer.float32_parameters().items())


def test_torchs_checkpoints_name_no_buffers():
    """Why docs/averages.md saves an average with buffers as it is: torch finds the names of parameters alone."""
    model = normed_model()
    average = optim.WeightAverage(model.parameters(), Clock("10ba"), buffers=model)
    with pytest.raises(KeyError):
        get_optimizer_state_dict(model, average)


def trained(dtype=torch.float32, **options):
    """A model after a step, and the average of its weights, which differs from them."""
    model, clock = torch.nn.Linear(3, 2, dtype=dtype), Clock("10ba")
    average = optim.WeightAverage(model.parameters(), clock, half_life="1ba", **options)
    with torch.no_grad():
        model.weight.mul_(3)
    clock.tick()
    average.step()
    return model, average


def averages(average):
    return [state["average"].clone() for state in average.state.values()]


def equal(tensors, others):
    return all(x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(tensors, others, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_swapped(dtype):
    model, average = trained(dtype)
    own, held, x = bits(model), averages(average), torch.ones(3, dtype=dtype)
    before = model(x)
    with average.swapped():
        assert equal(bits(model), [average.to(dtype) for average in held])
        assert equal(averages(average), held)
        assert not torch.equal(model(x), before)
    with pytest.raises(KeyError), average.swapped(model):
        raise KeyError("an evaluation")
    assert equal(bits(model), own) and equal(averages(average), held)


def test_swapped_weights_that_share_storage():
    """Two parameters on the same memory, and one on a part of it."""
    first = torch.nn.Parameter(torch.arange(4.0))
    params = [first, torch.nn.Parameter(first.detach()), torch.nn.Parameter(first.detach()[1:3])]
    clock = Clock("10ba")
    average = optim.WeightAverage(params, clock, half_life="1ba")
    first.detach().add_(2.0)
    clock.tick()
    average.step()
    held = averages(average)
    with average.swapped():
        assert first.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert first.tolist() == [2.0, 3.0, 4.0, 5.0] and equal(averages(average), held)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_swapped_and_cast(dtype):
    """A cast inside the block stays, as it does outside; the values are those of the weights."""
    model, average = trained()
    own, held = bits(model), averages(average)
    with average.swapped():
        model.to(dtype)
        average.state_dict()
    assert equal(bits(model), [weight.to(dtype) for weight in own])
    assert all(torch.equal(x.to(y.dtype), y) for x, y in zip(averages(average), held))


def pickled(average):
    return pickle.loads(pickle.dumps(average))


def saved(average):
    _, other = trained()
    other.load_state_dict(saved_and_read(average.state_dict()))
    return other


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled, saved])
def test_copied_inside(copied):
    """A copy that is made inside the block has the averages, and is not swapped itself."""
    _, average = trained()
    held = averages(average)
    with average.swapped():
        other = copied(average)
        assert equal(averages(other), held)
        other.clock.tick()
        other.step()
        average.load_state_dict(other.state_dict())
    assert equal(averages(average), averages(other))
    assert average.param_groups[0]["last_batch"] == other.param_groups[0]["last_batch"] == 2


INSIDE = {
    "a step of WeightAverage": lambda average, optimizer: average.step(),
    "reset_state()": lambda average, optimizer: average.reset_state(),
    "add_param_group()": lambda average, optimizer: average.add_param_group({"params": [parameter(1.0)]}),
    "swapped()": lambda average, optimizer: average.swapped().__enter__(),
    "a step of SGD": lambda average, optimizer: optimizer.step(),
    "a step of AdamW": lambda average, optimizer: torch.optim.AdamW(optimizer.param_groups[0]["params"]).step(),
}


@pytest.mark.parametrize("what", INSIDE)
@pytest.mark.parametrize("kind", [torch.optim.SGD, optim.SGD])
def test_refused_inside(what, kind):
    model = torch.nn.Linear(2, 2)
    optimizer = kind(model.parameters(), lr=0.1)
    average = optim.WeightAverage(model.parameters(), Clock("10ba"))
    unrelated = torch.optim.SGD([parameter(1.0)], lr=0.1)
    with average.swapped():
        unrelated.step()
        with pytest.raises(RuntimeError, match=re.escape(f": {what} is not possible")):
            INSIDE[what](average, optimizer)
    optimizer.step()
    average.step()


@pytest.mark.parametrize("known", [True, False])
def test_master_weights_inside(known):
    """The average's bits do not fit the low 16 bits of the weights, whether the average knows the optimizer or not."""
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = optim.SGD([weight], lr=0.001, master_weights=True)
    clock = Clock("10ba")
    average = optim.WeightAverage([weight], clock, half_life="1ba", optimizer=optimizer if known else None)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    clock.tick()
    average.step()
    own = optimizer.float32_parameters()
    with average.swapped():
        average.state_dict()
        for refused in (optimizer.float32_parameters, lambda: optimizer.load_float32_parameters(own)):
            with pytest.raises(RuntimeError, match=re.escape("inside WeightAverage.swapped()")):
                refused()
    assert torch.equal(optimizer.float32_parameters()[weight], own[weight])


ERRORS = [
    (lambda p, c: optim.WeightAverage(p, None), "WeightAverage.clock=None"),
    (lambda p, c: optim.WeightAverage(p, c, half_life=0), "WeightAverage.half_life=0:"),
    (lambda p, c: optim.WeightAverage(p, c, half_life=math.inf), "WeightAverage.half_life=inf:"),
    (lambda p, c: optim.WeightAverage(p, c, half_life=0.9), "0.9 in each batch, pass '7ba'. For a share"),
    (lambda p, c: optim.WeightAverage(p, c, half_life="0ba"), "WeightAverage.half_life='0ba'"),
    (lambda p, c: optim.WeightAverage(p, c, half_life="200"), "'200' has no unit"),
    (lambda p, c: optim.WeightAverage(p, c, start="-1ba"), "WeightAverage.start='-1ba'"),
    (lambda p, c: optim.WeightAverage(p, c, start=5), "has no unit"),
    (lambda p, c: optim.WeightAverage(p, c, optimizer=torch.optim.SGD(p)), "WeightAverage.optimizer=SGD"),
    (lambda p, c: optim.WeightAverage([torch.nn.Parameter(torch.ones(1, dtype=torch.int64), False)], c), "torch.int64"),
    (lambda p, c: optim.WeightAverage(p, c, buffers=True), "WeightAverage.buffers=True"),
    (lambda p, c: optim.WeightAverage(p, c).step(lambda: 1.0), "computes no loss"),
    (lambda p, c: optim.WeightAverage(p, c, half_life="9tok").step(), "nobody has counted its tokens"),
    (lambda p, c: optim.WeightAverage(p, c, half_life="1ba", start="9sp").step(), "nobody has counted its samples"),
]


@pytest.mark.parametrize(("call", "message"), ERRORS)
def test_errors(call, message):
    clock = Clock("10ba")
    clock.tick()
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        call([parameter(1.0)], clock)


@pytest.mark.parametrize(
    ("arguments", "units"),
    [
        ({}, {"tok"}),
        ({"half_life": 0.1}, {"tok"}),
        ({"half_life": "9ba"}, {"ba"}),
        ({"half_life": "9ba", "start": "1ep"}, {"ba", "ep"}),
        ({"half_life": 0.1, "start": "9sec"}, {"sec"}),
        ({"start": "0.5dur"}, {"tok"}),
        ({"half_life": "0.1dur", "start": "9sp"}, {"tok", "sp"}),
    ],
)
def test_units(arguments, units):
    """An epoch of known length is counted in batches."""
    average = optim.WeightAverage([parameter(1.0)], Clock("100tok"), **arguments)
    assert {unit.value for unit in average.units()} == units
    average.clock = Clock("100tok", batches_per_epoch=5)
    assert {unit.value for unit in average.units()} == units - {"ep"}


def test_what_it_is_no_part_of():
    weight = parameter(1.0)
    weight.grad = torch.ones_like(weight)
    average = optim.WeightAverage([weight], Clock("10ba"))
    average.zero_grad()
    assert weight.grad is not None
    assert "lr" not in average.param_groups[0]
    assert copy.deepcopy(average).clock is not average.clock


def test_moved_and_cast():
    """The state follows its parameter, as of every optimizer here."""
    model, clock = torch.nn.Linear(2, 1), Clock("10ba")
    average = optim.WeightAverage(model.parameters(), clock, half_life="1ba")
    model.double()
    clock.tick()
    average.step()
    assert average.state[model.weight]["average"].dtype is torch.float64
    assert torch.equal(average.state[model.weight]["average"], model.weight)


def test_in_a_graph_of_ones_own():
    average = optim.WeightAverage([parameter(1.0)], Clock("10ba"))
    with pytest.raises(Exception, match="outside of the graph"):
        torch.compile(average.step, fullgraph=True, backend="eager")()


@pytest.mark.parametrize(
    "arguments",
    [{}, {"half_life": 0.1}, {"half_life": "0.1dur"}, {"half_life": "2ep"}, {"half_life": "9tok", "start": "0.001sec"}],
    ids=str,
)
@pytest.mark.parametrize("length", ["400ba", "9ep"])
@pytest.mark.parametrize("classes", [(), (DTensor,)], ids=["no DTensor so far", "after a DTensor"])
def test_the_calls_of_a_step(monkeypatch, classes, length, arguments):
    """A step calls few functions of our packages, and as many for 100 tensors as for 12."""
    monkeypatch.setattr(sharding, "DTENSOR_CLASSES", classes)

    def calls_of_step(tensors):
        clock = clock_of(length)
        average = optim.WeightAverage([parameter(1.0) for _ in range(tensors)], clock, **arguments)
        for _ in range(2):
            clock.tick(duration=timedelta(milliseconds=1))
            average.step()
        clock.tick(duration=timedelta(milliseconds=1))
        return count_calls(average.step, packages=("optim", "timesched"))

    few, many = calls_of_step(12), calls_of_step(100)
    assert few == many <= 60
