"""State ahead of the first step for optimizers that are not ours: `optim.preinitialize`; its size: `optim.state_bytes`.

What a class makes in its first step is found on copies of the optimizer, proven on others, and only then given to it.
"""

from .plan import preinitialize
from .size import state_bytes

__all__ = ["preinitialize", "state_bytes"]
