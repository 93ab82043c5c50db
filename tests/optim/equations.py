"""The docstring of an optimizer is its update rule: read, and evaluated as it stands there, a parameter at a time.

A docstring holds the equations, a line each, `symbol = expression` with a condition behind two or more blanks; the
meaning of symbols, "α is `lr`"; and the state, `name: shape, symbol = initial value`, with a condition or without.
Expressions are Python's, over the symbols, the arguments of the class and the functions below.
"""

from __future__ import annotations

import inspect
import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

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

    def names(self, h: Mapping[str, Any], p: Tensor) -> dict[str, Any]:
        """The symbols of the hyperparameters, and the functions."""
        names = {**FUNCTIONS, **h, "S": tuple(p.shape)}
        for symbol, argument in self.symbols:
            numbers = h[argument] if symbol.startswith("(") else [h[argument]]
            names.update(zip(symbol.strip("()").split(", "), numbers, strict=True))
        return names

    def initial(self, h: Mapping[str, Any], p: Tensor) -> dict[str, Tensor]:
        """The state of a parameter, by name."""
        names = self.names(h, p)
        return {
            name: torch.full(evaluated(shape, names), float(evaluated(first, names)), dtype=p.dtype)
            for name, shape, _, first, condition in self.states
            if not condition or evaluated(condition, names)
        }

    def step(
        self, h: Mapping[str, Any], p: Tensor, state: dict[str, Tensor], symbols: dict[str, Any]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The parameter and its state after a step; `symbols` are those that no docstring explains."""
        of_state = {symbol: name for name, _, symbol, _, _ in self.states if name in state}
        names = {**self.names(h, p), **symbols, "θ": p, "g": p.grad}
        names |= {symbol: state[name] for symbol, name in of_state.items()}
        if p.ndim >= 2:
            names.update(n=p.shape[0], m=names.get("m", p.shape[1]))
        for symbol, expression, condition in self.lines:
            if not condition or evaluated(condition, names):
                names[symbol] = evaluated(expression, names)
        return names["θ"], {name: torch.as_tensor(names[symbol], dtype=p.dtype) for symbol, name in of_state.items()}


def evaluated(expression: str, names: dict[str, Any]) -> Any:
    return eval(expression, {"__builtins__": {"len": len}}, names)


def elementwise(of_tensors: Any, of_numbers: Any) -> Any:
    """A function of tensors, where numbers count as tensors, and of numbers."""

    def function(*given: Any) -> Any:
        dtypes = [x.dtype for x in given if isinstance(x, Tensor)]
        return of_tensors(*(torch.as_tensor(x, dtype=dtypes[0]) for x in given)) if dtypes else of_numbers(*given)

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
    "RMS": lambda x: x.square().mean().sqrt(),
    "outer": lambda rows, columns: rows.unsqueeze(-1) * columns.unsqueeze(-2),
}


def newton_schulz(x: Tensor, h: Mapping[str, Any], dtype: torch.dtype) -> Tensor:
    """The iterations of https://kellerjordan.github.io/posts/muon, by the operations of torch.optim.Muon."""
    a, b, c = h["ns_coefficients"]
    tall = x.shape[0] > x.shape[1]
    y = (x.T if tall else x).to(dtype)
    y = y / y.norm().clamp(min=h["eps"] or torch.finfo(dtype).tiny)  # without a least norm, zeros stay zeros
    for _ in range(h["ns_steps"] or 5):
        gram = y @ y.T
        y = torch.addmm(y, torch.addmm(gram, gram, gram, beta=b, alpha=c), y, beta=a)
    return (y.T if tall else y).to(x.dtype)


class Reference(torch.optim.Optimizer):
    """The optimizer that a class's docstring describes. Its hyperparameters are numbers."""

    def __init__(
        self, cls: type, params: Any, defaults: dict[str, Any], orthogonal_in: torch.dtype = torch.bfloat16
    ) -> None:
        super().__init__(params, defaults)
        self.equations, self.orthogonal_in = Equations(cls), orthogonal_in
        self.steps: Counter[Tensor] = Counter()
        for group in self.param_groups:
            self.state.update((p, self.equations.initial(group, p)) for p in group["params"])

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # a reference takes no closure
        for h in self.param_groups:

            def orthogonal(g: Tensor, h: Mapping[str, Any] = h) -> Tensor:
                return newton_schulz(g.flatten(1), h, self.orthogonal_in).view_as(g)

            for p in (p for p in h["params"] if p.grad is not None):
                symbols = {"t": self.steps[p], "NewtonSchulz": orthogonal}
                new, self.state[p] = self.equations.step(h, p, self.state[p], symbols)
                p.copy_(new)
                self.steps[p] += 1
