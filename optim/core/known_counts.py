"""What the counters on a CUDA GPU hold, known on the host without reading them in every step.

The factors of an update depend on counters, which lie on the GPU, as a captured step needs. Reading them would wait for
the GPU, and computing with them there takes many small kernels, and factors that torch's multi-tensor kernels take for
one tensor at a time. But eager steps are the host's own doing: it knows what each counter began with and how often it
was advanced. So it keeps the number, beside the version that torch counts for each tensor. A write by anybody else (a
load, a move, a compiled step) changes the version, and the next eager step reads the counters once.
"""

from __future__ import annotations

from collections.abc import Iterable
from weakref import ref

import torch
from torch import Tensor

from .tensor_lists import Tensors


class KnownCounts:
    """The numbers in some 0-dim tensors."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[ref[Tensor], int, float | None]] = {}  # by id, with the version
        self._lost: dict[int, ref[Tensor]] = {}

    def note(self, counters: Tensors, number: float) -> float:
        """All of them hold this number now, rounded to their dtype, which comes back."""
        rounded: float = torch.tensor(number, dtype=counters[0].dtype, device="cpu").item()
        for x in counters:
            self._known[id(x)] = (ref(x), x._version, rounded)
        return rounded

    def compute(self, counters: Iterable[Tensor]) -> None:
        """The GPU has computed what they hold now, which the host does not know and must not read in every step."""
        for x in counters:
            self._known[id(x)] = (ref(x), x._version, None)

    def lose(self, counters: Iterable[Tensor]) -> None:
        """A CUDA graph that is being captured may advance them whenever it is replayed, and the host will not know."""
        self._lost.update((id(x), ref(x)) for x in counters)

    def of(self, counters: Tensors) -> list[float] | None:
        """The number in each; None where only the GPU has it. What somebody else wrote is read, which waits for it."""
        if self._lost and any(id(x) in self._lost and self._lost[id(x)]() is x for x in counters):
            return None
        try:
            found = [self._known[id(x)] for x in counters]
            if all([there() is x and version == x._version for x, (there, version, _) in zip(counters, found)]):
                known = [number for _, _, number in found if number is not None]
                return known if len(known) == len(found) else None
        except KeyError:
            pass
        numbers: list[float] = torch.stack(counters).tolist()
        for x, number in zip(counters, numbers):
            self._known[id(x)] = (ref(x), x._version, number)
        return numbers
