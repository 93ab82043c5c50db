"""Checkpoints merged instead of a decay: the coefficients, the sum, and the theorem that makes them one."""

import itertools
import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import optim
from timesched import Clock, Time, WarmupStableDecayScheduler, bind

NAMES = ("linear", "cosine", "1-sqrt", "1-square", "exponential")
FUNCTIONS = {
    "linear": lambda x: 1 - x,
    "cosine": lambda x: (1 + math.cos(math.pi * x)) / 2,
    "1-sqrt": lambda x: 1 - math.sqrt(x),
    "1-square": lambda x: 1 - x * x,
    "exponential": lambda x: (0.5**x - 0.5) / 0.5,
}


@pytest.mark.parametrize("name", NAMES)
@given(gaps=st.lists(st.integers(1, 50), min_size=1, max_size=12), start=st.integers(0, 10**12))
def test_coefficients(name, gaps, start):
    times = [start + gap for gap in itertools.accumulate(gaps)]
    found = optim.merge_coefficients(name, [f"{t}tok" for t in times], f"{start}tok")
    shares = [0.0] + [(t - start) / (times[-1] - start) for t in times]
    f = FUNCTIONS[name]
    expected = [f(a) - f(b) for a, b in itertools.pairwise(shares)]
    expected[-1] = f(shares[-2])
    assert found == pytest.approx(expected, rel=0, abs=1e-14)
    assert math.fsum(found) == pytest.approx(1.0, rel=0, abs=1e-14)
    by_function = optim.merge_coefficients(f, [f"{t}tok" for t in times], f"{start}tok")
    assert by_function == pytest.approx(expected, rel=0, abs=1e-14)


@pytest.mark.parametrize("times", ["80ba", Time(80, "ba"), ["80ba"], (time for time in ["80ba"])])
def test_one_time(times):
    assert optim.merge_coefficients("linear", times, "20ba") == [1.0]


@pytest.mark.parametrize(("name", "function"), [("linear", "linear"), ("minus-sqrt", "1-sqrt")])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 20])
def test_those_of_megatron(name, function, n):
    """NVIDIA/Megatron-LM, tools/checkpoint/weighted_merge.py: n checkpoints at equal distances."""
    f = {"linear": lambda x: 1 - x, "minus-sqrt": lambda x: 1 - math.sqrt(x)}[name]
    theirs = [f(j / n) - f((j + 1) / n) for j in range(n - 1)] + [f((n - 1) / n)]
    theirs[0] = 1 - sum(theirs[1:])
    assert optim.merge_coefficients(function, [f"{10 * j}ba" for j in range(4, n + 4)], "30ba") == pytest.approx(
        theirs, abs=1e-14
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("unit", ["ba", "tok"])
def test_the_theorem(name, unit):
    """SGD with gradients that are given: a checkpoint after each uneven batch; their sum is the decayed run."""
    generator = torch.Generator().manual_seed(0)
    sizes = [3, 8, 1, 5, 9, 2, 4, 7, 6, 5, 12, 1]
    gradients = [torch.randn(5, generator=generator, dtype=torch.float64) for _ in sizes]
    constant, decayed = (torch.nn.Parameter(torch.ones(5, dtype=torch.float64)) for _ in range(2))
    stable, falling = (torch.optim.SGD([p], lr=0.1) for p in (constant, decayed))
    length = {"ba": len(sizes), "tok": sum(sizes)}[unit]
    begin = {"ba": 4, "tok": sum(sizes[:4])}[unit]
    clock = Clock(f"{length}{unit}")
    schedule = WarmupStableDecayScheduler("0ba", t_decay=f"{length - begin}{unit}", decay=name)
    scheduler = bind(schedule, falling, clock)
    saved, times = [], []
    for size, gradient in zip(sizes, gradients):
        constant.grad, decayed.grad = gradient.clone(), gradient.clone()
        stable.step()
        falling.step()
        clock.tick(tokens=size)
        scheduler.step()
        if clock.timestamp > f"{begin}{unit}":
            saved.append({"weight": constant.detach().clone()})
            times.append(clock.timestamp.get(unit))
    coefficients = optim.merge_coefficients(name, times, f"{begin}{unit}")
    merged = optim.merge_weights(iter(saved), coefficients)["weight"]
    torch.testing.assert_close(merged, decayed.detach(), rtol=0, atol=1e-12)
    assert (merged - constant).abs().max() > 1e-3


ERRORS = [
    (("linear", [], "1ba"), "times is empty"),
    (("linear", ["3ba", "3ba"], "1ba"), "times: 3ba follows 3ba"),
    (("linear", ["1ba"], "1ba"), "1ba follows 1ba"),
    (("linear", ["2ba", "3tok"], "1ba"), "3tok follows 2ba"),
    *(((name, ["2ba"], "1ba"), f"merge_coefficients.decay={name!r}") for name in ("line", "geometric", "harmonic")),
    ((lambda x: 0.9 - x, ["2ba"], "1ba"), "merge_coefficients.decay: it is [0.9]"),
    ((lambda x: 1 if x == 0 else math.nan, ["2ba", "3ba"], "1ba"), "merge_coefficients.decay: it is [1.0, nan]"),
    (("linear", [2], "1ba"), "times: 2 has no unit"),
    (("linear", "soon", "1ba"), "times: 'soon' is not a time"),
    (("linear", ["2ba", "-3ba"], "1ba"), "times='-3ba'"),
]


@pytest.mark.parametrize(("arguments", "message"), ERRORS)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        optim.merge_coefficients(*arguments)


def test_weights_in_their_dtypes():
    """What rounds in bfloat16 is summed before it is rounded; counts and other things are those of the last."""
    dicts = []
    for i in (1, 2, 3):
        dicts.append(
            {
                "low": torch.full((2,), 1 + i / 128, dtype=torch.bfloat16),
                "wide": torch.full((2,), i / 3, dtype=torch.float64),
                "complex": torch.full((2,), i * 1j, dtype=torch.complex64),
                "batches": torch.tensor(i),
                "extra": {"version": i},
            }
        )
    merged = optim.merge_weights((each for each in dicts), [0.5, 0.25, 0.25])
    assert list(merged) == list(dicts[0])
    assert {key: x.dtype for key, x in merged.items() if key != "extra"} == {
        key: x.dtype for key, x in dicts[0].items() if key != "extra"
    }
    assert merged["low"].tolist() == [torch.tensor(1 + 1.75 / 128).bfloat16().item()] * 2
    assert merged["wide"].tolist() == [0.5 * (1 / 3) + 0.25 * (2 / 3) + 0.25 * 1.0] * 2
    assert merged["complex"].tolist() == [1.75j] * 2
    assert merged["batches"].item() == 3 and merged["extra"] == {"version": 3}
    assert dicts[2]["low"].tolist() == [1 + 3 / 128] * 2  # nothing given is changed


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float16])
def test_short_dtypes_are_summed_in_float32(dtype):
    """In their own dtype, each of the terms would be rounded."""
    dicts = [{"a": torch.tensor([1.0, 1.25]).to(dtype)} for _ in range(3)]
    merged = optim.merge_weights(dicts, [0.3, 0.3, 0.4])["a"]
    assert merged.dtype == dtype and merged.float().tolist() == [1.0, 1.25]


