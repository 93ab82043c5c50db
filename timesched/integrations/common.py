"""Shared by the adapters, from top to bottom:

Binding             a schedule, its key and its tags, before there is an optimizer
Average             what an adapter needs of an average of the weights, and how it is made
RunOptions          arguments of `schedule`, which the callback of a trainer keeps until the run begins
Schedulers          the bound schedules of an optimizer, as the one scheduler that a trainer steps, saves and loads
CountingSchedulers  the same, if the adapter ticks the clock; a batch must have the counts that the schedules read
add_microbatch      adds the counts of a microbatch to the counts of its batch
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product
from typing import Any, Protocol

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from timesched.binding import Bound, bind
from timesched.binding.bound import OnChange
from timesched.binding.evaluation import read_schedules, schedule_units
from timesched.binding.keys import Key
from timesched.run.clock import Clock
from timesched.run.horizon import BatchSizes, ConversionFactor, State
from timesched.run.saved_clock import epochs_after
from timesched.schedulers.schedule import ScheduleLike
from timesched.time.timestamp import Timestamp
from timesched.time.units import TimeUnit
from timesched.time.value import Time, TimeLike
from timesched.types import StateDict

Counts = Mapping[str, int | Tensor]  # of a batch: "samples" and "tokens", or one of them
CountFunction = Callable[[Any], Counts]  # counts a batch of the user's data loader


@dataclass(frozen=True)
class Binding:
    """A schedule, its key and its tags: the arguments of `timesched.bind` that are known before the run.

    `schedule`: a schedule, a function of `(state)` or `(state, ssr)`, a scheduler written for Composer, or a list of
    them, which multiply the initial value; a `HalfLife` is the value itself. `key`: `"weight_decay"`, `"lr"`,
    `"betas[0]"`, ... `tags`: select the groups that carry one of these; None selects all groups, `[None]` the groups
    without tags. Raises `TypeError` for an object that is not a schedule and for a list with a `HalfLife`. Raises
    `ValueError` for an empty list and for an unknown key.

    >>> from timesched import LinearScheduler
    >>> Binding(LinearScheduler(alpha_f=0.1), "weight_decay", tags="head").schedule.alpha_f
    0.1
    """

    schedule: ScheduleLike | Sequence[ScheduleLike]
    key: str
    tags: str | Iterable[str | None] | None = None

    def __post_init__(self) -> None:
        Key(self.key)
        read_schedules(self.schedule)

    def bind(self, optimizer: Optimizer, clock: State, on_change: OnChange = "same") -> Bound:
        """Bind the schedule to the optimizer."""
        return bind(self.schedule, optimizer, clock, self.key, self.tags, on_change=on_change)


Entry = Binding | ScheduleLike | Sequence[ScheduleLike]  # of an adapter: a schedule alone controls the learning rate


def make_bindings(entries: Sequence[Any]) -> list[Binding]:
    """Return each entry of an adapter as a `Binding`: a schedule alone controls the learning rate.

    Raises `TypeError` if there is no entry, and as `Binding` does.
    """
    if not entries:
        raise TypeError(f"entries={entries!r}: there is no schedule. Pass a schedule of timesched, or a Binding.")
    return [entry if isinstance(entry, Binding) else Binding(entry, "lr") for entry in entries]


class Average(Protocol):
    """An average of the weights on a clock, as `optim.WeightAverage` is."""

    clock: Clock

    def step(self) -> object: ...

    def units(self) -> set[TimeUnit]: ...

    def swapped(self, model: Module | None = None) -> AbstractContextManager[None]: ...

    def reset_state(self) -> None: ...

    def state_dict(self) -> StateDict: ...

    def load_state_dict(self, state_dict: StateDict) -> None: ...


MakeAverage = Callable[[list[Tensor], Clock], Average]  # of parameters, such as a partial of `optim.WeightAverage`


def check_average(evaluate_averaged: bool, average: MakeAverage | None) -> None:
    """Raise `ValueError` if an average should be evaluated, and no function makes one."""
    if evaluate_averaged and average is None:
        raise ValueError(
            "evaluate_averaged=True: there is no average to evaluate. Pass average=, a function that makes one."
        )


def make_average(optimizer: Optimizer, clock: Clock, average: MakeAverage | None) -> Average | None:
    """Make the average of an optimizer's parameters by the user's function. Return None without a function.

    Raises `ValueError` for distributed parameters.
    """
    if average is None:
        return None
    params = list(chain.from_iterable(group["params"] for group in optimizer.param_groups))
    if any(hasattr(p, "placements") for p in params):  # a DTensor
        raise ValueError(
            "average: the parameters are DTensors, and a trainer saves the scheduler as one file, without their "
            "shards. Leave average= out, and step and save optim.WeightAverage(model.parameters(), scheduler.clock) "
            "yourself, as docs/averages.md shows."
        )
    return average(params, clock)


@dataclass(frozen=True)
class RunOptions:
    """The arguments of an adapter that its clock and its schedulers need. The function `schedule` describes them."""

    entries: Sequence[Binding] = ()
    max_duration: TimeLike | None = None  # None: the trainer's own length
    count: CountFunction | None = None
    samples_per_batch: ConversionFactor | BatchSizes | None = None
    tokens_per_sample: ConversionFactor | None = None
    ssr: float = 1.0
    on_change: OnChange = "same"
    log: bool = True
    average: MakeAverage | None = None


class Schedulers(LRScheduler):
    """Several bound schedules on one clock, as the one scheduler that a trainer steps, saves and loads.

    `entries`: a schedule controls the learning rate, a `Binding` any key. Their state is enough to resume from: it
    holds the clock's counters. `on_change`: how a load treats the state of other schedules or of another run, as in
    `timesched.bind`. `average`: an average of the weights on the same clock, as `make_average` makes it, which is
    stepped, saved and loaded with the schedules.

    Raises `TypeError` for other entries, before any entry is bound. Raises `ValueError` where `timesched.bind` does,
    and for two entries of one key. The entries that were bound before the error have written their first
    values by then.

    >>> import torch
    >>> from timesched import Clock, LinearScheduler
    >>> clock = Clock("4ba")
    >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4, weight_decay=0.1)
    >>> both = Schedulers(optimizer, clock, [LinearScheduler(), Binding(LinearScheduler(), "weight_decay")])
    >>> clock.tick(); clock.tick(); both.step()
    >>> optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["weight_decay"]
    (0.2, 0.05)
    """

    advice = 'pass on_change="new"'  # where a state does not fit
    clock: Any  # a `Clock`, or Composer's own State

    def __init__(
        self,
        optimizer: Optimizer,
        clock: State,
        entries: Sequence[Any],
        on_change: OnChange = "same",
        average: Average | None = None,
    ) -> None:
        self.optimizer, self.clock, self.on_change = optimizer, clock, on_change
        self.loaded = False  # whether a state has set the clock
        self.average = average
        self.bound = self.bind_entries(entries)
        for bound in self.bound:
            bound.catch_up()  # which refuses two entries of one key

    def bind_entries(self, entries: Sequence[Any]) -> list[Bound]:
        """Bind the entries to the optimizer, in their order."""
        return [entry.bind(self.optimizer, self.clock, self.on_change) for entry in make_bindings(entries)]

    @cached_property
    def units(self) -> set[TimeUnit]:
        """The unit of the length, and the units that the schedules and the average read on the clock."""
        return run_units(self.clock, [bound.schedule for bound in self.bound], self.average)

    def step(self, epoch: int | None = None) -> None:
        """Write the present values."""
        for bound in self.bound:
            bound.step(epoch)
        if self.average is not None:
            self.average.step()

    def refresh(self) -> None:
        """Write the present values without counting a step."""
        for bound in self.bound:
            bound.refresh()

    def averaged(self, model: Module) -> AbstractContextManager[None]:
        """In a `with` block the model has the average of its weights, if there is one."""
        return nullcontext() if self.average is None else self.average.swapped(model)

    def get_last_lr(self) -> list[float | Tensor]:
        """The learning rate of each parameter group, scheduled or not, for loggers."""
        learning_rates = [group.get("lr") for group in self.optimizer.param_groups]
        return [math.nan if learning_rate is None else float(learning_rate) for learning_rate in learning_rates]

    def named_values(self) -> dict[str, float]:
        """The value of each scheduled hyperparameter, by the names that logs show: see `Bound.named_values`."""
        return dict(chain.from_iterable(bound.named_values().items() for bound in self.bound))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.bound})"

    def state_dict(self) -> StateDict:
        """The states of all schedulers, in plain values. The state of an average holds its own tensors, not copies."""
        return {"schedulers": [bound.state_dict() for bound in self.bound], **self.average_state()}

    def average_state(self) -> StateDict:
        """The entry of the average in the saved state: empty if there is no average."""
        return {} if self.average is None else {"average": self.average.state_dict()}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Resume from a state, clock included. For the state of other schedules, raise `ValueError` and change nothing.

        With `on_change="new"`, each schedule continues from the state of its key and its tags, if there is one.
        A saved object without such states is ignored: the trainer, or its user, sets the position of the run.
        """
        states, average_state = state_dict.get("schedulers", []), state_dict.get("average")
        if self.on_change == "same":
            self.check_state(len(states), len(self.bound), average_state)
            pairs = list(zip(self.bound, states))
        else:
            pairs = pair_states(self.bound, states)
        load_states(pairs, states, self.clock, self.average, average_state)
        self.loaded = bool(states)

    def check_state(self, saved: int, present: int, average_state: StateDict | None) -> None:
        """Raise `ValueError` if a state has a different number of schedules, or lacks the average."""
        if saved != present:
            raise ValueError(
                f"entries: the state has {saved} schedules, and here are {present}. Make the schedules that were "
                f"saved, or {self.advice} to continue with the present ones."
            )
        if self.average is not None and average_state is None:
            raise ValueError(
                f"average: the state has no average of the weights. Leave average= out, or {self.advice} to begin one "
                f"with the present weights."
            )

    def begin_at(self, batches: int, **counts: Any) -> None:
        """Set the clock to the position after `batches`, if no state has set it.

        `counts`: the known fields of a `Timestamp`; otherwise the clock's conversion factors give samples and tokens.
        Raises `ValueError` without `on_change="new"`, and if a count that a schedule reads is not known.
        """
        if self.loaded or not batches:
            return
        if self.on_change != "new":
            raise ValueError(
                f"on_change={self.on_change!r}: the run continues after {batches} batches, and its checkpoint has no "
                f'state of these schedules. Pass on_change="new" to start them at this batch.'
            )
        self.clock.go_to(Timestamp(**{"batch": batches, **epochs_after(batches, self.clock.horizon), **counts}))
        if self.average is not None:
            self.average.reset_state()


