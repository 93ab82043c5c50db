"""Each optimizer does what the equations of its docstring say: see equations.py."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import torch

import optim
from tests.optim.equations import FUNCTIONS, Equations, Reference
from tests.optim.problems import assert_same_steps, flat, ours, parameters, run, values
from tests.optim.rows import BY_ID, ROWS, Row
from tests.optim.signatures import NAMES

STEPS = 8


@pytest.fixture(autouse=True)
def _wide_counts():
    """In float64, as the equations are evaluated: step counts and the like have torch's default dtype."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def reference_of(optimizer: optim.Optimizer) -> Reference:
    """By the docstring of its class, over copies of its parameters."""
    groups: list[dict[str, Any]] = [
        {**values({**group, "params": ()}, plain=True), "params": [p.detach().clone() for p in group["params"]]}
        for group in optimizer.param_groups
    ]
    return Reference(type(optimizer), groups, {})


def assert_equations_hold(row: Row, optimizer: optim.Optimizer, reference: Reference) -> None:
    """For the state and its keys from the start, and after each step."""
    for step in range(STEPS + 1):
        for one in (optimizer, reference) if step else ():
            run(one, flat(one), step, step)
        assert_same_steps(row, optimizer, reference)
        for p, q in zip(flat(optimizer), flat(reference)):
            assert optimizer.state[p].keys() == reference.state[q].keys()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_the_docstring_gives_the_steps_and_the_states(row):
    optimizer = ours(row, parameters(row.name))
    assert_equations_hold(row, optimizer, reference_of(optimizer))


@pytest.mark.parametrize("label", ["decoupled", "amsgrad_all", "uncorrected"])
def test_the_docstring_of_the_base_class_of_adam(label):
    assert issubclass(optim.Adam, optim.AdamBase) and issubclass(optim.AdamW, optim.AdamBase)
    row = BY_ID["AdamW-uncorrected" if label == "uncorrected" else f"Adam-{label}"]
    arguments = {**row.kwargs, "decoupled_weight_decay": label != "amsgrad_all"}
    optimizer = optim.AdamBase(parameters("Adam"), **arguments)
    assert_equations_hold(row, optimizer, reference_of(optimizer))


@pytest.mark.parametrize("name", NAMES)
def test_a_docstring_says_where_it_is_from_and_all_symbols(name):
    text = inspect.getdoc(getattr(optim, name))
    equations = Equations(getattr(optim, name))
    assert re.search(r"^Source: https://\S+", text, re.MULTILINE)
    said = {symbol for _, _, symbol, _, _ in equations.states} | {symbol for symbol, _, _ in equations.lines}
    for symbol, _ in equations.symbols:
        said |= set(symbol.strip("()").split(", "))
    said |= {"S", *FUNCTIONS, "NewtonSchulz", "len", *inspect.signature(getattr(optim, name)).parameters}
    described = set(re.findall(r"\w+", text.split("\nwhere ")[1].split("\n\n")[0]))
    for line in equations.lines:
        for used in re.findall(r"(?<![\w.\"])[^\W\d]\w*", re.sub(r'"\w+"', "", " ".join(line))):
            keyword = used in ("if", "else", "and", "or", "not", "in", "is", "None", "True", "dim", "keepdim")
            assert keyword or used in said | described, f"{name}: what is {used}?"


def test_a_wrong_sign_in_an_equation_is_seen():
    """The test above can fail: each equation of AdamW with its first minus turned into a plus."""
    row = BY_ID["AdamW-amsgrad_all"]
    lines = enumerate(Equations(optim.AdamW).lines)
    changed = [i for i, (_, text, condition) in lines if "-" in text and not condition.startswith("cautious")]
    assert len(changed) >= 4
    for i in changed:
        reference = reference_of(optimizer := ours(row, parameters("AdamW")))
        symbol, expression, condition = reference.equations.lines[i]
        reference.equations.lines[i] = (symbol, expression.replace("-", "+", 1), condition)
        with pytest.raises(AssertionError, match="off by"):
            assert_equations_hold(row, optimizer, reference)
