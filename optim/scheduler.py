"""Schedulers of any key of a parameter group: a subclass names it in `param_group_key`."""

from __future__ import annotations

from .schedules.closed_form import Scheduler
from .schedules.families import family

globals().update(family(Scheduler, "Scheduler", __name__))
