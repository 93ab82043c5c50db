"""Float32 values in bfloat16 tensors: bit for bit those of the golden file, for all bits, and rounded without bias."""

import copy
import json
from pathlib import Path

import pytest
import torch
from torch.nn import Parameter

import optim
from optim.core.low_precision import join, noise, round_, split_
from tests.optim.problems import flat, give_gradients, ours, parameters
from tests.optim.rows import ROWS

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
    """A sample of 16.8 million bit patterns, with every high half and every low half."""
    for start in range(0, 1 << 16, 1 << 12):
        high = torch.arange(start, start + (1 << 12), dtype=torch.int64)[:, None] << 16
        low = (torch.arange(1 << 8) * 257 + 31 * start) % (1 << 16)
        pattern = (high + low).flatten()
        value = (pattern - (pattern >> 31 << 32)).to(torch.int32).view(torch.float32)
        p, remainder = divided(value)
        back = join(p, remainder)
        assert torch.equal(p.isnan(), value.isnan())
        same = back.view(torch.int32) == value.view(torch.int32)
        assert bool((same | value.isnan()).all())
        again = divided(back)
        assert [bits(x) for x in again] == [bits(p), bits(remainder)]
        near = (p.double() - value.double()).abs() <= (value.bfloat16().double() - value.double()).abs()
        assert bool((near | ~value.isfinite() | ~p.isfinite()).all())


@pytest.mark.parametrize("row", FILE["stochastic"], ids=lambda row: row["float32"])
def test_rounding_is_unbiased(row):
    """Each of the 65,536 values of the noise once: exactly so many go to the neighbour away from zero."""
    value = from_bits([int(row["float32"], 16)]).expand(1 << 16).clone()
    nan, rounded = bool(value[0].isnan()), torch.empty(1 << 16, dtype=torch.bfloat16)
    round_(value, [rounded], EVERY)
    if nan:
        assert bool(rounded.isnan().all())
        return
    found = torch.tensor(bits(rounded))
    away = found == int(row["away"], 16)
    assert int(away.sum()) == int(row["p_away"].split("/")[0])
    assert bool((away | (found == int(row["toward_zero"], 16))).all())


def test_all_low_halves_round_by_their_distance():
    """The mean of the rounded bits is the value's, for every low half: 2**16 times the noises of every 257th."""
    chosen = EVERY[::257]
    for low in chosen.tolist():
        value = from_bits([0x3F800000 + low]).expand(1 << 16).clone()
        rounded = torch.empty(1 << 16, dtype=torch.bfloat16)
        round_(value, [rounded], EVERY)
        assert sum(x == 0x3F81 for x in bits(rounded)) == low


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


# Training


def twins(row, **options):
    """The same optimizer on bfloat16 parameters and on float32 ones with the same values."""
    low = [Parameter(p.detach().bfloat16()) for p in parameters(row.name, torch.float32)]
    wide = [Parameter(p.detach().float()) for p in low]
    return ours(row, low, **options), ours(row, wide)


def float32_of(optimizer, p):
    return join(p.detach(), optimizer.state[p]["remainder"])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_master_weights_are_float32_training(row):
    mine, other = twins(row, master_weights=True)
    for step in range(1, 9):
        give_gradients(flat(mine), step)
        for p, q in zip(flat(mine), flat(other)):
            q.grad = None if p.grad is None else p.grad.float()
        mine.step(), other.step()
        for i, (p, q) in enumerate(zip(flat(mine), flat(other))):
            assert bits(float32_of(mine, p)) == bits(q.detach()), (step, i)
            for key, value in other.state[q].items():
                assert torch.equal(mine.state[p][key], value), (step, i, key)


def master(seed=0, **options):
    p = Parameter(torch.randn(40, generator=torch.Generator().manual_seed(seed)).bfloat16())
    return p, optim.AdamW([p], lr=1e-3, master_weights=True, **options)


def trained(optimizer, p, first, last):
    for step in range(first, last + 1):
        p.grad = torch.sin(torch.arange(40.0) * step).bfloat16()
        optimizer.step()


@pytest.mark.parametrize("at", [0, 1, 5])
def test_a_run_goes_on_exactly(at):
    p, whole = master()
    trained(whole, p, 1, at)
    state, weights = copy.deepcopy(whole.state_dict()), p.detach().clone()
    trained(whole, p, at + 1, 9)
    q, again = master(seed=1)
    with torch.no_grad():
        q.copy_(weights)
    again.load_state_dict(state)
    trained(again, q, at + 1, 9)
    assert bits(float32_of(whole, p)) == bits(float32_of(again, q))


def test_into_an_optimizer_without_master_weights_and_back():
    p, optimizer = master()
    trained(optimizer, p, 1, 3)
    plain = optim.AdamW([p], lr=1e-3)
    plain.load_state_dict(optimizer.state_dict())
    assert "remainder" not in plain.state[p] and plain.state[p]["exp_avg"].dtype == torch.bfloat16
    back = optim.AdamW([p], lr=1e-3, master_weights=True)
    back.load_state_dict(plain.state_dict())
    assert back.state[p]["exp_avg"].dtype == torch.float32 and not bits(back.state[p]["remainder"])[0]


def test_float32_parameters_there_and_back():
    p, optimizer = master()
    trained(optimizer, p, 1, 3)
    found = optimizer.float32_parameters()
    assert found[p].dtype == torch.float32 and torch.equal(found[p], float32_of(optimizer, p))
    q, other = master(seed=1)
    other.load_float32_parameters({q: found[p]})
    assert torch.equal(q, p) and bits(other.state[q]["remainder"]) == bits(optimizer.state[p]["remainder"])


def test_a_cast_away_from_bfloat16_says_what_is_lost():
    p, optimizer = master()
    trained(optimizer, p, 1, 2)
    average = optimizer.state[p]["exp_avg"].clone()
    p.data = p.data.float()
    p.grad = None
    with pytest.warns(UserWarning, match="float32_parameters"):
        optimizer.step()
    assert "remainder" not in optimizer.state[p] and torch.equal(optimizer.state[p]["exp_avg"], average)


def test_one_graph():
    p, optimizer = master()
    q, eager = master()
    optimizer.compile(backend="eager")
    for step in range(1, 4):
        trained(optimizer, p, step, step), trained(eager, q, step, step)
    assert torch.allclose(float32_of(optimizer, p), float32_of(eager, q), rtol=1e-6)
