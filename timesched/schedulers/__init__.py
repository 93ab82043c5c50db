"""One small class for each public schedule: Composer's, with its names, arguments and defaults, and newer ones."""

# ruff: noqa: F403  # each module names its public classes in `__all__`

# The names of each module's `__all__`. Type checkers follow these forms only, and `timesched` repeats the imports.
from . import cycles, decay, piecewise, warmup, without_warmup
from .cycles import *
from .decay import *
from .piecewise import *
from .warmup import *
from .without_warmup import *

__all__: list[str] = []
__all__ += cycles.__all__
__all__ += decay.__all__
__all__ += piecewise.__all__
__all__ += warmup.__all__
__all__ += without_warmup.__all__
__all__.sort()
