"""What a schedule is, in plain values that any checkpoint may hold, and how two of them differ."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from timesched.horizon import Horizon
from timesched.schedule import Schedule
from timesched.time.units import TimeError, number_text
from timesched.time.value import Time

# Arguments that came later, with their defaults: states of before do not have them.
_UNSAID = (("alpha_s", 0.0), ("alpha_i", None), ("horizon", None))


def plain(value: Any) -> Any:
    """A value in types that any checkpoint may hold; functions and other objects by their qualified name."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Enum):
        return plain(value.value)
    if hasattr(value, "to_timestring"):  # a time, ours or Composer's
        time = Time.from_input(value)
        return f"{number_text(time.exact)}{time.unit.value}"
    if isinstance(value, Schedule):
        given = (pair for pair in value.__getstate__().items() if pair not in _UNSAID)
        arguments = {name: plain(each) for name, each in given}
        return {"class": type(value).__name__, "arguments": arguments}
    if isinstance(value, Horizon):
        return repr(value)
    if callable(getattr(value, "description", None)) and not isinstance(value, type):
        # a child in closed form, whose groups are those of its parent
        return {name: each for name, each in value.description().items() if name != "param_group_tags"}
    if callable(getattr(value, "tolist", None)):  # tensors, and what numpy has
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(plain, value), key=repr)
    if isinstance(value, (list, tuple, range)):
        return [plain(each) for each in value]
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    # without the module: that of a script that is run is not that of the same script when it is imported
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def difference(theirs: Any, ours: Any, path: str) -> str:
    """The first difference between two plain values, in words; empty where there is none."""
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        for key in (*ours, *(key for key in theirs if key not in ours)):
            if key not in theirs or key not in ours:
                return f"{path}.{key} is only {'here' if key in ours else 'in the state'}"
            found = difference(theirs[key], ours[key], f"{path}.{key}")
            if found:
                return found
        return ""
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        return next(filter(None, (difference(a, b, f"{path}[{i}]") for i, (a, b) in enumerate(zip(theirs, ours)))), "")
    # arrays and tensors, which a state may hold in error, have no such comparison
    scalars = all(value is None or isinstance(value, (bool, int, float, str)) for value in (theirs, ours))
    same = scalars and (theirs == ours or repr(theirs) == repr(ours) == "nan")
    same = same or (isinstance(theirs, str) and isinstance(ours, str) and _written_alike(theirs, ours))
    return "" if same else f"{path} is {theirs!r} in the state, and {ours!r} here"


def _written_alike(theirs: str, ours: str) -> bool:
    """Whether two texts are of one time, as 1.0dur and 1dur, or of one function; states had its module, too."""
    try:
        first, second = Time.from_timestring(theirs), Time.from_timestring(ours)
    except TimeError:
        return ours.split(".", maxsplit=1)[0].isidentifier() and theirs.endswith(f".{ours}")
    return first.unit is second.unit and first.exact == second.exact
