"""The docstring of each optimizer is its update rule: evaluated as it stands there, it gives what the class does.

A docstring holds the equations, a line each, `symbol = expression` with a condition behind two or more blanks; the
meaning of symbols, "α is `lr`"; and the state, `name: shape, symbol = initial value`, with a condition or without.
Expressions are Python's, over the symbols, the arguments of the class and the functions below.
"""

from __future__ import annotations

import inspect
import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

import optim
from tests.optim.problems import assert_close, flat, give_gradients, is_rough, ours, parameters, values
from tests.optim.reference import RULES, exactly_orthogonal, muon_scale, rms, torchs_orthogonal
from tests.optim.rows import BY_ID, ROWS, Row
from tests.optim.signatures import NAMES

STEPS = 12
BOUND = 1e-12

EQUATION = re.compile(r"^    (\S+) = (.+?)(?:  +if (.+))?$", re.MULTILINE)
SYMBOL = re.compile(r"(\([^()]+\)|[^\s(),]+) is\s+`(\w+)`")
STATE = re.compile(r"^    (\w+): (.+), (\S+) = (.+?)(?:, if (.+))?$", re.MULTILINE)


class Equations:
    """What a docstring says."""

    def __init__(self, cls: type) -> None:
        text = inspect.getdoc(cls) or ""
        head, _, rest = text.partition("\nState of a parameter of shape S")
        self.lines: list[tuple[str, str, str]] = EQUATION.findall(head)
        self.symbols: list[tuple[str, str]] = SYMBOL.findall(head)
        states, _, _ = rest.partition("\n\n")
        self.states: list[tuple[str, str, str, str, str]] = STATE.findall(states)
        # Nothing may be read past: each indented line is an equation, or a state.
        assert len(self.lines) == len(re.findall(r"^    \S", head, re.MULTILINE)), cls
        assert len(self.states) == len(states.strip().splitlines()) - 1, cls

    def names(self, h: dict[str, Any], shape: Any) -> dict[str, Any]:
        """The symbols of the hyperparameters."""
        names = {**FUNCTIONS, **h, "S": tuple(shape)}
        for symbol, argument in self.symbols:
            numbers = h[argument] if symbol.startswith("(") else [h[argument]]
            names.update(zip(symbol.strip("()").split(", "), numbers, strict=True))
        return names

    def state(self, h: dict[str, Any], p: Tensor) -> dict[str, tuple[str, tuple[int, ...], Any]]:
        """By the name of each state that a parameter has: its symbol, its shape, its first value."""
        names = self.names(h, p.shape)
        return {
            name: (symbol, evaluated(shape, names), evaluated(first, names))
            for name, shape, symbol, first, condition in self.states
            if not condition or evaluated(condition, names)
        }

    def step(self, h: dict[str, Any], p: Tensor, g: Tensor, symbols: dict[str, Any]) -> Tensor:
        """The parameter after a step, from the values of the state's symbols, which are updated."""
        names = {**self.names(h, p.shape), "θ": p, "g": g, **symbols}
        if p.ndim >= 2:
            names.update(n=p.shape[0], m=names.get("m", p.shape[1]))
        names["NewtonSchulz"] = lambda G: newton_schulz(G, h)
        for symbol, expression, condition in self.lines:
            if not condition or evaluated(condition, names):
                names[symbol] = evaluated(expression, names)
        symbols.update((symbol, names[symbol]) for symbol in symbols)
        return names["θ"]


def evaluated(expression: str, names: dict[str, Any]) -> Any:
    return eval(expression, {"__builtins__": {"len": len}}, names)


def elementwise(of_tensors: Any, of_numbers: Any) -> Any:
    """A function of tensors, where numbers count as tensors, and of numbers."""

    def function(*given: Any) -> Any:
        if not any(isinstance(x, Tensor) for x in given):
            return of_numbers(*given)
        return of_tensors(*(torch.as_tensor(x, dtype=torch.float64) for x in given))

    return function


