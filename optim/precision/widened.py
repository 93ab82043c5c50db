"""Steps in float32 of bfloat16 tensors: read before the update, written back after it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..base.tensor_lists import Tensors
from .bits import as_integers, bitcast, join_, round_stochastically_, round_to_nearest, split_, split_like
from .noise import Place, indices, noise, place_of, tensor_seeds
from .options import has_remedy


class Low(NamedTuple):
    """How a piece of work is stepped in float32."""

    remainder: bool  # the last column holds remainders
    places: list[Place]  # for rounding at random; empty without it
    seed: int


def low(group: Mapping[str, Any], params: Tensors, numbers: Mapping[Tensor, int] | None = None) -> Low | None:
    """How parameters of one dtype are stepped in float32; None where they are stepped as they are.

    `numbers` counts all parameters, for rounding at random.
    """
    short = params[0].dtype is torch.bfloat16
    if not (short and has_remedy(group)) and not group.get("state_dtype"):
        return None
    remainder = short and bool(group.get("master_weights"))
    rounds = group.get("stochastic_rounding") and (group.get("state_dtype") or not remainder)
    places = [place_of(numbers[p], p) for p in params] if rounds and numbers else []
    return Low(remainder, places, group.get("rounding_seed", 0))


def narrow(columns: Sequence[Tensors]) -> list[int]:
    """Which columns are in bfloat16."""
    return [j for j, xs in enumerate(columns) if xs and all([x.dtype is torch.bfloat16 for x in xs])]


def seeds(how: Low, steps: Tensors, columns: Sequence[Tensors]) -> dict[int, list[Any]]:
    """For each column that is rounded at random the seeds of its tensors, as numbers where the host has the counts."""
    if not how.places:
        return {}
    count = torch.cat([step.reshape(1) for step in steps]).to(torch.int32)
    every = torch.arange(max(place.number for place in how.places) + 1, dtype=torch.int32, device=count.device)
    number = torch.cat([every[place.number : place.number + 1] for place in how.places])  # nothing comes from the host
    found = {}
    for column in narrow(columns):
        if column == 1 or (column == 0 and how.remainder):  # gradients, and what is split
            continue
        x = tensor_seeds(how.seed, column, count, number)
        on_host = x.is_cpu and not torch.compiler.is_compiling()
        found[column] = x.tolist() if on_host else list(x.unbind())
    return found


class Buffers:
    """Memory that the pieces of a step use one after the other; without it, each gets its own."""

    def __init__(self, reuse: bool) -> None:
        self._kept: dict[Any, Tensor] | None = {} if reuse else None

    def get(self, shape: Sequence[int], use: Any, dtype: torch.dtype = torch.int32) -> Tensor | None:
        """Memory in a shape, for one use."""
        count = math.prod(shape)
        if self._kept is None:
            return None
        if use not in self._kept or self._kept[use].numel() < count:
            self._kept[use] = torch.empty(count, dtype=dtype, device="cpu")
        return self._kept[use][:count].view(shape)

    def cast(self, x: Tensor, use: Any, dtype: torch.dtype) -> Tensor:
        """A copy in another dtype."""
        memory = self.get(x.shape, use, dtype)
        return x.to(dtype) if memory is None else memory.copy_(x)


def in_float32(
    columns: Sequence[Tensors], how: Low, places: list[Place], start: int, seeds: dict[int, list[Any]], buffers: Buffers
) -> Iterator[Sequence[Tensors]]:
    """Gives the parameters, gradients and states in float32, and writes back what was updated.

    The tensors are the parts from `start` on of those in `places`.
    """
    remainders: Tensors = []
    if how.remainder:
        *columns, remainders = columns
    p, short = columns[0], narrow(columns)
    joined = len(p) > 1 and len(short) > 0 and not torch.compiler.is_compiling()
    joined = joined and all([x.is_contiguous() for xs in columns for x in xs])
    if joined:  # few operations for many small tensors
        flat = torch.cat([x.view(-1) for xs in (*(columns[j] for j in short), remainders) for x in xs])
        n = sum(x.numel() for x in p)
        values = {j: [x] for j, x in zip(short, flat[: n * len(short)].float().view(len(short), n).unbind())}
        if remainders:
            values[0] = [join_(values[0][0], bitcast(flat[-n:], torch.int16))]
    else:
        values = {j: [buffers.cast(x, j, torch.float32) for x in columns[j]] for j in short}
        lows = [buffers.cast(as_integers(x), "int32", torch.int32) for x in remainders]
        if remainders:
            values[0] = list(map(join_, values[0], lows))
    wide = [list(column) for column in columns]
    for j in short:
        wide[j] = split_like(values[j][0], p) if joined else values[j]
    if 1 not in short:
        wide[1] = [g.float() for g in columns[1]]
    yield wide
    for j in short:
        for i, x in enumerate(values[j]):
            chosen = slice(None) if joined else slice(i, i + 1)
            to = columns[j][chosen]
            if j == 0 and how.remainder:
                split_(x, to, remainders[chosen])
            elif j != 1 and places:
                memory = None if joined else buffers.get((x.numel(),), "int32")
                parts = [
                    indices(place, start, y.numel(), y.device, memory).bitwise_xor_(seed)
                    for y, place, seed in zip(to, places[chosen], seeds[j][chosen])
                ]
                index = torch.cat(parts) if joined else parts[0]
                round_stochastically_(x, to, noise(index, buffers.get((x.numel(),), "int32 too")))
            elif j != 1:
                round_to_nearest(x, to)
