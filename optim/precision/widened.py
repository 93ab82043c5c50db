"""Steps in float32 of bfloat16 tensors: read before the update, rounded and written back after it.

An update gets a piece of a step at a time, as named columns: "p" are the parameters, "g" the gradients, and each state
goes by its name. `read()` gives the columns with float32 in place of bfloat16, and `write_back()` rounds what the
update made of them. How the float32 values lie in memory is the business of the two classes of pieces.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..base.tensor_lists import Columns, Tensors
from .bits import as_integers, bitcast, join_, round_to_nearest, split_, split_like, stochastic_round_
from .noise import Place, indices, noise, place_of, tensor_seeds
from .options import REMAINDER


class Widening(NamedTuple):
    """How the bfloat16 tensors of some parameters are stepped in float32."""

    places: list[Place]  # of the parameters, for stochastic rounding; empty without it
    seed: int
    column_numbers: dict[str, int]  # of the columns that are rounded: each has noise of its own


def widening(
    group: Mapping[str, Any], columns: Columns, states: Sequence[str | None], numbers: Mapping[Tensor, int]
) -> Widening:
    """How the tensors of a group in these columns are stepped.

    `states`: the names of all states that belong to the elements, None for one that is switched off. `numbers` counts
    the parameters of all groups, for stochastic rounding.
    """
    rounds = group.get("stochastic_rounding") and (group.get("state_dtype") or REMAINDER not in columns)
    places = [place_of(numbers[p], p) for p in columns["p"]] if rounds else []
    # The parameters are column 0, the gradients, which are not written, column 1, and then each state has its number,
    # also one that is switched off: the noise of the others does not depend on it.
    column_numbers = {} if REMAINDER in columns else {"p": 0}
    column_numbers.update({name: number for number, name in enumerate(states, start=2) if name is not None})
    return Widening(places, group.get("rounding_seed", 0), column_numbers)


class Buffers:
    """Memory that the pieces of a step use one after the other; without `reuse`, each gets its own."""

    def __init__(self, reuse: bool) -> None:
        self._kept: dict[str, Tensor] | None = {} if reuse else None

    def get(self, shape: Sequence[int], use: str, dtype: torch.dtype = torch.int32) -> Tensor | None:
        """Memory in a shape, for one use; None where it is not reused."""
        count = math.prod(shape)
        if self._kept is None:
            return None
        if use not in self._kept or self._kept[use].numel() < count:
            self._kept[use] = torch.empty(count, dtype=dtype, device="cpu")
        return self._kept[use][:count].view(shape)

    def cast(self, x: Tensor, use: str, dtype: torch.dtype) -> Tensor:
        """A copy in another dtype."""
        memory = self.get(x.shape, use, dtype)
        return x.to(dtype) if memory is None else memory.copy_(x)


class WidenedStep:
    """One step in float32: what its pieces have in common, which are the seeds of the noise and memory."""

    def __init__(self, how: Widening, columns: Columns, step_counts: Tensors, reuse_memory: bool) -> None:
        self.buffers = Buffers(reuse_memory)
        self.places = how.places
        self.seeds: dict[str, list[Any]] = {}  # of each tensor, by column: numbers where the host has the counts
        if not how.places:
            return
        counts = torch.cat([count.reshape(1) for count in step_counts]).to(torch.int32)
        # The numbers of the parameters are made on their device: nothing is copied there from the host.
        every = torch.arange(max(place.number for place in how.places) + 1, dtype=torch.int32, device=counts.device)
        numbers = torch.cat([every[place.number : place.number + 1] for place in how.places])
        for name in _in_bfloat16(columns):
            if name in how.column_numbers:
                seeds = tensor_seeds(how.seed, how.column_numbers[name], counts, numbers)
                on_host = seeds.is_cpu and not torch.compiler.is_compiling()
                self.seeds[name] = seeds.tolist() if on_host else list(seeds.unbind())

    def hash_inputs(self, column: str, i: int, start: int, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """Integers of which the noise for `x` is a hash: the elements from `start` on of the `i`-th tensor."""
        return indices(self.places[i], start, x.numel(), x.device, memory).bitwise_xor_(self.seeds[column][i])

    def piece(self, columns: Columns, indices: Sequence[int], start: int) -> FlatPiece | SeparatePiece:
        """The tensors of these indices, from the element `start` on, in the layout that suits them."""
        several = len(columns["p"]) > 1 and bool(_in_bfloat16(columns)) and not torch.compiler.is_compiling()
        if several and all([x.is_contiguous() for x in chain(*columns.values())]):
            return FlatPiece(self, columns, indices, start)
        return SeparatePiece(self, columns, indices, start)


class _WidenedPiece:
    """Tensors of a step, from the element `start` on of the parameters of these indices, with bfloat16 among them."""

    def __init__(self, step: WidenedStep, columns: Columns, indices: Sequence[int], start: int) -> None:
        self.step, self.indices, self.start = step, indices, start
        self.remainders = columns.get(REMAINDER, [])
        self.columns = {name: xs for name, xs in columns.items() if name != REMAINDER}


class FlatPiece(_WidenedPiece):
    """A piece of several contiguous tensors, whose float32 values lie one after the other: few operations for many."""

    def read(self) -> Columns:
        """The columns in float32."""
        names, params = _in_bfloat16(self.columns), self.columns["p"]
        count = sum(x.numel() for x in params)
        tensors = chain(*(self.columns[name] for name in names), self.remainders)
        flat = torch.cat([x.view(-1) for x in tensors])
        rows = flat[: count * len(names)].float().view(len(names), count)
        self.values = dict(zip(names, rows.unbind()))
        if self.remainders:
            self.values["p"] = join_(self.values["p"], bitcast(flat[-count:], torch.int16))
        wide = {**self.columns, **{name: split_like(value, params) for name, value in self.values.items()}}
        wide["g"] = [g.float() for g in wide["g"]]
        return wide

    def write_back(self) -> None:
        """Round what the update has written, each column at once."""
        for name, value in self.values.items():
            to = self.columns[name]
            if name == "p" and self.remainders:
                split_(value, to, self.remainders)
            elif name in self.step.seeds:
                inputs = [self.step.hash_inputs(name, i, self.start, x) for i, x in zip(self.indices, to)]
                stochastic_round_(value, to, noise(torch.cat(inputs), self.step.buffers.get(value.shape, "shifted")))
            elif name != "g":
                round_to_nearest(value, to)


class SeparatePiece(_WidenedPiece):
    """A piece whose tensors get their float32 values one by one, in memory that the next piece may reuse."""

    def read(self) -> Columns:
        """The columns in float32."""
        self.values: Columns = {}
        for name in _in_bfloat16(self.columns):
            self.values[name] = [self.step.buffers.cast(x, name, torch.float32) for x in self.columns[name]]
        if self.remainders:
            lows = [self.step.buffers.cast(as_integers(x), "int32", torch.int32) for x in self.remainders]
            self.values["p"] = list(map(join_, self.values["p"], lows))
        wide = {**self.columns, **self.values}
        wide["g"] = [g.float() for g in wide["g"]]
        return wide

    def write_back(self) -> None:
        """Round what the update has written, tensor by tensor."""
        for name, values in self.values.items():
            for k, x in enumerate(self.columns[name]):
                if name == "p" and self.remainders:
                    split_(values[k], [x], [self.remainders[k]])
                elif name in self.step.seeds:
                    memory = self.step.buffers.get((x.numel(),), "int32")
                    inputs = self.step.hash_inputs(name, self.indices[k], self.start, x, memory)
                    stochastic_round_(values[k], [x], noise(inputs, self.step.buffers.get((x.numel(),), "shifted")))
                elif name != "g":
                    round_to_nearest(values[k], [x])


def _in_bfloat16(columns: Columns) -> list[str]:
    """Which columns are."""
    return [name for name, xs in columns.items() if all([x.dtype is torch.bfloat16 for x in xs])]
