"""How a step runs: one update rule for each optimizer, carried out in the way that suits the tensors.

Eager, on the CPU: hyperparameters and counters are read as numbers, and torch's fused kernel runs where there is one,
otherwise the update, on blocks of the tensors that fit the cache (eager_cpu.py). Anywhere else, and in a graph, they
stay tensors, nothing is read, and the update runs over all tensors at once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .eager_cpu import blocks, by_layout
from .tensor_lists import Tensors
from .work import STEP, Factors, Work, columns_of, selected, with_columns

ONE = torch.ones((), dtype=torch.float32, device="cpu")

# On the host


def on_host(work: Work) -> None:
    """A step whose numbers are read: parameters with the same counts go together."""
    h = {name: rule.numbers(work.h[name]) for name, rule in work.rule.hyper.items()}
    if STEP in work.scalars:
        torch._foreach_add_(work.scalars[STEP], ONE, alpha=1.0)  # three times as fast as adding the number 1
    for part, contiguous in by_layout(work):
        if not (contiguous and part.rule.fused(h, part)):
            _by_count(h, part, contiguous)


def _by_count(h: dict[str, Any], work: Work, contiguous: bool) -> None:
    reads = [name for name in work.rule.reads if name in work.scalars]
    rows = list(zip(*([x.item() for x in work.scalars[name]] for name in reads)))
    alike = set(rows)
    for row in alike or [()]:
        chosen = work if len(alike) < 2 else selected(work, [i for i, other in enumerate(rows) if other == row])
        _run(h, dict(zip(reads, row)), chosen, contiguous)


def _run(h: dict[str, Any], s: dict[str, Any], work: Work, contiguous: bool) -> None:
    def stored(x: float) -> float:
        return float(torch.tensor(x, dtype=work.scalars[STEP][0].dtype, device="cpu").item())

    columns = columns_of(work)
    before = dict(s)
    k = {**work.rule.factors(h, s, stored), "placement": work.placement}
    for name, value in s.items():
        if value != before[name]:
            for x in work.scalars[name]:
                x.fill_(value)
    if not work.rule.elementwise:
        work.rule.update(h, k, *columns)
        return
    for block in blocks(columns) if contiguous else [columns]:
        work.rule.update(h, k, *block)


# In a graph


def in_graph(works: list[Work]) -> None:
    """A step that reads nothing, for tensors on an accelerator and under torch.compile."""
    for work in works:
        _trace(_with_dimensions(work))


def _trace(work: Work) -> None:
    wide = torch.float32 if work.params[0].device.type == "mps" else torch.float64
    if STEP in work.scalars:
        torch._foreach_add_(work.scalars[STEP], 1)

    def stored(x: Any) -> Tensor:
        number = x if isinstance(x, Tensor) else torch.full((), x, dtype=wide, device=work.params[0].device)
        # The choice keeps inductor from taking the two conversions for none (torch 2.7).
        count = torch.cat(work.scalars[STEP])
        return torch.where(count > 0, number.to(count.dtype), 0.0).to(wide)

    device = work.params[0].device
    h = {name: _widened(value, wide, device) for name, value in work.h.items()}
    reads = [name for name in work.rule.reads if name in work.scalars]
    s = {name: torch.cat(work.scalars[name]).to(wide) for name in reads}
    before = dict(s)
    k = {**work.rule.factors(h, s, stored), "placement": work.placement}
    for name in reads:
        if s[name] is not before[name]:
            for i, x in enumerate(work.scalars[name]):
                x.copy_(s[name][i : i + 1])
    work.rule.update(h, _expanded(k, work.params), work.params, work.grads, *work.tensors)


def _with_dimensions(work: Work) -> Work:
    """Views with a dimension of tensors that have none.

    torch (2.7 to 2.13) drops from a graph what is done in place to a 0-dim float64 input on the CPU, but not to a view
    of it.
    """
    columns = [_shaped(column) for column in columns_of(work)]
    return with_columns(work, columns, {name: _shaped(column) for name, column in work.scalars.items()}, work.placement)


def _shaped(xs: Tensors) -> Tensors:
    return [x.view(1) if x.dim() == 0 else x for x in xs]


def _widened(value: Any, wide: torch.dtype, device: torch.device) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(_widened(x, wide, device) for x in value)
    return value.reshape(()).to(device, wide) if isinstance(value, Tensor) else value


def _expanded(k: Factors, params: Tensors) -> Factors:
    """The factors as the lists take them: a number, a 0-dim tensor, or one for each parameter.

    They go through one small array: inductor keeps what is concatenated, and would otherwise compute a power or a root
    again for every element.
    """
    dtype = torch.float64 if params[0].dtype == torch.float64 else torch.float32
    names = [name for name, value in k.items() if isinstance(value, Tensor)]
    if not names:
        return k
    flat = torch.cat(
        [torch.zeros(1, dtype=dtype, device=params[0].device), *(k[name].reshape(-1).to(dtype) for name in names)]
    )
    result, at = dict(k), 1
    for name in names:
        count = k[name].numel()
        result[name] = flat[at] if k[name].dim() == 0 else list(flat[at : at + count].unbind())
        at += count
    return result
