"""Where a scheduler is: after a number of its own steps, or at the time of a clock or of another state.

A cursor says its position, moves by one step, and saves and loads itself. Each kind counts the scheduler's steps.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from timesched.binding.keys import require_count
from timesched.maths.ops import host_scalar
from timesched.run.clock import Clock
from timesched.run.horizon import State
from timesched.types import StateDict


class StepCursor:
    """The cursor of a scheduler without a clock: its position is the number of steps.

    Or of a scheduler on a state that is no `Clock`: its position is the state, which its trainer saves and loads.
    `steps` is an int, or an int64 tensor if the values are tensors, so that a graph can count.
    """

    def __init__(self, steps: int | Tensor, clock: Any = None) -> None:
        self.steps, self.clock = steps, clock

    def position(self, steps_ahead: int = 0) -> Any:
        """The argument of the evaluator: a tuple of the steps, or the clock or state, which moves by itself."""
        if self.clock is not None:
            return self.clock
        steps = self.steps
        if isinstance(steps, Tensor) and steps.is_cpu and not torch.compiler.is_compiling():
            steps = int(steps)
        return (steps + steps_ahead,)

    def advance(self) -> None:
        """Count a step."""
        if isinstance(self.steps, int):
            self.steps += 1
        else:
            self.steps.view(1).add_(1)

    def set_steps(self, steps: int) -> None:
        """Set the number of steps; a tensor is filled in place."""
        if isinstance(self.steps, Tensor):
            self.steps.copy_(host_scalar(steps))
        else:
            self.steps = steps

    def hold_tensor(self, device: torch.device) -> None:
        """Count in a tensor."""
        steps = self.steps if isinstance(self.steps, Tensor) else host_scalar(self.steps)
        self.steps = steps.to(device)

    def state_dict(self) -> StateDict:
        """The state of the clock, with the texts of its horizon and length; empty without a `Clock`."""
        return {}

    def read_state(self, state: StateDict, class_name: str) -> StepCursor:
        """A cursor at the moment of a scheduler's saved state. Raises `ValueError` if the state does not say it."""
        cursor = copy.copy(self)
        cursor.steps = require_count(state["last_epoch"], class_name)
        return cursor

    def load(self, moment: StepCursor) -> None:
        """Go to the moment that `read_state` returned."""
        self.set_steps(int(moment.steps))


class ClockCursor(StepCursor):
    """The cursor of a scheduler that follows a `Clock`."""

    def state_dict(self) -> StateDict:
        horizon = self.clock.horizon
        return {"clock": self.clock.state_dict(), "horizon": repr(horizon), "length": str(horizon.max_duration)}

    def read_state(self, state: StateDict, class_name: str) -> StepCursor:
        cursor = super().read_state(state, class_name)
        if "clock" not in state:
            raise ValueError(
                f"{class_name}.clock={self.clock!r}: the state has no clock. Load it into a scheduler without a clock."
            )
        cursor.clock = self.clock._at_state(state["clock"])
        return cursor

    def load(self, moment: StepCursor) -> None:
        super().load(moment)
        self.clock.go_to(moment.clock.timestamp, moment.clock._explicit_units)  # and refresh all schedulers on it


def make_cursor(clock: State | None, steps: int) -> StepCursor:
    """The cursor of a scheduler that follows a clock, another state, or no clock."""
    return ClockCursor(steps, clock) if isinstance(clock, Clock) else StepCursor(steps, clock)
