"""A Muon step does not depend on the scale of the gradients: scaling them all by a power of two gives the same bits."""

import math

import pytest
import torch
from torch.nn import Parameter

from optim import Muon, NorMuon
from optim.muon.newton_schulz import JORDAN, TABLES
from tests.optim.compiling import fresh, graphs
from tests.optim.test_muon_golden import values

KINDS = pytest.mark.parametrize("kind", [Muon, NorMuon])
SHAPES = [(4, 6), (6, 4), (5, 5), (1, 7), (3, 4, 6), (6, 2, 3, 2)]
SCALES = (-100, -44, -36, 60)  # exponents of 2
BLOCKS = [{"split_sizes": (2, 4)}, {"split_sizes": [3, 1, 2]}, {"num_heads": 3}]


def trained(kind, shapes, exponent, dtype=torch.float32, steps=3, **options):
    """The parameters and second moments after some steps with gradients that are scaled by a power of two."""
    params = [Parameter(values(shape, i).to(dtype)) for i, shape in enumerate(shapes)]
    optimizer = kind(params, lr=0.1, **options)
    for step in range(1, steps + 1):
        for i, p in enumerate(params):
            p.grad = values(p.shape, i, step=step).to(dtype) * 2.0**exponent
        optimizer.step()
    moments = [optimizer.state[p].get("variance_neuron") for p in params]
    return [p.detach() for p in params] + [x for x in moments if x is not None]


def assert_scale_does_not_matter(*arguments, scales=SCALES, **options):
    unscaled = trained(*arguments, 0, **options)
    for exponent in scales:
        scaled = trained(*arguments, exponent, **options)
        assert all(map(torch.equal, scaled, unscaled)), exponent
    assert all(x.isfinite().all() for x in unscaled)


@KINDS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("ns_dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.filterwarnings("ignore:.*parameters in bfloat16")
def test_in_every_dtype(kind, dtype, ns_dtype):
    assert_scale_does_not_matter(kind, SHAPES, dtype=dtype, ns_dtype=ns_dtype)


@KINDS
@pytest.mark.parametrize(
    "options",
    [
        {"nesterov": False},
        {"momentum": 0.0},
        {"adjust_lr_fn": "original", "cautious_weight_decay": True, "weight_decay": 0.5},
        *({"ns_coefficients": name} for name in TABLES),
        {"ns_coefficients": [JORDAN] * 3},
    ],
    ids=str,
)
def test_in_every_form(kind, options):
    assert_scale_does_not_matter(kind, SHAPES, **options)


@KINDS
@pytest.mark.parametrize("options", BLOCKS, ids=str)
def test_of_fused_projections(kind, options):
    shapes = [(6, 5), (6, 3), (2, 6, 5)]
    assert_scale_does_not_matter(kind, shapes, adjust_lr_fn="match_rms_adamw", **options)


@KINDS
@pytest.mark.parametrize("options", [{"master_weights": True}, {"stochastic_rounding": True}], ids=str)
def test_of_bfloat16_weights(kind, options):
    assert_scale_does_not_matter(kind, SHAPES, dtype=torch.bfloat16, **options)


def test_in_a_compiled_step():
    """Of parameters that start equal, and whose gradients have different scales."""
    exponents = (0, -100, 60)
    params = [Parameter(values((4, 6), 0).float()) for _ in exponents]
    optimizer = NorMuon(params, lr=0.1, ns_steps=2)
    with fresh():
        optimizer.compile(backend="inductor")
        for step in range(1, 4):
            for p, exponent in zip(params, exponents, strict=True):
                p.grad = values((4, 6), 0, step=step).float() * 2.0**exponent
            optimizer.step()
        assert graphs() == 1
    assert all(torch.equal(p, params[0]) for p in params)


@KINDS
def test_in_the_whole_range_of_float64(kind):
    assert_scale_does_not_matter(kind, SHAPES, dtype=torch.float64, ns_dtype="float64", scales=(-900, 900))


@KINDS
@pytest.mark.parametrize("ns_dtype", ["bfloat16", "float32", "float64"])
def test_a_least_norm_is_divided_by_if_eps_says_so(kind, ns_dtype):
    """Gradients of the usual scale give the same bits with and without it; smaller ones give smaller steps."""
    options = {"ns_dtype": ns_dtype, "weight_decay": 0.0, "momentum": 0.0}
    usual, small = (
        [trained(kind, SHAPES, exponent, eps=eps, **options) for eps in (0.0, 1e-7)] for exponent in (0, -44)
    )
    assert all(map(torch.equal, *usual))
    assert not any(map(torch.equal, *small))


@pytest.mark.parametrize("eps", [0, 0.0])
def test_a_matrix_of_zeros_does_not_move(eps):
    """Also in a stack beside others, which move as they would without it."""
    p = Parameter(values((3, 4, 6), 0))
    before = p.detach().clone()
    optimizer = Muon([p], lr=0.1, weight_decay=0.0, eps=eps)
    p.grad = values((3, 4, 6), 0, step=1)
    p.grad[1] = 0.0
    optimizer.step()
    assert torch.equal(p[1], before[1]) and not torch.equal(p[0], before[0]) and p.isfinite().all()


@pytest.mark.parametrize("ns_dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_stays_so_in_its_own_matrix(ns_dtype, value):
    """No step hides an overflow, and the other matrices of a stack are stepped as ever."""
    p, q = (Parameter(values((3, 4, 6), 0)) for _ in range(2))
    for stack in (p, q):
        stack.grad = values((3, 4, 6), 0, step=1)
        optimizer = Muon([stack], lr=0.1, ns_dtype=ns_dtype)
        if stack is p:
            p.grad[1, 2, 3] = value
        optimizer.step()
    assert p[1].isnan().all()
    assert torch.equal(p[[0, 2]], q[[0, 2]])


@KINDS
@pytest.mark.parametrize("ns_dtype", ["bfloat16", "float32"])
def test_subnormal_gradients_are_taken_for_zeros(kind, ns_dtype):
    for exponent in (-127, -135, -149):
        p, *_ = trained(kind, [(4, 6)], exponent, weight_decay=0.0, momentum=0.0, ns_dtype=ns_dtype)
        assert torch.equal(p, values((4, 6), 0).float()), exponent


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.filterwarnings("ignore:.*parameters in bfloat16")
def test_a_momentum_that_has_underflowed_moves_nothing(dtype):
    """Its last bits never vanish: a twentieth of them is rounded to 0."""
    p = Parameter(torch.zeros(4, 6, dtype=dtype))
    optimizer = Muon([p], lr=1.0, weight_decay=0.0, momentum=0.8)
    p.grad = values((4, 6), 0, step=1).to(dtype)
    for _ in range(500):
        optimizer.step()
        p.grad.zero_()
    before = p.detach().clone()
    optimizer.step()
    assert optimizer.state[p]["momentum_buffer"].any() and torch.equal(p, before)


def test_a_loaded_state_keeps_its_eps():
    saved = Muon([Parameter(torch.ones(2, 2))], eps=1e-7).state_dict()
    optimizer = Muon([Parameter(torch.ones(2, 2))])
    assert optimizer.param_groups[0]["eps"] == 0.0
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["eps"] == 1e-7
