"""Steps in float32 of bfloat16 parameters: the bits of the golden file, float32 training bit for bit by every optimizer
with all switches, and rounding without bias. How it is used is in test_low_precision_use.py."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch.nn import Parameter

import optim
from optim.precision.bits import join, split_, stochastic_round_
from optim.precision.noise import Place, element_indices, noise
from tests.optim.problems import flat, give_gradients, ours, parameters
from tests.optim.rows import ROWS, Row

FILE = json.loads((Path(__file__).parents[1] / "golden" / "low_precision.json").read_text())
EVERY = torch.arange(1 << 16, dtype=torch.int32)


def from_bits(bits):
    return torch.tensor([each - (each >> 31 << 32) for each in bits], dtype=torch.int32).view(torch.float32)


def bits(x):
    """Of float32 values 32 bits, of bfloat16 ones 16, as numbers without sign."""
    wide = x.dtype == torch.float32
    return (
        x.contiguous().view(torch.int32 if wide else torch.int16).long() & (2**32 - 1 if wide else 2**16 - 1)
    ).tolist()


def divided(value):
    p, remainder = (torch.empty(value.shape, dtype=torch.bfloat16) for _ in range(2))
    split_(value.clone(), [p], [remainder])
    return p, remainder


def test_the_golden_bits():
    value = from_bits([int(row["float32"], 16) for row in FILE["split"]])
    p, remainder = divided(value)
    number = ~value.isnan()
    assert torch.equal(p.isnan(), value.isnan())
    for mine, key in ((bits(p), "bf16"), (remainder.view(torch.int16).tolist(), "remainder")):
        golden = [int(row[key], 16) if key == "bf16" else row[key] for row in FILE["split"]]
        assert [x for x, there in zip(mine, number) if there] == [x for x, there in zip(golden, number) if there]
    assert torch.equal(join(p, remainder)[number].view(torch.int32), value[number].view(torch.int32))


def test_every_float32_comes_back():
    """A sample of 4.2 million bit patterns, with every high half."""
    for start in range(0, 1 << 16, 1 << 12):
        high = torch.arange(start, start + (1 << 12), dtype=torch.int64)[:, None] << 16
        low = (torch.arange(1 << 6) * 1028 + 31 * start) % (1 << 16)
        pattern = (high + low).flatten()
        value = (pattern - (pattern >> 31 << 32)).to(torch.int32).view(torch.float32)
        p, remainder = divided(value)
        back = join(p, remainder)
        assert torch.equal(p.isnan(), value.isnan())
        same = back.view(torch.int32) == value.view(torch.int32)
        assert bool((same | value.isnan()).all())
        for x, y in zip(divided(back), (p, remainder)):
            assert torch.equal(x.view(torch.int16), y.view(torch.int16))
        near = (p.double() - value.double()).abs() <= (value.bfloat16().double() - value.double()).abs()
        assert bool((near | ~value.isfinite() | ~p.isfinite()).all())


@pytest.mark.parametrize("row", FILE["stochastic"], ids=lambda row: row["float32"])
def test_rounding_is_unbiased(row):
    """Each of the 65,536 values of the noise once: exactly so many go to the neighbour away from zero."""
    value = from_bits([int(row["float32"], 16)]).expand(1 << 16).clone()
    nan, rounded = bool(value[0].isnan()), torch.empty(1 << 16, dtype=torch.bfloat16)
    stochastic_round_(value, [rounded], EVERY)
    if nan:
        assert bool(rounded.isnan().all())
        return
    found = torch.tensor(bits(rounded))
    away = found == int(row["away"], 16)
    assert int(away.sum()) == int(row["p_away"].split("/")[0])
    assert bool((away | (found == int(row["toward_zero"], 16))).all())


def test_all_low_halves_round_by_their_distance():
    """The mean of the rounded bits is the value's, for every 1021st low half."""
    chosen = EVERY[::1021]
    for low in chosen.tolist():
        value = from_bits([0x3F800000 + low]).expand(1 << 16).clone()
        rounded = torch.empty(1 << 16, dtype=torch.bfloat16)
        stochastic_round_(value, [rounded], EVERY)
        assert (rounded.view(torch.int16) == 0x3F81).sum() == low


