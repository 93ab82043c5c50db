"""Single and half precision: no farther from the exact run than torch's own optimizer, or the reference, is."""

import pytest
import torch

import optim
from tests.optim.problems import flat, ours, parameters, theirs
from tests.optim.rows import FULLEST, ROWS
from tests.optim.signatures import MATRICES

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# Everything else only changes numbers; these also change which operations run.
LABELS = ("defaults", "lr", "momentum", "tensor_lr", "tensors")
CHOSEN = dict.fromkeys([*FULLEST, *(row for row in ROWS if row.label.removeprefix("torch_") in LABELS)])


def start(row, dtype):
    """With tensors that are longer than a vector of the processor, which kernels for half precision treat apart."""
    generator = torch.Generator().manual_seed(9)
    shapes = [(17, 20), (3, 70)] if row.name in MATRICES else [(131,), (17, 20)]
    longer = [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]
    return parameters(row.name, dtype) + longer


def gradient(p, i, step, dtype):
    """Its sign never changes: a sign function, as in Lion and Rprop, would amplify any rounding."""
    generator = torch.Generator().manual_seed(i)
    sign = torch.randn(p.shape, generator=generator).sign()
    generator.manual_seed(100 * step + i)
    values = sign * (0.3 + torch.rand(p.shape, generator=generator))
    return values.to(dtype).to(p.dtype)  # the same numbers in every dtype


def train(optimizer, dtype, first=0):
    """Six steps; `first`: the number of the first parameter."""
    params = flat(optimizer)
    for step in range(1, 7):
        for i, p in enumerate(params, first):
            p.grad = gradient(p, i, step, dtype)
        optimizer.step()
    return [p.detach().double() for p in params]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("row", CHOSEN, ids=lambda row: row.id)
def test_as_near_to_the_exact_run_as_torch(row, dtype):
    """Allowed: twice the error of torch's run in the same dtype, and four roundings of the parameter.

    Muon rounds to bfloat16 in every dtype, so its error is that of torch's.
    """
    exact = train(theirs(row, [p.detach().double().requires_grad_() for p in start(row, dtype)]), dtype)
    plain, mine = (train(build(row, start(row, dtype)), dtype) for build in (theirs, ours))
    eps = torch.finfo(dtype).eps
    for i, (m, p, e) in enumerate(zip(mine, plain, exact)):
        if e.numel():
            allowed = 2 * (p - e).abs().max() + 4 * eps * max(1.0, float(e.abs().max()))
            assert (m - e).abs().max() <= allowed, (i, float((m - e).abs().max()), float(allowed))


@pytest.mark.parametrize("gradient", [0.0, 1e-5, 1e3])
@pytest.mark.parametrize("shape", [(3,), (4, 3)])
def test_adafactor_in_half_precision_stays_finite(shape, gradient):
    p = torch.nn.Parameter(torch.ones(shape, dtype=torch.float16))
    p.grad = torch.full_like(p, gradient)
    optim.Adafactor([p], lr=0.01).step()
    assert torch.allclose(p.float(), torch.tensor(1.0 if gradient == 0 else 0.99), atol=1e-3)  # half's spacing at 1


@pytest.mark.parametrize("row", FULLEST, ids=lambda row: row.name)
def test_dtypes_may_be_mixed(row):
    """Parameters of several dtypes in one group move as each does alone."""

    def build():
        return [p for dtype in (torch.float32, torch.bfloat16, torch.float64) for p in start(row, dtype)[-3:]]

    mine = train(ours(row, build()), torch.bfloat16)
    alone = [train(ours(row, [p]), torch.bfloat16, i)[0] for i, p in enumerate(build())]
    assert all(map(torch.equal, mine, alone))


WITH_EPS = [row for row in FULLEST if isinstance(row.arguments.get("eps"), float) and row.name not in MATRICES]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("row", WITH_EPS, ids=lambda row: row.name)
def test_an_eps_that_float16_does_not_have(row, compiled, compiles_afresh):
    """An element without a gradient stays where it is, where 0 / 0 would make it NaN; the states stay in float16."""
    arguments = {**row.kwargs, "eps": 1e-8}
    if "weight_decay" in arguments:
        arguments["weight_decay"] = 0.0
    ends = []
    for dtype in (torch.float16, torch.float32):
        p = torch.nn.Parameter(torch.ones(4, dtype=dtype))
        optimizer = getattr(optim, row.name)([p], **arguments)
        if compiled:
            optimizer.compile(backend="aot_eager")
        for _ in range(5):
            p.grad = torch.tensor([0.0, 0.0, 0.25, -0.5], dtype=dtype)
            optimizer.step()
        assert {x.dtype for x in optimizer.state[p].values() if x.dim()} == {dtype}
        ends.append(p.detach())
    assert ends[0][:2].tolist() == [1.0, 1.0]
    # Five steps, each with a rounding of the parameter and of each state.
    assert (ends[0].float() - ends[1]).abs().max() <= 10 * torch.finfo(torch.float16).eps
