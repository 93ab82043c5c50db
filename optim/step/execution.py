"""How a step runs: one update rule for each optimizer, on numbers if the host knows them, otherwise on tensors.

An eager step on the CPU and on a CUDA GPU uses hyperparameters and counts as numbers. Values on the CPU are read, and
counts on the GPU are known without reading (known_counts.py). If torch has a fused kernel for the step, the kernel runs
(fused.py). Otherwise the update runs over all tensors at once, on the CPU over blocks that fit the cache (blocks.py).

In a graph, on any other device, and if the host does not know a count, hyperparameters and counts stay tensors. Nothing
is read, and the update runs over all tensors at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from timesched.ops import host_scalar

from ..base.scalar_states import STEP
from ..base.tensor_lists import Columns, Piece, Tensors
from ..precision.widened import WidenedStep
from .blocks import blocks, split_work
from .fused import Kernel
from .known_counts import KnownCounts
from .work import Factors, Work, split_by_layout


class StepInPlace:
    """A step of tensors that are updated in place. `WidenedStep` has the same method, for bfloat16 tensors."""

    def read(self, piece: Piece) -> Piece:
        return piece


def eager_step(works: list[Work], known_counts: KnownCounts) -> None:
    """A step outside of graphs: on numbers on the CPU and on CUDA, otherwise on tensors."""
    for original in works:
        device = original.columns["p"][0].device
        if device.type not in ("cpu", "cuda"):
            step_on_tensors([original])
            continue
        if device.type == "cuda" and _is_being_captured():
            for column in original.scalars.values():
                known_counts.mark_unknown(column)
        work = original._replace(hyper=_hyperparameters(original, read_on_host=True))
        for part, contiguous in split_by_layout(work):
            _step_part_eagerly(part, contiguous, known_counts)


def _is_being_captured() -> bool:
    """Whether the current launches on the GPU are recorded as a CUDA graph."""
    is_in_use: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch's own
    return is_in_use and torch.cuda.is_current_stream_capturing()


def _step_part_eagerly(part: Work, contiguous: bool, known_counts: KnownCounts) -> None:
    """The step of tensors that are either all contiguous or all not: by torch's kernel if it supports the step."""
    in_blocks = part.columns["p"][0].is_cpu and contiguous and part.algorithm.elementwise
    for work in [part] if in_blocks else split_work(part):
        fused = work.algorithm.fused if contiguous else None
        kernel = None if fused is None else fused(work)
        if kernel is None:
            _step_on_numbers(work, known_counts, in_blocks)
        else:
            # A kernel reads memory once, also without blocks. It needs blocks only for copies in float32.
            _step_by_kernel(work, kernel, in_blocks and work.widening is not None)


def _step_by_kernel(work: Work, kernel: Kernel, in_blocks: bool) -> None:
    """A step by one of torch's fused kernels."""
    _count_step(work)
    step_counts = work.scalars.get(STEP)
    step = _make_step(work, in_blocks)
    for piece in _pieces(work, in_blocks):
        counts = [step_counts[i] for i in piece.indices] if step_counts else []
        current = step.read(piece)
        kernel(counts, **current.columns)
        current.write_back()
        del current  # frees its memory for the next piece


def _step_on_numbers(work: Work, known_counts: KnownCounts, in_blocks: bool) -> None:
    """A step with the scalar states as numbers. If the host does not know them all, a step on tensors."""
    old_values: dict[str, list[float]] = {}  # the scalar states before this step: by name, one for each parameter
    names = [name for name in work.algorithm.reads if name in work.scalars]
    for name in names:
        known = known_counts.read(work.scalars[name])
        if known is None:
            step_on_tensors([work])
            for computed in names:
                known_counts.note_computed(work.scalars[computed])
            return
        old_values[name] = known
    _count_step(work)  # this counts in the states; the numbers `s` are counted below
    for part, s in _split_by_numbers(work, old_values):
        if STEP in s:
            s[STEP] = known_counts.note(part.scalars[STEP], s[STEP] + 1.0)
        for name, value in _update(part, s, in_blocks).items():
            known_counts.note(part.scalars[name], value)


def _split_by_numbers(work: Work, numbers: dict[str, list[float]]) -> list[tuple[Work, dict[str, Any]]]:
    """Split the work into parts of parameters with equal numbers. Each part comes with its numbers by name."""
    indices: dict[tuple[float, ...], list[int]] = {}
    for i in range(len(work.columns["p"])):
        indices.setdefault(tuple([column[i] for column in numbers.values()]), []).append(i)
    parts = [work] if len(indices) == 1 else list(map(work.select, indices.values()))
    return [(part, dict(zip(numbers, row))) for part, row in zip(parts, indices)]


def step_on_tensors(works: list[Work]) -> None:
    """A step that reads nothing, on any device and under torch.compile."""
    for original in works:
        work = _add_dimensions(original)._replace(hyper=_hyperparameters(original, read_on_host=False))
        device = work.columns["p"][0].device
        _count_step(work)
        names = [name for name in work.algorithm.reads if name in work.scalars]
        s = {name: torch.cat(work.scalars[name]).to(_double_dtype(device)) for name in names}
        _update(work, s, in_blocks=False)


def _count_step(work: Work) -> None:
    """Add 1 to the counts of steps."""
    if STEP in work.scalars:
        torch._foreach_add_(work.scalars[STEP], 1)