def run_units(clock: Any, schedules: Iterable[object], average: Average | None = None) -> set[TimeUnit]:
    """The unit of the length of a run, and the units that the schedules and the average read on its clock."""
    averaged = set() if average is None else average.units()
    return {clock.max_duration.unit}.union(averaged, *(schedule_units(schedule, clock) for schedule in schedules))


def pair_states(schedulers: Iterable[Bound], states: Sequence[StateDict]) -> list[tuple[Bound, StateDict]]:
    """Pair each scheduler with the state of its key and tags, if there is one."""
    return [(bound, state) for bound, state in product(schedulers, states) if bound.is_of(state)]


def load_states(
    pairs: Sequence[tuple[Bound, StateDict]],
    states: Sequence[StateDict],
    clock: Clock,
    average: Average | None = None,
    average_state: StateDict | None = None,
) -> None:
    """Load each scheduler from its state, and the average. If a state does not fit, raise and change nothing.

    Without pairs, `states` still set the clock. An average without a state starts again from the present weights.
    """
    contents = [(bound, bound.read_state(state)) for bound, state in pairs]  # raises before anything is changed
    if average is not None and average_state is not None:
        average.load_state_dict(average_state)  # before `restore`, since a state that does not fit is refused here
    for bound, new_state in contents:
        bound.restore(new_state)
    if states and not pairs:
        clock.load_state_dict(states[0]["clock"])
    if average is not None and average_state is None:
        average.reset_state()


