"""Golden runs: our optimizers with our schedulers, step for step.

The golden Adam and AdamW add eps before the bias correction, and ours after it, as torch: with an eps over the root of
the correction at each step, both are the same formula. The golden Adam decouples the weight decay of the group, which
the scheduler writes, and besides adds the constructor's to the gradient, which is done by hand here.
"""

import math

import pytest
import torch
from torch.nn import Parameter

import optim
from tests.optim.schedulers.test_golden import FILE, assert_near, build

SHAPES = FILE["about"]["param_order"]
CASE = pytest.mark.parametrize("case", FILE["integration"])


def corrected_eps(optimizer, step):
    for group in optimizer.param_groups:
        if isinstance(optimizer, (optim.Adam, optim.AdamW)):
            group["eps"] = 1e-6 / math.sqrt(1 - group["betas"][1] ** step)


def formula(name, of_index):
    """A tensor in the shape of the named parameter from the formulas of its flat index and its number."""
    index = torch.arange(math.prod(SHAPES[name]), dtype=torch.float64)
    return of_index(index, list(SHAPES).index(name)).reshape(SHAPES[name]).float()


def start(name):
    return Parameter(formula(name, lambda i, j: 0.8 * torch.cos(0.5 * i + 1.1 * j + 0.3)))


def gradient(name, step):
    return formula(name, lambda i, j: 0.5 * torch.sin(0.7 * step + 0.3 * i + j))


def optimizer_of(case, params):
    groups = [{**group, "params": [params[name] for name in group["params"]]} for group in case["groups"]]
    kwargs = dict(case["kwargs"])
    if case["optimizer"] == "Adam":
        kwargs["decoupled_weight_decay"] = True
    return getattr(optim, case["optimizer"])(groups, **kwargs)


def train(case, params, optimizer, schedulers, after=lambda step: None):
    for step in range(1, 21):
        for name, p in params.items():
            coupled = case["kwargs"]["weight_decay"] if case["optimizer"] == "Adam" else 0.0
            p.grad = gradient(name, step) + coupled * p.detach()
        corrected_eps(optimizer, step)
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
        after(step)


@CASE
def test_a_run(case):
    case = FILE["integration"][case]
    params = {name: start(name) for group in case["groups"] for name in group["params"]}
    optimizer = optimizer_of(case, params)
    schedulers = [build(each["class"], each["kwargs"], optimizer) for each in case["schedulers"]]
    bound = (
        2e-5 if case["optimizer"].startswith("Adam") else 1e-5
    )  # its float32 gradients nearly cancel in some moments
    seen = {key: [[float(group[key])] for group in optimizer.param_groups] for key in case["series"]}

    def after(step):
        for key, series in seen.items():
            for values, group in zip(series, optimizer.param_groups):
                values.append(float(group[key]))
        for name, golden in case["float32"].get(str(step), {}).items():
            expected = torch.tensor(golden)
            error = (params[name].detach().flatten() - expected).abs() / expected.abs().clamp(min=0.05)
            assert error.max() <= bound, (step, name, float(error.max()))

    train(case, params, optimizer, schedulers, after)
    for key, series in case["series"].items():
        for i, golden in enumerate(series):
            assert_near(seen[key][i], golden, (key, i))
