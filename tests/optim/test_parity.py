"""Law 12: N steps equal torch's, or the plain reference's where torch has no such optimizer."""

import inspect

import pytest
import torch
from torch.nn import Parameter

import optim
from tests.optim.problems import (
    assert_close,
    assert_states_close,
    flat,
    give_gradients,
    has_twin,
    is_rough,
    ours,
    parameters,
    run,
    theirs,
)
from tests.optim.reference import muon_scale
from tests.optim.rows import BY_ID, FULLEST, ROWS
from tests.optim.signatures import KEYWORD_ONLY, NAMES, REQUIRED, SIGNATURES

STEPS = 20
BOUND = 1e-12
BY_NAME = pytest.mark.parametrize("row", FULLEST, ids=lambda row: row.name)
STATES = [row for row in [*FULLEST, BY_ID["Muon-torch_defaults"]] if row.twin]
ALL = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
COMPLEX = [row for row in ROWS if row.twin not in (None, "Muon")]


def test_the_table_is_large_enough():
    assert len([row for row in ROWS if row.twin]) >= 80 and {row.name for row in ROWS} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_names_and_defaults(name):
    said = inspect.signature(getattr(optim, name)).parameters
    expected = SIGNATURES[name]
    assert next(iter(said)) == "params"
    assert [key for key in said if key not in ("params", "enable_global_step")] == list(expected)
    for key, default in expected.items():
        value = said[key].default
        assert value is inspect.Parameter.empty if default is REQUIRED else value == default, key
        keyword = said[key].kind is inspect.Parameter.KEYWORD_ONLY
        assert keyword == (key in KEYWORD_ONLY.get(name, ())), key
    switch = said["enable_global_step"]
    assert switch.default is False and switch.kind is inspect.Parameter.KEYWORD_ONLY


@ALL
def test_twenty_steps_in_float64(row):
    mine, other = ours(row, parameters(row.name)), theirs(row, parameters(row.name))
    for step in range(1, STEPS + 1):
        run(mine, flat(mine), step, step, zeros=row.zeros)
        run(other, flat(other), step, step, zeros=row.zeros)
        if is_rough(row):
            assert_muon_close(mine, other, step)
        else:
            # The mean over nothing is NaN, which the reference of Adafactor keeps as the state of an empty matrix.
            assert_states_close(mine, other, BOUND, empty=row.name != "Adafactor")
    moved = any(not torch.equal(p, q) for p, q in zip(flat(mine), parameters(row.name)))
    # Adadelta without eps divides by an accumulator that stays zero; Rprop clamps its steps to a minimum.
    assert moved == (row.id != "Adadelta-eps_zero" and (not row.label.endswith("zero_lr") or row.name == "Rprop"))


def assert_muon_close(mine, other, step):
    """Where torch has no Muon: the orthogonalization runs in bfloat16, the reference's in float64."""
    for group, theirs_group in zip(mine.param_groups, other.param_groups):
        for p, q in zip(group["params"], theirs_group["params"]):
            bound = 0.15 * float(group["lr"]) * muon_scale(p, theirs_group) * step
            assert (p - q).abs().max() <= bound


@pytest.mark.parametrize("row", COMPLEX, ids=lambda row: row.id)
def test_complex_parameters(row):
    params, twins = parameters(row.name, torch.complex128), parameters(row.name, torch.complex128)
    mine, other = ours(row, params), theirs(row, twins)
    run(mine, params, 1, 8, zeros=row.zeros)
    run(other, twins, 1, 8, zeros=row.zeros)
    assert_states_close(mine, other, BOUND)


@BY_NAME
def test_complex64(row):
    """As pairs of real numbers, also where torch has no twin; matrices that are factored must be real."""
    if row.name in ("Adafactor", "Muon"):
        with pytest.raises(ValueError, match="complex"):
            ours(row, [p for p in parameters("Adam", torch.complex64) if p.ndim == 2])
        return
    mine = ours(row, parameters(row.name, torch.complex64))
    other = theirs(row, [as_pairs(p.detach().to(torch.complex128)) for p in parameters(row.name, torch.complex64)])
    for step in range(1, 4):
        give_gradients(flat(mine), step)
        for p, q in zip(flat(mine), flat(other)):
            q.grad = None if p.grad is None else as_pairs(p.grad.to(torch.complex128)).detach()
        mine.step()
        other.step()
    for p, q in zip(flat(mine), flat(other)):
        assert p.dtype == torch.complex64
        assert_close(as_pairs(p), q, 1e-4)