@pytest.mark.parametrize("seed", [0, 1, -987_654_321, 2**31 - 1])
def test_the_noise_is_even(seed):
    """4 million indices: the counts of the high and of the low bytes, and neighbours, are as of random numbers."""
    n = 1 << 22
    found = noise(torch.arange(n, dtype=torch.int32) ^ seed)
    assert found.min() >= 0 and found.max() < 1 << 16
    for byte in (found // 256, found % 256):
        counts = torch.bincount(byte, minlength=256).double()
        assert ((counts - n / 256) ** 2 / (n / 256)).sum() < 400  # 255 on average; above 400 once in 10 million times
    centred = (found.double() - 32767.5) / (65536 / 12**0.5)
    assert abs(centred.mean()) < 6 / n**0.5 and abs((centred[1:] * centred[:-1]).mean()) < 6 / n**0.5
    assert not torch.equal(found, noise(torch.arange(n, dtype=torch.int32) ^ seed ^ 4))


PLACES = [
    Place(0, 7, [(40, 1)], False),  # rows of a full tensor
    Place(0, 30, [(4, 60), (2, 10), (3, 1)], False),  # parts of three dimensions
    Place(0, 0, [(4, 15), (5, 3), (3, 1)], False),
    Place(0, 0, [(3, 1), (5, 12), (4, 3)], False),  # in another order in memory
    Place(0, 45, [(4, 15), (1, 15), (5, 1)], False),
    Place(0, 5, [(20, 3)], False),
]


@pytest.mark.parametrize("place", PLACES)
def test_indices_in_the_full_tensor(place):
    """Those that a walk over the local elements meets, wherever a block begins."""
    expected = [place.first]
    for size, stride in place.dims:
        expected = [base + k * stride for base in expected for k in range(size)]
    for start in (0, 5, 19):
        found = element_indices(place, start, len(expected) - start, torch.device("cpu"))
        assert found.dtype == torch.int32 and found.tolist() == expected[start:]


def test_indices_beyond_31_bits_are_told_apart():
    low, high = (
        element_indices(Place(0, first, [(64, 1)], True), 0, 64, torch.device("cpu")) for first in (5, 5 + 2**31)
    )
    assert low.tolist() == list(range(5, 69)) and not set(low.tolist()) & set(high.tolist())
    assert not torch.equal(noise(low), noise(high))


# Training


def pair(row, **options):
    """The same optimizer on bfloat16 parameters and on float32 ones with the same values."""
    narrow = [Parameter(p.detach().bfloat16()) for p in parameters(row.name, torch.float32)]
    wide = [Parameter(p.detach().float()) for p in narrow]
    return ours(row, narrow, **options), ours(row, wide)


def stepped(mine, other, step):
    """A step of both, with the same gradients."""
    give_gradients(flat(mine), step)
    for p, q in zip(flat(mine), flat(other)):
        q.grad = None if p.grad is None else p.grad.float()
    mine.step(), other.step()


def float32_of(optimizer, p):
    return join(p.detach(), optimizer.state[p]["remainder"])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_master_weights_are_float32_training(row):
    mine, other = pair(row, master_weights=True)
    for step in range(1, 9):
        stepped(mine, other, step)
        for i, (p, q) in enumerate(zip(flat(mine), flat(other))):
            assert bits(float32_of(mine, p)) == bits(q.detach()), (step, i)
            for key, value in other.state[q].items():
                assert torch.equal(mine.state[p][key], value), (step, i, key)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_stochastic_rounding_is_a_float32_step_rounded_once(row):
    mine, other = pair(row, stochastic_rounding=True)
    for step in range(1, 5):
        before = [p.detach().clone() for p in flat(mine)]
        stepped(mine, other, step)
        for i, (p, q) in enumerate(zip(flat(mine), flat(other))):
            if p.grad is None:
                assert torch.equal(p, before[i])
            neighbours = [(q.detach().view(torch.int32) + more) >> 16 for more in (0, 0xFFFF)]
            found = p.detach().view(torch.int16).int()
            assert bool(((found == neighbours[0]) | (found == neighbours[1])).all()), (step, i)
            for key, value in other.state[q].items():
                assert torch.equal(mine.state[p][key], value), (step, i, key)
            q.data.copy_(p.detach())


@pytest.mark.parametrize("size", [100, (1 << 18) + 777])
@pytest.mark.parametrize("name", ["AdamW", "RAdam"])
def test_large_and_strided_tensors(name, size):
    """Tensors of several blocks, beside small ones, and views in which an element is not beside the next."""
    row = Row(name, "large", {"lr": 1e-3, "weight_decay": 0.1})
    base = torch.randn(size, 3, generator=torch.Generator().manual_seed(0)).bfloat16()
    narrow = [Parameter(x) for x in (base.clone(), base.t().clone().t(), base[::2].clone()[:, 1:], base[:5].clone())]
    mine = ours(row, narrow, master_weights=True)
    other = ours(row, [Parameter(p.detach().float()) for p in narrow])
    for step in (1, 2, 3):
        stepped(mine, other, step)
    for p, q in zip(flat(mine), flat(other)):
        assert torch.equal(float32_of(mine, p), q.detach())


@pytest.mark.parametrize("case", FILE["trajectories"], ids=lambda case: f"{case['optimizer']}-{case['j0']}")
def test_the_golden_trajectories(case):
    """Others' float32 training, with foreach=False: within 4 float32 spacings, as sums in another order are.

    Where a value is below 0.01, those at 0.01: torch's own fused AdamW, which is what runs here, lies 6 spacings off
    where a weight passes zero, as its error is that of the steps that led there.
    """
    params = []
    for i, shape in enumerate(case["shapes"]):
        n = torch.arange(math.prod(shape), dtype=torch.float64)
        params.append(Parameter((0.8 * torch.cos(0.5 * n + 1.1 * (case["j0"] + i) + 0.3)).bfloat16().view(shape)))
    optimizer = getattr(optim, case["optimizer"])(params, **case["args"], master_weights=True)
    compared = 0
    for k in range(1, 51):
        for i, p in enumerate(params):
            n, j = torch.arange(p.numel(), dtype=torch.float64), case["j0"] + i
            g = 0.1 * (0.5 * torch.sin(0.7 * k + 0.3 * n + j) + 0.3 * torch.cos(0.9 * n * n + 0.4 * k + j))
            p.grad = g.float().bfloat16().view(p.shape)
        optimizer.step()
        if str(k) in case["float32_after"]:
            text = case["float32_after"][str(k)]
            golden = from_bits([int(text[at : at + 8], 16) for at in range(0, len(text), 8)])
            mine = torch.cat([float32_of(optimizer, p).view(-1) for p in params])
            size = golden.abs().clamp(min=0.01)
            spacing = torch.nextafter(size, torch.tensor(math.inf)) - size
            assert ((mine - golden).abs() <= 4 * spacing).all(), k
            compared += 1
    assert compared == len(case["float32_after"]) >= 8


def moved_by(steps, **options):
    """How far 65,536 ones moved on average in steps of 2**-10, where the next bfloat16 below is 2**-8 away."""
    p = Parameter(torch.ones(1 << 16, dtype=torch.bfloat16))
    optimizer = optim.SGD([p], lr=2**-10, **options)
    for _ in range(steps):
        p.grad = torch.ones_like(p)
        optimizer.step()
    return (1 - p.detach().double()).mean().item(), p.detach()


def test_what_is_lost_without_it_and_not_with_it():
    assert moved_by(16)[0] == 0.0
    assert moved_by(16, master_weights=True)[0] == 2**-6
    # 16 times one of four goes down by 2**-8: the mean of 65,536 has a standard deviation of 2.6e-5
    assert moved_by(16, stochastic_rounding=True)[0] == pytest.approx(2**-6, abs=1.5e-4)


def test_the_noise_of_steps_parameters_and_seeds():
    first, other = (moved_by(1, stochastic_rounding=True, rounding_seed=seed)[1] for seed in (0, 1))
    again = moved_by(1, stochastic_rounding=True)[1]
    assert torch.equal(first, again) and not torch.equal(first, other)
    params = [Parameter(torch.ones(1 << 16, dtype=torch.bfloat16)) for _ in range(2)]
    optimizer = optim.SGD(params, lr=2**-10, stochastic_rounding=True)
    found = []
    for _ in range(2):
        for p in params:
            p.data.fill_(1.0)
            p.grad = torch.ones_like(p)
        optimizer.step()
        found += [(p.detach() < 1).double() for p in params]
    for seed in (1, 2, 3):  # whose steps are not those of another seed either
        optimizer = optim.SGD(params, lr=2**-10, stochastic_rounding=True, rounding_seed=seed)
        for _ in range(3):
            params[0].data.fill_(1.0)
            params[0].grad, params[1].grad = torch.ones_like(p), None
            optimizer.step()
            found.append((params[0].detach() < 1).double())
    for i, x in enumerate(found):
        for y in found[:i]:  # of two independent draws, the correlation has a standard deviation of 1/256
            assert abs(torch.corrcoef(torch.stack([x, y]))[0, 1]) < 6 / 256


def test_the_noise_begins_with_step_0_after_a_load_without_a_count():
    saved = optim.SGD([Parameter(torch.ones(4))], lr=0.1).state_dict()
    optimizer = optim.SGD([Parameter(torch.ones(4, dtype=torch.bfloat16))], lr=0.1, stochastic_rounding=True)
    optimizer.load_state_dict(saved)
    assert [state["step"].item() for state in optimizer.state.values()] == [0.0]


@pytest.mark.parametrize(("rounding", "expected", "tolerance"), [(False, 0.70, 0.005), (True, 0.5, 2e-3)])
def test_an_average_in_bfloat16(rounding, expected, tolerance):
    """Lion's average of gradients of 0.5 from 1 on, with a beta of 0.99: rounded to the nearest, it stops at 0.70."""
    p = Parameter(torch.zeros(1 << 14, dtype=torch.bfloat16))
    way = {"master_weights": True, "stochastic_rounding": rounding, "state_dtype": torch.bfloat16}
    optimizer = optim.Lion([p], lr=0.0, betas=(0.9, 0.99), **way)
    optimizer.state[p]["exp_avg"].fill_(1.0)
    for _ in range(1500):
        p.grad = torch.full_like(p, 0.5)
        optimizer.step()
    assert optimizer.state[p]["exp_avg"].double().mean().item() == pytest.approx(expected, abs=tolerance)
