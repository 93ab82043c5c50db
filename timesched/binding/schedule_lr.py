"""ScheduleLR: a learning-rate scheduler that makes its own clock, and counts a batch or an epoch in each step."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from timesched.binding.bound import BoundLR, OnChange
from timesched.binding.evaluation import read_schedules, schedule_units
from timesched.binding.groups import require_groups
from timesched.binding.keys import require_count
from timesched.binding.warn import warn_of_long_warmup, warn_of_zero
from timesched.hints import argument_hint, arguments_of
from timesched.reading import find_schedule, read_schedule
from timesched.run.clock import Clock
from timesched.run.horizon import BatchSizes, ConversionFactor
from timesched.run.saved_clock import epochs_after
from timesched.schedulers.schedule import Schedule, ScheduleLike
from timesched.time.timestamp import TOTALS, Timestamp
from timesched.time.units import Counter, TimeUnit
from timesched.time.value import Time, require_time
from timesched.types import StateDict, Tags

_PATH = "ScheduleLR.schedule"


class ScheduleLR(BoundLR):
    """A learning-rate scheduler of one object and one call: `scheduler.step()` counts a batch, and writes the learning
    rate of the next. It is a `torch.optim.lr_scheduler.LambdaLR`.

    Use it in a plain loop, and in a framework that makes its scheduler from a config as `cls(optimizer, **arguments)`.
    `scheduler.clock` is its `Clock`: `scheduler.clock.done` says when the run is over. Another hyperparameter is bound
    to that clock, as in `bind(schedule, optimizer, scheduler.clock, key="weight_decay")`, and stepped after it.

    Args:
        optimizer: any `torch.optim.Optimizer`. The initial learning rate of a group is its `initial_lr`, or else its
            learning rate, times its `adjust_learning_rate`.
        schedule: what `bind` takes, or a text. A text is a call such as `"WSD('0.02dur', t_decay='0.2dur')"`, a list of
            calls, whose multipliers are multiplied, or a name, which takes `arguments`. Nothing in it is evaluated. The
            names of schedules may be short: without `Scheduler`, or the initials.
        max_duration: the length of the run before scaling: a time in any unit but `dur`. An int counts steps in `unit`.
        samples_per_batch, tokens_per_sample, batches_per_epoch, ssr, process_group: as for a `Clock`.
            `samples_per_batch` is the number over all ranks.
        unit: what a step counts: "ba" (the default), a batch, or "ep", an epoch. A step in "ep" counts the batches that
            are left in the epoch, if `batches_per_epoch` is known.
        tags, on_change: as for `bind`.
        last_epoch: n for a scheduler that starts as after n + 1 steps of full batches. Each group must have its
            `initial_lr` then. Default: -1, the beginning of the run.
        **arguments: the arguments of the schedule, if `schedule` is its name, as in
            `ScheduleLR(optimizer, "WSD", "20Btok", t_warmup="0.1dur")`.

    Raises:
        ValueError: an argument is out of range, or the text is not a schedule. The length of the run, or a time of the
            schedule, has a unit that a step in `unit` does not count.
        TypeError: an object is not an optimizer or a schedule, or an argument has no such name.
        KeyError: `last_epoch` is 0 or more, and a group has no `initial_lr`.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
    >>> scheduler = ScheduleLR(optimizer, "Linear", "1000sp", samples_per_batch=250)
    >>> while not scheduler.clock.done:
    ...     optimizer.step()
    ...     scheduler.step()
    ...     print(round(scheduler.get_last_lr()[0], 15), end=" ")
    0.3 0.2 0.1 0.0
    """

    _warning_depth = 5  # the step calls `_make_full_step`, which calls the step of `Bound`
    clock: Clock

    def __init__(
        self,
        optimizer: Optimizer,
        schedule: ScheduleLike | Sequence[ScheduleLike | str] | str,
        max_duration: Time | str | int,
        *,
        samples_per_batch: ConversionFactor | BatchSizes | None = None,
        tokens_per_sample: ConversionFactor | None = None,
        batches_per_epoch: ConversionFactor | None = None,
        ssr: float = 1.0,
        unit: TimeUnit | str = "ba",
        tags: Tags = None,
        last_epoch: int = -1,
        on_change: OnChange = "same",
        process_group: Any = None,
        **arguments: Any,
    ) -> None:
        step_unit = _read_unit(unit)
        self._counts_epochs = step_unit is TimeUnit.EPOCH
        schedule = _read_schedule(schedule, arguments)
        clock = Clock(
            require_time("ScheduleLR.max_duration", max_duration, step_unit),
            batches_per_epoch=batches_per_epoch,
            samples_per_batch=samples_per_batch,
            tokens_per_sample=tokens_per_sample,
            ssr=ssr,
            process_group=process_group,
        )
        _check_units(schedule, clock, step_unit)
        steps = 0 if last_epoch == -1 else require_count(last_epoch, type(self).__name__) + 1
        if steps > 0:
            _check_initial_values(optimizer, tags)
            _start_after(clock, steps, step_unit)
        self._fast_step: _FastStep | None = None  # None if the next step must be a full step
        self._timestamp = clock.timestamp  # after its last step
        self._has_warned_of_ticks = False
        warn_of_long_warmup(read_schedules(schedule), clock, None)
        super().__init__(optimizer, schedule, "lr", tags=tags, clock=clock, steps=steps, on_change=on_change)
        warn_of_zero(self.key, self.factors)

    def step(self, epoch: int | None = None, *, samples: Any = None, tokens: Any = None) -> None:
        """Count a batch, or an epoch in `unit="ep"`, and write the next learning rate. Call it after the optimizer's
        step.

        `samples` and `tokens`: the counts of this batch, as for `Clock.tick`. `epoch`: None, or `last_epoch + 1`, which
        some training loops pass.

        Raises `ValueError` for any other `epoch`, for counts in `unit="ep"`, and as the steps of `bind` and
        `Clock.tick` do. Nothing is counted or written then.
        """
        clock, target, fast, is_plain = self.clock, self._target, self._fast_step, epoch is samples is tokens is None
        if (  # a fast step: see below
            is_plain
            and fast is not None
            and clock.timestamp is self._timestamp
            and clock._ticks_until_warning != 1
            and target.is_ready()
        ):
            value = fast.function((clock.timestamp._numbers[fast.count_index] + fast.batch_length,))
            if target.write_floats(value):
                clock.tick()
                self._cursor.steps += 1
                self._timestamp = clock.timestamp
                return
        self._make_full_step(epoch, samples, tokens)
        can_be_fast = is_plain and not self._counts_epochs and self._watch is None
        self._fast_step = _make_fast_step(self.schedule, clock) if can_be_fast else None

    def _make_full_step(self, epoch: int | None, samples: Any, tokens: Any) -> None:
        """Count, and write the next learning rate, with all checks. After an error nothing is counted."""
        self._check_step_arguments(epoch, samples, tokens)
        clock = self.clock
        if clock.timestamp is not self._timestamp and not self._has_warned_of_ticks:
            self._warn_of_ticks()
        before_tick = clock._before_tick()
        try:
            if self._counts_epochs:
                clock._tick_epoch()
            else:
                clock.tick(samples, tokens)
            super().step()
        except BaseException:
            clock._set_attributes(before_tick)
            raise
        self._timestamp = clock.timestamp

    def _check_step_arguments(self, epoch: int | None, samples: object, tokens: object) -> None:
        """Raise `ValueError` for an epoch that is not the next one, and for counts of a batch in a step of an epoch."""
        if epoch is not None and epoch != self.last_epoch + 1:
            name = type(self).__name__
            raise ValueError(
                f"{name}.step.epoch={epoch!r}: the next step is {self.last_epoch + 1}, since each step counts one. "
                f"Call step() without it, or pass last_epoch={epoch!r} to {name}."
            )
        if self._counts_epochs and (samples is not None or tokens is not None):
            raise ValueError(
                f"{type(self).__name__}.step: counts of a batch were passed, and a step counts an epoch, since "
                f"unit='ep'. Call step() without them, or after each batch with unit='ba'."
            )

    def _warn_of_ticks(self) -> None:
        """Warn once if other code has counted batches on the clock."""
        batch, own = self.clock.timestamp.batch.value, self._timestamp.batch.value
        if batch != own:
            self._has_warned_of_ticks = True
            warnings.warn(
                f"The clock of this ScheduleLR is at batch {batch}, and its steps have counted to batch {own}. Leave "
                f"out clock.tick(): step() counts.",
                stacklevel=4,
            )

    def refresh(self) -> None:
        super().refresh()
        # After a load, the clock has a new timestamp, and the next steps are watched.
        self._timestamp, self._fast_step = self.clock.timestamp, None

    def __getstate__(self) -> StateDict:
        return {**vars(self), "_fast_step": None}


# The fast step
#
# A full step ticks the clock, catches up with the parameter groups, evaluates the schedule, checks the value and writes
# it. A fast step evaluates the schedule one batch ahead, writes the value, and then ticks the clock, which cannot fail.
# So nothing is ever undone, and the step takes half of the time. Whether a step is fast is asked at three moments:
#
#     after a full step     _make_fast_step             A step counts a batch with known samples and tokens, the clock
#                                                       sums nothing over ranks, and the schedule is of timesched and
#                                                       reads one count: of batches, samples or tokens.
#     before the next step  ScheduleLR.step             No other code has ticked the clock, and the tick warns of no
#                                                       missing step. After any other change of the clock, `refresh`
#                                                       has dropped the fast step.
#                           GroupTarget.is_ready        The scheduler may write, into the same dicts as before.
#     at the value          GroupTarget.write_floats    The groups have floats, and the new values are finite.
#
# If one answer is no, the step is a full step, which also finds what is wrong.


@dataclass(frozen=True, slots=True)
class _FastStep:
    """The schedule of a `ScheduleLR` as a function of one count, and the place and the step of this count."""

    function: Callable[[tuple[int]], Any]  # the schedule: a function of the one count that it reads
    count_index: int  # where this count is in the numbers of a timestamp
    batch_length: int  # in this count


def _make_fast_step(schedule: Any, clock: Clock) -> _FastStep | None:
    """The fast step of a schedule on a clock that counts batches; None if each step must be a full step."""
    usual_batch = clock.horizon.usual_batch
    if usual_batch is None or clock.process_group not in (None, False) or not isinstance(schedule, Schedule):
        return None
    resolution, (samples, tokens) = schedule._resolution(clock), usual_batch
    lengths: dict[Counter, int] = {TimeUnit.BATCH: 1, TimeUnit.SAMPLE: samples, TimeUnit.TOKEN: tokens}
    counter = resolution.counters[0] if len(resolution.counters) == 1 else None
    if counter is None or not lengths.get(counter):
        return None
    return _FastStep(resolution.function, TOTALS[counter], lengths[counter])


# The arguments


def _read_unit(unit: TimeUnit | str) -> TimeUnit:
    if unit not in (TimeUnit.BATCH, TimeUnit.EPOCH):
        raise ValueError(f"ScheduleLR.unit={unit!r}: a step counts a batch or an epoch. Pass 'ba' or 'ep'.")
    return TimeUnit(unit)


def _read_schedule(schedule: Any, arguments: Mapping[str, object]) -> Any:
    """The schedule, function or list that was passed or described."""
    is_name = isinstance(schedule, str) and schedule.strip().isidentifier()
    takes = arguments_of(find_schedule(schedule.strip(), _PATH)) if is_name else {}
    for name in arguments:
        if name not in takes:
            own = [p.name for p in inspect.signature(ScheduleLR).parameters.values() if p.kind is not p.VAR_KEYWORD]
            raise TypeError(f"ScheduleLR has no argument {name!r}{argument_hint(name, [*own, *takes])}")
    if isinstance(schedule, str):
        return read_schedule(schedule.strip(), arguments, _PATH)
    if isinstance(schedule, Sequence):
        schedule = [read_schedule(item, {}, _PATH) if isinstance(item, str) else item for item in schedule]
    read_schedules(schedule)
    return schedule


def _check_units(schedule: object, clock: Clock, unit: TimeUnit) -> None:
    """Raise `ValueError` if the steps do not count the unit of the length, or a unit that the schedule reads.

    The units of a user's function are not known.
    """
    counted = {unit, TimeUnit.SECOND} | ({TimeUnit.SAMPLE, TimeUnit.TOKEN} if unit is TimeUnit.BATCH else set())
    arguments = {read: f"schedule={schedule!r}" for read in schedule_units(schedule, clock)}
    arguments[clock.max_duration.unit] = f"max_duration={str(clock.max_duration)!r}"
    for read, argument in arguments.items():
        if read not in counted:
            try:
                clock.horizon.change(1, unit, read)
            except ValueError as error:
                raise ValueError(f"ScheduleLR.{argument}: each step counts one {unit.name.lower()}. {error}") from None


def _check_initial_values(optimizer: Optimizer, tags: Tags) -> None:
    """Raise `KeyError` if a selected group has no initial learning rate."""
    for i in require_groups(optimizer.param_groups, tags):
        if "initial_lr" not in optimizer.param_groups[i]:
            raise KeyError(
                f"ScheduleLR.last_epoch: parameter group {i} has no 'initial_lr'. Set it to the peak of its learning "
                f"rate, or load the optimizer's state first."
            )


def _start_after(clock: Clock, steps: int, unit: TimeUnit) -> None:
    """Move a new clock on by steps of full batches or epochs."""
    if unit is TimeUnit.EPOCH:
        clock.go_to(Timestamp(epoch=steps, batch=steps * (clock.dataloader_len or 0)))
    else:
        clock.go_to(Timestamp(batch=steps, **epochs_after(steps, clock.horizon)))