def _update(work: Work, s: Factors, in_blocks: bool) -> Factors:
    """Update parameters and all of their states. Returns the scalar states that changed, by name.

    `s`: the scalar states that the factors need, this step counted.
    """

    def round_as_state(x: Any) -> Any:
        dtype = work.scalars[STEP][0].dtype
        if not isinstance(x, Tensor):
            return host_scalar(x, dtype).item()
        # Inductor drops a conversion there and back. The limit between the two prevents this and changes no value.
        return x.to(dtype).clamp(max=torch.finfo(dtype).max).to(x.dtype)

    factors, new_scalars = work.algorithm.factors_and_scalars(work.hyper, s, round_as_state)
    changed: Factors = {}
    for name, value in new_scalars.items():
        if isinstance(value, Tensor) or value != s[name]:  # tensors are not compared: a comparison would read them
            _fill(work.scalars[name], value)
            changed[name] = value
    h, f = _convert_for_lists(work.hyper, factors, work.columns["p"][0])
    placement = {} if work.algorithm.elementwise else {"placement": work.placement}
    step = _make_step(work, in_blocks)
    for piece in _pieces(work, in_blocks):
        current = step.read(piece)
        work.algorithm.update(h, f, **current.columns, **placement)
        current.write_back()
        del current  # frees its memory for the next piece
    return changed


def _pieces(work: Work, in_blocks: bool) -> Iterable[Piece]:
    """The pieces that are updated one after the other."""
    return blocks(work.columns) if in_blocks else [_whole_piece(work)]


def _whole_piece(work: Work) -> Piece:
    """All of the work as one piece."""
    return Piece(work.columns, range(len(work.columns["p"])))


def _make_step(work: Work, in_blocks: bool) -> StepInPlace | WidenedStep:
    """The step of a work, which reads its pieces. Each piece is written back after its update."""
    if work.widening is None:
        return StepInPlace()
    return WidenedStep(work.widening, work.columns, work.scalars.get(STEP, []), reuse_memory=in_blocks)


def _fill(column: Tensors, value: Any) -> None:
    """Put a number into the scalar state of all parameters; a tensor has one number for all, or one for each."""
    dtype, n = column[0].dtype, len(column)
    if isinstance(value, Tensor):
        values = value.to(dtype).expand(n).view(n, *column[0].shape)
        torch._foreach_copy_(column, list(values.unbind()))
    elif column[0].is_cuda:  # so that nothing is copied there from the host
        torch._foreach_zero_(column)
        torch._foreach_add_(column, value)
    else:
        torch._foreach_copy_(column, [host_scalar(value, dtype)] * n)


def _hyperparameters(work: Work, read_on_host: bool) -> Factors:
    """The hyperparameters in the form for the factors: numbers, or 0-dim tensors in double precision on the device.

    With `read_on_host`, tensors on the CPU become numbers.
    """
    device = work.columns["p"][0].device
    return {name: _number_or_tensor(value, device, read_on_host) for name, value in work.hyper.items()}


def _number_or_tensor(value: Any, device: torch.device, read_on_host: bool) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(_number_or_tensor(x, device, read_on_host) for x in value)
    if isinstance(value, Tensor):
        return value.item() if read_on_host and value.is_cpu else value.reshape(()).to(device, _double_dtype(device))
    return value if value is None or isinstance(value, (float, int, str, torch.dtype)) else float(value)


def _double_dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


def _convert_for_lists(hyper: Factors, factors: Factors, p: Tensor) -> tuple[Factors, Factors]:
    """Hyperparameters and factors in the form for operations on lists: a number, a 0-dim tensor, or a list of these.

    Tensors get the dtype of the update. A tensor with an element for each parameter becomes a list. If a factor has the
    name of a hyperparameter, the hyperparameter is left out.
    """
    both = {**hyper, **factors}
    tensors = {name: x for name, x in both.items() if isinstance(x, Tensor)}
    if tensors:
        dtype = torch.float64 if p.dtype == torch.float64 else torch.float32
        cast = [x.to(dtype) for x in tensors.values()]
        if torch.compiler.is_compiling():
            # Inductor keeps one array. Without the array, every element would compute the factors again.
            parts = torch.split(torch.cat([x.reshape(-1) for x in cast]), [x.numel() for x in cast])
            cast = [part.view(x.shape) for part, x in zip(parts, cast)]
        both.update((name, x if x.dim() == 0 else list(x.unbind())) for name, x in zip(tensors, cast))
    h = {name: both[name] for name in hyper if name not in factors}
    return h, {name: both[name] for name in factors}


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


class StartedStep(NamedTuple):
    """A step before its update: everything that the update needs."""

    hyper: Factors
    factors: Factors
    columns: Columns
    write_back: Callable[[], None]  # call this after the update


def start_step(work: Work, read_on_host: bool) -> StartedStep:
    """Start a step outside of graphs. The caller updates the columns of the result with its numbers.

    The factors of the algorithm must not need scalar states. With `read_on_host`, hyperparameters that are tensors on
    the CPU become numbers.
    """
    hyper = _hyperparameters(work, read_on_host)
    _count_step(work)
    h, f = _convert_for_lists(hyper, work.algorithm.factors(hyper, {}), work.columns["p"][0])
    step = _make_step(work, in_blocks=False)
    piece = step.read(_whole_piece(work))
    return StartedStep(h, f, piece.columns, piece.write_back)
