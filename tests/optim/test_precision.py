"""Single and half precision: no farther from the exact run than torch's own optimizer, or the reference, is."""

import pytest
import torch

from tests.optim.problems import flat, is_rough, ours, parameters, theirs
from tests.optim.rows import FULLEST, ROWS

STEPS = 6
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# Everything else only changes numbers; these also change which operations run.
CHOSEN = [
    row for row in ROWS if row.label.removeprefix("torch_") in ("defaults", "lr", "momentum", "tensor_lr", "tensors")
]


def start(row, dtype):
    """With tensors that are longer than a vector of the processor, which kernels for half precision treat apart."""
    generator = torch.Generator().manual_seed(9)
    shapes = [(17, 20), (3, 70)] if row.name == "Muon" else [(131,), (17, 20)]
    longer = [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]
    return parameters(row.name, dtype) + longer


def train(optimizer, row, dtype):
    """Gradients whose sign never changes: a sign function, as in Lion and Rprop, would amplify any rounding."""
    params = flat(optimizer)
    for step in range(1, STEPS + 1):
        for i, p in enumerate(params):
            generator = torch.Generator().manual_seed(i)
            sign = torch.randn(p.shape, generator=generator).sign()
            generator.manual_seed(100 * step + i)
            gradient = sign * (0.3 + torch.rand(p.shape, generator=generator))
            p.grad = gradient.to(dtype).to(p.dtype)  # the same numbers in every dtype
        optimizer.step()
    return [p.detach().double() for p in params]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("row", list(dict.fromkeys([*FULLEST, *CHOSEN])), ids=lambda row: row.id)
def test_as_near_to_the_exact_run_as_torch(row, dtype):
    """Allowed: twice the error of torch's run in the same dtype, and four roundings of the parameter.

    Muon rounds to bfloat16 in every dtype, so its error is that of its twin.
    """
    exact_start = [p.detach().double().requires_grad_() for p in start(row, dtype)]
    exact = train(theirs(row, exact_start), row, dtype)
    plain = train(theirs(row, start(row, dtype)), row, dtype)
    mine = train(ours(row, start(row, dtype)), row, dtype)
    eps = torch.finfo(dtype).eps
    if is_rough(row):
        eps = torch.finfo(torch.bfloat16).eps
    for i, (m, p, e) in enumerate(zip(mine, plain, exact)):
        if e.numel():
            allowed = 2 * (p - e).abs().max() + 4 * eps * max(1.0, float(e.abs().max()))
            assert (m - e).abs().max() <= allowed, (i, float((m - e).abs().max()), float(allowed))


@pytest.mark.parametrize("row", FULLEST, ids=lambda row: row.name)
def test_dtypes_may_be_mixed(row):
    """Parameters of several dtypes in one group move as each does alone."""

    def build():
        return [p for dtype in (torch.float32, torch.bfloat16, torch.float64) for p in start(row, dtype)[-3:]]

    together, alone = build(), build()
    train_together = ours(row, together)
    mine = train(train_together, row, torch.bfloat16)
    for i, p in enumerate(alone):
        optimizer = ours(row, [p])
        for step in range(1, STEPS + 1):
            generator = torch.Generator().manual_seed(i)
            sign = torch.randn(p.shape, generator=generator).sign()
            generator.manual_seed(100 * step + i)
            p.grad = (sign * (0.3 + torch.rand(p.shape, generator=generator))).to(torch.bfloat16).to(p.dtype)
            optimizer.step()
        assert torch.equal(p.double(), mine[i]), (i, p.dtype)
