"""What a schedule is, in plain values that any checkpoint may hold, and how two of them differ."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any

from timesched.horizon import Horizon
from timesched.schedule import Schedule
from timesched.time.units import TimeError, number_text
from timesched.time.value import Time

# Arguments that came later, with their defaults: states of before do not have them.
_UNSAID = (("alpha_s", 0.0), ("alpha_i", None), ("horizon", None))

MISSING = ""  # in `differences`, for a value that is not there


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


def constructed(text: str, kind: Callable[[str], Any]) -> Any:
    """What a text such as `Name(1, key=[2, Other()])` stands for. Nothing is evaluated: `kind` says what to call for a
    name, and arguments are literals, lists and such calls.

    Raises `ValueError` for any other text, and what `kind` and the constructors raise.
    """

    def made(node: ast.expr) -> Any:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            named = {each.arg or "": made(each.value) for each in node.keywords}
            if "" in named or len(named) < len(node.keywords):
                raise ValueError(f"{ast.unparse(node):.80}: write each argument once, as in Name(argument=1).")
            return kind(node.func.id)(*map(made, node.args), **named)
        if isinstance(node, ast.List):
            return [made(each) for each in node.elts]
        try:
            return ast.literal_eval(node)
        except (TypeError, ValueError):
            what = f"{ast.unparse(node):.80}"
            raise ValueError(f"{what} is no literal: write numbers, texts in quotes, and lists.") from None

    try:
        return made(ast.parse(text, mode="eval").body)
    except SyntaxError as error:
        raise ValueError(f"{text!r:.80} is no call such as Name(argument=1): {error.msg}") from None
    except (MemoryError, RecursionError):  # which the parser and its tree raise
        raise ValueError(f"{text!r:.80} is nested too deeply: write it with fewer levels.") from None


def difference(theirs: Any, ours: Any, path: str) -> str:
    """The first difference between a saved and a present value, in words; empty where there is none."""
    for where, saved, present in differences(theirs, ours, path):
        if MISSING in (saved, present):
            return f"{where} is only {'here' if saved == MISSING else 'in the state'}"
        return f"{where} is {saved} in the state, and {present} here"
    return ""


def differences(theirs: Any, ours: Any, path: str) -> Iterator[tuple[str, str, str]]:
    """All differences between two plain values: where, and both in text, `MISSING` for one that is not there."""
    saved, present = _items(theirs), _items(ours)
    if saved is not None and present is not None and isinstance(theirs, list) is isinstance(ours, list):
        for key in (*present, *(key for key in saved if key not in present)):
            where = f"{path}{key}".removeprefix(".")
            if key in saved and key in present:
                yield from differences(saved[key], present[key], where)
            else:
                yield (
                    where,
                    repr(saved[key]) if key in saved else MISSING,
                    repr(present[key]) if key in present else MISSING,
                )
        return
    # arrays and tensors, which a state may hold in error, have no such comparison
    scalars = all(value is None or isinstance(value, (bool, int, float, str)) for value in (theirs, ours))
    same = scalars and (theirs == ours or repr(theirs) == repr(ours) == "nan")
    same = same or (isinstance(theirs, str) and isinstance(ours, str) and _written_alike(theirs, ours))
    if not same:
        yield path, repr(theirs), repr(ours)


def _items(value: Any) -> dict[str, Any] | None:
    """What a mapping or a list holds, under what follows its name in a path."""
    if isinstance(value, Mapping):
        return {f".{key}": each for key, each in value.items()}
    return {f"[{i}]": each for i, each in enumerate(value)} if isinstance(value, list) else None


def _written_alike(theirs: str, ours: str) -> bool:
    """Whether two texts are of one time, as 1.0dur and 1dur, or of one function; states had its module, too."""
    try:
        first, second = Time.from_timestring(theirs), Time.from_timestring(ours)
    except TimeError:
        return ours.split(".", maxsplit=1)[0].isidentifier() and theirs.endswith(f".{ours}")
    return first.unit is second.unit and first.exact == second.exact
