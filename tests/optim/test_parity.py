"""N steps equal torch's. Where torch has no such optimizer, test_equations.py compares with its equations."""

import importlib.util
import re

import pytest
import torch
from torch.nn import Parameter
from torch.torch_version import TorchVersion

import optim
from tests.optim.problems import (
    assert_close,
    assert_same_steps,
    assert_states_close,
    flat,
    give_gradients,
    is_in_torch,
    ours,
    parameters,
    run,
    theirs,
)
from tests.optim.rows import BY_ID, BY_NAME, FULLEST, ROWS, tensor
from tests.optim.signatures import MATRICES

STEPS = 20
BOUND = 1e-12
STATES = [row for row in [*FULLEST, BY_ID["Muon-torch_defaults"]] if is_in_torch(row)]
# With Composer, whose torch is older, one configuration of each optimizer.
TRIED = FULLEST if importlib.util.find_spec("composer") else [row for row in ROWS if is_in_torch(row)]
SCHEDULED = ("lr", "weight_decay", "betas", "eps", "momentum", "alpha", "lr_decay", "lambd")
ALL = pytest.mark.parametrize("row", TRIED, ids=lambda row: row.id)


@ALL
def test_twenty_steps_in_float64(row):
    mine, other = ours(row, parameters(row.name)), theirs(row, parameters(row.name))
    for step in range(1, STEPS + 1):
        for optimizer in (mine, other):
            run(optimizer, flat(optimizer), step, step)
        assert_same_steps(row, mine, other)
    moved = any(not torch.equal(p, q) for p, q in zip(flat(mine), parameters(row.name)))
    assert moved == (not row.label.endswith("zero_lr") or row.name == "Rprop")  # which clamps its steps to a minimum


@BY_NAME
def test_hyperparameters_change_between_steps(row):
    """All that may be scheduled, as numbers, and from step 3 on as tensors."""
    mine, other = ours(row, parameters(row.name)), theirs(row, parameters(row.name))
    start = [{key: group[key] for key in SCHEDULED if key in group} for group in mine.param_groups]
    for step in range(1, 7):
        for i, group in enumerate(other.param_groups):
            for key, first in start[i].items():
                several = tuple((1 - 0.1 * (step % 4)) * x for x in (first if isinstance(first, tuple) else [first]))
                held = tuple(map(tensor, several)) if step > 2 else several
                group[key] = several if isinstance(first, tuple) else several[0]
                mine.param_groups[i][key] = held if isinstance(first, tuple) else held[0]
            for each in (group, mine.param_groups[i]) if "maximize" in group else ():
                each["maximize"] = step % 3 == 0
        for optimizer in (mine, other):
            run(optimizer, flat(optimizer), step, step)
    assert_same_steps(row, mine, other)


def test_a_momentum_that_is_a_tensor_may_be_zero_for_a_while():
    p, momentum = Parameter(torch.ones(1, dtype=torch.float64)), tensor(0.0)
    optimizer = optim.SGD([p], lr=0.1, momentum=momentum)
    for expected in (0.9, 0.9 - 0.1 * 1.5):
        p.grad = torch.ones_like(p)
        optimizer.step()
        assert abs(p.item() - expected) < 1e-15
        momentum.fill_(0.5)


@pytest.mark.parametrize("beta2", [0.6, tensor(0.6), 1 / 3, 0.0])
def test_radam_that_never_adapts(beta2):
    """The rule of the adaptive step divides by (ρ∞ - 4) * (ρ∞ - 2), which is 0 for the first three of these."""
    mine, other = Parameter(torch.ones(2, dtype=torch.float64)), Parameter(torch.ones(2, dtype=torch.float64))
    optimizers = [optim.RAdam([mine], betas=(0.9, beta2)), torch.optim.RAdam([other], betas=(0.9, float(beta2)))]
    for step in range(1, 4):
        for p, optimizer in zip((mine, other), optimizers):
            p.grad = torch.tensor([1.0, -0.5 * step], dtype=torch.float64)
            optimizer.step()
    assert_close(mine, other, 1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", ["cerebras", "original", "match_rms_adamw", None])
@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (0, 0), (2, 0, 3), (0, 2, 3)])
def test_muon_with_a_matrix_without_elements(shape, form, dtype):
    """It takes its steps, and those beside it take the same as without it."""
    empty, beside, alone = (Parameter(torch.ones(each, dtype=dtype)) for each in (shape, (2, 3), (2, 3)))
    both, one = (optim.Muon(params, lr=0.1, adjust_lr_fn=form) for params in ([empty, beside], [alone]))
    gradient = torch.arange(6.0, dtype=dtype).reshape(2, 3)
    for _ in range(2):
        empty.grad, beside.grad, alone.grad = torch.zeros_like(empty), gradient.clone(), gradient.clone()
        both.step(), one.step()
    assert torch.equal(beside, alone) and not torch.equal(alone, torch.ones_like(alone))
    assert empty.shape == shape and both.state[empty]["momentum_buffer"].shape == shape


