"""Schedules in one Trainer: made on the groups of its optimizer, saved and loaded, stepped, and handed on."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from torch.optim import Optimizer

from timesched.keys import Key
from timesched.targets import Target

from ._entries import RunClock, about, is_scheduler, name_of, refuse_misfit, refuse_other, refuse_shared, resolved
from ._groups import as_before, changed, noted

_runs: weakref.WeakKeyDictionary[Optimizer, list[weakref.ref[Run]]] = weakref.WeakKeyDictionary()
_KEPT = " The Trainer keeps those that fit() was given: trainer.state.schedulers = [] drops them."


class Run:
    """What the entries of a callback, called `name`, become in the Trainer of a `state`."""

    def __init__(self, entries: Sequence[Any], ssr: float, name: str, state: Any) -> None:
        self.entries = entries
        self.ssr = ssr
        self.name = name
        self.state = state
        self.made: list[tuple[Any, Any]] = []  # an entry and a scheduler of it
        self.ready = False  # they are made; there may be none
        self.replaced = False  # by the schedules of another Trainer
        self._loading = False
        self._loaded: Sequence[Mapping[str, Any]] | None = None
        self._loaded_at: int | None = None  # the batches that were loaded with it
        self._stepped: list[int] = []  # the batches done when each was stepped last
        self._before: list[dict[str, Any]] = []  # the numbers of the groups before a load
        self._change: list[dict[str, Any]] = []  # those of them that the load changed

    @property
    def schedulers(self) -> list[Any]:
        return [scheduler for _, scheduler in self.made]

    @property
    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.state.optimizers for group in optimizer.param_groups]

    @property
    def _batches(self) -> int:
        return int(self.state.timestamp.batch)

    # Around a load

    def before_load(self) -> None:
        """Make the schedulers on the initial values, unless the length of the run is yet to be given to `fit`."""
        if self.state.max_duration is not None:
            self._make()
        self._before, self._loading = noted(self._groups), True

    def after_load(self) -> None:
        """Take up what was loaded, now that optimizer and time are loaded too."""
        self._loading = False
        self._change = changed(self._groups, self._before)
        self._loaded_at = None if self._loaded is None else self._batches
        if self.ready:
            self._begin()

    def fit_start(self) -> None:
        """Be ready for a run, which may have another length than the one before."""
        late = not self.ready
        if late:
            self._make(_KEPT)
        refuse_shared(self.schedulers, self.state.schedulers, self._groups, _KEPT)  # fit() takes some too
        if late or self._loaded is not None:
            self._begin()
        self._catch_up(self._batches)
        self.refresh()

    def _begin(self) -> None:
        """Go on from what was loaded, if anything was."""
        if self._loaded is not None:
            try:
                self._take_up(self._loaded)
            except BaseException:  # there will be no Trainer to close
                release(self.made)
                self.made, self.ready = [], False
                raise
            self._loaded = self._loaded_at = None
        else:
            self._stepped = [self._batches] * len(self.made)
            self._write_first_rates()
        self.refresh()

    def _take_up(self, loaded: Sequence[Mapping[str, Any]]) -> None:
        fix = f"or start anew with load_ignore_keys=['state/callbacks/{self.name}']"
        refuse_other([each["about"] for each in loaded], self._about(), f"Give the schedules that were saved, {fix}.")
        for scheduler, each in zip(self.schedulers, loaded):
            scheduler.load_state_dict(each["state"])
        self._stepped = [each["batch"] for each in loaded]
        self._catch_up(self._batches if self._loaded_at is None else self._loaded_at)

    def _write_first_rates(self) -> None:
        """Undo what a load did to the learning rates of schedulers that cannot write theirs: torch's multiply on."""
        for scheduler in self.schedulers:
            if not hasattr(scheduler, "refresh") and hasattr(scheduler, "get_last_lr"):
                for group, rate, change in zip(self._groups, scheduler.get_last_lr(), self._change):
                    if "lr" in change:
                        Key("lr").write(group, rate)

    # Batches

    def step(self) -> None:
        """Write the values of the next batch."""
        now = self._batches
        for i, (_, scheduler) in enumerate(self.made):
            scheduler.step()
            self._stepped[i] = now

    def _catch_up(self, batches: int) -> None:
        """Take the one step that each missed where its turn did not come: an error was raised, or a checkpoint saved.

        A greater difference is none that a run makes: somebody set the time, and the steps stay as they are.
        """
        now = self._batches
        for i, (_, scheduler) in enumerate(self.made):
            if batches - self._stepped[i] == 1:
                scheduler.step()
            self._stepped[i] = now

    def refresh(self) -> None:
        """Write the values of this moment."""
        for scheduler in self.schedulers:
            if hasattr(scheduler, "refresh"):
                scheduler.refresh()

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """One value under one key, whatever there is: sharded checkpoints are read into what is there before.

        It is a tuple, into which torch.distributed.checkpoint does not look.
        """
        if self.ready:
            parts = zip(self._about(), self.schedulers, self._stepped)
            return saved(tuple({"about": a, "state": s.state_dict(), "batch": n} for a, s, n in parts))
        if self._loading:
            self._refuse_sharded()
        return saved(self._loaded)  # saved before it fits

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep a state until the optimizer and the time are loaded as well: Composer loads the callbacks first."""
        self._loaded, self._loaded_at = state["schedules"], None

    def _refuse_sharded(self) -> None:
        """Raise `ValueError` where the load, which is of a sharded checkpoint, needs tensors that are not there yet."""
        later = [name_of(entry) for entry in self.entries if callable(entry) and not is_scheduler(entry)]
        if later and any(hasattr(optimizer, "hold_tensor") for optimizer in self.state.optimizers):
            raise ValueError(
                f"The checkpoint is sharded, and so is read into the tensors that the groups hold already. Those of "
                f"{', '.join(later)} are made when the length of the run is known: give it to the Trainer, as in "
                f"Trainer(max_duration=...); fit(duration=...) may still be another."
            )

    def _about(self) -> list[dict[str, Any]]:
        return [about(scheduler, self.ssr) for scheduler in self.schedulers]

    # The groups

    def _make(self, fix: str = "") -> None:
        (optimizer,), clock = self.state.optimizers, RunClock(self.state, self.ssr)  # a Trainer takes no second one
        made: list[tuple[Any, Any]] = []
        earlier = self._take_over(optimizer)
        try:
            with as_before(self._groups, self._change):
                for entry in self.entries:
                    made += [(entry, scheduler) for scheduler in resolved(entry, optimizer, clock)]
                for entry, scheduler in made:
                    refuse_misfit(scheduler, entry, optimizer)
                refuse_shared([scheduler for _, scheduler in made], self.state.schedulers, self._groups, fix)
                for _, scheduler in made:
                    if hasattr(scheduler, "settle"):  # refuses what else its first step would
                        scheduler.settle()
        except BaseException:
            release(made)
            for run, targets in earlier:
                run.replaced = False
                for target in targets:
                    target.register()
            raise
        self.made, self.ready, self._stepped = made, True, [self._batches] * len(made)
        _runs[optimizer] = [*map(weakref.ref, _runs_of(optimizer)), weakref.ref(self)]

    def _take_over(self, optimizer: Optimizer) -> list[tuple[Run, list[Target]]]:
        """Take the groups from the callbacks of other Trainers, one of which may have failed when it was built."""
        earlier = []
        for run in _runs_of(optimizer):
            if run.state is not self.state and not run.replaced:
                targets = [getattr(scheduler, "_target", None) for scheduler in _own(run.made)]
                earlier.append((run, [target for target in targets if target and target.active]))
                run.give_up()
        return earlier

    def give_up(self) -> None:
        """Leave the optimizer to others."""
        self.replaced = True
        release(self.made)


def saved(schedules: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
    return {"schedules": schedules}


def release(made: Sequence[tuple[Any, Any]]) -> None:
    """Let others have the groups."""
    for scheduler in _own(made):
        scheduler.unbind()


def _own(made: Sequence[tuple[Any, Any]]) -> list[Any]:
    """Those that were made here, and not by the user."""
    return [scheduler for entry, scheduler in made if entry is not scheduler and hasattr(scheduler, "unbind")]


def _runs_of(optimizer: Optimizer) -> list[Run]:
    return [run for ref in _runs.get(optimizer, []) if (run := ref()) is not None]
