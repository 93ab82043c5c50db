"""Times, their units, and the counters of a run."""

from .timestamp import Timestamp
from .units import TimeError, TimeUnit
from .value import Time, TimeLike, ensure_time

__all__ = ["Time", "TimeError", "TimeLike", "TimeUnit", "Timestamp", "ensure_time"]
