"""How a work is stepped: by one of torch's fused kernels, or by the update rule, on numbers or on tensors.

From top to bottom, this module chooses the route of a work, steps it by a kernel, on numbers or on tensors, and has the
helpers of these three. Each of them ends in `_update`, except kernels.

* By a kernel (fused.py), if torch has one for the step.
* On numbers, on the CPU and on a CUDA GPU: values on the CPU are read, and counts on the GPU are known without reading
  (known_counts.py). On the CPU, the update runs over blocks that fit the cache (blocks.py), if tensors are large.
* On tensors, in a graph, on any other device, and if the host does not know a count: nothing is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..base.scalar_states import STEP
from ..base.tensor_lists import Columns, Piece, Tensors, select
from ..precision.widened import WidenedStep
from .blocks import blocks, needs_blocks, split_work
from .fused import Kernel
from .known_counts import KnownCounts
from .work import Factors, Work, split_by_layout

NUMBERS = frozenset((float, int, bool, tuple, type(None)))  # the types of hyperparameters and factors that are numbers


class Route(NamedTuple):
    """How a work is stepped. The kinds of its tensors and hyperparameters decide this."""

    kernel: Kernel | None  # torch's kernel for the whole step
    in_blocks: bool
    on_numbers: bool = True  # False: on tensors, without a kernel and blocks


def choose_routes(original: Work) -> list[tuple[Work, Route]]:
    """Split a work into parts, each with its route. On devices other than the CPU and CUDA, a step is on tensors."""
    if original.columns["p"][0].device.type not in ("cpu", "cuda"):
        return [(original, Route(None, in_blocks=False, on_numbers=False))]
    work = original._replace(hyper=_convert_for_factors(original, read_on_host=True))
    routes: list[tuple[Work, Route]] = []
    for layout_part, contiguous in split_by_layout(work):
        in_blocks = contiguous and needs_blocks(layout_part)
        for part in [layout_part] if in_blocks else split_work(layout_part):
            fused: Kernel | None = part.algorithm.fused
            kernel = fused if contiguous and fused and fused.supports(part) else None
            # A kernel reads memory once, also without blocks. It needs blocks only for copies in float32.
            routes.append((part, Route(kernel, in_blocks and (kernel is None or part.widening is not None))))
    return routes


def step_on_route(work: Work, route: Route, known_counts: KnownCounts) -> None:
    """Step a work on a route. Its hyperparameters are numbers, or tensors on CUDA."""
    if not route.on_numbers:
        step_on_tensors([work])
        return
    if work.columns["p"][0].is_cuda and _is_being_captured():
        for column in work.scalars.values():
            known_counts.mark_captured(column)
    if route.kernel is None:
        _step_on_numbers(work, known_counts, route.in_blocks)
    else:
        _step_by_kernel(work, route.kernel, route.in_blocks)


def _is_being_captured() -> bool:
    """Whether the current launches on the GPU are recorded as a CUDA graph."""
    is_in_use: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch's own
    return is_in_use and torch.cuda.is_current_stream_capturing()


def _step_by_kernel(work: Work, kernel: Kernel, in_blocks: bool) -> None:
    """A step by one of torch's fused kernels."""
    _count_step(work)
    step_counts = work.scalars.get(STEP, [])
    if work.widening is None:
        kernel.step(work.hyper, step_counts, **work.columns)
        return
    for piece in _pieces(work, in_blocks):
        kernel.step(work.hyper, select(step_counts, piece.piece.indices) if step_counts else [], **piece.columns)
        piece.write_back()
        del piece  # frees its memory for the next piece


def _step_on_numbers(work: Work, known_counts: KnownCounts, in_blocks: bool) -> None:
    """A step with the scalar states as numbers. If the host does not know them all, a step on tensors."""
    old_values = known_counts.read(work.scalars, work.algorithm.reads)
    if old_values is None:
        step_on_tensors([work])
        for name in work.scalars.keys() & set(work.algorithm.reads):
            known_counts.remember_computed(work.scalars[name])
        return
    _count_step(work)  # this counts in the states; the numbers are counted below
    for part, numbers in _split_by_numbers(work, old_values):
        if STEP in numbers:
            numbers[STEP] = known_counts.remember(part.scalars[STEP], numbers[STEP] + 1.0)
        for name, value in _update(part, numbers, in_blocks).items():
            known_counts.remember(part.scalars[name], value)


def _split_by_numbers(work: Work, numbers: dict[str, list[float]]) -> list[tuple[Work, dict[str, Any]]]:
    """Split the work into parts of parameters with equal numbers. Each part comes with its numbers by name."""
    rows = list(zip(*numbers.values())) or [()]  # one for each parameter, or no numbers
    if len(set(rows)) == 1:  # nearly always
        return [(work, dict(zip(numbers, rows[0])))]
    indices: dict[tuple[float, ...], list[int]] = {}
    for i, row in enumerate(rows):
        indices.setdefault(row, []).append(i)
    return [(work.select(part), dict(zip(numbers, row))) for row, part in indices.items()]


