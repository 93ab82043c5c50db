"""The errors of entries that do not depend on each other: they are collected and raised together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


class Problems:
    """The errors so far. Pass to `attempt` each function that may raise `TypeError` or `ValueError` for one entry."""

    def __init__(self) -> None:
        self.errors: list[TypeError | ValueError] = []

    def attempt(self, function: Callable[..., object], *arguments: object) -> Any:
        """Call a function and return its result. If it fails, note its error and return None."""
        try:
            return function(*arguments)
        except (TypeError, ValueError) as error:
            self.errors.append(error)
            return None

    def __bool__(self) -> bool:
        return bool(self.errors)

    def __iter__(self) -> Iterator[str]:
        """The lines of the errors' messages."""
        for error in self.errors:
            yield from str(error).splitlines()

    def raise_all(self) -> None:
        """Raise the error if there is one. Several errors become one `ValueError` with a line for each."""
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            raise ValueError("\n".join(self))
