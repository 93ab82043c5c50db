"""Schedules in an optimizer: which groups they set, who owns a key, what is saved, and `bind`, which makes them.

The schedulers of both halves are made of this room: multipliers of an initial value, and values in closed form.
"""

from .bound import Bound, BoundLR
from .functions import bind, compile_composer_scheduler

__all__ = ["Bound", "BoundLR", "bind", "compile_composer_scheduler"]