def test_one_at_a_time():
    alive = []

    class Weights(dict):
        def __init__(self, i):
            super().__init__(weight=torch.ones(1) * i)
            alive.append(i)

        def __del__(self):
            alive.remove(self["weight"].item())

    def load():
        for i in range(5):
            assert len(alive) <= 1
            yield Weights(i)

    assert optim.merge_weights(load(), [0.2] * 5)["weight"].item() == pytest.approx(2.0)


X, Y, WHOLE = ({"a": x} for x in (torch.ones(2), torch.ones(3), torch.ones(2, dtype=torch.int64)))
REFUSED = [
    (([X, X], [1.0]), "coefficients=[1.0]: 2 state dicts"),
    (([X], [0.5, 0.5]), "coefficients=[0.5, 0.5]: 1 state dicts"),
    (([], []), "coefficients=[]: 0 state dicts"),
    (([X, Y], [0.5, 0.5]), "'a' is (3,), and in the first it is (2,)."),
    (([X, {}], [0.5, 0.5]), "'a' is missing"),
    (([{"model": X}], [1.0]), "no weights are among 'model'"),
    (([X, WHOLE], [0.5, 0.5]), "'a' is (2,) of integers"),
    (([WHOLE, X], [0.5, 0.5]), "in the first it is (2,) of integers"),
    (([X, {"a": 3}], [0.5, 0.5]), "'a' is no tensor"),
    *(
        (([X, X], [0.5, wrong]), f"coefficients=[0.5, {wrong}]: a coefficient")
        for wrong in (math.inf, -math.inf, math.nan)
    ),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_what_does_not_add_up(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        optim.merge_weights(*arguments)


LAYER = torch.nn.Linear(2, 2)
WRONG_TYPES = [
    (X, "merge_weights.state_dicts is one dict"),
    (torch.nn.Sequential(LAYER), "merge_weights.state_dicts is one Seq"),
    ([LAYER, LAYER], "merge_weights: state dict 1 is a Linear"),
    ([LAYER.state_dict(), LAYER], "merge_weights: state dict 2 is a Linear"),
]


@pytest.mark.parametrize(("state_dicts", "message"), WRONG_TYPES)
def test_what_is_no_state_dict(state_dicts, message):
    with pytest.raises(TypeError, match=f"^{re.escape(message)}"):
        optim.merge_weights(state_dicts, [0.5, 0.5])


@pytest.mark.parametrize("coefficients", [[0.25, 0.75], (0.25, 0.75), iter([0.25, 0.75]), torch.tensor([0.25, 0.75])])
def test_coefficients_of_any_kind(coefficients):
    merged = optim.merge_weights([X, {"a": 3 * X["a"]}], coefficients)
    assert torch.equal(merged["a"], torch.tensor([2.5, 2.5]))
