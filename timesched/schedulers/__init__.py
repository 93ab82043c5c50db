"""One small class per public schedule, with Composer's names, arguments and defaults."""

import sys

from timesched.schedulers.plain import *
from timesched.schedulers.warmup import *

__all__ = sorted(name for name in globals() if name.endswith("Scheduler"))  # a new class is exported by its name

if "hypothesis" in sys.modules:  # whose hook cannot register these before they are imported
    import timesched.testing.rows
