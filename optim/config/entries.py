"""The entry `{Name: {arguments}}` of a config: a class, the arguments of its constructor, and its errors.

The records of a build, in the order in which they are made:

| record | what it holds |
|---|---|
| `OldLearningRate` (`read.py`) | the `learning_rate` of an optimizer in the old form, in place of an entry |
| `Problems` | the errors of entries so far, which are raised together |
| `Constructor` | a class, and the arguments that its constructor takes |
| `Entry` | an optimizer or scheduler to make: its constructor and the arguments, checked |
| `Given` | an object or function that the config has in place of an entry |
| `Plan` (`build.py`) | the entries of the whole config, its clock, and its problems |
| `GroupedOptimizer` (`optimizer.py`) | the optimizer that was made, and what the config says of its groups |
| `Built` (`build.py`) | the result of `build`: the optimizer, the schedulers and the clock |
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from timesched.hints import argument_hint, arguments_of
from timesched.reading import add_path, begins_with_path
from timesched.schedulers.schedule import Schedule

# The errors


class Problems(list[TypeError | ValueError]):
    """The errors of entries that do not depend on each other, which are raised together.

    Pass to `attempt` each function that may raise `TypeError` or `ValueError` for one entry. A function that knows the
    path of the entry begins its errors with it. For any other function, pass the path to `attempt`, which adds it.
    """

    def attempt(self, function: Callable[..., object], *arguments: object, path: str = "") -> Any:
        """Call a function and return its result. If it fails, keep its error and return None.

        `path` is put before an error that does not begin with it. Without `path`, the error is kept as it is.
        """
        try:
            return function(*arguments)
        except (TypeError, ValueError) as error:
            self.append(add_path(error, path) if path and not begins_with_path(error, path) else error)
            return None

    def lines(self) -> list[str]:
        """The lines of the errors' messages."""
        return [line for error in self for line in str(error).splitlines()]

    def raise_all(self) -> None:
        """Raise the error if there is one. Several errors become one `ValueError` with a line for each."""
        if len(self) == 1:
            raise self[0]
        if self:
            raise ValueError("\n".join(self.lines()))


# The class, and what its constructor takes


class Constructor:
    """The constructor of a class, and the arguments that a config may pass to it. `read_constructor` returns it.

    No config passes the first argument, which is the optimizer of a scheduler or the parameters of an optimizer, and
    no config passes a clock.
    """

    def __init__(self, cls: type) -> None:
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        arguments, is_schedule = arguments_of(cls), issubclass(cls, Schedule)
        parameters = {name: arguments[name] for name in arguments if arguments[name].kind not in variadic}
        first = next(iter(parameters), "")
        self.takes_optimizer = not is_schedule and first != "schedulers"  # a ChainedLR uses its children's
        if self.takes_optimizer:
            parameters.pop(first, None)
        self.takes_clock = parameters.pop("clock", None) is not None and not is_schedule
        self.cls: Any = cls
        self.parameters = parameters
        self.required = [name for name, parameter in parameters.items() if parameter.default is parameter.empty]

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
        missing = " and ".join(repr(name) for name in self.required if name not in arguments)
        if missing and require_all:
            raise ValueError(
                f"{path}: {self.cls.__name__} needs {missing}. An argument without a default must have a value."
            )
        return result


@cache
def read_constructor(cls: type) -> Constructor:
    """The constructor of a class. Its arguments are read once."""
    return Constructor(cls)


# The entry


@dataclass(frozen=True)
class Entry:
    """An entry `{Name: {arguments}}` of the config: a constructor and its arguments, which have been checked.

    The children of a scheduler are entries among its arguments.
    """

    path: str  # in the config, with the name
    constructor: Constructor
    arguments: dict[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)  # arguments of bind() or configure_param_groups()
    lacks_lr: bool = False  # of an optimizer: the schedulers must set the learning rate that its arguments have


@dataclass(frozen=True)
class Given:
    """An optimizer, a scheduler, or a function that makes one, in place of an entry."""

    path: str
    value: Any

    def make(self, argument: object, kind: str) -> Any:
        """The object itself, or the object that the function returns for the model or the optimizer."""
        instance = self.value(argument) if callable(self.value) else self.value
        if not hasattr(instance, "step") or isinstance(instance, torch.optim.Optimizer) is not (kind == "optimizer"):
            raise TypeError(
                f"{self.path}={instance!r:.80}: this is no {kind}. Pass the {kind} or a function that returns it."
            )
        return instance


def is_given(value: object) -> bool:
    """Whether an optimizer, a scheduler, or a function that makes one takes the place of an entry."""
    return not isinstance(value, (type, Schedule)) and (callable(value) or hasattr(value, "step"))


def read_entry(value: object, path: str) -> tuple[Any, dict[str, Any]]:
    """The name and the arguments of `{Name: {arguments}}`. Raises `TypeError` for anything else."""
    if not isinstance(value, Mapping) or len(value) != 1:
        raise TypeError(f"{path}={value!r:.80}: this is no entry. Write it as {{Name: {{argument: value}}}}.")
    ((name, arguments),) = value.items()
    if arguments is not None and not isinstance(arguments, Mapping):
        raise TypeError(f"{path}.{name}={arguments!r:.80}: this is not a mapping. Write arguments, as in {{lr: 0.1}}.")
    return name, dict(arguments or {})


def rename_argument(arguments: dict[str, Any], alias: str, name: str, path: str) -> dict[str, Any]:
    """The arguments with the name `name` in place of `alias`. Raises `ValueError` if both are present."""
    if name in arguments:
        raise ValueError(f"{path}: {alias!r} and {name!r} mean the same. Leave out one of them.")
    return {name if key == alias else key: value for key, value in arguments.items()}
