"""Classes by the names that a config gives them, and what their constructors take.

Every subclass that has been imported is found. A name is only looked up: nothing is imported or evaluated.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from typing import Any

Known = Mapping[str, list[type]]  # the classes of each name

_OURS = ("optim", "timesched")
_NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?")
_TEXTS = ("params", "tags", "param_group_tags", "key")  # arguments whose texts may look like numbers


def catalogue(base: type, accept: Callable[[type], bool] = lambda cls: True) -> dict[str, list[type]]:
    """The subclasses of `base` that can be constructed, by name.

    Of a class that was defined again under its old name, as in a notebook, the last definition counts.
    """
    latest = {full_name(cls): cls for cls in _descendants(base) if not inspect.isabstract(cls) and accept(cls)}
    known: dict[str, list[type]] = {}
    for cls in latest.values():
        known.setdefault(cls.__name__, []).append(cls)
    return known


def _descendants(base: type) -> list[type]:
    found: dict[type, None] = {}
    waiting: list[Any] = [base]
    while waiting:
        children = [cls for cls in waiting.pop(0).__subclasses__() if cls not in found]
        found.update(dict.fromkeys(children))
        waiting += children
    return list(found)


def full_name(cls: type) -> str:
    """The name with its module, which only one class has."""
    return f"{cls.__module__}.{cls.__qualname__}"


def find(name: Any, known: Known, path: str, kind: str) -> type:
    """The class of a name, of a name in other letter case, or of a name with its module.

    The names of this package mean its own classes, whatever else is imported: a class of the same name elsewhere goes
    by its name with the module.

    Raises `TypeError` when the name is no text; and `ValueError` when there is no such class, with the nearest names
    there are, or when there are several, with the full name of each.
    """
    if not isinstance(name, str):
        raise TypeError(f"{path}: {name!r} is of type {type(name).__name__}: write the name of the {kind}.")
    classes = list(dict.fromkeys(cls for several in known.values() for cls in several))
    found = (
        known.get(name)
        or [cls for cls in classes if full_name(cls) == name]
        or [cls for cls in classes if cls.__name__.lower() == name.lower()]
    )
    if not found:
        raise ValueError(
            f"{path}: there is no {kind} {name!r}: {nearest(name, known)} A class of your own is known by its name "
            f"once its module is imported."
        )
    found = [cls for cls in found if is_ours(cls)] or found
    if len(found) > 1:
        names = " and ".join(sorted(map(full_name, found)))
        raise ValueError(f"{path}: {name!r} could be {names}: write the full name of the one that is meant.")
    return found[0]


def name_of(cls: type, known: Known) -> str | None:
    """The shortest name by which `find` finds a class; None if it does not."""
    named = known.get(cls.__name__, [])
    if cls not in named:
        return None
    return cls.__name__ if is_ours(cls) or len(named) == 1 else full_name(cls)


def is_ours(cls: type) -> bool:
    """Whether a class is of this package."""
    return cls.__module__.partition(".")[0] in _OURS


def named(entry: Any, path: str, flat: str) -> tuple[Any, dict[str, Any], str]:
    """The name, the arguments and the path of an entry `{name: {arguments}}`, `{flat: name, arguments}` or `name`."""
    if isinstance(entry, str):
        return entry, {}, path
    if not isinstance(entry, Mapping):
        raise TypeError(f"{path}={entry!r:.80}: write the name of a class, with its arguments under it.")
    if isinstance(entry.get(flat), str):
        return entry[flat], {name: value for name, value in entry.items() if name != flat}, path
    if flat in entry:
        raise TypeError(f"{path}: {flat}={entry[flat]!r:.80} is no name: write that of a class, as a text.")
    if len(entry) != 1:
        keys = f"the keys {', '.join(map(repr, entry))}" if entry else "no key"
        raise ValueError(f"{path} has {keys}: write one name, with its arguments indented under it.")
    ((name, given),) = entry.items()
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"{path}.{name}={given!r:.80}: write the arguments under the name, as in 'lr: 0.1'.")
    return name, dict(given or {}), f"{path}.{name}"


def nearest(name: Any, known: Iterable[str]) -> str:
    """The part of a message that says which of the known names are meant, or else which there are."""
    names = {each.lower(): each for each in sorted(known)}
    close = difflib.get_close_matches(str(name).lower(), names, n=3)
    if close:
        return f"did you mean {' or '.join(repr(names[each]) for each in close)}?"
    return f"there are {', '.join(names.values())}." if names else "there are none."


def parameters(cls: type) -> tuple[dict[str, inspect.Parameter], bool]:
    """The parameters of a constructor by name, and whether it takes yet others.

    Where it hands on `**kwargs`, the parameters of the classes it inherits from are among them, as optional ones.
    """
    found: dict[str, inspect.Parameter] = {}
    owners = [cls, *(each for each in cls.__mro__[1:-1] if "__init__" in vars(each))]
    for i, each in enumerate(owners):
        given = inspect.signature(each).parameters.values()
        for p in given:
            if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
                found.setdefault(p.name, p.replace(default=None) if i else p)
        if all(p.kind is not p.VAR_KEYWORD for p in given):
            return found, False
    return found, True


def owner(cls: type, name: str) -> type:
    """The class whose constructor names a parameter: the one itself, or one that it hands arguments on to."""
    named = (each for each in cls.__mro__ if "__init__" in vars(each) and name in inspect.signature(each).parameters)
    return next(named, cls)


def is_number(cls: type, name: str, parameter: inspect.Parameter | None) -> bool:
    """Whether an argument is to be a number, or several: those of this package that are texts have names of theirs."""
    if name in _TEXTS or parameter is None or isinstance(parameter.default, str):
        return False
    if is_ours(owner(cls, name)):
        return True
    default, written = parameter.default, parameter.annotation
    several = default if isinstance(default, (tuple, list)) else (default,)
    if any(isinstance(each, Real) and not isinstance(each, bool) for each in several):
        return True
    words = re.findall(r"\w+", written if isinstance(written, str) else inspect.formatannotation(written))
    return bool({"int", "float"}.intersection(words)) and "str" not in words


def checked(cls: type, given: Mapping[str, Any], path: str, ours: Collection[str] = ()) -> dict[str, Any]:
    """The arguments from a config as the constructor takes them; those called `ours` are not for a config to give.

    A list becomes a tuple where the default is one. Raises `ValueError` for arguments that the class does not have,
    with the nearest one that it has; where one is missing; and for a number that is written as a text.
    """
    known, open_ended = parameters(cls)
    names = [name for name in known if name not in ours]
    for name in given:
        if name in ours or (name not in names and not open_ended):
            takes = f"It takes {', '.join(names)}." if names else "It takes none."
            raise ValueError(f"{path}: {cls.__name__} has no argument {name!r}: {nearest(name, names)} {takes}")
    missing = [name for name in names if known[name].default is inspect.Parameter.empty and name not in given]
    if missing:
        raise ValueError(f"{path}: {cls.__name__} needs {' and '.join(map(repr, missing))}.")
    taken = {}
    for name, value in given.items():
        default = known[name].default if name in known else None
        if is_number(cls, name, known.get(name)):
            refuse_number_texts(value, f"{path}: {name}")
        taken[name] = tuple(value) if isinstance(default, tuple) and isinstance(value, list) else value
    return taken


def refuse_number_texts(value: Any, what: str) -> None:
    """Raise `ValueError` for a text that is a number: a YAML 1.1 reader makes one of `1e-3`."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        raise ValueError(
            f"{what}={value!r} is a text, and a number is meant: write it without quotes. PyYAML, which follows YAML "
            f"1.1, reads 1e-3 as a text and 1.0e-3 as a number; build() reads YAML 1.2, where both are numbers."
        )
    if isinstance(value, (list, tuple)):
        for i, each in enumerate(value):
            refuse_number_texts(each, f"{what}[{i}]")


@contextmanager
def located(path: str, *words: tuple[str, str]) -> Iterator[None]:
    """Put the place in the config before the message of a `TypeError` or `ValueError`, and `words` in its terms."""
    try:
        yield
    except (TypeError, ValueError) as error:
        text = str(error)
        for old, new in words:
            text = re.sub(rf"\b{old}(?=[\[=])", new, text)
        if text.startswith(path):
            raise
        kind = type(error) if type(error).__init__ in (ValueError.__init__, TypeError.__init__) else ValueError
        raise kind(f"{path}: {text}") from error
