"""The watch over a new scheduler: does the loop tick the clock, and does other code write the value?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from timesched.binding.target import GroupTarget
from timesched.run.clock import Clock
from timesched.run.horizon import State
from timesched.time.units import TimeUnit

# The adapters for trainers in which `bind` does not work, by the modules of the trainers.
_ADAPTERS = {"transformers": "timesched.integrations.transformers", "lightning": "timesched.integrations.lightning"}


class Watch:
    """Remembers what a scheduler wrote, from when it is made or loaded until its second step, and finds mistakes."""

    def __init__(self, clock: State | None, target: GroupTarget, presumed_peak: str | None) -> None:
        self.clock = clock if isinstance(clock, Clock) else None
        self.timestamp = None if self.clock is None else self.clock.timestamp
        self.has_stepped = False
        self.presumed_peak = presumed_peak  # the text of a warning, if the clock was moved before the first step
        self.has_jumped = self.timestamp is not None and self.timestamp.batch.value > 0
        self.written = target.values_on_host()  # with the groups; no tensor of a device is read

    def note_step(self, target: GroupTarget) -> None:
        """Note the values of a step."""
        self.has_stepped = True
        self.written = target.values_on_host()

    def note_refresh(self, target: GroupTarget) -> None:
        """Note the values of a refresh. If the clock is at another batch, other calls than ticks may have moved it."""
        self.written = target.values_on_host()
        if self.clock is not None and self.timestamp is not None:
            self.has_jumped = self.has_jumped or self.clock.timestamp.batch != self.timestamp.batch

    def find_mistakes(self, text: str, target: GroupTarget, units: Callable[[], set[TimeUnit]]) -> list[str]:
        """The texts of the mistakes that show before the first step, or before the second.

        `text` describes the schedule, and `units` returns the units that it reads.
        """
        if self.has_stepped:
            return [*self._find_clock_faults(text, units), *self._find_other_writer(text, target)]
        return [self.presumed_peak] if self.presumed_peak and self.has_jumped else []

    def _find_clock_faults(self, text: str, units: Callable[[], set[TimeUnit]]) -> Iterator[str]:
        """The texts for a clock that does not tick, or counts each rank alone."""
        if self.clock is None:
            return
        if self.clock.timestamp == self.timestamp:
            imported = [adapter for module, adapter in _ADAPTERS.items() if module in sys.modules]
            advice = "".join(f" In its Trainer, use {adapter} in place of bind." for adapter in imported)
            yield (
                f"The clock of this {text} has not moved in two steps. Call clock.tick() after each step of the "
                f"optimizer, before scheduler.step().{advice} See docs/troubleshooting.md."
            )
        rank_local = self.clock._rank_local_units()
        differing = rank_local & units() if rank_local else rank_local
        if differing:
            yield (
                f"The clock of this {text} counts each rank alone, and the ranks may differ in "
                f"{' and '.join(sorted(unit.name.lower() + 's' for unit in differing))}. Make the clock with "
                f"process_group=True, which sums the counts, or with process_group=False if tick() gets the sums."
            )

    def _find_other_writer(self, text: str, target: GroupTarget) -> Iterator[str]:
        """The text for a value that is not the value which the scheduler wrote last."""
        for i, (group, present), (noted_group, written) in zip(target.indices, target.values_on_host(), self.written):
            if group is noted_group and present is not None and written is not None and present != written:
                yield (
                    f"key={target.key.name!r}: {text} wrote {written:.6g} into parameter group {i}, and other code has "
                    f"changed it to {present:.6g}. Remove the other scheduler, or the line that sets it. Or call "
                    f"unbind() on this scheduler."
                )
                return
