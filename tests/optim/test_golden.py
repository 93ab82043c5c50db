"""The golden numbers that bind: what the table calls `golden`, held to tests/golden/optimizers.json.

Tolerances are those of the file's `about`: its float64 runs keep several scalars in float32. Muon's is tighter, as it
does not grow with the steps: torch's form of Muon is farther off than that in every case.
"""

import json
import math
from pathlib import Path

import pytest
import torch
from torch.nn import Parameter

import optim
from tests.optim.equations import Reference
from tests.optim.problems import flat
from tests.optim.rows import ROWS
from tests.optim.signatures import MATRICES

FILE = json.loads((Path(__file__).parents[1] / "golden" / "optimizers.json").read_text())
SHAPES = FILE["about"]["param_order"]
GOLDEN = pytest.mark.parametrize("row", [row for row in ROWS if row.golden], ids=lambda row: row.id)


def formula(name, of_index):
    """A tensor in the shape of the named parameter from the formulas of its flat index and its number."""
    index = torch.arange(math.prod(SHAPES[name]), dtype=torch.float64)
    return of_index(index, list(SHAPES).index(name)).reshape(SHAPES[name])


def start(name, dtype):
    return Parameter(formula(name, lambda i, j: 0.8 * torch.cos(0.5 * i + 1.1 * j + 0.3)).to(dtype))


def gradient(name, step, full_rank):
    values = formula(name, lambda i, j: 0.5 * torch.sin(0.7 * step + 0.3 * i + j))
    return values + full_rank * formula(name, lambda i, j: 0.3 * torch.cos(0.9 * i * i + 0.4 * step + j))


def build(row, dtype):
    case = FILE["cases"][row.name][row.golden]
    params = {name: start(name, dtype) for name in case["params"]}
    dealt = [[params[name] for name in group["params"]] for group in case.get("groups", [case])]
    groups = [{"params": given, **values} for given, values in zip(dealt, row.groups, strict=True)]
    return params, getattr(optim, row.name)(groups, **row.kwargs)


def assert_near(mine, golden, relative, what):
    golden = torch.tensor(golden, dtype=torch.float64).expand(mine.numel())
    error = (mine.detach().double().flatten() - golden).abs() / golden.abs().clamp(min=0.05)
    assert error.max() <= relative, (what, float(error.max()))


def test_every_case_is_used():
    used = {(row.name, row.golden) for row in ROWS if row.golden}
    assert used == {(name, case) for name, cases in FILE["cases"].items() for case in cases}


@GOLDEN
def test_groups_and_state_after_construction(row):
    (params, optimizer), case = build(row, torch.float32), FILE["cases"][row.name][row.golden]
    for group, golden in zip(optimizer.param_groups, case["param_groups"], strict=True):
        for key, value in golden.items():
            assert group[key] == (tuple(value) if isinstance(value, list) else value)
    for name, states in case["state_init"].items():
        for key, golden in states.items():
            value = optimizer.state[params[name]][key]
            assert list(value.shape) == golden["shape"] and bool((value == golden["fill"]).all()), (name, key)


@GOLDEN
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_parameters(row, dtype):
    case = FILE["cases"][row.name][row.golden]
    params, optimizer = build(row, getattr(torch, dtype))
    groups = {p: group for group in optimizer.param_groups for p in group["params"]}
    numbers = case["float64" if row.name in MATRICES else dtype]
    for step in range(1, 21):
        for name, p in params.items():
            absent = step in case.get("grad_none", {}).get(name, ())
            p.grad = None if absent else gradient(name, step, full_rank=row.name in MATRICES).to(p.dtype)
        optimizer.step()
        for name, golden in numbers.get(str(step), {}).items():
            p = params[name]
            if row.name in MATRICES:  # bfloat16 inside; the golden numbers are exact
                bound = 0.15 * groups[p]["lr"] * 0.2 * max(p.shape[:2]) ** 0.5
                assert (p.flatten() - torch.tensor(golden, dtype=p.dtype)).abs().max() <= bound, (step, name)
            else:
                assert_near(p, golden, 2e-5 if dtype == "float64" or row.name == "RAdam" else 1e-5, (step, name))
    for name, states in case.get("state_float32", {}).items() if dtype == "float32" else ():
        for key, golden in states.items():
            assert_near(optimizer.state[params[name]][key], golden, 1e-5, (name, key))
    assert len(flat(optimizer)) == len(params)


@pytest.mark.parametrize("row", [row for row in ROWS if row.golden and row.name in MATRICES], ids=lambda row: row.label)
def test_the_reference_of_muon(row):
    """In float64 throughout, it gives the golden numbers themselves: what the other tests hold Muon to is right."""
    params, optimizer = build(row, torch.float64)
    reference = Reference(optim.Muon, optimizer.param_groups, {}, torch.float64)
    for step in range(1, 21):
        for name, p in params.items():
            p.grad = gradient(name, step, full_rank=True)
        reference.step()
        for name, golden in FILE["cases"][row.name][row.golden]["float64"].get(str(step), {}).items():
            assert_near(params[name], golden, 5e-6, (step, name))
