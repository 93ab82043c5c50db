"""Property tests for schedules: Hypothesis strategies, and the laws as functions to apply to a schedule of your own.

Needs `hypothesis`. `st.from_type(Time)` and its like, also of every schedule, work once this is imported; where the
package is installed, `import hypothesis` does it.
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
