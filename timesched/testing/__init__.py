"""Property tests for schedules: Hypothesis strategies, and the laws as functions to apply to a schedule of your own.

Needs `hypothesis`. `st.from_type(Time)` and its like work as soon as both packages are installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from timesched.testing.strategies import horizons, schedules, times, timestamps, units

if TYPE_CHECKING:
    from timesched.testing.check import check_schedule_laws as check_schedule_laws
    from timesched.testing.laws import LawBroken as LawBroken
    from timesched.testing.rows import Promise as Promise

__all__ = ["LawBroken", "Promise", "check_schedule_laws", "horizons", "schedules", "times", "timestamps", "units"]


def __getattr__(name: str) -> Any:  # what needs torch is imported when it is used
    if name == "check_schedule_laws":
        from timesched.testing.check import check_schedule_laws

        return check_schedule_laws
    if name == "LawBroken":
        from timesched.testing.laws import LawBroken

        return LawBroken
    if name == "Promise":
        from timesched.testing.rows import Promise

        return Promise
    raise AttributeError(f"module 'timesched.testing' has no attribute {name!r}")