def as_pairs(x):
    return Parameter(torch.view_as_real(x.detach().clone()))


@BY_NAME
def test_a_large_tensor_among_small_ones(row):
    """More than 2**20 elements: what does not fit into a cache may be worked through in pieces."""
    shapes = [(3, 4), (64, 16500), (5, 2)] if row.name == "Muon" else [(7,), (1024 * 1024 + 12345,), (3, 4)]

    def build():
        generator = torch.Generator().manual_seed(3)
        return [Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in shapes]

    mine, other = ours(row, build()), theirs(row, build())
    for step in (1, 2, 3):
        give_gradients(flat(mine), step, missing={})
        for p, q in zip(flat(mine), flat(other)):
            q.grad = p.grad.clone()
        mine.step()
        other.step()
    if is_rough(row):
        assert_muon_close(mine, other, 3)
    else:
        assert_states_close(mine, other, BOUND)


@BY_NAME
def test_large_tensors_that_are_not_contiguous(row):
    if row.name == "Muon":
        pytest.skip("works on whole matrices: the small ones of the other tests are transposed too")

    def build():
        generator = torch.Generator().manual_seed(4)
        base = torch.randn(1030, 1030, generator=generator, dtype=torch.float64)
        return [Parameter(base.t()), Parameter(base[:, ::2].clone(memory_format=torch.preserve_format)[::2])]

    mine, other = ours(row, build()), theirs(row, build())
    for step in (1, 2):
        for p, q in zip(flat(mine), flat(other)):
            generator = torch.Generator().manual_seed(step)
            p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)
            q.grad = p.grad.t().contiguous().t() if q.shape[0] == 1030 else p.grad.clone()
        mine.step()
        other.step()
    assert_states_close(mine, other, BOUND)


FUSED = [
    "SGD-lr",
    "SGD-nesterov_maximize",
    "Adam-weight_decay",
    "AdamW-weight_decay",
    "Adagrad-lr_decay",
    "Adam-amsgrad",
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("id", FUSED)
def test_bit_for_bit_where_torch_has_a_fused_kernel(id, dtype):
    """Law 12 on CPU: the same kernel runs, so its results are the same."""
    row = BY_ID[id]
    if row.name == "SGD" and dtype == torch.bfloat16:
        pytest.skip(
            "torch's fused SGD is wrong there: it updates only what is left over from whole vectors of elements"
        )

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
def test_state_has_the_dtype_shape_and_layout_of_the_twin(row):
    if not has_twin(row):
        pytest.skip("no twin in this torch")
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        mine, other = ours(row, parameters(row.name, dtype)), theirs(row, parameters(row.name, dtype))
        run(other, flat(other), 1, 4)
        for p, q in zip(flat(mine), flat(other)):
            for key, value in other.state[q].items():
                there = mine.state[p][key]
                assert (there.dtype, there.shape, there.device) == (value.dtype, value.shape, value.device), key


@pytest.mark.parametrize("name", NAMES)
def test_a_step_per_group_equals_an_optimizer_per_group(name):
    """Groups share nothing: parameters in one group of two move as if they were alone."""
    row = next(r for r in ROWS if r.name == name and len(r.groups) > 1) if name != "NAdam" else BY_ID["NAdam-groups"]
    together = ours(row, parameters(name))
    run(together, parameters_in_order(together, row), 1, 6)
    alone = parameters(name)
    n = len(row.groups)
    optimizers = [getattr(optim, name)(alone[i::n], **{**row.kwargs, **group}) for i, group in enumerate(row.groups)]
    for step in range(1, 7):
        give_gradients(alone, step)
        for optimizer in optimizers:
            optimizer.step()
    for p, q in zip(parameters_in_order(together, row), alone):
        assert_close(p, q, 0.0)


def parameters_in_order(optimizer, row):
    """The parameters as they were dealt out."""
    groups, n = [group["params"] for group in optimizer.param_groups], len(row.groups)
    return [groups[i % n][i // n] for i in range(sum(map(len, groups)))]
