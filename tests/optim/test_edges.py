"""Edges at which a kernel or a shortcut could differ from the rule, or a refusal could come too late."""

import copy

import pytest
import torch
from torch.nn import Parameter

import optim


def weight(*values, dtype=torch.float64):
    return Parameter(torch.tensor(values, dtype=dtype))


def step(optimizer, p, gradient):
    p.grad = torch.full_like(p, gradient)
    optimizer.step()


def test_rmsprop_that_keeps_everything():
    mine, other = weight(1.0, 2.0), weight(1.0, 2.0)
    for optimizer, p in ((optim.RMSprop, mine), (torch.optim.RMSprop, other)):
        step(optimizer([p], lr=1e-9, alpha=1.0, eps=1e-8), p, 1.0)
    assert torch.equal(mine, other)


@pytest.mark.parametrize("gradient", [0.0, 1e-5, 1e3])
@pytest.mark.parametrize("shape", [(3,), (4, 3)])
def test_adafactor_in_half_precision_stays_finite(shape, gradient):
    p = Parameter(torch.ones(shape, dtype=torch.float16))
    step(optim.Adafactor([p], lr=0.01), p, gradient)
    assert p.isfinite().all()
    assert torch.allclose(p.float(), torch.tensor(1.0 if gradient == 0 else 0.99), atol=1e-3)  # half's spacing at 1


def test_a_momentum_that_is_a_tensor_may_be_zero_for_a_while():
    p, q = weight(1.0), weight(1.0)
    momentum = torch.tensor(0.0, dtype=torch.float64)
    mine, plain = optim.SGD([p], lr=0.1, momentum=momentum), torch.optim.SGD([q], lr=0.1)
    step(mine, p, 1.0)
    step(plain, q, 1.0)
    assert torch.equal(p, q)
    momentum.fill_(0.5)
    step(mine, p, 1.0)
    assert abs(p.item() - (0.9 - 0.1 * 1.5)) < 1e-15  # the buffer held the first gradient


def test_a_momentum_without_its_buffer_is_refused_before_anything_changes():
    p = weight(1.0)
    optimizer = optim.SGD([p], lr=0.1)
    optimizer.param_groups[0]["momentum"] = 0.9
    with pytest.raises(ValueError, match="momentum_buffer"):
        step(optimizer, p, 1.0)
    assert p.item() == 1.0


def test_groups_that_share_a_tensor_load_different_values():
    a, b = weight(1.0), weight(1.0)
    optimizer = optim.SGD([{"params": [a]}, {"params": [b]}], lr=torch.tensor(1.0))
    saved = copy.deepcopy(optimizer.state_dict())
    for group, lr in zip(saved["param_groups"], (0.1, 0.01)):
        group["lr"] = lr
    optimizer.load_state_dict(saved)
    assert [round(float(group["lr"]), 6) for group in optimizer.param_groups] == [0.1, 0.01]


@pytest.mark.parametrize("bad", ["meta", "sparse", "bool"])
def test_a_load_that_fails_at_its_last_tensor_changes_nothing(bad):
    params = [weight(1.0, 2.0), weight(3.0)]
    optimizer = optim.AdamW(params, lr=0.1)
    saved = copy.deepcopy(optimizer.state_dict())
    saved["param_groups"][0]["lr"] = 0.7
    saved["state"][0]["exp_avg"].fill_(5.0)
    last = saved["state"][1]["exp_avg_sq"]
    saved["state"][1]["exp_avg_sq"] = {"meta": last.to("meta"), "sparse": last.to_sparse(), "bool": last.bool()}[bad]
    with pytest.raises(ValueError, match="exp_avg_sq"):
        optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert not optimizer.state[params[0]]["exp_avg"].any()


def test_a_momentum_scheduled_to_zero_resumes():
    p = weight(1.0)
    optimizer = optim.SGD([p], lr=0.1, momentum=0.9)
    step(optimizer, p, 1.0)
    optimizer.param_groups[0]["momentum"] = 0.0
    saved = copy.deepcopy(optimizer.state_dict())
    fresh = optim.SGD([weight(1.0)], lr=0.1, momentum=0.9)
    fresh.load_state_dict(saved)
    assert fresh.param_groups[0]["momentum"] == 0.0


@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adagrad", "Adamax", "NAdam"])
def test_channels_last_and_transposed_gradients(name):
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(4, 3, 5, 5, dtype=torch.float64, generator=generator).to(memory_format=torch.channels_last)
    flat = torch.randn(6, 4, dtype=torch.float64, generator=generator)
    mine, other = ([Parameter(start.clone()), Parameter(flat.clone())] for _ in range(2))
    kwargs = {"lr": 0.01, "weight_decay": 0.1, **({"momentum": 0.9} if name == "SGD" else {"eps": 1e-8})}
    ours, theirs = getattr(optim, name)(mine, **kwargs), getattr(torch.optim, name)(other, **kwargs)
    for _ in range(5):
        for p, q in zip(mine, other):
            p.grad = torch.randn(p.shape[::-1], dtype=p.dtype, generator=generator).permute(*range(p.dim())[::-1])
            q.grad = p.grad.clone()
        ours.step()
        theirs.step()
    for p, q in zip(mine, other):
        assert (p - q).abs().max() <= 1e-12


def test_state_made_in_the_constructor_is_found():
    class Sneaky(optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 0.1})
            for p in params:
                self.state[p]["sneaky"] = torch.zeros_like(p)

        def preinitialize(self):
            pass

        def step(self, closure=None):
            pass

    with pytest.raises(RuntimeError, match="sneaky"):
        Sneaky([weight(1.0)]).step()


def test_a_step_from_elsewhere_runs_without_gradients():
    class Mixin:
        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                p.sub_(p.grad)

    class Mixed(Mixin, optim.Optimizer):
        def preinitialize(self):
            pass

    p = weight(1.0)
    step(Mixed([p], {}), p, 0.25)
    assert p.item() == 0.75


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
