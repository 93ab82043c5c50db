"""How a step runs: one update rule for each optimizer, carried out in the way that suits the tensors.

Eager, on the CPU: hyperparameters and counters are read as numbers, and torch's fused kernel runs where there is one,
otherwise the update, on blocks of the tensors that fit the cache (eager.py). Eager, on a CUDA GPU: the fused kernel
where there is one, otherwise the update over all tensors at once, with numbers for what the host knows without reading
(known_counts.py). In a graph, on the CPU, for small tensors and where there is a fused kernel: one operator that takes
the eager step when the graph runs. Anywhere else, and for what the host does not know, hyperparameters and counters
stay tensors, nothing is read, and the update runs over all tensors at once.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .eager import advance, blocks, by_layout
from .known_counts import KnownCounts
from .tensor_lists import Tensors, mul, on_gpu
from .work import STEP, Factors, Work, columns_of, readable, selected, with_columns

# With numbers


def on_host(work: Work, scaling: dict[str, Tensor]) -> None:
    """A step whose numbers are read: parameters with the same counts go together."""
    unscaled = _unscaled(work, scaling) if scaling else work
    if unscaled is None:
        return
    h = {name: rule.numbers(work.h[name]) for name, rule in work.rule.hyper.items()}
    for part, contiguous in by_layout(unscaled):
        if not (contiguous and part.rule.fused is not None and part.rule.fused(h, part, {})):
            advance(part)
            rows = list(zip(*([x.item() for x in part.scalars[name]] for name in _reads(part))))
            for row, chosen in _by_count(part, rows):
                _run(h, row, chosen, contiguous)


def on_cuda(work: Work, known: KnownCounts, scaling: dict[str, Tensor]) -> None:
    """A step on a CUDA GPU; `scaling` holds what a GradScaler says of the gradients."""
    device = work.params[0].device
    h = {name: _number_if_there(rule, work.h[name], device) for name, rule in work.rule.hyper.items()}
    kernel, arguments = work.rule.fused, _fused_arguments(h, work)
    scaling = {name: x.to(device, non_blocking=True).reshape(()) for name, x in scaling.items()}
    started: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch's own
    if started and torch.cuda.is_current_stream_capturing():
        known.lose(x for column in work.scalars.values() for x in column)
    for part, contiguous in [(work, False)] if kernel is None or arguments is None else by_layout(work):
        if kernel is not None and contiguous and _same_strides(part) and kernel(arguments, part, scaling):
            if STEP in part.scalars and "found_inf" in scaling:
                torch._foreach_sub_(part.scalars[STEP], [scaling["found_inf"]] * len(part.params))
            continue
        unscaled = _unscaled(part, scaling) if scaling else part
        if unscaled is not None:
            _without_kernel(h, unscaled, known)


def _without_kernel(h: dict[str, Any], work: Work, known: KnownCounts) -> None:
    before = {name: known.of(work.scalars[name]) for name in _reads(work)}
    if None in before.values():
        in_graph([work._replace(h=h)])
        for name in before:
            known.compute(work.scalars[name])
        return
    advance(work)
    for row, part in _by_count(work, list(zip(*before.values()))):
        if STEP in row:
            row[STEP] = known.note(part.scalars[STEP], row[STEP] + 1.0)
        for name, value in _run(h, row, part, False).items():
            if isinstance(value, Tensor):
                known.compute(part.scalars[name])
            else:
                known.note(part.scalars[name], value)


def _same_strides(work: Work) -> bool:
    """Whether the contiguous tensors of each parameter have its strides: a dimension of size 1 may have any."""
    columns = [column for column in columns_of(work) if column]
    odd = [i for i, p in enumerate(work.params) if 1 in p.shape]
    return all(column[i].stride() == work.params[i].stride() for i in odd for column in columns)


def _fused_arguments(h: dict[str, Any], work: Work) -> dict[str, Any] | None:
    """The hyperparameters as torch's fused CUDA kernels take them; None where they do not.

    They are numbers, but for the learning rate, which may be a tensor and is read as float32; counters too.
    """
    if STEP in work.scalars and work.scalars[STEP][0].dtype != torch.float32:
        return None
    flat = [x for name, value in h.items() if name != "lr" for x in (value if isinstance(value, tuple) else (value,))]
    if any(isinstance(x, Tensor) for x in flat):
        return None
    lr = h["lr"]
    if not isinstance(lr, Tensor):
        return h
    wide = work.params[0].dtype == torch.float64
    return None if wide else {**h, "lr": lr.float()}


def _unscaled(work: Work, scaling: dict[str, Tensor]) -> Work | None:
    """The work with the gradients that a GradScaler has scaled divided again; None where one was not finite.

    As a GradScaler does for optimizers without a fused kernel, this reads on the host whether one was not finite.
    """
    if "found_inf" in scaling and scaling["found_inf"].item():
        return None
    if "grad_scale" not in scaling:
        return work
    device = work.params[0].device
    columns = columns_of(work)
    columns[1] = mul(work.grads, 1.0 / scaling["grad_scale"].reshape(()).to(device))
    return with_columns(work, columns, work.scalars, work.placement)


def _reads(work: Work) -> list[str]:
    """The counters that the factors need."""
    return [name for name in work.rule.reads if name in work.scalars]


def _number_if_there(rule: Any, value: Any, device: torch.device) -> Any:
    """A hyperparameter as a number where the host has it; a tensor that lies elsewhere stays one."""
    if isinstance(value, (tuple, list)):
        return tuple(_number_if_there(each, x, device) for each, x in zip(rule.rules, value))
    if isinstance(value, Tensor) and not value.is_cpu:
        return _widened(value, torch.float64, device)
    return rule.numbers(value)


def _by_count(work: Work, rows: list[Any]) -> list[tuple[dict[str, Any], Work]]:
    """The work by what its parameters' counters hold, which `rows` says: that, by name, and the work."""
    names, alike = _reads(work), set(rows)
    if len(alike) < 2:
        return [(dict(zip(names, rows[0] if rows else ())), work)]
    chosen = {row: [i for i, other in enumerate(rows) if other == row] for row in alike}
    return [(dict(zip(names, row)), selected(work, indices)) for row, indices in chosen.items()]


