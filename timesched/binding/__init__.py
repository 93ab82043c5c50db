"""Schedules in an optimizer: the selected groups, the scheduler that controls a key, saved states, and `bind`.

Both kinds of schedulers use it: schedules that multiply an initial value, and the absolute-value schedulers of `optim`.
"""

from .bound import Bound, BoundLR
from .functions import bind, compile_composer_scheduler
from .schedule_lr import ScheduleLR

__all__ = ["Bound", "BoundLR", "ScheduleLR", "bind", "compile_composer_scheduler"]
