"""For optimizers that are not of this package: their state ahead of the first step, and its size.

initial_state.py   `preinitialize()`
memory.py          `state_bytes()`, for the optimizers of this package, too
trial_copies.py    the copies of an optimizer that both try steps on
"""

from .initial_state import preinitialize
from .memory import state_bytes

__all__ = ["preinitialize", "state_bytes"]
