"""The watch over a new scheduler: does the loop tick the clock, and does other code write the value?"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from timesched.clock import Clock

if TYPE_CHECKING:
    from timesched.binding.bound import Bound

# The adapters for trainers in which `bind` does not work, by the modules of the trainers.
_ADAPTERS = {"transformers": "timesched.integrations.transformers", "lightning": "timesched.integrations.lightning"}


class Watch:
    """Notes what a scheduler wrote, until its second step since it was made or loaded. Then it warns of mistakes."""

    def __init__(self, scheduler: Bound, presumed_peak: str | None) -> None:
        self.timestamp = scheduler.clock.timestamp if isinstance(scheduler.clock, Clock) else None
        self.has_stepped = False
        self.presumed_peak = presumed_peak  # the text of a warning, if the clock was moved before the first step
        self.has_jumped = self.timestamp is not None and self.timestamp.batch > 0
        self.note_values(scheduler)

    def note_values(self, scheduler: Bound) -> None:
        """Note the values in the groups after a write, with the groups. No tensor of a device is read."""
        may_be_lazy = "torch_xla" in sys.modules
        groups = [] if may_be_lazy else [group for _, group in scheduler._target.indexed_groups]
        self.written = [(group, _read(scheduler, group)) for group in groups]

    def drop_values(self) -> None:
        """Forget the values, since the optimizer has loaded others."""
        self.written = []

    def warn_before_step(self, scheduler: Bound) -> None:
        """Warn of each mistake that shows before the first and the second step. The second step ends the watch."""
        if self.has_stepped:
            scheduler._watch = None
            texts = [*self._find_clock_faults(scheduler), *self._find_other_writer(scheduler)]
        else:
            texts = [self.presumed_peak] if self.presumed_peak and self.has_jumped else []
            self.presumed_peak = None
        for text in texts:
            warnings.warn(text, stacklevel=3)

    def _find_clock_faults(self, scheduler: Bound) -> Iterator[str]:
        """The texts for a clock that does not tick, or counts each rank alone."""
        clock, text = scheduler.clock, scheduler._describe()
        if not isinstance(clock, Clock):
            return
        if clock.timestamp == self.timestamp:
            imported = [adapter for module, adapter in _ADAPTERS.items() if module in sys.modules]
            advice = "".join(f" In its Trainer, use {adapter} in place of bind." for adapter in imported)
            yield (
                f"The clock of this {text} has not moved in two steps. Call clock.tick() after each step of the "
                f"optimizer, before scheduler.step().{advice} See docs/troubleshooting.md."
            )
        alone = clock._rank_local_units()
        units = scheduler.units() if alone else set()
        if not alone.isdisjoint(units):
            yield (
                f"The clock of this {text} counts each rank alone, and the ranks may differ in "
                f"{' and '.join(sorted(unit.name.lower() + 's' for unit in units))}. Make the clock with "
                f"process_group=True, which sums the counts, or with process_group=False if tick() gets the sums."
            )

    def _find_other_writer(self, scheduler: Bound) -> Iterator[str]:
        """The text for a value that is not the value which the scheduler wrote last."""
        groups = scheduler.optimizer.param_groups
        for i, (group, written) in zip(scheduler.indices, self.written):
            present = _read(scheduler, group)
            if groups[i] is group and present is not None and written is not None and present != written:
                yield (
                    f"key={scheduler.key!r}: {scheduler._describe()} wrote {written:.6g} into parameter group {i}, and "
                    f"other code has changed it to {present:.6g}. Remove the other scheduler, or the line that sets "
                    f"it. Or call unbind() on this scheduler."
                )
                return


def make_watch(scheduler: Bound, presumed_peak: str | None = None) -> Watch | None:
    """The watch over a scheduler; None if a graph may count its steps."""
    return None if isinstance(scheduler._counter.steps, Tensor) else Watch(scheduler, presumed_peak)


def _read(scheduler: Bound, group: dict[str, object]) -> float | None:
    """The value in a group; None for a tensor that is not on the CPU."""
    value = scheduler._target.key.peek(group)
    if isinstance(value, Tensor):
        return float(value.detach()) if value.is_cpu else None
    return float(value)