def _rounded(x: float, dtype: torch.dtype) -> float:
    return float(torch.tensor(x, dtype=dtype, device="cpu").item())


def _run(h: dict[str, Any], s: dict[str, Any], work: Work, contiguous: bool) -> dict[str, Any]:
    """Update with numbers, or with 0-dim tensors where a hyperparameter is one; gives the counters it has changed."""

    def stored(x: Any) -> Any:
        dtype = work.scalars[STEP][0].dtype
        return x.to(dtype).double() if isinstance(x, Tensor) else _rounded(x, dtype)

    columns = columns_of(work)
    before = dict(s)
    k = {**work.rule.factors(h, s, stored), "placement": work.placement}
    written = {name: value for name, value in s.items() if isinstance(value, Tensor) or value != before[name]}
    for name, value in written.items():
        _fill(work.scalars[name], value)
    if on_gpu(work.params):
        k = _expanded(k, work.params)
    if not work.rule.elementwise:
        work.rule.update(h, k, *columns)
        return written
    for block in blocks(columns) if contiguous else [columns]:
        work.rule.update(h, k, *block)
    return written


def _fill(counters: Tensors, value: Any) -> None:
    """Put a number, or a 0-dim tensor, into all of them; on an accelerator by as many kernels for one as for many."""
    if not on_gpu(counters):
        for x in counters:
            x.fill_(value)
    elif isinstance(value, Tensor):
        torch._foreach_copy_(counters, [value.to(counters[0].dtype)] * len(counters))
    else:
        torch._foreach_zero_(counters)
        torch._foreach_add_(counters, value)


# In a graph, by the eager step

RULES_HERE: dict[str, Any] = {}  # the classes of this package, by name
# Elements up to which the operator takes a tensor; with a fused kernel it takes any. It compiles in a tenth of the time
# of operations, and its step of small tensors takes up to twice the time of theirs; of large ones more.
SMALL = 1 << 16
TOGETHER = 64  # tensors in one operator: part of the time to compile it grows with the square of their number

_library = torch.library.Library("timesched", "DEF")  # type: ignore[no-untyped-call]  # torch's own has no types
_library.define(  # type: ignore[no-untyped-call]  # likewise
    "eager_step(str rule, Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] states, bool[] kept, "
    "Tensor(c!)[] scalars, str[] names, Tensor[] held, bool[] is_held, float[] fixed) -> ()"
)


@torch.library.impl(_library, "eager_step", "CPU")
def _eager_step(
    rule: str,
    params: Tensors,
    grads: Tensors,
    states: Tensors,
    kept: list[bool],
    scalars: Tensors,
    names: list[str],
    held: Tensors,
    is_held: list[bool],
    fixed: list[float],
) -> None:
    """The eager step as one operator of a graph, which reads the hyperparameters when the graph runs.

    Of these, in their order, some are tensors (`held`), and the others numbers (`fixed`, with NaN for None).
    One operator on many tensors compiles in a small part of the time that operations on each of them take. And torch's
    fused kernels take hyperparameters as numbers, which a graph does not know.
    """
    kind, size = RULES_HERE[rule], len(params)
    tensors_of_h, others = iter(held), iter([None if math.isnan(x) else x for x in fixed])
    numbers = iter([next(tensors_of_h).item() if x else next(others) for x in is_held])
    h = {name: each.unpack(numbers) for name, each in kind.hyper.items()}
    columns, rows = iter(_columns(states, size)), _columns(scalars, size)
    tensors = [next(columns) if there else [] for there in kept]
    on_host(Work(kind, h, params, grads, dict(zip(names, rows)), tensors), {})


@torch.library.register_fake("timesched::eager_step", lib=_library)  # type: ignore[untyped-decorator]  # likewise
def _(*_arguments: Any) -> None:
    """It makes no tensors."""


def _columns(xs: Tensors, size: int) -> list[Tensors]:
    return [xs[at : at + size] for at in range(0, len(xs), size)]


