"""Schedules in an optimizer: which groups they set, who owns a key, what is saved, and `bind`, which makes them.

The schedulers of both halves are made of this room: multipliers of an initial value, and values in closed form.
"""

from .bound import Bound, BoundLR, OnChange, bind, compile_composer_scheduler
from .owner import bound_to

__all__ = ["Bound", "BoundLR", "OnChange", "bind", "bound_to", "compile_composer_scheduler"]
