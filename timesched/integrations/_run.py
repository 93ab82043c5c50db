"""What becomes of the entries of `Schedules` in one Trainer: schedulers on its optimizer, stepped, saved and loaded."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from timesched.binding import Bound, bind, unchanged_on_error
from timesched.clock import Clock
from timesched.keys import Key

_SCHEDULER = ("step", "state_dict", "load_state_dict")  # what makes an object one


class RunClock:
    """The Trainer's State with a ratio, and without the end that `stop_training()` makes of the present moment.

    A run that is stopped has the values of the whole run, also in its last checkpoint.
    """

    def __init__(self, state: Any, ssr: float) -> None:
        self._state = state
        self._length = state.max_duration
        self.ssr = None if ssr == 1 else ssr  # as the State itself, which schedules read more quickly

    @property
    def max_duration(self) -> Any:
        now = self._state.max_duration
        if now is not self._length and now is not None and self._state.timestamp < now:
            self._length = now
        return self._length

    def __getattr__(self, name: str) -> Any:
        if name == "_state" or name.startswith("__"):  # a copy is asked for some before it has a state
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._state, name)


class Run:
    """The schedulers of a callback, called `name`, in the Trainer of a `state`."""

    def __init__(self, entries: Sequence[Any], ssr: float, name: str, state: Any) -> None:
        self.entries, self.ssr, self.name, self.state = entries, ssr, name, state
        self.made: list[tuple[Any, Any]] | None = None  # an entry and a scheduler of it; None: not made yet
        self.loaded: Sequence[Mapping[str, Any]] | None = None
        self._loaded_at = 0  # the batches that were loaded with it
        self._stepped: list[int] = []  # the batches done when each was stepped last

    @property
    def schedulers(self) -> list[Any]:
        return [scheduler for _, scheduler in self.made or ()]

    @property
    def _batches(self) -> int:
        return int(self.state.timestamp.batch)

    def make(self) -> None:
        """Make the schedulers; where one is refused, nothing is changed."""
        (optimizer,), clock = self.state.optimizers, RunClock(self.state, self.ssr)  # a Trainer takes no second one
        made: list[tuple[Any, Any]] = []
        with unchanged_on_error(optimizer):
            for entry in self.entries:
                made += [(entry, each) for each in _resolved(entry, optimizer, clock)]
            for entry, scheduler in made:
                _refuse_misfit(scheduler, entry, optimizer)
            self._refuse_shared([scheduler for _, scheduler in made])
        self.made, self._stepped = made, [self._batches] * len(made)

    def after_load(self) -> None:
        """Go on from what was loaded, now that optimizer and time are loaded too."""
        self._loaded_at = self._batches
        if self.made is not None:
            self._begin()

    def fit_start(self) -> None:
        """Be ready for a run, which may have another length than the one before."""
        if self.made is None:
            if self.loaded is not None or self._batches:
                raise ValueError(
                    f"{self.name} cannot go on from a checkpoint that was loaded before the length of the run was "
                    f"known: give it to the Trainer, Trainer(max_duration=...); fit(duration=...) may be another."
                )
            self.make()
        self._refuse_shared(self.schedulers)  # fit() takes some, too
        self._catch_up(self._batches)
        self.refresh()

    def _begin(self) -> None:
        if self.loaded is None:
            self._stepped = [self._batches] * len(self.schedulers)
            for scheduler in self.schedulers:
                if not hasattr(scheduler, "refresh") and hasattr(scheduler, "get_last_lr"):
                    # torch's own multiply what is there, which is not to be what was loaded
                    for group, rate in zip(scheduler.optimizer.param_groups, scheduler.get_last_lr()):
                        Key("lr").write(group, rate)
        else:
            try:
                self._take_up(self.loaded)
            except BaseException:  # there will be no Trainer to close
                release(self.made or ())
                raise
            self.loaded = None
        self.refresh()

    def _take_up(self, loaded: Sequence[Mapping[str, Any]]) -> None:
        fix = f"or start anew with load_ignore_keys=['state/callbacks/{self.name}']"
        if len(loaded) != len(self.schedulers):
            raise ValueError(f"The checkpoint has {len(loaded)} schedules, and here are {len(self.schedulers)}; {fix}.")
        for i, (scheduler, each) in enumerate(zip(self.schedulers, loaded)):
            old = each.get("about", each)  # where the version before kept them
            for key, here in self._about(scheduler).items():
                if old.get(key, here) != here:
                    raise ValueError(
                        f"Schedule {i} of the checkpoint is another one: {key} {old[key]!r} there, {here!r} here. Give "
                        f"the schedules that were saved, {fix}."
                    )
            try:
                scheduler.load_state_dict(each["state"])
            except ValueError as error:
                raise ValueError(
                    f"Schedule {i} of the checkpoint: {error} Give the schedules that were saved, {fix}."
                ) from None
        self._stepped = [each["batch"] for each in loaded]
        self._catch_up(self._loaded_at)

    def step(self) -> None:
        """Write the values of the next batch."""
        for i, scheduler in enumerate(self.schedulers):
            scheduler.step()
            self._stepped[i] = self._batches

    def _catch_up(self, batches: int) -> None:
        """Take the one step that each missed where its turn did not come: an error was raised, or a checkpoint saved.

        A greater difference is none that a run makes: somebody set the time, and the steps stay as they are.
        """
        for i, scheduler in enumerate(self.schedulers):
            if batches - self._stepped[i] == 1:
                scheduler.step()
            self._stepped[i] = self._batches

    def refresh(self) -> None:
        """Write the values of this moment."""
        for scheduler in self.schedulers:
            if hasattr(scheduler, "refresh"):
                scheduler.refresh()

    def state_dict(self) -> dict[str, Any]:
        """One value under one key, whatever there is: sharded checkpoints are read into what is there before.

        It is a tuple, into which torch.distributed.checkpoint does not look.
        """
        if self.made is None:
            return {"schedules": self.loaded}
        states = [
            {**self._about(each), "state": each.state_dict(), "batch": n}
            for each, n in zip(self.schedulers, self._stepped)
        ]
        return {"schedules": tuple(states)}

    def _about(self, scheduler: Any) -> dict[str, Any]:
        """What its own state may not say: of a scheduler of torch the class, and the ratio of the run's clock."""
        timed = getattr(scheduler, "clock", None) is not None
        return {"name": name_of(scheduler), "ssr": self.ssr if timed else 1.0}

    def _refuse_shared(self, schedulers: Sequence[Any]) -> None:
        """Raise `ValueError` when two schedulers drive one key, also one of the Trainer's own."""
        for scheduler in schedulers:
            if isinstance(scheduler, Bound):
                scheduler.check()
            key, mine = driven(scheduler)
            for other in self.state.schedulers:
                both = mine & driven(other)[1]
                if driven(other)[0] == key and both:
                    raise ValueError(
                        f"{key!r} of parameter group {min(both)} is driven by two schedulers, {name_of(scheduler)} and "
                        f"{name_of(other)} of schedulers=: give each a tag of its own, and no schedulers= where "
                        f"{self.name} drives 'lr'. The Trainer keeps those that fit() was given: "
                        f"trainer.state.schedulers = [] drops them."
                    )