def _for_eager_step(work: Work) -> list[bool]:
    """Whether the operator takes a parameter.

    It knows the classes here, and cannot change views in a graph. A tensor that wraps others would call it for each of
    them, and a number of numpy's is an array in a graph.
    """
    known = torch.compiler.is_compiling() and RULES_HERE.get(work.rule.__name__) is work.rule
    if not known or work.placement or work.of_complex or not readable(work):
        return [False] * len(work.params)
    if not all(x is None or isinstance(x, (int, float, Tensor)) for x in _flat(work)):
        return [False] * len(work.params)
    changed = [work.params, *(column for column in work.tensors if column)]
    return [
        type(p) in (Tensor, torch.nn.Parameter)
        and (work.rule.fused is not None or p.numel() <= SMALL)
        and all([_whole(column[i]) for column in changed])
        for i, p in enumerate(work.params)
    ]


def _flat(work: Work) -> list[Any]:
    return [x for name, rule in work.rule.hyper.items() for x in rule.pack(work.h[name])]


def _whole(x: Tensor) -> bool:
    """Whether a tensor is all of its storage: torch 2.7 reads what an operator changes in a part of one elsewhere."""
    return x.untyped_storage().size() == x.numel() * x.dtype.itemsize


def _call_eager_step(work: Work) -> None:
    flat = _flat(work)
    torch.ops.timesched.eager_step.default(
        work.rule.__name__,
        work.params,
        work.grads,
        [x for column in work.tensors for x in column],
        [len(column) > 0 for column in work.tensors],
        [x for column in work.scalars.values() for x in column],
        list(work.scalars),
        [x for x in flat if isinstance(x, Tensor)],
        [isinstance(x, Tensor) for x in flat],
        [math.nan if x is None else float(x) for x in flat if not isinstance(x, Tensor)],
    )


# With tensors


def in_graph(works: list[Work]) -> None:
    """A step that reads nothing, on any device and under torch.compile."""
    for work in works:
        by_operator = _for_eager_step(work)
        chosen = [i for i, x in enumerate(by_operator) if x]
        for at in range(0, len(chosen), TOGETHER):
            _call_eager_step(selected(work, chosen[at : at + TOGETHER]))
        left = [i for i, x in enumerate(by_operator) if not x]
        if not left:
            continue
        shaped = _with_dimensions(selected(work, left) if chosen else work)
        if STEP in shaped.scalars:
            torch._foreach_add_(shaped.scalars[STEP], 1)
        _on_tensors(shaped)


def _on_tensors(work: Work) -> None:
    wide = torch.float32 if work.params[0].device.type == "mps" else torch.float64

    def stored(x: Any) -> Tensor:
        number = x if isinstance(x, Tensor) else torch.full((), x, dtype=wide, device=work.params[0].device)
        # The choice keeps inductor from taking the two conversions for none (torch 2.7).
        count = torch.cat(work.scalars[STEP])
        return torch.where(count > 0, number.to(count.dtype), 0.0).to(wide)

    device = work.params[0].device
    h = {name: _widened(value, wide, device) for name, value in work.h.items()}
    s = {name: torch.cat(work.scalars[name]).to(wide) for name in _reads(work)}
    before = dict(s)
    k = {**work.rule.factors(h, s, stored), "placement": work.placement}
    for name, value in s.items():
        if value is not before[name]:
            _store(work.scalars[name], value)
    work.rule.update(h, _expanded(k, work.params), work.params, work.grads, *work.tensors)


def _store(counters: Tensors, values: Tensor) -> None:
    """Put one value into each."""
    if not on_gpu(counters):
        for i, x in enumerate(counters):
            x.copy_(values[i : i + 1])
    else:
        torch._foreach_copy_(counters, list(values.to(counters[0].dtype).unsqueeze(1).unbind()))


def _with_dimensions(work: Work) -> Work:
    """Views with a dimension of tensors that have none.

    torch (2.7 to 2.13) drops from a graph what is done in place to a 0-dim float64 input on the CPU, but not to a view
    of it.
    """
    columns = [_shaped(column) for column in columns_of(work)]
    return with_columns(work, columns, {name: _shaped(column) for name, column in work.scalars.items()}, work.placement)


def with_a_dimension(h: dict[str, Any]) -> dict[str, Any]:
    """Hyperparameters whose 0-dim tensors are views with a dimension.

    Of a 0-dim float64 tensor on the CPU, torch 2.13 tries whether the graph reads its number, and traces all of the
    graph again when it does not.
    """

    def shaped(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return tuple(map(shaped, value))
        return value.reshape(1) if isinstance(value, Tensor) else value

    return {name: shaped(value) for name, value in h.items()}


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
    if on_gpu(params):
        cast = {name: k[name].to(dtype) for name in names}
        return {**k, **{name: x if x.dim() == 0 else list(x.unbind()) for name, x in cast.items()}}
    flat = torch.cat(
        [torch.zeros(1, dtype=dtype, device=params[0].device), *(k[name].reshape(-1).to(dtype) for name in names)]
    )
    result, at = dict(k), 1
    for name in names:
        count = k[name].numel()
        result[name] = flat[at] if k[name].dim() == 0 else list(flat[at : at + count].unbind())
        at += count
    return result
