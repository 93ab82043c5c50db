"""The golden numbers that bind: tests/golden/schedulers.json, whose `about` says what they are and how near to be.

What does not bind there is held to the docstring's formula, in test_values.py. At the end, runs of our optimizers with
our schedulers, step for step.
"""

import json
import math
from pathlib import Path

import pytest
import torch

import optim
from optim import lr_scheduler, weight_decay_scheduler
from tests import building
from tests.optim.test_golden import assert_near as near_parameters
from tests.optim.test_golden import gradient, start

FILE = json.loads((Path(__file__).parents[2] / "golden" / "schedulers.json").read_text())
CASES = [(name, case) for name, cases in FILE["cases"].items() for case in cases]
EACH = pytest.mark.parametrize(("name", "case"), CASES, ids=str)
LAMBDAS = {
    "0.9**t": lambda t: 0.9**t,
    "1/(1+t)": lambda t: 1 / (1 + t),
    "1+0.1*t": lambda t: 1 + 0.1 * t,
}


def sgd(group_set):
    return building.sgd(*FILE["about"]["group_sets"][group_set], lr=0.5, momentum=0.9, weight_decay=0.02)


def build(name, kwargs, optimizer, lambdas=()):
    """As a user of either module writes it."""
    cls = getattr(lr_scheduler if hasattr(lr_scheduler, name) else weight_decay_scheduler, name)
    if lambdas:
        cls = type(name, (cls,), {"set_lr_lambda": lambda self: [LAMBDAS[text] for text in lambdas]})
    kwargs = dict(kwargs)
    if "scheduler" in kwargs:
        kwargs["scheduler"] = build(kwargs["scheduler"]["class"], kwargs["scheduler"]["kwargs"], optimizer)
    if "schedulers" in kwargs:
        kwargs["schedulers"] = [build(each["class"], each["kwargs"], optimizer) for each in kwargs["schedulers"]]
    return cls(**kwargs) if name.startswith("Chained") else cls(optimizer, **kwargs)


def assert_near(mine, golden, what):
    largest = max(map(abs, golden))
    for t, (value, expected) in enumerate(zip(mine, golden)):
        assert abs(value - expected) <= 1e-5 * max(abs(expected), 1e-2 * largest), (what, t, value, expected)


def test_all_cases_are_here():
    lr = [name for name, _ in CASES if hasattr(lr_scheduler, name)]
    assert len(lr) == 67 and len(CASES) - len(lr) == 57 and len(FILE["integration"]) == 6


@EACH
def test_a_schedule(name, case):
    case = FILE["cases"][name][case]
    optimizer = sgd(case["group_set"])
    scheduler = build(name, case["kwargs"], optimizer, case.get("lambdas", ()))
    key = scheduler.param_group_key
    assert key == ("lr" if hasattr(lr_scheduler, name) else "weight_decay")
    seen = [[group[key]] for group in optimizer.param_groups]
    for _ in range(60):
        optimizer.step()
        scheduler.step()
        for values, group in zip(seen, optimizer.param_groups):
            values.append(group[key])
    for series in case["series"]:
        for i in series["groups"]:
            if "constant" in series:
                assert_near(seen[i], [series["constant"]] * 61, i)
                continue
            if series["values"]:  # the first of them, as many as bind
                assert_near(seen[i], series["values"], i)
            if "torch" in case:
                assert_near(seen[i][len(series["values"]) :], case["torch"], (i, "torch"))
    last = scheduler.get_last_value()
    assert last == [group[key] for group in optimizer.param_groups]  # also of the groups that are not selected
    for mine, golden in zip(last, case.get("last_value", [])):
        if golden is not None:  # null: not selected
            assert_near([mine], [golden], "last")


# Training


def corrected_eps(optimizer, step):
    """The golden Adam and AdamW add eps before the bias correction, and ours after it, as torch.

    With an eps over the root of the correction at each step, both are the same formula.
    """
    for group in optimizer.param_groups:
        if isinstance(optimizer, (optim.Adam, optim.AdamW)):
            group["eps"] = 1e-6 / math.sqrt(1 - group["betas"][1] ** step)


@pytest.mark.parametrize("case", FILE["integration"])
def test_a_run(case):
    """The golden Adam decouples the weight decay of the group, and adds the constructor's to the gradient besides."""
    case = FILE["integration"][case]
    kwargs, more, coupled = case["kwargs"], {}, 0.0
    if case["optimizer"] == "Adam":
        more, coupled = {"decoupled_weight_decay": True}, kwargs["weight_decay"]
    params = {name: start(name, torch.float32) for group in case["groups"] for name in group["params"]}
    groups = [{**group, "params": [params[name] for name in group["params"]]} for group in case["groups"]]
    optimizer = getattr(optim, case["optimizer"])(groups, **kwargs, **more)
    schedulers = [build(each["class"], each["kwargs"], optimizer) for each in case["schedulers"]]
    # the float32 gradients of Adam nearly cancel in some moments
    bound = 2e-5 if case["optimizer"].startswith("Adam") else 1e-5
    seen = {key: [[float(group[key])] for group in optimizer.param_groups] for key in case["series"]}
    for step in range(1, 21):
        for name, p in params.items():
            p.grad = gradient(name, step, full_rank=False).float() + coupled * p.detach()
        corrected_eps(optimizer, step)
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
        for key, series in seen.items():
            for values, group in zip(series, optimizer.param_groups):
                values.append(float(group[key]))
        for name, golden in case["float32"].get(str(step), {}).items():
            near_parameters(params[name], golden, bound, (step, name))
    for key, series in case["series"].items():
        for i, golden in enumerate(series):
            assert_near(seen[key][i], golden, (key, i))