def is_scheduler(thing: Any) -> bool:
    return not isinstance(thing, type) and all(callable(getattr(thing, name, None)) for name in _SCHEDULER)


def driven(scheduler: Any) -> tuple[str, set[int]]:
    """What a scheduler writes to; torch's own drive the learning rate of all groups."""
    if isinstance(scheduler, Bound):
        return scheduler.key, set(scheduler.indices)
    return "lr", set(range(len(scheduler.optimizer.param_groups))) if hasattr(scheduler, "optimizer") else set()


def release(made: Sequence[tuple[Any, Any]]) -> None:
    """Leave the keys of those that were made here, and not by the user."""
    for entry, scheduler in made:
        if entry is not scheduler and hasattr(scheduler, "unbind"):
            scheduler.unbind()


def refuse_clock(scheduler: Any) -> None:
    """Raise `ValueError` for a scheduler that follows a clock of its own, and so would stand still."""
    if isinstance(getattr(scheduler, "clock", None), Clock):
        raise ValueError(
            f"{name_of(scheduler)} follows a timesched.Clock, which nobody ticks in a Trainer: make it in a function "
            f"of (optimizer, clock), and pass that; the clock that it gets is the run's."
        )


def name_of(thing: Any) -> str:
    return getattr(thing, "__qualname__", type(thing).__qualname__)


def _resolved(entry: Any, optimizer: Any, clock: RunClock) -> list[Any]:
    """The schedulers of an entry: itself, a bound schedule, or what a function of (optimizer[, clock]) returns."""
    if is_scheduler(entry):
        return [entry]
    if not callable(entry):
        return [bind(entry.schedule, optimizer, clock, entry.key, entry.tags)]
    signature = inspect.signature(entry)
    wanted = signature.parameters.get("clock")
    if wanted is not None and (wanted.default is None or wanted.default is wanted.empty):
        found = entry(optimizer, clock=clock)
    else:
        try:
            signature.bind(optimizer)
        except TypeError:
            found = entry(optimizer, clock)
        else:
            found = entry(optimizer)
    return list(found) if isinstance(found, (list, tuple)) else [found]


def _refuse_misfit(scheduler: Any, entry: Any, optimizer: Any) -> None:
    """Raise `TypeError` for what is not a scheduler, `ValueError` for one that cannot run in this Trainer."""
    if not is_scheduler(scheduler):
        raise TypeError(f"{name_of(entry)} returned {scheduler!r}: a scheduler has {', '.join(_SCHEDULER)}.")
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise ValueError(f"{name_of(scheduler)} drives another optimizer than the Trainer's: make it on that one.")
    refuse_clock(scheduler)
