"""The state of any optimizer before its first step: `optim.preinitialize`. The size of the state: `optim.state_bytes`.

The initial state is guessed from steps on copies of the optimizer and proven on other copies. Only then does the
optimizer get it.
"""

from .plan import preinitialize
from .size import state_bytes

__all__ = ["preinitialize", "state_bytes"]
