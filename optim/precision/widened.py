"""Float32 steps of bfloat16 tensors: they are read before the update, and rounded and written back after it.

An update processes one piece of a step after the other. A piece has named columns: "p" are the parameters, "g" the
gradients, and each state has a column of its name. `WidenedStep.read(piece)` returns the piece with float32 in place of
bfloat16, and `write_back()` of the result rounds the updated columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from timesched.types import ParamGroup

from ..base.tensor_lists import Columns, Piece, Tensors
from .bits import join_, round_to_nearest, signed_integers, split_, split_like, stochastic_round_
from .noise import Place, element_indices, make_place, noise, tensor_seeds
from .options import REMAINDER


class Widening(NamedTuple):
    """How the bfloat16 tensors of some parameters are stepped in float32."""

    places: list[Place]  # of the parameters, for stochastic rounding; empty without it
    seed: int
    column_numbers: dict[str, int]  # of the columns that are rounded: each number has different noise


def make_widening(
    group: ParamGroup, columns: Columns, states: Sequence[str | None], parameter_numbers: Mapping[Tensor, int]
) -> Widening:
    """The float32 step of a group's tensors in these columns.

    `states`: the names of all states that belong to the elements; None for a state that is switched off.
    `parameter_numbers` counts the parameters of all groups, for stochastic rounding.
    """
    rounds = group.get("stochastic_rounding") and (group.get("state_dtype") or REMAINDER not in columns)
    places = [make_place(parameter_numbers[p], p) for p in columns["p"]] if rounds else []
    # The parameters are column 0. The gradients, which are not written, are column 1. Each state has the next number. A
    # state that is switched off keeps its number, so that the noise of the other states does not depend on it.
    column_numbers = {} if REMAINDER in columns else {"p": 0}
    column_numbers.update({name: number for number, name in enumerate(states, start=2) if name is not None})
    return Widening(places, group.get("rounding_seed", 0), column_numbers)


class WidenedStep:
    """One step in float32, piece by piece: what is the same for all pieces."""

    def __init__(self, widening: Widening, columns: Columns, step_counts: Tensors) -> None:
        self._places = widening.places
        self.seeds: dict[str, list[Any]] = {}  # of each tensor, by column: numbers if the host has the counts
        if not widening.places:
            return
        counts = torch.cat([count.reshape(1) for count in step_counts]).to(torch.int32)
        # The numbers of the parameters are created on their device, so that nothing is copied there from the host.
        last = max(place.number for place in widening.places)
        all_numbers = torch.arange(last + 1, dtype=torch.int32, device=counts.device)
        parameter_numbers = torch.cat([all_numbers[place.number : place.number + 1] for place in widening.places])
        for name in _bfloat16_columns(columns):
            if name in widening.column_numbers:
                seeds = tensor_seeds(widening.seed, widening.column_numbers[name], counts, parameter_numbers)
                on_host = seeds.is_cpu and not torch.compiler.is_compiling()
                self.seeds[name] = seeds.tolist() if on_host else list(seeds.unbind())

    def read(self, piece: Piece) -> WidenedPiece:
        """Read a piece in float32.

        If the tensors are contiguous, the float32 values of a piece are in one flat tensor for each column: few
        operations for many tensors. Otherwise each tensor has its own float32 tensor.
        """
        columns = {name: xs for name, xs in piece.columns.items() if name != REMAINDER}
        names, count = _bfloat16_columns(columns), len(columns["p"])
        values: dict[str, list[tuple[Tensor, Sequence[int]]]] = {}
        is_flat = count > 1 and bool(names) and not torch.compiler.is_compiling()
        if is_flat and all([x.is_contiguous() for x in chain(*piece.columns.values())]):
            for name, flat in _read_flat(piece.columns, names).items():
                values[name] = [(flat, range(count))]
                columns[name] = split_like(flat, columns["p"])
        else:
            columns.update(_read_one_by_one(piece.columns, names))
            for name in names:
                values[name] = [(value, [i]) for i, value in enumerate(columns[name])]
        columns["g"] = [g.float() for g in columns["g"]]
        values.pop("g", None)  # gradients are not written back
        return WidenedPiece(columns, values, piece, self)

    def noise(self, piece: Piece, column: str, indices: Sequence[int]) -> Tensor:
        """The noise for these tensors of a column, one after the other: a hash of seeds and element indices."""
        inputs = []
        for i in indices:
            x, param_index = piece.columns[column][i], piece.indices[i]
            elements = element_indices(self._places[param_index], piece.start, x.numel(), x.device)
            inputs.append(elements.bitwise_xor_(self.seeds[column][param_index]))
        return noise(torch.cat(inputs) if len(inputs) > 1 else inputs[0])


class WidenedPiece(NamedTuple):
    """A piece in float32. Update its columns, then call `write_back()`."""

    columns: Columns
    # By column: the float32 tensors in place of bfloat16 tensors, each with the indices of its tensors in the column.
    values: dict[str, list[tuple[Tensor, Sequence[int]]]]
    piece: Piece  # the tensors that were read
    step: WidenedStep

    def write_back(self) -> None:
        """Round the updated values into the tensors of the piece."""
        columns = self.piece.columns
        for name, values in self.values.items():
            for value, indices in values:
                targets = [columns[name][i] for i in indices]
                if name == "p" and REMAINDER in columns:
                    split_(value, targets, [columns[REMAINDER][i] for i in indices])
                elif name in self.step.seeds:
                    stochastic_round_(value, targets, self.step.noise(self.piece, name, indices))
                else:
                    round_to_nearest(value, targets)


def _read_flat(columns: Columns, names: Sequence[str]) -> dict[str, Tensor]:
    """Read each of these columns into one float32 tensor."""
    count = sum(x.numel() for x in columns["p"])
    tensors: list[Tensor] = []
    for name in (*names, REMAINDER):
        tensors += columns.get(name, [])
    flat = torch.cat([x.view(-1) for x in tensors])
    rows = flat[: count * len(names)].float().view(len(names), count)
    values = dict(zip(names, rows.unbind()))
    if REMAINDER in columns:
        values["p"] = join_(values["p"], signed_integers(flat[-count:]))
    return values


def _read_one_by_one(columns: Columns, names: Sequence[str]) -> dict[str, list[Tensor]]:
    """Read each tensor of these columns into its own float32 tensor."""
    values: dict[str, list[Tensor]] = {}
    for name in names:
        values[name] = [x.float() for x in columns[name]]
    if REMAINDER in columns:
        low = [signed_integers(x).int() for x in columns[REMAINDER]]
        values["p"] = list(map(join_, values["p"], low))
    return values


def _bfloat16_columns(columns: Columns) -> list[str]:
    """The names of the columns whose tensors are all bfloat16."""
    names = []
    for name, xs in columns.items():
        if all([x.dtype is torch.bfloat16 for x in xs]):
            names.append(name)
    return names