FUNCTIONS = {
    "sqrt": elementwise(torch.sqrt, math.sqrt),
    "max": elementwise(torch.maximum, max),
    "min": elementwise(torch.minimum, min),
    "where": torch.where,
    "abs": torch.abs,
    "sign": torch.sign,
    "norm": torch.linalg.vector_norm,
    "mean": torch.mean,
    "RMS": rms,
    "outer": lambda rows, columns: rows.unsqueeze(-1) * columns.unsqueeze(-2),
}


def newton_schulz(g: Tensor, h: dict[str, Any]) -> Tensor:
    orthogonal = torchs_orthogonal if hasattr(torch.optim, "Muon") else exactly_orthogonal
    return orthogonal(g.reshape(g.shape[0], -1), h).reshape(g.shape)


@pytest.fixture(autouse=True)
def _wide_counts():
    """In float64, as the equations are evaluated: step counts and the like have torch's default dtype."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def assert_equations_hold(equations: Equations, row: Row, optimizer: optim.Optimizer) -> None:
    groups = [
        (values({**group, "params": ()}, plain=True), p) for group in optimizer.param_groups for p in group["params"]
    ]
    expected = [p.detach().clone() for _, p in groups]
    states = [equations.state(h, p) for h, p in groups]
    symbols = [{symbol: first for symbol, _, first in state.values()} for state in states]
    steps = [0] * len(groups)
    for step in range(STEPS + 1):
        if step:
            give_gradients(flat(optimizer), step, zeros=row.zeros)
            optimizer.step()
        for i, (h, p) in enumerate(groups):
            if step and p.grad is not None:
                steps[i] += 1
                before = {"t": steps[i] - 1, **symbols[i]}
                for symbol, shape, first in states[i].values():
                    if steps[i] == 1 and shape:
                        before[symbol] = torch.full(shape, float(first))
                expected[i] = equations.step(h, expected[i], p.grad, before)
                symbols[i] = {symbol: before[symbol] for symbol in symbols[i]}
            bound = 0.15 * h["lr"] * muon_scale(p, h) * STEPS if is_rough(row) else BOUND
            assert_close(p, expected[i], bound, (row.id, "parameter", i, "after step", step))
            assert set(optimizer.state[p]) == set(states[i])
            for name, (symbol, shape, _) in states[i].items():
                there = optimizer.state[p][name]
                assert tuple(there.shape) == shape, (row.id, name)
                value = torch.as_tensor(symbols[i][symbol], dtype=torch.float64)
                if p.numel():
                    assert_close(there, value.expand(shape), BOUND, (row.id, name, "after step", step))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_the_docstring_gives_the_steps_and_the_states(row):
    optimizer = ours(row, parameters(row.name))
    assert_equations_hold(Equations(type(optimizer)), row, optimizer)


@pytest.mark.parametrize("label", ["decoupled", "amsgrad_all", "uncorrected"])
def test_the_docstring_of_the_base_class_of_adam(label):
    assert issubclass(optim.Adam, optim.AdamBase) and issubclass(optim.AdamW, optim.AdamBase)
    row = BY_ID["AdamW-uncorrected" if label == "uncorrected" else f"Adam-{label}"]
    arguments = {**row.kwargs, "decoupled_weight_decay": label != "amsgrad_all"}
    optimizer = optim.AdamBase(parameters("Adam"), **arguments)
    assert_equations_hold(Equations(optim.AdamBase), row, optimizer)


@pytest.mark.parametrize("name", NAMES)
def test_a_docstring_says_where_it_is_from_and_all_symbols(name):
    text = inspect.getdoc(getattr(optim, name))
    equations = Equations(getattr(optim, name))
    assert re.search(r"^Source: https://\S+", text, re.MULTILINE)
    assert ("tests/optim/reference.py" in text) == (name in RULES)
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
    good = Equations(optim.AdamW)
    changed = [i for i, (_, expression, _) in enumerate(good.lines) if "-" in expression]
    assert len(changed) >= 4
    for i in changed:
        equations = Equations(optim.AdamW)
        symbol, expression, condition = equations.lines[i]
        equations.lines[i] = (symbol, expression.replace("-", "+", 1), condition)
        with pytest.raises(AssertionError, match="off by"):
            assert_equations_hold(equations, row, ours(row, parameters("AdamW")))
