"""How a step runs: one update rule for each optimizer, carried out in the way that suits the tensors.

On the CPU, eager: hyperparameters and counters are read as numbers, and torch's fused kernel runs where there is one,
otherwise the rule, on pieces of the tensors that fit the cache. Anywhere else, and in a graph, they stay tensors,
nothing is read, and the rule runs over all tensors at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .lists import Tensors
from .sharding import Spread, any_distributed, distribution, local, total

STEP = "step"
ONE = torch.ones((), dtype=torch.float32, device="cpu")

PIECE = 1 << 17  # elements: about five arrays of that many fit into a core's second-level cache
Factors = dict[str, Any]


class Work(NamedTuple):
    """The tensors of one group (on one device, of one dtype), and the numbers that go with them."""

    rule: Any  # the class whose `numbers` and `update` apply
    h: dict[str, Any]  # the hyperparameters
    params: Tensors
    grads: Tensors
    scalars: dict[str, Tensors]  # states that are one number for each parameter
    tensors: list[Tensors]  # states that belong to the elements; empty for one that is switched off
    spread: Any = None  # the mesh and the placements of distributed parameters


def changed(work: Work, columns: list[Tensors], scalars: dict[str, Tensors], spread: Any) -> Work:
    """The work with other tensors; spelled out, since a graph of torch 2.7 knows no `_replace`."""
    return Work(work.rule, work.h, columns[0], columns[1], scalars, columns[2:], spread)


def plain(work: Work) -> Work:
    """The tensors that the rule computes with: real views of complex ones, and the local parts of distributed ones."""
    columns = [work.params, work.grads, *work.tensors]
    first, spread = work.params[0], distribution(work.params[0])
    whole: Spread | None = None
    if spread:
        columns[1] = [local(x, p) for x, p in zip(work.grads, work.params)]
        columns = [[local(x, x) for x in column] for column in columns]
        whole = (*spread, [(p.shape, p.stride()) for p in work.params])
    if first.is_complex():
        columns = [[torch.view_as_real(x) for x in column] for column in columns]
    return changed(work, columns, work.scalars, whole)


def together(params: Tensors, by_rank: bool) -> list[Tensors]:
    """The parameters in parts that one piece of work can take: of one device, dtype and distribution."""
    mixed = by_rank or len({p.dtype for p in params}) > 1 or len({p.device for p in params}) > 1
    if not mixed and not any_distributed(params):
        return [params] if params else []
    found: dict[Any, Tensors] = {}
    for p in params:
        kind = (p.device, p.dtype, distribution(p), by_rank and p.dim() >= 2)
        found.setdefault(kind, []).append(p)
    return list(found.values())


def readable(work: Work) -> bool:
    """Whether everything that is a number lies on the host."""
    numbers = [x for value in work.h.values() for x in (value if isinstance(value, (tuple, list)) else (value,))]
    if not all(x.is_cpu for x in numbers if isinstance(x, Tensor)) or not work.params[0].is_cpu:
        return False
    return all(column[0].is_cpu for column in work.scalars.values())


# On the host


def on_host(work: Work) -> None:
    """A step whose numbers are read: parameters with the same counts go together."""
    h = {name: rule.numbers(work.h[name]) for name, rule in work.rule.hyper.items()}
    if STEP in work.scalars:
        torch._foreach_add_(work.scalars[STEP], ONE, alpha=1.0)  # three times as fast as adding the number 1
    for part, contiguous in _by_layout(work):
        if not (contiguous and part.rule.fused(h, part)):
            _by_count(h, part, contiguous)


def _by_layout(work: Work) -> list[tuple[Work, bool]]:
    """The contiguous tensors, for which there are kernels and pieces, and the others apart."""
    columns = [work.params, work.grads, *work.tensors]
    if all(all(map(Tensor.is_contiguous, column)) for column in columns):
        return [(work, True)]
    if work.rule.elementwise:
        rows = [_flat([column[i] if column else None for column in columns]) for i in range(len(work.params))]
        columns = [[row[j] for row in rows] if columns[j] else [] for j in range(len(columns))]
        work = changed(work, columns, work.scalars, work.spread)
    good = [all(column[i].is_contiguous() for column in columns if column) for i in range(len(work.params))]
    parts = [(_chosen(work, [i for i, x in enumerate(good) if x is kind]), kind) for kind in (True, False)]
    return [(part, kind) for part, kind in parts if part.params]


def _flat(row: list[Any]) -> list[Any]:
    """Tensors that lie in memory alike and without gaps, as if they were vectors; others as they are."""
    first = row[0]
    order = sorted(range(first.dim()), key=first.stride)
    dense, expected = True, 1
    for i in order:
        dense, expected = dense and (first.stride(i) == expected or first.shape[i] == 1), expected * first.shape[i]
    if not dense or any(x is not None and x.stride() != first.stride() for x in row):
        return row
    return [x if x is None else x.as_strided((x.numel(),), (1,)) for x in row]


def _by_count(h: dict[str, Any], work: Work, contiguous: bool) -> None:
    reads = [name for name in work.rule.reads if name in work.scalars]
    rows = list(zip(*([x.item() for x in work.scalars[name]] for name in reads)))
    alike = set(rows)
    for row in alike or [()]:
        chosen = work if len(alike) < 2 else _chosen(work, [i for i, other in enumerate(rows) if other == row])
        _run(h, dict(zip(reads, row)), chosen, contiguous)


def _chosen(work: Work, indices: list[int]) -> Work:
    def pick(column: Tensors) -> Tensors:
        return [column[i] for i in indices] if column else []

    columns = [pick(column) for column in (work.params, work.grads, *work.tensors)]
    spread = work.spread and (*work.spread[:2], pick(work.spread[2]))
    return changed(work, columns, {name: pick(column) for name, column in work.scalars.items()}, spread)


def _run(h: dict[str, Any], s: dict[str, Any], work: Work, contiguous: bool) -> None:
    def stored(x: float) -> float:
        return float(torch.tensor(x, dtype=work.scalars[STEP][0].dtype, device="cpu").item())

    columns = [work.params, work.grads, *work.tensors]
    before = dict(s)
    k = {**work.rule.numbers(h, s, stored), "spread": work.spread}
    for name, value in s.items():
        if value != before[name]:
            for x in work.scalars[name]:
                x.fill_(value)
    if not work.rule.elementwise:
        work.rule.update(h, k, *columns)
        return
    for part in pieces(columns) if contiguous else [columns]:
        work.rule.update(h, k, *part)


def pieces(columns: list[Tensors], size: int = PIECE) -> Iterator[list[Tensors]]:
    """The contiguous tensors of the columns in parts of about `size` elements: large ones split, small ones joined."""
    batch: list[Tensors] = [[] for _ in columns]
    filled = 0
    for i, first in enumerate(columns[0]):
        count = first.numel()
        if filled + count > size and filled:
            yield batch
            batch, filled = [[] for _ in columns], 0
        if count > size:
            split = [torch.split(column[i].view(-1), size) if column else () for column in columns]
            for j in range(len(split[0])):
                yield [[parts[j]] if parts else [] for parts in split]
        elif count:
            for to, column in zip(batch, columns):
                if column:
                    to.append(column[i])
            filled += count
    if filled:
        yield batch


def jobs(columns: list[Tensors], spread: Any = None) -> list[list[list[Tensors]]]:
    """For rules that need a whole tensor: the parts of each large tensor, and small tensors together as a single part.

    In a graph, on an accelerator, where a tensor is not contiguous, and where tensors are distributed (all ranks must
    sum up the same), everything is one part.
    """
    if spread is not None or not columns[0][0].is_cpu:
        return [[columns]]
    if torch.compiler.is_compiling() or not all(all(map(Tensor.is_contiguous, column)) for column in columns):
        return [[columns]]
    large = [i for i, x in enumerate(columns[0]) if x.numel() > PIECE]
    small = [i for i, x in enumerate(columns[0]) if x.numel() <= PIECE]
    result = [[part] for part in pieces([[column[i] for i in small] for column in columns])]
    return result + [list(pieces([[column[i]] for column in columns])) for i in large]


def joined(parts: list[Tensors], k: Factors) -> Tensor:
    """The norms of tensors, from those of their parts, as one tensor; of distributed tensors, those of the whole."""
    norms = torch.stack([torch.stack(part) for part in parts])
    if k["spread"] is None:
        return torch.linalg.vector_norm(norms, dim=0) if len(parts) > 1 else norms[0]
    return total(norms.square().sum(0), k["spread"]).sqrt()


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
    k = {**work.rule.numbers(h, s, stored), "spread": work.spread}
    for name in reads:
        if s[name] is not before[name]:
            for i, x in enumerate(work.scalars[name]):
                x.copy_(s[name][i : i + 1])
    work.rule.update(h, _spread(k, work.params), work.params, work.grads, *work.tensors)


def _with_dimensions(work: Work) -> Work:
    """Views with a dimension of tensors that have none.

    torch (2.7 to 2.13) drops from a graph what is done in place to a 0-dim float64 input on the CPU, but not to a view
    of it.
    """
    columns = [_shaped(column) for column in (work.params, work.grads, *work.tensors)]
    return changed(work, columns, {name: _shaped(column) for name, column in work.scalars.items()}, work.spread)


def _shaped(xs: Tensors) -> Tensors:
    return [x.view(1) if x.dim() == 0 else x for x in xs]


def _widened(value: Any, wide: torch.dtype, device: torch.device) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(_widened(x, wide, device) for x in value)
    return value.reshape(()).to(device, wide) if isinstance(value, Tensor) else value


def _spread(k: Factors, params: Tensors) -> Factors:
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
