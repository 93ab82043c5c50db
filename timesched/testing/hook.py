"""What Hypothesis calls when it is imported, so that `st.from_type(Time)` and its like work without a set-up."""

import importlib
import sys


def register() -> None:
    """Register the strategies; those for schedules need torch, and wait until `timesched.schedulers` is imported."""
    from timesched.testing import strategies

    strategies.register()
    if "timesched.schedulers" in sys.modules:
        importlib.import_module("timesched.testing.rows")  # registers every schedule of its table
