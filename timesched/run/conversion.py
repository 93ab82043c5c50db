"""Conversion factors: exact counts of epochs, batches, samples and tokens, one converted to another.

Counts here are plain numbers. `Horizon` reads times and applies the scale-schedule ratio before it converts.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from timesched.time.units import Counter, Exact, TimeUnit, number_text, unit_of

# The units from coarse to fine. A conversion factor is the number of the next unit in one of a unit.
_UNIT_CHAIN = (TimeUnit.EPOCH, TimeUnit.BATCH, TimeUnit.SAMPLE, TimeUnit.TOKEN)
FACTOR_NAMES = ("batches_per_epoch", "samples_per_batch", "tokens_per_sample")


@dataclass(frozen=True)
class ConversionFactors:
    """The conversion factors of a run: exact numbers, or None where they are not known.

    `batch_sizes`: the batch-size schedule of a run whose batches change, and have no `samples_per_batch`; else None.
    `stages`: the positions on the run where the size changes.
    """

    batches_per_epoch: Exact | None = None
    samples_per_batch: Exact | None = None
    tokens_per_sample: Exact | None = None
    batch_sizes: Any = None
    stages: Stages | None = field(default=None, compare=False, repr=False)

    def is_fixed(self, one: TimeUnit, other: TimeUnit) -> bool:
        """Whether a length in one unit has the same length in another unit everywhere in the run.

        Under a batch-size schedule, this is false between epochs or batches and samples or tokens.
        """
        return self.stages is None or (one in _UNIT_CHAIN[:2]) == (other in _UNIT_CHAIN[:2])

    def convert(self, count: Exact, old: TimeUnit, new: TimeUnit) -> Exact:
        """An exact count of one unit as an exact count of another, both from the start of the run."""
        if old is new or count == 0:
            return count
        if old not in _UNIT_CHAIN or new not in _UNIT_CHAIN:
            raise ValueError(
                f"{number_text(count)}{old.value} cannot be converted to {new.value}: no conversion factor links "
                f"{(old if old not in _UNIT_CHAIN else new).value!r} to another unit. Write both times in one unit."
            )
        i, j = _UNIT_CHAIN.index(old), _UNIT_CHAIN.index(new)
        if self.stages is not None and not self.is_fixed(old, new):
            if i < j:  # from epochs or batches to samples or tokens
                samples = self.stages.samples(self.convert(count, old, TimeUnit.BATCH))
                return self.convert(samples, TimeUnit.SAMPLE, new)
            batches = self.stages.batches(self.convert(count, old, TimeUnit.SAMPLE))
            return self.convert(batches, TimeUnit.BATCH, new)
        needed = {name: getattr(self, name) for name in FACTOR_NAMES[min(i, j) : max(i, j)]}
        missing = [name for name, factor in needed.items() if factor is None]
        if missing:
            raise _missing_factors_error(count, old, new, missing)
        factor: Exact = math.prod(needed.values())
        return count * factor if i < j else Fraction(count) / factor

    def usual_batch(self, counter: Counter | None) -> tuple[int, int] | None:
        """The samples and tokens of each batch; 0 where they are unknown.

        None if they change or are not whole, or if `counter`, which measures the run, needs an unknown count.
        """
        samples = self.samples_per_batch or 0
        tokens = samples * (self.tokens_per_sample or 0)
        lacks_count = (counter is TimeUnit.SAMPLE and not samples) or (counter is TimeUnit.TOKEN and not tokens)
        if lacks_count or self.batch_sizes is not None or not isinstance(samples, int) or not isinstance(tokens, int):
            return None
        return samples, tokens


def _missing_factors_error(count: Exact, old: TimeUnit, new: TimeUnit, missing: list[str]) -> ValueError:
    """The error of a count that cannot be converted, with the names of the missing conversion factors."""
    epoch_length, advice = FACTOR_NAMES[0], ""
    if epoch_length in missing:
        advice = " With gradient accumulation, an epoch has math.ceil(len(loader) / accumulation) batches."
    names = " and ".join(missing).replace(epoch_length, f"{epoch_length} (the state's dataloader_len)")
    return ValueError(
        f"{number_text(count)}{old.value} cannot be converted to {new.value} without {names}. Pass "
        f"{' and '.join(f'{name}=...' for name in missing)} to the Clock, the Horizon or the adapter of the trainer, "
        f"or write both times in one unit.{advice}"
    )


class Stages:
    """The positions in one run where the batch size changes: the first batch that begins at or after each threshold.

    Positions are in whole batches and samples from the start of the run. `sizes`: the batch size at the start, and
    after each of the `thresholds`. A threshold is a position on the run. It is converted between epochs and batches, or
    tokens and samples, which needs no stages.
    """

    __slots__ = ("_batches", "_samples", "_sizes")

    def __init__(self, factors: ConversionFactors, sizes: list[int], thresholds: list[tuple[Exact, Counter]]) -> None:
        batch, sample = 0, 0
        self._batches, self._samples, self._sizes = [batch], [sample], sizes
        for size, (count, counter) in zip(sizes, thresholds):
            if unit_of(counter) in _UNIT_CHAIN[:2]:
                batches = math.ceil(factors.convert(count, unit_of(counter), TimeUnit.BATCH)) - batch
            else:
                samples = factors.convert(count, unit_of(counter), TimeUnit.SAMPLE) - sample
                batches = math.ceil(Fraction(samples) / size)
            batches = max(batches, 0)  # one batch may pass several thresholds
            batch, sample = batch + batches, sample + batches * size
            self._batches.append(batch)
            self._samples.append(sample)

    def samples(self, batches: Exact) -> Exact:
        """The samples of the batches up to a position. It may be below 0, where a phase that is too long begins."""
        i = max(bisect_right(self._batches, batches) - 1, 0)
        return self._samples[i] + (batches - self._batches[i]) * self._sizes[i]

    def batches(self, samples: Exact) -> Exact:
        """The inverse of `samples`."""
        i = max(bisect_right(self._samples, samples) - 1, 0)
        return self._batches[i] + Fraction(samples - self._samples[i]) / self._sizes[i]
