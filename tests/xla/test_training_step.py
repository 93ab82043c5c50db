"""A training step on torch_xla's CPU device, which traces lazily: one graph, compiled once, over a changing rate."""

import os

os.environ.setdefault("PJRT_DEVICE", "CPU")

import pytest
import torch
import torch_xla
from torch_xla.debug import metrics

import optim
import timesched
from optim import lr_scheduler, weight_decay_scheduler
from optim.lr_scheduler import ChainedLR, CosineDecayLR, ExponentialLR, LinearLR, ScalePerParamLR, SequentialLR
from tests.optim.closed_forms import SCHEDULES
from tests.optim.signatures import NAMES

STEPS = 20


def sequence(optimizer):
    return SequentialLR(optimizer, [LinearLR(optimizer, 0.0, 0.1, 5), CosineDecayLR(optimizer, 0.1, 0.0, 15)], [5])


def chain(optimizer):
    return ChainedLR([LinearLR(optimizer, 0.1, 0.2, 10), ExponentialLR(optimizer, 0.1, 10, 0.5)])


def scaled(optimizer):
    optimizer.param_groups[0]["adjust_learning_rate"] = 0.5
    return ScalePerParamLR(optimizer, CosineDecayLR(optimizer, 0.1, 0.0, 15))


def custom(optimizer):
    class Custom(lr_scheduler.LRScheduler):
        def _get_closed_form_lr(self):
            return torch.where(self.last_epoch < 5, 0.1, 0.1 * 0.5 ** (self.last_epoch / self.total_iters))

    return Custom(optimizer, total_iters=10)


def compilations():
    data = metrics.metric_data("CompileTime")
    return data[0] if data else 0


def train(make_optimizer, make_schedulers, steps=STEPS, between=lambda step: None):
    """Train on the device; returns how often something was compiled, and the learning rates of the steps."""
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
        rates.append(group["lr"])
        if isinstance(group["lr"], torch.Tensor):
            rates[-1] = group["lr"].clone()  # looked at after the run: reading it now would be a graph of its own
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        between(step)
        for scheduler in schedulers:
            scheduler.step()
        torch_xla.sync()
    count = compilations() - before
    return count, [float(rate) for rate in rates], optimizer


def adamw(model):
    return optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.01)


def close(rates, expected):
    """Rates are float32 there: an ulp of the largest, and one for each of the few operations before it."""
    assert rates == pytest.approx(expected, rel=0, abs=5e-7 * max(expected))
    return True


@pytest.mark.parametrize("name", SCHEDULES)
def test_one_compilation(name):
    def make(optimizer):
        made.append(getattr(lr_scheduler, name)(optimizer, *SCHEDULES[name]))
        return made

    made = []
    count, rates, _ = train(adamw, make)
    assert count <= 1  # 0 where another schedule has made the same graph
    assert close(rates, made[0].values(STEPS)) and (name == "ConstantLR" or len(set(rates)) > 2)
    assert int(made[0].last_epoch) == STEPS


@pytest.mark.parametrize("make", [sequence, chain, scaled, custom])
def test_compositions(make):
    made = []
    count, rates, _ = train(adamw, lambda optimizer: made.append(make(optimizer)) or made)
    factor = 0.5 if make is scaled else 1.0
    assert count == 1 and close(rates, [factor * value for value in made[0].values(STEPS)])


@pytest.mark.parametrize("make", [sequence, chain, scaled, custom])
def test_a_step_reads_nothing_on_the_host(make):
    reads = []

    def between(step):
        reads.append(metrics.counter_value("aten::_local_scalar_dense"))

    train(adamw, lambda optimizer: [make(optimizer)], between=between)
    assert reads == reads[:1] * STEPS


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Lion", "RMSprop"])
def test_learning_rate_and_weight_decay_with_several_optimizers(name):
    def make(optimizer):
        decay = weight_decay_scheduler.CosineDecayWD(optimizer, 0.1, 0.0, 15)
        return [sequence(optimizer), decay]

    count, rates, optimizer = train(lambda model: getattr(optim, name)(model.parameters(), lr=0.1), make)
    assert count == 1 and len(set(rates)) > 10
    assert float(optimizer.param_groups[0]["weight_decay"]) == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_each_optimizer(name):
    """Several parameters: what each has of its own in the second step, it has in the first."""

    def make(model):
        if name == "Muon":
            for p in model.parameters():
                p.requires_grad_(p.dim() > 1)
        return getattr(optim, name)([p for p in model.parameters() if p.requires_grad], lr=0.1)

    count, rates, _ = train(make, lambda optimizer: [CosineDecayLR(optimizer, 0.1, 0.0, 15)], steps=6)
    reference = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    assert count <= 1  # 0 where a test before has made the same graph
    assert close(rates, CosineDecayLR(reference, 0.1, 0.0, 15).values(6))


def test_with_a_clock_and_with_bind():
    """The value is computed on the host there and moved: it is data of the graph, and no constant."""
    clock = timesched.Clock(f"{STEPS}ba")

    def make(optimizer):
        schedule = timesched.LinearScheduler(1.0, 0.5)
        bound = timesched.bind(schedule, optimizer, clock, key="weight_decay")
        return [CosineDecayLR(optimizer, 0.1, 0.0, "1dur", clock=clock), bound]

    count, rates, optimizer = train(adamw, make, between=lambda step: clock.tick())
    reference = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    assert count == 1 and close(rates, CosineDecayLR(reference, 0.1, 0.0, STEPS).values(STEPS))
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

    count, rates, _ = train(adamw, lambda optimizer: made.append(sequence(optimizer)) or made, between=load)
    expected = made[0].values(40)
    assert close(rates, expected[:10] + expected[15:25]) and count <= 2  # the load ends the graph of its step