def step_on_tensors(works: list[Work]) -> None:
    """A step that reads nothing, on any device and under torch.compile."""
    for original in works:
        work = _add_dimensions(original)._replace(hyper=_convert_for_factors(original, read_on_host=False))
        device = work.columns["p"][0].device
        _count_step(work)
        names = [name for name in work.algorithm.reads if name in work.scalars]
        scalars = {name: torch.cat(work.scalars[name]).to(_double_dtype(device)) for name in names}
        _update(work, scalars, in_blocks=False)


def _count_step(work: Work) -> None:
    """Add 1 to the counts of steps."""
    if STEP in work.scalars:
        torch._foreach_add_(work.scalars[STEP], 1)


def _update(work: Work, scalars: Factors, in_blocks: bool) -> Factors:
    """Update parameters and all of their states. Returns the scalar states that changed, by name.

    `scalars`: the scalar states that the factors need, this step counted.
    """
    round_as_state = partial(_round_as_state, work.scalars)
    all_factors, new_scalars = work.algorithm.factors_and_scalars(work.hyper, scalars, round_as_state)
    changed: Factors = {}
    for name, value in new_scalars.items():
        if isinstance(value, Tensor) or value != scalars[name]:  # tensors are not compared: that would read them
            _fill(work.scalars[name], value)
            changed[name] = value
    list_hyper, list_factors = _convert_for_lists(work.hyper, all_factors, work.columns["p"][0])
    update, placement = work.algorithm.update, {} if work.algorithm.elementwise else {"placement": work.placement}
    if work.widening is None and not in_blocks:  # nearly always, and then without the calls for pieces
        update(list_hyper, list_factors, **work.columns, **placement)
        return changed
    for piece in _pieces(work, in_blocks):
        update(list_hyper, list_factors, **piece.columns, **placement)
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


def _pieces(work: Work, in_blocks: bool) -> Iterable[Any]:
    """The pieces of a work: each a `Piece`, or a `WidenedPiece` if the work is widened.

    Write each piece back before you ask for the next one.
    """
    pieces = blocks(work.columns) if in_blocks else [Piece(work.columns, range(len(work.columns["p"])))]
    if work.widening is None:
        return pieces
    return map(WidenedStep(work.widening, work.columns, work.scalars.get(STEP, [])).read, pieces)


def _fill(column: Tensors, value: Any) -> None:
    """Put a number into the scalar state of all parameters; a tensor has one number for all, or one for each."""
    if isinstance(value, Tensor):
        values = value.to(column[0].dtype).expand(len(column)).view(len(column), *column[0].shape)
        torch._foreach_copy_(column, list(values.unbind()))
    else:  # in two steps, so that nothing is copied from the host to a GPU
        torch._foreach_zero_(column)
        torch._foreach_add_(column, value)


def _convert_for_factors(work: Work, read_on_host: bool) -> Factors:
    """The hyperparameters in the form for `factors`: numbers, or 0-dim tensors in double precision on the device.

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
    if NUMBERS.issuperset(map(type, both.values())):
        return hyper, factors
    tensors = {name: x for name, x in both.items() if isinstance(x, Tensor)}
    if tensors:
        dtype = torch.float64 if p.dtype == torch.float64 else torch.float32
        cast = [x.to(dtype) for x in tensors.values()]
        if torch.compiler.is_compiling():
            # Inductor keeps one array. Without the array, every element would compute the factors again.
            parts = torch.split(torch.cat([x.reshape(-1) for x in cast]), [x.numel() for x in cast])
            cast = [part.view(x.shape) for part, x in zip(parts, cast)]
        both.update((name, x if x.dim() == 0 else list(x.unbind())) for name, x in zip(tensors, cast))
    remaining = {name: both[name] for name in hyper if name not in factors}
    return remaining, {name: both[name] for name in factors}


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

    hyper: Factors  # these two are in the form for lists
    factors: Factors
    columns: Columns
    write_back: Callable[[], None]  # call this after the update


def start_step(work: Work) -> StartedStep:
    """Start a step outside of graphs. The caller updates the columns of the result with its numbers.

    The factors of the algorithm must not need scalar states.
    """
    hyper = _convert_for_factors(work, read_on_host=True)
    _count_step(work)
    list_hyper, list_factors = _convert_for_lists(hyper, work.algorithm.factors(hyper, {}), work.columns["p"][0])
    [piece] = _pieces(work, in_blocks=False)
    return StartedStep(list_hyper, list_factors, piece.columns, piece.write_back)
