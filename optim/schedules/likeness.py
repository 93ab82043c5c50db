"""What torch's schedulers have besides `step()`, for those who take ours for one."""

from __future__ import annotations

from typing import Any

from .overriding import standard


class Likeness:
    """The names that loops, trainers and loggers look for."""

    def get(self) -> list[Any]:
        raise NotImplementedError

    def get_last_value(self) -> list[Any]:
        raise NotImplementedError

    def first_value(self) -> float:
        raise NotImplementedError

    @standard
    def get_lr(self) -> list[Any]:
        """The same as `get()`."""
        return self.get()

    def get_last_lr(self) -> list[Any]:
        """The same as `get_last_value()`."""
        return self.get_last_value()

    def _first(self) -> list[Any]:
        first = self.first_value()
        return [None if last is None else first for last in self.get_last_value()]

    base_lrs: Any = property(
        _first, doc="The value at step 0 for each parameter group; None for those that are not scheduled."
    )
    _last_lr: Any = property(get_last_lr)
