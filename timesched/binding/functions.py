"""The functions that bind a schedule to an optimizer: `bind`, and Composer's name for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from timesched.binding.bound import Bound, BoundLR, OnChange
from timesched.binding.evaluation import read_schedules
from timesched.binding.warn import warn_of_long_warmup, warn_of_zero
from timesched.run.clock import Clock
from timesched.run.horizon import State
from timesched.schedulers.schedule import ScheduleLike
from timesched.types import Tags


@overload
def bind(
    schedule: ScheduleLike | Sequence[ScheduleLike],
    optimizer: Optimizer,
    clock: Clock | State,
    key: Literal["lr"] = "lr",
    tags: Tags = None,
    ssr: float | None = None,
    on_change: OnChange = "same",
) -> BoundLR: ...


@overload
def bind(
    schedule: ScheduleLike | Sequence[ScheduleLike],
    optimizer: Optimizer,
    clock: Clock | State,
    key: str,
    tags: Tags = None,
    ssr: float | None = None,
    on_change: OnChange = "same",
) -> Bound: ...


def bind(
    schedule: object,
    optimizer: Optimizer,
    clock: State | None,
    key: str = "lr",
    tags: Tags = None,
    ssr: float | None = None,
    on_change: str = "same",
) -> Bound:
    """Bind a schedule to a hyperparameter of an optimizer.

    Each `step()` of the returned scheduler writes the initial value times the schedule's multiplier. The value of a
    `HalfLife` is written as it is. A tensor is updated in place. The first value is written at once.

    Any other value, such as a loss weight, needs no scheduler: `weight = 0.2 * schedule(clock)` in the loop.

    Args:
        schedule: a schedule, a function of `(state)` or `(state, ssr)` that returns a multiplier, or a list of these,
            whose multipliers are multiplied. If its class derives from Composer's `ComposerScheduler`, it gets a
            `Clock` as a state of Composer's types, with timestamp, max_duration and dataloader_len.
        optimizer: any `torch.optim.Optimizer`. The initial value is the present value of a group, unless the group has
            an `initial_lr` or the like. For "lr" it is multiplied by the group's `adjust_learning_rate`.
        clock: the `Clock` of the run, or another state, such as Composer's.
        key: the hyperparameter, by its name in the parameter groups: "lr" (the default), "weight_decay", "momentum",
            "betas[0]" or any other.
        tags: only groups whose `tags` have one of these. Default: None, all groups; `[None]` selects untagged groups,
            and `"!head"` excludes the groups with the tag `head`.
        ssr: the scale-schedule ratio, if the state has none, as Composer's. Default: None, the ratio of the state, or
            1.
        on_change: what `load_state_dict` does with the state of a different schedule or run whose multiplier differs at
            the time of the save. "same" (the default) raises `ValueError`; "new" continues with this schedule. If only
            the initial value differs, "same" warns and continues with the saved initial value; "new" keeps the present
            initial value.

    Returns:
        A `torch.optim.lr_scheduler.LambdaLR` for "lr". Otherwise an object with the same `step`, `state_dict` and
        `load_state_dict`. It controls the hyperparameter: an earlier scheduler of it raises in its next step.

    Raises:
        ValueError: no group has the tags, or a group lacks the key. Also for a scheduler written for Composer that
            cannot convert its times, or whose clock has a length that is not a whole count. Nothing is changed then.
        TypeError: `optimizer` is not an optimizer, `clock` is not a clock, `schedule` is not a schedule, or a
            `HalfLife` is in a list or for "lr".

    >>> import torch
    >>> from timesched import Clock, LinearScheduler, bind
    >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
    >>> clock = Clock("4ba")
    >>> scheduler = bind(LinearScheduler(), optimizer, clock)
    >>> clock.tick(); scheduler.step(); scheduler.get_last_lr()
    [0.30000000000000004]
    """
    if isinstance(schedule, Optimizer) or isinstance(clock, Optimizer):
        raise TypeError("bind: the arguments are in another order. Write bind(schedule, optimizer, clock).")
    schedules = read_schedules(schedule)
    bound_class = BoundLR if key == "lr" else Bound
    warn_of_long_warmup(schedules, clock, ssr)
    scheduler = bound_class(optimizer, schedule, key, tags=tags, clock=clock, ssr=ssr, on_change=on_change)
    if scheduler.relative:
        warn_of_zero(scheduler.key, scheduler.factors)
    return scheduler


def compile_composer_scheduler(scheduler: object, state: Any, ssr: float = 1.0) -> LambdaLR:
    """A schedule as a `LambdaLR` on the single optimizer of `state`, as in Composer, but evaluated once per step.

    Raises `NotImplementedError` when the state has several optimizers, and `ValueError` when the schedule is a
    function of `(state)` alone and `ssr` is not 1.0.
    """
    optimizers = [state.optimizers] if isinstance(state.optimizers, Optimizer) else list(state.optimizers)
    if len(optimizers) != 1:
        raise NotImplementedError(
            f"compile_composer_scheduler.state: it has {len(optimizers)} optimizers. Call bind() for each of them."
        )
    return BoundLR(optimizers[0], scheduler, "lr", clock=state, ssr=ssr)
