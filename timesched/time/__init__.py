"""Times, their units, and the counters of a run."""

from timesched.time.timestamp import Timestamp
from timesched.time.units import TimeError, TimeUnit
from timesched.time.value import Time, TimeLike, ensure_time

__all__ = ["Time", "TimeError", "TimeLike", "TimeUnit", "Timestamp", "ensure_time"]
