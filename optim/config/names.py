"""Classes by their names, and their arguments: our public classes and the classes of users."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from types import ModuleType
from typing import Any

import timesched
from timesched.hints import argument_hint, arguments_of, name_hint
from timesched.schedule import Schedule

from .. import lr_scheduler, weight_decay_scheduler
from ..scheduler import Scheduler
from ..state.optimizer import Optimizer
from ..step.rule_optimizer import RuleOptimizer

Classes = Mapping[str, type]


@dataclass(frozen=True)
class Constructor:
    """A class, and what its constructor takes."""

    cls: type
    is_schedule: bool
    first: str | None  # the argument for the parameters or the optimizer; None if there is none
    has_clock: bool
    parameters: Mapping[str, inspect.Parameter]  # the other arguments, which a config may set

    def missing_arguments(self, arguments: Mapping[str, object]) -> list[str]:
        """The names of the arguments without a default that are missing."""
        parameters = self.parameters.values()
        return [p.name for p in parameters if p.default is p.empty and p.name not in arguments]

    def read_arguments(
        self, arguments: dict[str, object], path: str, other_keys: Sequence[str] = (), require_all: bool = True
    ) -> dict[str, Any]:
        """Read the arguments for the constructor: a list becomes a tuple if the default is a tuple.

        Raises `ValueError` for arguments that the constructor does not name, with a line for each. The error lists the
        arguments that it has, and `other_keys`, which are the keys of an optimizer's groups. With `require_all`, a
        missing argument is an error, too.
        """
        errors, result = [], dict(arguments)
        for name, value in arguments.items():
            if name not in self.parameters:
                hint = argument_hint(name, [*self.parameters, *other_keys])
                errors.append(f"{path}: {self.cls.__name__} has no argument {name!r}{hint}")
            elif isinstance(value, list) and isinstance(self.parameters[name].default, tuple):
                result[name] = tuple(value)
        if errors:
            raise ValueError("\n".join(errors))
        missing = " and ".join(map(repr, self.missing_arguments(arguments) if require_all else ()))
        if missing:
            raise ValueError(
                f"{path}: {self.cls.__name__} needs {missing}. An argument without a default must have a value."
            )
        return result


def read_constructor(cls: type) -> Constructor:
    """Read what the constructor of a class takes."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = {name: parameter for name, parameter in arguments_of(cls).items() if parameter.kind not in variadic}
    clock, is_schedule = parameters.pop("clock", None), issubclass(cls, Schedule)
    first = None if is_schedule else next(iter(parameters), None)
    if first in ("scheduler", "schedulers"):  # a ChainedLR has the optimizer of its children
        first = None
    parameters.pop(first or "", None)
    return Constructor(cls, is_schedule, first, clock is not None and not is_schedule, parameters)


@dataclass(frozen=True)
class Family:
    """The classes that a config or a command line may name in one place.

    Our classes are known by their public names, or by short names: without the suffix (`Linear`), by their beginning
    (`Rex`), or by their initials (`WSD`). Upper and lower case do not matter. A user's class is known by its name once
    its module is imported. If two classes have the same name, it must be written with the module. Nothing is imported
    or evaluated.
    """

    kind: str  # the noun for them in messages
    by_suffix: Mapping[str, Classes]  # our classes, by the end of their names that a short name leaves out
    bases: tuple[type, ...] = ()  # subclasses of these are the users' classes

    @cached_property
    def public_classes(self) -> dict[str, type]:
        """Our classes by their public names."""
        return dict(chain.from_iterable(classes.items() for classes in self.by_suffix.values()))

    def find(self, name: object, path: str) -> type:
        """The class of this name. Errors begin with `path`.

        Raises `ValueError` with similar names, or with the full names if several classes have the name.
        """
        if not isinstance(name, str):
            raise TypeError(f"{path}: the name {name!r} is not a string. Write the name of the {self.kind}.")
        classes = self.find_all(name)
        if len(classes) > 1:
            names = " and ".join(sorted(classes))
            raise ValueError(f"{path}: the name {name!r} could mean {names}. Write one of these full names.")
        if classes:
            return next(iter(classes.values()))
        users_names = (cls.__name__ for cls in self._users_classes().values())
        hint = name_hint(name, sorted([*self.public_classes, *users_names]))
        raise ValueError(
            f"{path}: there is no {self.kind} {name!r}{hint} A class of your own is found once its module is imported."
        )

    def find_all(self, name: str) -> Classes:
        """All classes that a name may mean, by their public or full names.

        The first of these that fits counts: a public name, the name of a user's class, a short name.
        """
        wanted = name.lower()
        for own_name, cls in self.public_classes.items():
            if own_name.lower() == wanted:
                return {own_name: cls}
        users = self._users_classes()
        return _select(users, wanted) or self._find_short_names(wanted, users)

    def _find_short_names(self, wanted: str, users: Classes) -> Classes:
        """The classes with a short name. Earlier suffixes count first: `Linear` means LinearScheduler, not LinearLR."""
        for suffix, classes in self.by_suffix.items():
            stems = {name: name.removesuffix(suffix) for name in classes if suffix}
            selected: Classes = {name: classes[name] for name, stem in stems.items() if wanted == stem.lower()}
            selected = selected or _select(users, f"{wanted}{suffix.lower()}")
            selected = selected or {name: classes[name] for name, stem in stems.items() if _is_beginning(wanted, stem)}
            if selected:
                return selected
        return {}

    def _users_classes(self) -> Classes:
        """The classes of users by their full names. If a class is defined again, the last definition counts."""
        classes = chain.from_iterable(map(_user_subclasses, self.bases))
        return {f"{cls.__module__}.{cls.__qualname__}": cls for cls in classes}


def _is_beginning(wanted: str, stem: str) -> bool:
    """Whether a stem begins with a name, or has it as its initials."""
    return stem.lower().startswith(wanted) or wanted == "".join(filter(str.isupper, stem)).lower()


def _select(users: Classes, wanted: str) -> Classes:
    """The users' classes with a name in lower case, which may be the full name."""
    return {name: cls for name, cls in users.items() if wanted in (name.lower(), cls.__name__.lower())}


def _user_subclasses(base: Any) -> Iterator[type]:
    for cls in base.__subclasses__():
        if cls.__module__.partition(".")[0] not in ("optim", "timesched"):
            yield cls
        yield from _user_subclasses(cls)


def _public_subclasses(module: ModuleType, base: type) -> Classes:
    """The public subclasses of a class in a module, by their names."""
    members = ((name, getattr(module, name)) for name in sorted(module.__all__))
    return {name: cls for name, cls in members if isinstance(cls, type) and issubclass(cls, base) and cls != base}


_SCHEDULES = {"Scheduler": _public_subclasses(timesched, Schedule)}
_LR = {"LR": _public_subclasses(lr_scheduler, lr_scheduler.LRScheduler)}
_WD = {"WD": _public_subclasses(weight_decay_scheduler, weight_decay_scheduler.WeightDecayScheduler)}
SCHEDULE = Family("schedule", _SCHEDULES, (Schedule,))
LR = Family("lr scheduler", _LR, (lr_scheduler.LRScheduler,))
CLOSED_FORM = Family("absolute-value scheduler", _LR | _WD, (Scheduler,))
SCHEDULER = Family("scheduler", _SCHEDULES | _LR | _WD, (Scheduler, Schedule))


@cache
def optimizers() -> Family:
    """The optimizers. They have no short names."""
    import optim  # not above: it imports this package

    return Family("optimizer", {"": _public_subclasses(optim, RuleOptimizer)}, (Optimizer,))
