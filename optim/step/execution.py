"""How the parts of a step run, each on its route (routes.py), and how a step runs on tensors, also in graphs.

* By a kernel: one of torch's fused kernels does the whole step (fused.py).
* On numbers: the update rule runs on Python numbers. Hyperparameters on the CPU are read, and counts on a GPU are known
  without reading (known_counts.py). If the host does not know a count, the part is stepped on tensors.
* On tensors: the update rule runs on tensors, and nothing is read.

Two functions do the work: `_update` ends the last two routes, and the kernel the first. From top to bottom: the
routes, `_update`, the helpers of both, and `start_step`, with which Muon runs updates of its own (muon/ranks.py).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..base.scalar_states import STEP
from ..base.tensor_lists import Columns, Tensors, select
from .fused import Kernel
from .known_counts import KnownCounts
from .pieces import pieces
from .routes import Route
from .work import Factors, Work, convert_for_factors, convert_for_lists, double_dtype


def step_on_route(work: Work, route: Route, known_counts: KnownCounts) -> None:
    """Step a part on its route."""
    if work.columns["p"][0].is_cuda and _is_being_captured():
        for column in work.scalars.values():
            known_counts.mark_captured(column)
    if route.kernel is not None:
        _step_by_kernel(work, route.kernel, route.in_blocks)
    elif route.on_numbers:
        _step_on_numbers(work, known_counts, route.in_blocks)
    else:
        step_on_tensors([work])


def _is_being_captured() -> bool:
    """Whether the current launches on the GPU are recorded as a CUDA graph."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]  # torch's


def _step_by_kernel(work: Work, kernel: Kernel, in_blocks: bool) -> None:
    """A step by one of torch's fused kernels."""
    _count_step(work)
    step_counts = work.scalars.get(STEP, [])
    if work.widening is None:
        kernel.step(work.hyper, step_counts, **work.columns)
        return
    for piece in pieces(work, in_blocks):
        kernel.step(work.hyper, select(step_counts, piece.piece.indices) if step_counts else [], **piece.columns)
        piece.write_back()
        del piece  # frees its memory for the next piece


def _step_on_numbers(work: Work, known_counts: KnownCounts, in_blocks: bool) -> None:
    """A step with the scalar states as numbers. If the host does not know them all, a step on tensors."""
    needed = {name: work.scalars[name] for name in work.algorithm.reads if name in work.scalars}
    old_values = known_counts.read(needed)
    if old_values is None:  # only the GPU has them
        step_on_tensors([work])
        for counts in needed.values():
            known_counts.remember(counts, None)
        return
    for equal_work, numbers in _split_by_numbers(work, old_values):
        if STEP in numbers:
            numbers[STEP] = known_counts.advance(equal_work.scalars[STEP], numbers[STEP])
        else:
            _count_step(equal_work)
        for name, value in _update(equal_work, numbers, in_blocks).items():
            known_counts.remember(equal_work.scalars[name], value)


def _split_by_numbers(work: Work, numbers: dict[str, list[float]]) -> list[tuple[Work, dict[str, Any]]]:
    """Split the work into works whose parameters have equal numbers. Each comes with its numbers by name."""
    rows = list(zip(*numbers.values())) or [()]  # one for each parameter, or no numbers
    if len(set(rows)) == 1:  # nearly always
        return [(work, dict(zip(numbers, rows[0])))]
    indices: dict[tuple[float, ...], list[int]] = {}
    for i, row in enumerate(rows):
        indices.setdefault(row, []).append(i)
    return [(work.select(equal), dict(zip(numbers, row))) for row, equal in indices.items()]


def step_on_tensors(works: list[Work]) -> None:
    """A step that reads nothing, on any device and under torch.compile."""
    for original in works:
        work = convert_for_factors(_add_dimensions(original), read_on_host=False)
        _count_step(work)
        needed = {name: work.scalars[name] for name in work.algorithm.reads if name in work.scalars}
        scalars = {name: torch.cat(xs).to(double_dtype(xs[0].device)) for name, xs in needed.items()}
        _update(work, scalars, in_blocks=False)


def _add_dimensions(work: Work) -> Work:
    """Replace 0-dim tensors by views with one dimension.

    torch (2.7 to 2.13) drops in-place operations on a 0-dim float64 input on the CPU from a graph, but not operations
    on a view of the input.
    """
    columns = {name: _add_dimension(xs) for name, xs in work.columns.items()}
    scalars = {name: _add_dimension(xs) for name, xs in work.scalars.items()}
    return work._replace(columns=columns, scalars=scalars)


def _add_dimension(xs: Tensors) -> Tensors:
    return [x.view(1) if x.dim() == 0 else x for x in xs]


def _count_step(work: Work) -> None:
    """Add 1 to the counts of steps."""
    if STEP in work.scalars:
        torch._foreach_add_(work.scalars[STEP], 1)


def _update(work: Work, scalars: Factors, in_blocks: bool) -> Factors:
    """Step by the update rule. Returns the scalar states that changed, except the count of steps, by name.

    `scalars`: the scalar states that the factors need, this step counted: numbers, or tensors.
    """
    round_as_state = partial(_round_as_state, work.scalars)
    factors, new_scalars = work.algorithm.factors_and_scalars(work.hyper, scalars, round_as_state)
    changed: Factors = {}
    for name, value in new_scalars.items():
        if isinstance(value, Tensor) or value != scalars[name]:  # tensors are not compared: that would read them
            _fill(work.scalars[name], value)
            changed[name] = value
    h, f = convert_for_lists(work, factors)
    update, placement = work.algorithm.update, {} if work.algorithm.elementwise else {"placement": work.placement}
    if work.widening is None and not in_blocks:  # nearly always, and then without the calls for pieces
        update(h, f, **work.columns, **placement)
        return changed
    for piece in pieces(work, in_blocks):
        update(h, f, **piece.columns, **placement)
        piece.write_back()
        del piece  # frees its memory for the next piece
    return changed


def _round_as_state(scalar_states: Columns, x: Any) -> Any:
    """A number, or a tensor of numbers, rounded to the dtype of the scalar states."""
    dtype = scalar_states[STEP][0].dtype
    if not isinstance(x, Tensor):
        return torch.tensor(x, dtype=dtype, device="cpu").item()
    # Inductor drops a conversion there and back. The limit between the two prevents this and changes no value.
    return x.to(dtype).clamp(max=torch.finfo(dtype).max).to(x.dtype)


def _fill(column: Tensors, value: Any) -> None:
    """Put a number into the scalar state of all parameters; a tensor has one number for all, or one for each."""
    if isinstance(value, Tensor):
        values = value.to(column[0].dtype).expand(len(column)).view(len(column), *column[0].shape)
        torch._foreach_copy_(column, list(values.unbind()))
    else:  # in two steps, so that nothing is copied from the host to a GPU
        torch._foreach_zero_(column)
        torch._foreach_add_(column, value)


def start_step(work: Work) -> tuple[Factors, Factors, Any]:
    """Start a step outside of graphs, whose factors do not need scalar states.

    Returns the hyperparameters and the factors in the form for lists, and the piece that the caller then updates.
    """
    work = convert_for_factors(work, read_on_host=True)
    _count_step(work)
    h, f = convert_for_lists(work, work.algorithm.factors(work.hyper, {}))
    [piece] = pieces(work, in_blocks=False)
    return h, f, piece
