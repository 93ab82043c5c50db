"""Times, their units, and the counters of a run."""

from timesched.timestamp import Timestamp
from timesched.timevalue import Time, TimeLike, ensure_time
from timesched.units import TimeError, TimeUnit

__all__ = ["Time", "TimeError", "TimeLike", "TimeUnit", "Timestamp", "ensure_time"]
