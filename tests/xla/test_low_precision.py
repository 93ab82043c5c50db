"""Master weights and stochastic rounding on torch_xla's CPU device: compiled once, and the bits of eager steps."""

import pytest
import torch
import torch_xla

import optim
from tests.xla.test_training_step import compilations, host_reads

WAYS = {
    "master": {"master_weights": True},
    "rounded": {"stochastic_rounding": True},
    "states": {"stochastic_rounding": True, "state_dtype": torch.bfloat16},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["AdamW", "Lion", "Adafactor"])
def test_one_compilation_and_the_bits_of_eager_steps(name, way):
    """But for the last bits of float32, which xla computes in another order: a bfloat16 spacing of few elements."""
    torch.manual_seed(0)
    device = torch_xla.device()
    here = [torch.nn.Parameter(torch.randn(shape).bfloat16()) for shape in ((16, 8), (24, 7), (16,))]
    there = [torch.nn.Parameter(p.detach().to(device)) for p in here]
    optimizers = [getattr(optim, name)(params, lr=0.01, **WAYS[way]) for params in (here, there)]
    optimizers[1].hold_tensors()
    torch_xla.sync()
    before, reads = compilations(), host_reads()
    for _ in range(5):
        for p, q in zip(here, there):
            p.grad = torch.randn(p.shape).bfloat16()
            q.grad = p.grad.to(device)
        for optimizer in optimizers:
            optimizer.step()
        torch_xla.sync()
    assert compilations() - before <= 1 and host_reads() == reads
    mine, theirs = (torch.cat([p.detach().cpu().float().flatten() for p in params]) for params in (here, there))
    off = (mine - theirs).abs()
    assert (off <= mine.abs() * 2**-7 + 1e-6).all() and (off > 0).float().mean() < 0.05
