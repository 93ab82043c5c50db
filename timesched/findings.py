"""Findings: likely mistakes of a schedule on a run.

A finding is a function that returns a text, or None. Its caller warns, raises or prints. Other findings are in the
lowest package that can compute them: `optim.precision`, `optim.groups`, `optim.muon` and `timesched.cli.check`.
"""

from __future__ import annotations

import warnings
from typing import Any
from weakref import WeakKeyDictionary

from timesched.schedulers.schedule import Schedule
from timesched.time.units import format_number


class FindingWarning(UserWarning):
    """A warning of something that `timesched check` prints, too."""


_given: WeakKeyDictionary[object, set[str]] = WeakKeyDictionary()  # the kinds of warnings that each owner has given


def warn_once(owner: object, kind: str, text: str, stacklevel: int) -> None:
    """Warn, unless this owner has given a warning of this kind: a class once in a process, an object once for itself.

    `stacklevel`: as for `warnings.warn` in the place of this call.
    """
    kinds = _given.setdefault(owner, set())
    if kind not in kinds:
        kinds.add(kind)
        warnings.warn(text, FindingWarning, stacklevel=stacklevel + 1)


def find_long_warmup(schedule: Schedule, run: Any, ssr: float | None = None) -> str | None:
    """A warmup that lasts longer than the run, which is a horizon or a state.

    Raises `ValueError` if the units do not convert.
    """
    resolution = schedule._resolution(run, ssr)  # the schedule keeps it, so that nothing is resolved twice
    horizon, length = resolution.horizon, resolution.horizon.max_duration
    if length is None:
        return None
    for mark in [mark for name, mark in resolution.notes if name == "warmup"]:
        end = horizon.change(mark.time.exact, mark.time.unit, length.unit)
        if end > length.exact:
            warmup, run_length = (f"{format_number(float(count))}{length.unit.value}" for count in (end, length.exact))
            return f"the warmup takes {warmup}, longer than the run of {run_length}. Shorten it."
    return None
