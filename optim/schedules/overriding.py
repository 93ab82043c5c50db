"""Which of a scheduler's methods are the suite's own, and which a user's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
CLOSED_FORMS = ("_get_closed_form", "_get_closed_form_lr", "_get_closed_form_wd")
STEPPING = ("increment_last_epoch", "get", "get_lr", "get_wd", "update_groups", "update_last_value", "update_last_lr")


def standard(method: F) -> F:
    """Mark a method as the suite's own: one without the mark is a user's, and is what counts."""
    method.standard = method.__code__  # type: ignore[attr-defined]  # which functools.wraps does not bring along
    return method


def overridden(cls: type, names: Iterable[str]) -> bool:
    """Whether one of the methods that a class has under these names is a user's."""
    methods = (getattr(cls, name) for name in names if hasattr(cls, name))
    return not all(getattr(method, "standard", None) is getattr(method, "__code__", 0) for method in methods)
