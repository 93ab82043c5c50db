"""The counts of an eager step as numbers, on a CUDA GPU without reading them in every step.

A count is a scalar state: a 0-dim tensor, such as the number of steps of a parameter. The factors of an update depend
on counts, which are on the devices of their parameters, where a captured step needs them. Reading a count on a GPU
would wait for the GPU. Computing with counts there takes many small kernels, and torch's multi-tensor kernels then
process one tensor at a time. But the host itself runs the eager steps: it knows the first value of each count and how
often it has advanced. So the host keeps the number, together with torch's version of each tensor. If an operation of
torch writes a count elsewhere (a load, a move, a compiled step), the version changes, and the next eager step reads the
counts once. Two kinds of writes do not change the version: collectives such as `broadcast`, and writes through `.data`.
After these, the host uses the old number until the state is loaded with `load_state_dict()`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from ..base.tensor_lists import Columns, Tensors

NEVER_NOTED = (lambda: None, 0, None)  # stands for the entry of a count that has none: it is of no tensor


class KnownCounts:
    """The numbers of some counts. A step reads them, advances the counts of steps, and remembers other new values.

    Each count has an entry by its id, in three parts: a reference to the tensor (an id may be used again), its version
    after the last write that the host knows, and the number. The number is None if only the GPU has it. An entry is
    current if the tensor and its version are the same.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[Callable[[], Tensor | None], int, float | None]] = {}
        self._captured: dict[int, ref[Tensor]] = {}

    def read(self, columns: Columns) -> dict[str, list[float]] | None:
        """The numbers in these columns of counts. None if only the GPU has one of them."""
        numbers: dict[str, list[float]] = {}
        for name, counts in columns.items():
            known = list(map(Tensor.item, counts)) if counts[0].is_cpu else self._read_column(counts)
            if known is None:
                return None
            numbers[name] = known
        return numbers

    def _read_column(self, counts: Tensors) -> list[float] | None:
        """The number in each count on a GPU. If an entry is not current, all of them are read from the GPU."""
        if self._captured and any(id(x) in self._captured and self._captured[id(x)]() is x for x in counts):
            return None
        entries = [self._entries.get(id(x), NEVER_NOTED) for x in counts]
        pairs = zip(counts, entries)
        if all([tensor_ref() is x and version == x._version for x, (tensor_ref, version, _) in pairs]):
            known = [number for _, _, number in entries if number is not None]
            return known if len(known) == len(entries) else None
        numbers: list[float] = torch.stack(counts).tolist()
        self._entries.update((id(x), (ref(x), x._version, number)) for x, number in zip(counts, numbers))
        return numbers

    def advance(self, counts: Tensors, number: float) -> Any:
        """Add 1 to counts that are all at this number. Returns the new number, rounded to their dtype."""
        torch._foreach_add_(counts, 1)
        return counts[0].item() if counts[0].is_cpu else self.remember(counts, number + 1.0)

    def remember(self, counts: Tensors, value: Any) -> float | None:
        """Remember the number of counts that were just set to this value. Returns it, rounded to their dtype.

        If the value is a tensor or None, only the GPU has the number, and later steps must not read it. Counts on the
        CPU are not remembered, since each step reads them.
        """
        if counts[0].is_cpu:
            return None
        has_number = value is not None and not isinstance(value, Tensor)
        number = torch.tensor(value, dtype=counts[0].dtype, device="cpu").item() if has_number else None
        self._entries.update((id(x), (ref(x), x._version, number)) for x in counts)
        return number

    def mark_captured(self, counts: Iterable[Tensor]) -> None:
        """Note that a CUDA graph captures the counts: each replay advances them, and the host does not notice."""
        self._captured.update((id(x), ref(x)) for x in counts)
