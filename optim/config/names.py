"""Classes by their names: the public classes of this package and of timesched, and the classes of users."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from types import ModuleType
from typing import Any

import timesched
from timesched.hints import name_hint
from timesched.schedule import Schedule

from .. import lr_scheduler, weight_decay_scheduler
from ..scheduler import Scheduler
from ..state.optimizer import Optimizer
from ..step.rule_optimizer import RuleOptimizer


@dataclass(frozen=True)
class Family:
    """The classes that a config may name in one kind of entry.

    Our classes are known by their public names, and upper and lower case do not matter. A user's class is known by its
    name once its module is imported. If two classes have the same name, it must be written with the module. Nothing is
    imported or evaluated.
    """

    kind: str  # the noun for them in messages
    public_classes: Mapping[str, type]
    bases: tuple[type, ...] = ()  # subclasses of these are the users' classes
    suffix: str = ""  # an end of the name that may be left out

    def find(self, name: Any, path: str) -> type:
        """The class of this name.

        Raises `ValueError` with similar names, or with the full names if several classes have the name.
        """
        if not isinstance(name, str):
            raise TypeError(f"{path}: the name {name!r} is not a string. Write the name of the {self.kind}.")
        # if a class is defined again, as in a notebook, the last definition counts
        user_classes = {_full_name(cls): cls for cls in chain.from_iterable(map(_user_subclasses, self.bases))}
        for wanted in (name.lower(), f"{name}{self.suffix}".lower()):
            public = [cls for own_name, cls in self.public_classes.items() if wanted == own_name.lower()]
            classes = public or [
                cls for full_name, cls in user_classes.items() if wanted in (full_name.lower(), cls.__name__.lower())
            ]
            if len(classes) > 1:
                names = " and ".join(sorted(map(_full_name, classes)))
                raise ValueError(f"{path}: the name {name!r} could mean {names}. Write one of these full names.")
            if classes:
                return classes[0]
        hint = name_hint(name, sorted([*self.public_classes, *(cls.__name__ for cls in user_classes.values())]))
        raise ValueError(
            f"{path}: there is no {self.kind} {name!r}{hint} A class of your own is found once its module is imported."
        )


def _user_subclasses(base: Any) -> Iterator[type]:
    for cls in base.__subclasses__():
        if cls.__module__.partition(".")[0] not in ("optim", "timesched"):
            yield cls
        yield from _user_subclasses(cls)


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _public_subclasses(module: ModuleType, base: type) -> dict[str, type]:
    """The public subclasses of a class in a module, by their names."""
    members = {name: getattr(module, name) for name in module.__all__}
    return {
        name: cls for name, cls in members.items() if isinstance(cls, type) and issubclass(cls, base) and cls != base
    }


SCHEDULE = Family("schedule", _public_subclasses(timesched, Schedule), (Schedule,))
LR = Family(
    "lr scheduler", _public_subclasses(lr_scheduler, lr_scheduler.LRScheduler), (lr_scheduler.LRScheduler,), "LR"
)
_WD = _public_subclasses(weight_decay_scheduler, weight_decay_scheduler.WeightDecayScheduler)
CLOSED_FORM = Family("absolute-value scheduler", {**LR.public_classes, **_WD}, (Scheduler,))
SCHEDULER = Family("scheduler", {**CLOSED_FORM.public_classes, **SCHEDULE.public_classes}, (Scheduler, Schedule))


def optimizers() -> Family:
    import optim  # not above: it imports this package

    return Family("optimizer", _public_subclasses(optim, RuleOptimizer), (Optimizer,))