@BY_NAME
def test_complex_parameters(row):
    """As in torch, and as pairs of real numbers where it has no such optimizer."""
    params = parameters("Adam", torch.complex128)
    if row.name in ("Adafactor", *MATRICES):
        with pytest.raises(ValueError, match="complex"):
            ours(row, [p for p in params if p.ndim == 2])
        return
    mine, pairs = ours(row, params), not is_in_torch(row)
    other = theirs(row, [as_pairs(p) for p in params] if pairs else parameters("Adam", torch.complex128))
    for step in range(1, 9):
        give_gradients(params, step)
        for p, q in zip(params, flat(other)):
            q.grad = p.grad if p.grad is None or not pairs else as_pairs(p.grad).detach()
        mine.step()
        other.step()
    if not pairs:
        assert_states_close(mine, other, BOUND)
    for p, q in zip(params, flat(other)):
        assert_close(as_pairs(p) if pairs else p, q, BOUND)


def as_pairs(x):
    return Parameter(torch.view_as_real(x.detach().clone()))


# Not SGD in bfloat16: torch's fused one then updates only what is left over from whole vectors of elements.
FUSED = [(name, dtype) for name in ("SGD-lr", "SGD-nesterov_maximize") for dtype in (torch.float32, torch.float64)]
FUSED += [
    (name, dtype)
    for name in ("Adam-weight_decay", "AdamW-weight_decay", "Adagrad-lr_decay", "Adam-amsgrad")
    for dtype in (torch.float32, torch.float64, torch.bfloat16)
]


@pytest.mark.parametrize(("id", "dtype"), FUSED)
def test_bit_for_bit_where_torch_has_a_fused_kernel(id, dtype):
    """On the CPU the same kernel runs, so its results are the same."""
    row = BY_ID[id]

    def build():
        generator = torch.Generator().manual_seed(5)
        return [Parameter(torch.randn(s, generator=generator).to(dtype)) for s in [(129,), (33, 7), (2, 3, 4, 5)]]

    mine, other = ours(row, build()), theirs(row, build(), fused=True)
    for step in range(1, 8):
        for optimizer in (mine, other):
            give_gradients(flat(optimizer), step, missing={})
            optimizer.step()
    for p, q in zip(flat(mine), flat(other)):
        assert torch.equal(p, q)
        for key, value in other.state[q].items():
            assert value is None or torch.equal(mine.state[p][key], value), key


@pytest.mark.parametrize("row", STATES, ids=lambda row: row.name)
def test_state_has_the_dtype_and_shape_of_torchs(row):
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        mine, other = ours(row, parameters(row.name, dtype)), theirs(row, parameters(row.name, dtype))
        run(other, flat(other), 1, 4)
        for p, q in zip(flat(mine), flat(other)):
            for key, value in other.state[q].items():
                there = mine.state[p][key]
                assert (there.dtype, there.shape, there.device) == (value.dtype, value.shape, value.device), key


@pytest.mark.skipif(TorchVersion(torch.__version__) >= "2.9", reason="this torch compiles a step")
def test_compiling_on_an_older_torch_is_an_error_that_names_the_version():
    p = Parameter(torch.ones(2))
    optimizer = optim.Adam([p])
    p.grad = torch.ones(2)
    with pytest.raises(RuntimeError, match=re.escape(torch.__version__)):
        optimizer.compile()
    with pytest.raises(Exception, match="torch 2.9 and newer"):
        torch.compile(optimizer.step, fullgraph=True, backend="eager")()
    optimizer.step()
