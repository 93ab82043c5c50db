"""A training step on torch_xla's CPU device, which traces lazily: one graph, compiled once, over a changing rate."""

import os

os.environ.setdefault("PJRT_DEVICE", "CPU")

import pytest
import torch
import torch_xla
from torch_xla.debug import metrics

import optim
import timesched
from optim.lr_scheduler import CosineDecayLR, LRScheduler
from optim.weight_decay_scheduler import CosineDecayWD
from tests.optim.schedulers.building import make
from tests.optim.schedulers.rows import EXAMPLES
from tests.optim.signatures import MATRICES, NAMES

STEPS = 20


class Custom(LRScheduler):
    def _get_closed_form_lr(self):
        return torch.where(self.last_epoch < 5, 0.1, 0.1 * 0.5 ** (self.last_epoch / self.total_iters))


def compilations():
    data = metrics.metric_data("CompileTime")
    return data[0] if data else 0


def host_reads():
    return metrics.counter_value("aten::_local_scalar_dense")


def train(make_optimizer, make_schedulers, steps=STEPS, between=lambda step: None):
    """Train on the device; returns how often something was compiled, the learning rates of the steps, the optimizer."""
    device = torch_xla.device()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).to(device)
    optimizer = make_optimizer(model)
    schedulers = make_schedulers(optimizer)
    batches = [torch.randn(4, 8).to(device) for _ in range(steps)]
    group = optimizer.param_groups[0]
    torch_xla.sync()
    before, rates = compilations(), []
    for step, batch in enumerate(batches):
        reads = host_reads()
        rates.append(group["lr"])
        if isinstance(group["lr"], torch.Tensor):
            rates[-1] = group["lr"].clone()  # looked at after the run: reading it now would be a graph of its own
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        assert host_reads() == reads
        between(step)
        reads = host_reads()
        for scheduler in schedulers:
            scheduler.step()
        torch_xla.sync()
        assert host_reads() == reads
    return compilations() - before, [float(rate) for rate in rates], optimizer


def adamw(model):
    return optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.01)


def assert_close(rates, expected):
    """Rates are float32 there: an ulp of the largest, and one for each of the few operations before it."""
    assert rates == pytest.approx(expected, rel=0, abs=5e-7 * max(expected))


@pytest.mark.parametrize("stem", [*EXAMPLES, "Custom"])
def test_a_closed_form(stem):
    def make_schedulers(on):
        made.append(Custom(on, total_iters=10) if stem == "Custom" else make(stem, EXAMPLES[stem][-1], on))
        return made

    made = []
    count, rates, _ = train(adamw, make_schedulers)
    assert count <= 1  # 0 where another schedule has made the same graph
    assert_close(rates, made[0].values(STEPS))
    assert (stem == "Constant" or len(set(rates)) > 1) and int(made[0].last_epoch) == STEPS


@pytest.mark.parametrize("name", NAMES)
def test_an_optimizer(name):
    """Several parameters: what each has of its own in the second step, it has in the first."""

    def make_optimizer(model):
        params = list(model.parameters())
        if name in MATRICES:
            rest = {"params": [p for p in params if p.dim() < 2], "algorithm": "adamw"}
            return getattr(optim, name)([{"params": [p for p in params if p.dim() > 1]}, rest], lr=0.1)
        return getattr(optim, name)(params, lr=0.1)

    def make_schedulers(optimizer):
        decay = [CosineDecayWD(optimizer, 0.1, 0.0, 5)] if "weight_decay" in optimizer.defaults else []
        return [CosineDecayLR(optimizer, 0.1, 0.0, 15), *decay]

    count, rates, optimizer = train(make_optimizer, make_schedulers, steps=6)
    reference = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    assert count <= 1  # 0 where a test before has made the same graph
    assert_close(rates, CosineDecayLR(reference, 0.1, 0.0, 15).values(6))
    assert float(optimizer.param_groups[0].get("weight_decay", 0.0)) == 0.0


def test_with_a_clock_and_with_bind():
    """The value is computed on the host there and moved: it is data of the graph, and no constant."""
    clock = timesched.Clock(f"{STEPS}ba")

    def make_schedulers(optimizer):
        bound = timesched.bind(timesched.LinearScheduler(1.0, 0.5), optimizer, clock, key="weight_decay")
        return [CosineDecayLR(optimizer, 0.1, 0.0, "1dur", clock=clock), bound]

    count, rates, optimizer = train(adamw, make_schedulers, between=lambda step: clock.tick())
    reference = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    assert count == 1
    assert_close(rates, CosineDecayLR(reference, 0.1, 0.0, STEPS).values(STEPS))
    assert float(optimizer.param_groups[0]["weight_decay"]) == pytest.approx(0.005, rel=1e-6)


def test_torchs_own_compiles_more_often():
    """What this is all for: its state comes with the first step, so the second is another graph."""
    count, _, _ = train(lambda model: torch.optim.AdamW(model.parameters(), lr=0.1), lambda optimizer: [])
    assert count == 2


def test_loading_a_state():
    """The step count and the rate are data: going on from a checkpoint compiles nothing again."""
    made = []

    def load(step):
        if step == 9:
            made[0].load_state_dict({**made[0].state_dict(), "last_epoch": 14})

    sequence = EXAMPLES["Sequential"][0]
    count, rates, _ = train(adamw, lambda on: made.append(make("Sequential", sequence, on)) or made, between=load)
    expected = made[0].values(40)
    assert_close(rates, expected[:10] + expected[15:25])
    assert count <= 2  # the load ends the graph of its step
