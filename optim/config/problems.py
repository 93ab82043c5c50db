"""The errors of entries that do not depend on each other: they are collected and raised together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from timesched.reading import add_path, begins_with_path


class Problems(list[TypeError | ValueError]):
    """The errors so far. Pass to `attempt` each function that may raise `TypeError` or `ValueError` for one entry."""

    def attempt(self, function: Callable[..., object], *arguments: object, path: str = "") -> Any:
        """Call a function and return its result. If it fails, add its error, which begins with `path`; return None.

        `path=""`: the error says itself where it is.
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
