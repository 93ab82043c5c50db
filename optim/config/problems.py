"""The errors of entries that do not depend on each other: all are found, and raised together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


class Problems:
    """Errors so far. What raises `TypeError` or `ValueError` for one entry is called by `attempt`."""

    def __init__(self) -> None:
        self._errors: list[TypeError | ValueError] = []

    def attempt(self, make: Callable[..., Any], *arguments: Any) -> Any:
        """What a call returns, or None where it fails: then its error is one of the problems."""
        try:
            return make(*arguments)
        except (TypeError, ValueError) as error:
            self._errors.append(error)
            return None

    def __bool__(self) -> bool:
        return bool(self._errors)

    def __iter__(self) -> Iterator[str]:
        """What the errors say, each in a line."""
        for error in self._errors:
            yield from str(error).splitlines()

    def raise_all(self) -> None:
        """Raise the error there is, if there is one; several as one `ValueError`, with a line for each."""
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            raise ValueError("\n".join(self))
