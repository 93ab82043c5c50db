"""Property tests for schedules: Hypothesis strategies, and the laws as functions for your own schedules.

Needs `hypothesis`.
"""

from timesched.testing.check import check_schedule_laws
from timesched.testing.laws import LawBroken, Promise
from timesched.testing.strategies import horizons, times, timestamps, units

__all__ = ["LawBroken", "Promise", "check_schedule_laws", "horizons", "times", "timestamps", "units"]
