"""What the counters of an eager step hold, on a CUDA GPU without reading them in every step.

The factors of an update depend on counters, which lie beside their parameters: a captured step needs them there. To
read those on a GPU would wait for it, and computing with them there takes many small kernels, and factors that torch's
multi-tensor kernels take for one tensor at a time. But eager steps are the host's own doing: it knows what each counter
began with and how often it was advanced. So it keeps the number, beside the version that torch counts for each tensor.
A write by anybody else (a load, a move, a compiled step) changes the version, and the next eager step reads the
counters once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from ..base.tensor_lists import Tensors


class KnownCounts:
    """The numbers in some 0-dim tensors."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[ref[Tensor], int, float | None]] = {}  # by id, with the version
        self._lost: dict[int, ref[Tensor]] = {}

    def note(self, counters: Tensors, value: Any) -> Any:
        """All of them hold this number now, rounded to their dtype, which comes back; or a tensor that is not read."""
        if isinstance(value, Tensor):
            self.note_computed(counters)
            return value
        rounded: float = torch.tensor(value, dtype=counters[0].dtype, device="cpu").item()
        if not counters[0].is_cpu:
            self._known.update((id(x), (ref(x), x._version, rounded)) for x in counters)
        return rounded

    def note_computed(self, counters: Iterable[Tensor]) -> None:
        """The GPU has computed what they hold now, which the host does not know and must not read in every step."""
        self._known.update((id(x), (ref(x), x._version, None)) for x in counters)

    def lose(self, counters: Iterable[Tensor]) -> None:
        """A CUDA graph that is being captured may advance them whenever it is replayed, and the host will not know."""
        self._lost.update((id(x), ref(x)) for x in counters)

    def of(self, counters: Tensors) -> list[float] | None:
        """The number in each; None where only the GPU has it. What somebody else wrote is read, which waits for it."""
        if counters[0].is_cpu:
            return [x.item() for x in counters]
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
        self._known.update((id(x), (ref(x), x._version, number)) for x, number in zip(counters, numbers))
        return numbers
