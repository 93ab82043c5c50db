"""Classes by their names, and calls that are written as text. Nothing is imported or evaluated.

A scheduler, the command line and the configs of `optim` read texts and names with it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

from timesched import schedulers
from timesched.hints import arguments_of, name_hint
from timesched.schedulers.composition import CooldownScheduler, ProductScheduler, SequenceScheduler, WarmupScheduler
from timesched.schedulers.half_life import HalfLife
from timesched.schedulers.schedule import Schedule

Classes = Mapping[str, type]
_PASSED_LATER = ("optimizer", "clock")  # the arguments of absolute-value schedulers that no text can name


@dataclass(frozen=True)
class Family:
    """The classes that a text may name in one place.

    Our classes are known by their public names, or by short names: without the suffix (`Linear`), by their beginning
    (`Rex`), or by their initials (`WSD`). Upper and lower case do not matter. A user's class is known by its name once
    its module is imported. If two classes have the same name, it must be written with the module.
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
        users_names = [cls.__name__ for cls in self._users_classes().values()]
        hint = name_hint(name, sorted([*self.public_classes, *users_names]))
        own = " A class of your own is found once its module is imported." if self.bases else ""
        raise ValueError(f"{path}: there is no {self.kind} {name!r}{hint}{own}")

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


_CLASSES = [CooldownScheduler, HalfLife, ProductScheduler, SequenceScheduler, WarmupScheduler]
_CLASSES += [getattr(schedulers, name) for name in schedulers.__all__]
# The schedules that `timesched` exports.
SCHEDULE = Family("schedule", {"Scheduler": {cls.__name__: cls for cls in _CLASSES}}, (Schedule,))


# Errors


@contextmanager
def prefix_errors(path: str) -> Iterator[None]:
    """Put the path in the config before the message of a `TypeError` or `ValueError`."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if begins_with_path(error, path):
            raise
        raise add_path(error, path)  # noqa: B904  # which names the cause


def begins_with_path(error: Exception, path: str) -> bool:
    """Whether the message of an error begins with a path, and not with a longer name: `lrs` is not `lr`."""
    return str(error).startswith((f"{path}:", f"{path}=", f"{path}.", f"{path}["))


def add_path(error: TypeError | ValueError, path: str) -> TypeError | ValueError:
    """The error with the path in the config before its message. The error itself is the cause."""
    located = (ValueError if isinstance(error, ValueError) else TypeError)(f"{path}: {error}")
    located.__cause__ = error
    return located


# Texts


def read_schedule(text: str, arguments: Mapping[str, object], path: str) -> Any:
    """The schedule that a text describes: a call, a list of calls, or a name, which takes `arguments`.

    Raises `ValueError` for a text that is none of these, and errors of the schedules. The errors begin with `path`.
    """
    if arguments:
        return find_schedule(text, path)(**arguments)
    return read_calls(text, lambda name: find_schedule(name, path), lambda cls, own: cls(**own), path)


def find_schedule(name: str, path: str) -> type:
    """The schedule of this name. A scheduler of values, such as `CosineDecayLR`, is refused."""
    stem = name.removesuffix("LR").removesuffix("WD")
    if stem != name and not SCHEDULE.find_all(name):
        hint = name_hint(stem, sorted(SCHEDULE.public_classes))
        raise ValueError(f"{path}: {name!r} is not a schedule, but a scheduler that sets the value itself{hint}")
    return SCHEDULE.find(name, path)


def read_calls(
    text: str, find_class: Callable[[str], type], make: Callable[[type, dict[str, Any]], Any], path: str
) -> Any:
    """Read a text such as `Name(1, key=[2, Other()])`, or a list of such calls. A name alone is `Name()`.

    `find_class` returns the class of a name. `make` makes a result from the class and its arguments by name, for each
    call. Nothing is evaluated: arguments are literals, lists and calls. Errors begin with `path`.
    """
    text = text.strip()
    try:
        tree = ast.parse(f"{text}()" if text.isidentifier() else text, mode="eval").body
        compile(ast.Expression(tree), path, "eval")  # which refuses an argument that is written twice
    except SyntaxError as error:
        raise ValueError(f"{path}={text!r:.80}: {error.msg}. Write a call such as Name(argument=1).") from None
    calls = tree.elts if isinstance(tree, ast.List) else [tree]
    if not calls or not all(isinstance(call, ast.Call) for call in calls):
        raise ValueError(f"{path}={text!r:.80}: this is not a schedule. Write \"LinearScheduler(t_max='90ep')\".")
    reader = _Reader(find_class, make, path)
    results = [reader.read(call) for call in calls]
    return results if isinstance(tree, ast.List) else results[0]


@dataclass(frozen=True)
class _Reader:
    """Reads the nodes of a syntax tree: see `read_calls`."""

    find_class: Callable[[str], type]
    make: Callable[[type, dict[str, Any]], Any]
    path: str

    def read(self, node: ast.expr) -> Any:
        """The value of a node."""
        if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
            return self._read_call(node)
        if isinstance(node, ast.List):
            return [self.read(element) for element in node.elts]
        try:
            return ast.literal_eval(node)
        except ValueError:
            text = ast.unparse(node)
            raise ValueError(
                f"{self.path}: {text:.80} is not a literal. Write numbers, strings, lists and calls of schedules."
            ) from None

    def _read_call(self, call: ast.Call) -> Any:
        *owner, name = ast.unparse(call.func).split(".")[-2:]
        is_of = name == "of" and bool(owner) and self.find_class(owner[0]) is HalfLife  # the form of its repr
        cls = HalfLife if is_of else self.find_class(name)  # before the arguments are read
        positional = [self.read(argument) for argument in call.args]
        named = {argument.arg or "**": self.read(argument.value) for argument in call.keywords}
        if is_of:
            half_life = HalfLife.of(*positional, **named)
            return self.make(cls, {"time": str(half_life.time), "beta": half_life.beta})
        parameters = arguments_of(cls).values()
        names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.name not in _PASSED_LATER]
        if len(positional) > len(names) or not named.keys().isdisjoint(names[: len(positional)]):
            raise ValueError(
                f"{self.path}: {ast.unparse(call)} has too many arguments. {cls.__name__} takes {', '.join(names)}."
            )
        return self.make(cls, {**dict(zip(names, positional)), **named})
