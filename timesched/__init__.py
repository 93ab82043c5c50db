"""Schedules in any unit of time: batches, samples, tokens, epochs, iterations, seconds, or a fraction of the run.

A schedule is a small frozen record of times and numbers. Called with the state of a run (a `Clock`, MosaicML
Composer's `State`, or their like) it returns a multiplier; `bind` writes it into an optimizer.

>>> from timesched import Clock, CosineAnnealingWithWarmupScheduler
>>> schedule = CosineAnnealingWithWarmupScheduler(t_warmup="0.1dur", t_max="1dur", alpha_f=0.1)
>>> schedule.at("0.05dur", Clock("1e9tok")), schedule.at("0.55dur", Clock("90ep"))
(0.5, 0.55)

Names are imported when they are first used: times need no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timesched.binding import Bound as Bound
    from timesched.binding import BoundLR as BoundLR
    from timesched.binding import bind as bind
    from timesched.binding import compile_composer_scheduler as compile_composer_scheduler
    from timesched.clock import Clock as Clock
    from timesched.composition import ProductScheduler as ProductScheduler
    from timesched.composition import SequenceScheduler as SequenceScheduler
    from timesched.horizon import Horizon as Horizon
    from timesched.horizon import State as State
    from timesched.schedule import ComposerScheduler as ComposerScheduler
    from timesched.schedule import Schedule as Schedule
    from timesched.schedulers import *
    from timesched.time import Time as Time
    from timesched.time import TimeError as TimeError
    from timesched.time import Timestamp as Timestamp
    from timesched.time import TimeUnit as TimeUnit
    from timesched.time import ensure_time as ensure_time

_HOMES = {
    "time": ("Time", "TimeError", "TimeUnit", "Timestamp", "ensure_time"),
    "horizon": ("Horizon", "State"),
    "clock": ("Clock",),
    "schedule": ("ComposerScheduler", "Schedule"),
    "composition": ("ProductScheduler", "SequenceScheduler"),
    "binding": ("Bound", "BoundLR", "bind", "compile_composer_scheduler"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "__all__":
        schedulers = dir(importlib.import_module("timesched.schedulers"))
        return sorted({*_HOME_OF, *(each for each in schedulers if each.endswith("Scheduler"))})
    home = _HOME_OF.get(name, "schedulers" if name.endswith("Scheduler") or name == "_convert_time" else None)
    value = getattr(importlib.import_module(f"timesched.{home}"), name, None) if home else None
    if value is None:
        raise AttributeError(f"module 'timesched' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
