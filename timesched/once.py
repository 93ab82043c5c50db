"""Warnings that come once."""

from __future__ import annotations

import warnings
from weakref import WeakKeyDictionary

_given: WeakKeyDictionary[object, set[str]] = WeakKeyDictionary()  # the kinds of warnings that each owner has given


def warn_once(owner: object, kind: str, text: str, stacklevel: int, category: type[Warning] = UserWarning) -> None:
    """Warn, unless this owner has given a warning of this kind: a class once in a process, an object once for itself.

    `stacklevel`: as for `warnings.warn` in the place of this call.
    """
    kinds = _given.setdefault(owner, set())
    if kind not in kinds:
        kinds.add(kind)
        warnings.warn(text, category, stacklevel=stacklevel + 1)
