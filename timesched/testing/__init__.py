"""Property tests for schedules: Hypothesis strategies, and the laws as functions to apply to a schedule of your own.

Needs `hypothesis`. Once this is imported, `st.from_type` knows `Time`, `Timestamp`, `Horizon` and every schedule; where
the package is installed, `import hypothesis` is enough.
"""

from timesched.testing.check import check_schedule_laws
from timesched.testing.laws import LawBroken
from timesched.testing.rows import Promise
from timesched.testing.strategies import horizons, register, schedules, times, timestamps, units

__all__ = [
    "LawBroken",
    "Promise",
    "check_schedule_laws",
    "horizons",
    "register",
    "schedules",
    "times",
    "timestamps",
    "units",
]

register()
