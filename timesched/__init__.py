"""Schedules in any unit of time: batches, samples, tokens, epochs, iterations, seconds, or a fraction of the run.

A schedule is a small frozen record of times and numbers. Call it with the state of a run (a `Clock`, MosaicML
Composer's `State`, or a similar object), and it returns a multiplier. `bind` writes the multiplier into an optimizer.

>>> from timesched import Clock, CosineAnnealingWithWarmupScheduler
>>> schedule = CosineAnnealingWithWarmupScheduler(
...     t_warmup="0.1dur", t_max="1dur", alpha_f=0.1
... )
>>> schedule.at("0.05dur", Clock("1e9tok")), schedule.at("0.55dur", Clock("90ep"))
(0.5, 0.55)
"""

from timesched import schedulers
from timesched.batch_size.sampler import BatchSizeSampler
from timesched.batch_size.schedule import BatchSizeSchedule
from timesched.binding import Bound, BoundLR, ScheduleLR, bind, compile_composer_scheduler
from timesched.run.clock import Clock
from timesched.run.horizon import Horizon, State
from timesched.schedulers.composition import CooldownScheduler, ProductScheduler, SequenceScheduler, WarmupScheduler
from timesched.schedulers.cycles import *  # noqa: F403  # the names of its `__all__`, as in the next lines
from timesched.schedulers.decay import *  # noqa: F403
from timesched.schedulers.half_life import HalfLife, weight_decay_for
from timesched.schedulers.piecewise import *  # noqa: F403
from timesched.schedulers.schedule import ComposerScheduler, Schedule
from timesched.schedulers.warmup import *  # noqa: F403
from timesched.schedulers.without_warmup import *  # noqa: F403
from timesched.time import Time, TimeError, Timestamp, TimeUnit, ensure_time

__version__ = "0.2.0.dev0"
__all__ = [
    "BatchSizeSampler",
    "BatchSizeSchedule",
    "Bound",
    "BoundLR",
    "Clock",
    "ComposerScheduler",
    "CooldownScheduler",
    "HalfLife",
    "Horizon",
    "ProductScheduler",
    "Schedule",
    "ScheduleLR",
    "SequenceScheduler",
    "State",
    "Time",
    "TimeError",
    "TimeUnit",
    "Timestamp",
    "WarmupScheduler",
    "bind",
    "compile_composer_scheduler",
    "ensure_time",
    "weight_decay_for",
]
__all__ += schedulers.__all__