class CountingSchedulers(Schedulers):
    """Schedulers that count batches on their own clock, and refuse a batch without a count that a schedule reads."""

    clock: Clock

    def tick(self, counts: Counts) -> None:
        """Count a batch. Raises `ValueError` for a missing count, and counts nothing then."""
        self.check_counts(counts)
        self.clock.tick(counts.get("samples"), counts.get("tokens"))

    def check_counts(self, counts: Counts) -> None:
        """Raise `ValueError` if a batch has no count that a schedule reads, and no conversion factor gives it."""
        horizon = self.clock.horizon
        samples = "samples" in counts or horizon.samples_per_batch is not None
        tokens = "tokens" in counts or (samples and horizon.tokens_per_sample is not None)
        for name, unit, is_known in (("samples", TimeUnit.SAMPLE, samples), ("tokens", TimeUnit.TOKEN, tokens)):
            if unit in self.units and not is_known:
                raise ValueError(f"{name}: the run counts them, and this batch has no count. {self.advice_for(name)}")

    def advice_for(self, counted: str) -> str:
        """The advice if the count of `counted`, "samples" or "tokens", is missing."""
        return f"Give the clock conversion factors, or count the {counted}."

    def warn_of_early_end(self) -> None:
        """Warn if a trainer ended a run before the end of its schedules, by a batch or more."""
        timestamp, length = self.clock.timestamp, self.clock.max_duration
        if self.clock.done or timestamp.batch == 0:
            return
        reached: Any = self.clock.horizon.progress(timestamp) * length.exact
        if length.exact - reached >= reached / timestamp.batch.value:  # the average length of a batch
            warnings.warn(
                f"The Trainer has ended the run at {Time(reached, length.unit)}, and its schedules end at {length}. "
                f"Train for longer, by max_steps or epochs, or pass the length that the Trainer trains as "
                f"max_duration.",
                stacklevel=2,
            )


def add_microbatch(counts: Counts | None, count: CountFunction, batch: object) -> Counts:
    """Add the counts of a microbatch, by the user's function, to `counts`, which is None for the first microbatch.

    Raises `TypeError` if the function returns anything but samples and tokens.
    """
    latest = count(batch)
    if not isinstance(latest, Mapping) or not {"samples", "tokens"}.issuperset(latest):
        raise TypeError(
            f"count(batch)={latest!r}: it may have 'samples' and 'tokens' only. Return "
            f"{{'samples': ..., 'tokens': ...}}."
        )
    return add_counts(counts, latest)


def add_counts(counts: Counts | None, latest: Counts) -> Counts:
    """Add the counts of the latest microbatch to `counts`, which is None for the first microbatch.

    >>> add_counts({"samples": 8}, {"samples": 4, "tokens": 32})
    {'samples': 12, 'tokens': 32}
    """
    previous = counts or {}
    return {name: previous.get(name, 0) + latest.get(name, 0) for name in {**previous, **latest}}


def plain_counts(counts: Counts | None) -> dict[str, int] | None:
    """The counts of microbatches in plain numbers, for a saved state."""
    return None if counts is None else {name: int(count) for name, count in counts.items()}
