"""Events: whether the last move of a clock reached a time, or completed a period."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from timesched.run.horizon import BatchSizes, Horizon
from timesched.time.timestamp import Timestamp, counts_of
from timesched.time.units import Counter, Exact, TimeUnit, unit_of

Move = tuple[Timestamp, Timestamp]  # the timestamps before and after a tick, or the end of an epoch or iteration


def has_reached(move: Move, count: Exact, counter: Counter) -> bool:
    """Whether a move reached a count of a counter."""
    before, after = _counts_of_move(move, counter)
    return before < count <= after


def has_completed_period(move: Move, length: Exact, counter: Counter, start: Exact) -> bool:
    """Whether a move completed one or more periods of a length.

    The first period begins at the count `start`. If it is above 0, another period ends there.
    """
    complete_before, complete = [(count - start) // length for count in _counts_of_move(move, counter)]
    return complete > complete_before and complete >= (0 if start > 0 else 1)


def has_become_last_before(move: Move, count: Exact, counter: Counter, clock: Any) -> bool:
    """Whether a move led to the last batch boundary at or before a count, by the conversion factors of a clock.

    Raises `ValueError` if they do not give the length of the next batch.
    """
    starts = _counts_of_move(move, counter)
    ends = [start + _next_batch_length(moment, counter, clock) for moment, start in zip(move, starts)]
    was_last, is_last = [start <= count < end for start, end in zip(starts, ends)]
    return is_last and not was_last


def _next_batch_length(moment: Timestamp, counter: Counter, clock: Any) -> Exact:
    """The length of the batch that begins at a moment, as a count of a counter."""
    horizon: Horizon = clock.horizon
    sizes = horizon.samples_per_batch
    if isinstance(sizes, BatchSizes) and unit_of(counter) is not TimeUnit.BATCH:
        size = sizes.at(SimpleNamespace(horizon=horizon, timestamp=moment, _explicit_units=clock._explicit_units))
        return horizon.change(size, TimeUnit.SAMPLE, counter)
    return horizon.change(1, TimeUnit.BATCH, counter)


def _counts_of_move(move: Move, counter: Counter) -> list[Exact]:
    """The counts of a counter before and after a move."""
    return [counts_of(moment, (counter,))[0] for moment in move]
