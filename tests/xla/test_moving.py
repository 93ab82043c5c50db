"""A model that is moved to another device after its optimizer was built; the other device is torch_xla's CPU here."""

import copy

import pytest
import torch
import torch_xla
from torch import nn

import optim
import timesched
from optim.lr_scheduler import LinearLR
from tests.optim.problems import assert_close, ours
from tests.optim.rows import FULLEST
from tests.xla.test_training_step import compilations

EACH = pytest.mark.parametrize("row", FULLEST, ids=lambda row: row.name)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8, bias=False), nn.Tanh(), nn.Linear(8, 2, bias=False))


def train(model, optimizer, steps):
    for step in steps:
        batch = torch.randn(16, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(batch.to(model[0].weight.device)).square().mean().backward()
        optimizer.step()
        torch_xla.sync()


@pytest.fixture
def swapping():
    """`model.to("xla")` then keeps the Parameters; by default torch makes new ones where the type of device changes."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.mark.parametrize("before", [(), (1, 2)], ids=["before the first step", "later"])
@EACH
def test_state_moves_with_the_model(row, before, swapping):
    model = network()
    optimizer = ours(row, list(model.parameters()))
    train(model, optimizer, before)
    there = copy.deepcopy(model).to("xla")
    expected = ours(row, list(there.parameters()))
    expected.load_state_dict(optimizer.state_dict())
    params = list(model.parameters())
    model.to("xla")
    assert list(map(id, params)) == list(map(id, model.parameters()))
    for each in ((model, optimizer), (there, expected)):
        train(*each, (3, 4, 5))
    for p, q in zip(model.parameters(), there.parameters(), strict=True):
        assert p.device.type == "xla" and torch.equal(p.cpu(), q.cpu())
        assert optimizer.state[p].keys() == expected.state[q].keys()
        for key, x in optimizer.state[p].items():
            assert x.device == p.device and torch.equal(x.cpu(), expected.state[q][key].cpu()), key


@EACH
def test_parameters_that_a_trainer_replaces(row):
    """Without swapping, whoever moves the model puts its new parameters into the groups, as accelerate does."""
    model, there = network(), network().to("xla")
    optimizer, expected = ours(row, list(model.parameters())), ours(row, list(there.parameters()))
    model.to("xla")
    optimizer.param_groups[0]["params"] = list(model.parameters())
    for each in ((model, optimizer), (there, expected)):
        train(*each, (1, 2, 3))
    assert set(optimizer.state) == set(model.parameters())
    for p, q in zip(model.parameters(), there.parameters(), strict=True):
        assert_close(p.cpu(), q.cpu(), 1e-6)  # one makes its state in the graph of its first step, and is rounded there
    assert not torch.equal(model[0].weight.cpu(), network()[0].weight)


def test_tensors_of_the_groups_stay_where_they_are(swapping):
    """A learning rate in a tensor on the host, which its owner may hold, is read there."""
    results = []
    for moves in (True, False):
        model, rate = network(), torch.tensor(0.1, dtype=torch.float64)
        optimizer = optim.AdamW(model.parameters(), lr=rate, betas=(torch.tensor(0.8), torch.tensor(0.9)))
        if moves:
            model.to("xla")
        train(model, optimizer, (1,))
        rate.fill_(0.01)
        train(model, optimizer, (2,))
        assert optimizer.param_groups[0]["lr"] is rate
        results.append([p.detach().cpu() for p in model.parameters()])
    for p, q in zip(*results, strict=True):
        assert_close(p, q, 1e-6)  # float32 on two devices


@pytest.mark.parametrize("is_bound", [False, True])
def test_one_compilation_for_a_model_that_is_moved_after_its_scheduler_was_made(is_bound, swapping):
    model, clock = network(), timesched.Clock("20ba")
    optimizer = optim.AdamW(model.parameters(), lr=0.1)
    line = timesched.LinearScheduler(1.0, 0.5)
    scheduler = timesched.bind(line, optimizer, clock) if is_bound else LinearLR(optimizer, 0.1, 0.05, 20)
    assert optimizer.param_groups[0]["lr"] == 0.1 and type(optimizer.param_groups[0]["lr"]) is float
    model.to("xla")
    before, rates = compilations(), []
    batch = torch.ones(16, 4).to("xla")
    torch_xla.sync()
    for step in range(8):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        clock.tick()
        scheduler.step()
        torch_xla.sync()
        before = compilations() if step == 1 else before  # the first two: with the number that was there, and without
        rates.append(optimizer.param_groups[0]["lr"].clone())
    assert compilations() == before
    assert [float(rate) for rate in rates] == pytest.approx([0.1 - 0.0025 * t for t in range(1, 9)], rel=1e-6)
