"""How a step runs: one update rule for each optimizer, on numbers where the host knows them, else on tensors.

An eager step on the CPU and on a CUDA GPU takes hyperparameters and counts as numbers: those on the CPU are read, and
what is on the GPU is known without reading (known_counts.py). Torch's fused kernel takes the step where there is one
(fused.py). Otherwise the update runs over all tensors at once, on the CPU over blocks that fit the cache (blocks.py).

In a graph, on any other device, and for what the host does not know, hyperparameters and counts stay tensors, nothing
is read, and the update runs over all tensors at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..base.tensor_lists import Tensors
from ..precision.widened import Buffers, in_float32, seeds
from .blocks import blocks, by_layout, limited
from .known_counts import KnownCounts
from .work import STEP, Factors, Work


def eager_step(work: Work, known: KnownCounts) -> None:
    """A step outside of graphs."""
    device = work.params[0].device
    if device.type not in ("cpu", "cuda"):
        step_on_tensors([work])
        return
    if device.type == "cuda" and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]  # torch's own
        known.lose(x for column in work.scalars.values() for x in column)
    work = work._replace(h={name: _placed(value, device, read=True) for name, value in work.h.items()})
    parts = by_layout(work)
    if device.type == "cuda" or not work.optimizer_class.elementwise or not parts[0][1]:
        parts = [(some, contiguous) for part, contiguous in parts for some in limited(part)]
    for part, contiguous in parts:
        fused = part.optimizer_class.fused if contiguous else None
        kernel = None if fused is None else fused(part)
        if kernel is None:
            _step_on_numbers(part, known, contiguous)
        else:
            part.advance()
            steps = part.scalars.get(STEP, [])
            for indices, columns in _pieces(part, part.low is not None):
                kernel(columns, [steps[i] for i in indices] if steps else [])


def _step_on_numbers(work: Work, known: KnownCounts, contiguous: bool) -> None:
    """A step for which the counts are numbers: parameters with the same counts go together."""
    names = [name for name in work.optimizer_class.reads if name in work.scalars]
    found = [known.of(work.scalars[name]) for name in names]
    if None in found:
        step_on_tensors([work])
        known.compute(x for name in names for x in work.scalars[name])
        return
    work.advance()
    rows = list(zip(*found)) or [()] * len(work.params)
    for row in dict.fromkeys(rows):
        part, s = work, dict(zip(names, row))
        if rows.count(row) < len(rows):
            part = work.selected([i for i, other in enumerate(rows) if other == row])
        if STEP in s:
            s[STEP] = known.note(part.scalars[STEP], s[STEP] + 1.0)
        for name, value in _update(part, s, contiguous).items():
            known.note(part.scalars[name], value)


def step_on_tensors(works: list[Work]) -> None:
    """A step that reads nothing, on any device and under torch.compile."""
    for work in map(_with_dimensions, works):
        device = work.params[0].device
        h = {name: _placed(value, device) for name, value in work.h.items()}
        work.advance()
        s = {
            name: torch.cat(work.scalars[name]).to(_wide(device))
            for name in work.optimizer_class.reads
            if name in work.scalars
        }
        _update(work._replace(h=h), s)


@contextmanager
def opened(work: Work, read: bool) -> Iterator[tuple[Factors, Sequence[Tensors]]]:
    """A step outside of graphs that reads no counts: its factors, and the columns that are to be updated meanwhile."""
    device = work.params[0].device
    h = {name: _placed(value, device, read) for name, value in work.h.items()}
    work.advance()
    k = _for_lists({**h, **work.optimizer_class.factors(h, {}, float)}, work.params[0])
    for _, columns in _pieces(work, False):
        yield k, columns


def _update(work: Work, s: dict[str, Any], contiguous: bool = False) -> dict[str, Any]:
    """Update with the counts in `s`, this step counted; gives those that the rule has changed."""

    def stored(x: Any) -> Any:
        dtype = work.scalars[STEP][0].dtype
        if not isinstance(x, Tensor):
            return torch.tensor(x, dtype=dtype, device="cpu").item()
        # Inductor drops a conversion there and back; a limit between the two changes nothing.
        return x.to(dtype).clamp(max=torch.finfo(dtype).max).to(x.dtype)

    before = dict(s)
    k = {**work.h, **work.optimizer_class.factors(work.h, s, stored)}
    written = {
        name: x for name, x in s.items() if x is not before[name] and (isinstance(x, Tensor) or x != before[name])
    }
    for name, value in written.items():
        _fill(work.scalars[name], value)
    k = {**_for_lists(k, work.params[0]), "placement": work.placement}
    for _, columns in _pieces(work, contiguous and work.optimizer_class.elementwise):
        work.optimizer_class.update(k, *columns)
    return written


def _pieces(work: Work, by_blocks: bool) -> Iterator[tuple[Sequence[int], Sequence[Tensors]]]:
    """The columns to update, with the indices of their tensors: on the CPU in blocks, if asked for.

    Of bfloat16 tensors they are in float32, and written back after the update.
    """
    columns, how = work.columns(), work.low
    by_blocks = by_blocks and work.params[0].is_cpu
    noise = seeds(how, work.scalars.get(STEP, []), columns) if how else {}
    buffers = Buffers(reuse=by_blocks)
    whole = [(range(len(work.params)), columns, 0)]
    for indices, part, start in blocks(columns) if by_blocks else whole:
        if how is None:
            yield indices, part
        else:
            places = [how.places[i] for i in indices] if how.places else []
            chosen = {j: [every[i] for i in indices] for j, every in noise.items()}
            for wide in in_float32(part, how, places, start, chosen, buffers):
                yield indices, wide


def _fill(counters: Tensors, value: Any) -> None:
    """Put a number into all of them, or a tensor with one number for all or for each."""
    dtype, n = counters[0].dtype, len(counters)
    if isinstance(value, Tensor):
        values = value.to(dtype).expand(n).view(n, *counters[0].shape)
        torch._foreach_copy_(counters, list(values.unbind()))
    elif counters[0].is_cuda:  # nothing is copied there from the host
        torch._foreach_zero_(counters)
        torch._foreach_add_(counters, value)
    else:
        torch._foreach_copy_(counters, [torch.tensor(value, dtype=dtype, device="cpu")] * n)


def _placed(value: Any, device: torch.device, read: bool = False) -> Any:
    """A hyperparameter as the factors take it: a number, or a 0-dim tensor in double precision on the device.

    With `read`, a tensor on the CPU becomes a number.
    """
    if isinstance(value, (tuple, list)):
        return tuple(_placed(x, device, read) for x in value)
    if isinstance(value, Tensor):
        return value.item() if read and value.is_cpu else value.reshape(()).to(device, _wide(device))
    return value if value is None or isinstance(value, (float, int, str, torch.dtype)) else float(value)


def _wide(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


def _for_lists(k: Factors, p: Tensor) -> Factors:
    """The factors as the lists take them: a number, a 0-dim tensor, or one for each parameter."""
    tensors = {name: x for name, x in k.items() if isinstance(x, Tensor)}
    if not tensors:
        return k
    dtype = torch.float64 if p.dtype == torch.float64 else torch.float32
    cast = [x.to(dtype) for x in tensors.values()]
    if torch.compiler.is_compiling():  # through one array, which inductor keeps: it would compute each for each element
        parts = torch.split(torch.cat([x.reshape(-1) for x in cast]), [x.numel() for x in cast])
        cast = [part.view(x.shape) for part, x in zip(parts, cast)]
    return {**k, **{name: x if x.dim() == 0 else list(x.unbind()) for name, x in zip(tensors, cast)}}


def _with_dimensions(work: Work) -> Work:
    """Views with a dimension of tensors that have none.

    torch (2.7 to 2.13) drops from a graph what is done in place to a 0-dim float64 input on the CPU, but not to a view
    of it.
    """
    scalars = {name: _shaped(column) for name, column in work.scalars.items()}
    return work.with_columns(list(map(_shaped, work.columns())))._replace(scalars=scalars)


def _shaped(xs: Tensors) -> Tensors:
    return [x.view(1) if x.dim() == 0 else x for x in xs]
