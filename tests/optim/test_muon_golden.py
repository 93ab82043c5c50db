"""Muon, NorMuon and both with AdamW or Lion, held to a formula in float64 that agrees with the code of other projects.

tests/golden/muon.json says in neutral words what each case computes, and from whose code it comes.
"""

import json
import math
from pathlib import Path

import pytest
import torch
from torch.nn import Parameter

import optim
from optim.muon.newton_schulz import TABLES

CASES = json.loads((Path(__file__).parents[1] / "golden" / "muon.json").read_text())["cases"]
BY_CASE = pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
FORMS = {"max(1,n/m)^.5": "original", "0.2*max(n,m)^.5": "match_rms_adamw", "(n/m)^.5": "spectral_unclamped"}
FORMS["max(n,m)^.5"] = "match_rms_adamw"  # times a factor of its own


def values(shape, number, zero=(), step=None):
    """A parameter, or its gradient in a step, by the formulas of the golden file."""
    i = torch.arange(math.prod(shape), dtype=torch.float64)
    if step is None:
        flat = 0.8 * torch.cos(0.5 * i + 1.1 * number + 0.3)
    else:
        flat = 0.5 * torch.sin(0.7 * step + 0.3 * i + number) + 0.3 * torch.cos(0.9 * i * i + 0.4 * step + number)
        flat[list(zero)] = 0.0
    return flat.reshape(shape)


def arguments(formula):
    """A group's formula in our words: the hyperparameters of the group, and what its learning rate is multiplied by."""
    given = {"algorithm": formula["rule"], "weight_decay": formula["weight_decay"]}
    given["cautious_weight_decay"] = "cautious" in formula
    if formula["rule"] != "muon":
        return given | {k: formula[k] for k in ("betas", "eps") if k in formula}, 1.0
    triples, view = [tuple(x) for x in formula["coefficients"]], formula["view"]
    factor = formula.get("extra_scale", 1.0) / (0.2 if formula["scale"] == "max(n,m)^.5" else 1.0)
    given |= {"eps": formula["eps"], "nesterov": formula["nesterov"], "adjust_lr_fn": FORMS[formula["scale"]]}
    published = {table: name for name, table in TABLES.items()}
    given |= {"ns_coefficients": published.get((tuple(triples), formula["norm_factor"]), triples)}
    assert formula["norm_factor"] == 1.0 or given["ns_coefficients"] == "polar_express"
    given["weight_decay"] /= factor
    if isinstance(view, dict):
        given |= {"split_sizes": tuple(view["sizes"])} if view["kind"] == "split" else {"num_heads": view["num_heads"]}
    elif view != "matrix":
        given["flatten"] = view == "flatten"
    if "second_moment" in formula:
        given["beta2"] = formula["second_moment"]["beta2"]
    return given, factor


def trained(case, dtype, ns_dtype):
    """The parameters after each step that the file has."""
    params = {name: Parameter(values(x["shape"], x["j"]).to(dtype)) for name, x in case["params"].items()}
    groups, rates = [], []
    for group in case["groups"]:
        given, factor = arguments(group["formula"])
        groups.append({"params": [params[name] for name in group["params"]], **given})
        rates.append([rate * factor for rate in group["lr"]])
    kind = optim.NorMuon if any("beta2" in group for group in groups) else optim.Muon
    optimizer = kind(groups, ns_dtype=ns_dtype)
    found = {}
    for step in range(1, max(case["steps"]) + 1):
        for group, rate, given in zip(optimizer.param_groups, rates, case["groups"], strict=True):
            group["lr"], momentum = rate[step - 1], given["formula"].get("momentum")
            if momentum is not None:
                group["momentum"] = momentum[step - 1] if isinstance(momentum, list) else momentum
        for name, p in params.items():
            zero = case.get("zero_grad_at", {}).get(name, ())
            p.grad = values(p.shape, case["params"][name]["j"], zero, step).to(dtype)
        optimizer.step()
        found[step] = {name: p.detach().to(torch.float64, copy=True).flatten() for name, p in params.items()}
    return found


def allowed(case, dtype):
    """Of the file; where a case adds eps to the norm, of which we take the larger, 1e-6."""
    added = any(group["formula"].get("eps_rule") == "add" for group in case["groups"])
    summed = any(group["formula"].get("momentum_rule") == "sum" for group in case["groups"])
    return max(case["tolerance"]["float64_abs" if dtype == torch.float64 else "float32_abs"], 1e-6 * (added or summed))


@BY_CASE
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_parameters(case, dtype):
    found = trained(case, dtype, dtype)
    for step, golden in case["reference_float64"].items():
        for name, expected in golden.items():
            off = (found[int(step)][name] - torch.tensor(expected, dtype=torch.float64)).abs().max()
            assert off <= allowed(case, dtype), (step, name, float(off))


IN_BFLOAT16 = [case for case in CASES if case["tolerance"]["bfloat16_movement"] is not None]  # one diverges there


@pytest.mark.parametrize("case", IN_BFLOAT16, ids=lambda case: case["id"])
def test_in_bfloat16_inside(case):
    most = case["tolerance"]["bfloat16_movement"]
    step, golden = max(case["reference_float64"].items(), key=lambda pair: int(pair[0]))
    found = trained(case, torch.float32, "bfloat16")[int(step)]
    pairs = []
    for group in case["groups"]:
        for name in group["params"] if group["formula"]["rule"] == "muon" else ():
            start = values(case["params"][name]["shape"], case["params"][name]["j"]).flatten()
            expected = torch.tensor(golden[name], dtype=torch.float64)
            pairs.append((found[name] - expected, expected - start))
    off, moved = (torch.cat(each).norm() for each in zip(*pairs, strict=True))
    assert off <= most * moved, float(off / moved)


def test_published_coefficients_are_used_by_name():
    """By the cases above, which have the numbers; "deepseek" has no case."""
    muon = [group["formula"] for case in CASES for group in case["groups"] if group["formula"]["rule"] == "muon"]
    used = [arguments(formula)[0]["ns_coefficients"] for formula in muon]
    assert "quintic" in used and "polar_express" in used
