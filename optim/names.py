"""Classes by their names: the public ones of this package and of timesched, and those of users."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import timesched
from timesched.schedule import Schedule

from . import lr_scheduler, weight_decay_scheduler
from .core.optimizer import Optimizer
from .scheduler import Scheduler


@dataclass(frozen=True)
class Family:
    """The classes that may stand in one place of a config.

    Ours go by their public names, in any letter case. A user's class goes by its name once its module is imported, or
    by the name with the module, which is needed where two share the name. Nothing is imported or evaluated.
    """

    kind: str  # what messages call them
    own: Mapping[str, type]
    bases: tuple[type, ...] = ()  # whose subclasses are the users' classes
    key: str = ""  # what they have to schedule; empty: anything
    suffix: str = ""  # the end of a name that may be left out

    def find(self, name: Any, path: str) -> type:
        """The class of a name. Raises `ValueError` with the nearest names, or the full names of several classes."""
        if not isinstance(name, str):
            raise TypeError(f"{path}: {name!r} is of type {type(name).__name__}: write the name of the {self.kind}.")
        candidates = (cls for base in self.bases for cls in _users(base))
        # of a class that was defined again, as in a notebook, the last definition counts
        users = {_full(cls): cls for cls in candidates if self.key in ("", getattr(cls, "param_group_key", ""))}
        for text in (name, name + self.suffix):
            ours = [cls for own, cls in self.own.items() if text.lower() == own.lower() or text == _full(cls)]
            named = [cls for cls in users.values() if text.lower() == cls.__name__.lower()]
            found = ours[:1] or ([users[text]] if text in users else named)
            if len(found) > 1:
                names = " and ".join(sorted(map(_full, found)))
                raise ValueError(f"{path}: {name!r} could be {names}: write the full name of the one that is meant.")
            if found:
                return found[0]
        known = sorted([*self.own, *(cls.__name__ for cls in users.values())])
        hint = nearest(name, known)
        all_names = f" There are {', '.join(known) or 'none'}." if hint == "." else ""
        raise ValueError(
            f"{path}: there is no {self.kind} {name!r}{hint}{all_names} "
            f"A class of your own is known by its name once its module is imported."
        )


def _users(base: Any) -> Iterator[type]:
    for cls in base.__subclasses__():
        if cls.__module__.partition(".")[0] not in ("optim", "timesched"):
            yield cls
        yield from _users(cls)


def _full(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _public(base: type, *modules: ModuleType) -> dict[str, Any]:
    """The public classes of modules by name, without the base classes, which have no values of their own."""
    found = {name: getattr(module, name) for module in modules for name in module.__all__}
    classes = {name: cls for name, cls in found.items() if isinstance(cls, type) and cls not in _BASES}
    return {name: cls for name, cls in classes.items() if issubclass(cls, base)}


_BASES = (Optimizer, lr_scheduler.LRScheduler, weight_decay_scheduler.WeightDecayScheduler, Scheduler, Schedule)
CLOSED_FORMS = _public(Scheduler, lr_scheduler, weight_decay_scheduler)
SCHEDULES = _public(Schedule, timesched)
SCHEDULER = Family("scheduler", CLOSED_FORMS | SCHEDULES, (Scheduler, Schedule))
SCHEDULE = Family("schedule", SCHEDULES, (Schedule,))


def optimizers() -> Family:
    import optim  # not above: it imports this package

    return Family("optimizer", _public(Optimizer, optim), (Optimizer,))


def closed_forms(key: str) -> Family:
    """The closed-form schedulers of one key; of the learning rate, the `LR` at the end of a name may be left out."""
    own = {name: cls for name, cls in CLOSED_FORMS.items() if cls.param_group_key == key}
    return Family(f"{key} scheduler", own, (Scheduler,), key, "LR" if key == "lr" else "")


def nearest(name: Any, known: Iterable[str]) -> str:
    """How a message about an unknown name ends: with the known names that may be meant, or with a full stop."""
    names = {each.lower(): each for each in sorted(known)}
    close = difflib.get_close_matches(str(name).lower(), names, n=3)
    return f": did you mean {' or '.join(repr(names[each]) for each in close)}?" if close else "."
