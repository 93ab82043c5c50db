"""Schedules in torchtitan: `Schedules.Config(...)`, which is the `lr_scheduler` of its Trainer's config.

torchtitan builds a container of schedulers from that config, steps it after the optimizers, and saves it. The container
learns the number of steps, and nothing about a batch. All batches have the size that the config says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Annotated, Any, Literal

import torch.distributed as dist
import tyro
from torch import Tensor

try:
    from torchtitan.components.optim import LRSchedulersContainer, OptimizersContainer
except ImportError:  # torchtitan 0.3
    from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer

from timesched.binding import Bound
from timesched.binding.groups import require_groups, select_groups
from timesched.rules import make_list
from timesched.run.clock import Clock
from timesched.time.units import TimeUnit
from timesched.types import StateDict

from .common import Binding, Schedulers, load_states, make_bindings, pair_states, run_units

__all__ = ["Binding", "Schedules"]


class _OptimizerSchedulers(Schedulers):
    """The schedules of one of the optimizers, with the learning rates that torchtitan logs."""

    def scheduled_values(self) -> Iterator[tuple[str, int, float | Tensor]]:
        """Each key that is scheduled, with the index of its group and its present value."""
        for bound in self.bound:
            values = bound.get()
            for i in bound.indices:
                yield bound.key, i, values[i]

    def get_last_host_lrs(self) -> list[float]:
        """The learning rate of each parameter group, without reading scheduled tensors from a device."""
        learning_rates = [group.get("lr", math.nan) for group in self.optimizer.param_groups]
        for key, i, value in self.scheduled_values():
            if key == "lr":
                learning_rates[i] = value
        return [float(learning_rate) for learning_rate in learning_rates]


# A run has these events, in this order:
#
#     Config.build            make the clock, and the schedulers of each optimizer
#     load_state_dict         continue from a checkpoint
#     get_metrics             the values that the batch runs with, for the logs of torchtitan
#     optimizers.step()
#     step                    tick the clock, and write the values of the next batch
#     state_dict              save, at any time
class Schedules(LRSchedulersContainer):
    """torchtitan's container of schedulers, for schedules of any hyperparameter in the parameter groups.

    `Schedules.Config(...)` is the `lr_scheduler` of a `Trainer.Config`, and has these arguments.

    `entries`: one or several. A schedule controls the learning rate, a `Binding` any key, with tags. The tags of a
    group are in the `optimizer_kwargs` of its `ParamGroupConfig`. All groups that the tags select must have the key.
    `max_duration`: the length of the schedules; None is the Trainer's `training.steps`, at which the run ends in any
    case. `samples_per_batch`, `tokens_per_sample`: the Trainer's `global_batch_size` and `seq_len`. They give the
    counts of samples and tokens, since torchtitan shows the container no batch. Each batch counts as a full batch,
    which is wrong only for the last batch of a finite dataset. `batches_per_epoch`: for times in epochs, which
    torchtitan does not count. `on_change`: how a load treats a checkpoint of other schedules or of another length, as
    in `timesched.bind`.

    A batch is one step of the optimizers: of all ranks and all accumulated microbatches. The checkpoint of torchtitan
    is enough to resume exactly, also on another number of ranks or stages. The initial values come from the config, as
    with torchtitan's own schedulers. The first rank measures the seconds.

    When it is built, raises `TypeError` for entries that are not schedules. Raises `ValueError` for an argument of
    torchtitan's own schedule, such as `warmup_steps`, and for a unit without a conversion factor to batches. Raises
    `ValueError` for tags that no group has, for two schedules of one key, and where `timesched.bind` does.

    >>> from timesched import CosineAnnealingWithWarmupScheduler, LinearScheduler
    >>> cosine = CosineAnnealingWithWarmupScheduler("2e8tok", alpha_f=0.1)
    >>> decay = Binding(LinearScheduler(alpha_f=0.1), "weight_decay")
    >>> config = Schedules.Config(entries=[cosine, decay], samples_per_batch=64, tokens_per_sample=2048)
    >>> config.samples_per_batch * config.tokens_per_sample
    131072
    """

    @dataclass(kw_only=True, slots=True)
    class Config(LRSchedulersContainer.Config):
        """The arguments of `Schedules`."""

        entries: Annotated[Any, tyro.conf.Suppress] = field(default_factory=list)  # not on the command line
        max_duration: str | None = None
        batches_per_epoch: int | None = None
        samples_per_batch: int | None = None
        tokens_per_sample: int | None = None
        on_change: Literal["same", "new"] = "same"

        def build(self, *, optimizers: OptimizersContainer, training_steps: int) -> Schedules:
            """Make the container, when torchtitan's Trainer asks for it."""
            return Schedules(optimizers, self, training_steps)

        def to_dict(self) -> dict[str, Any]:
            """The config as torchtitan writes it to JSON, with the entries as text."""
            shown: dict[str, Any] = LRSchedulersContainer.Config.to_dict(replace(self, entries=[]))
            return shown | {"entries": [repr(entry) for entry in make_list(self.entries)]}

    def __init__(self, optimizers: OptimizersContainer, config: Config, training_steps: int) -> None:
        _check_inherited(config)
        self.clock = Clock(
            f"{training_steps}ba" if config.max_duration is None else config.max_duration,
            batches_per_epoch=config.batches_per_epoch,
            samples_per_batch=config.samples_per_batch,
            tokens_per_sample=config.tokens_per_sample,
            process_group=False,  # the conversion factors are for all ranks
        )
        self.on_change = config.on_change
        entries = make_bindings(make_list(config.entries))
        _prepare_clock(self.clock, entries)
        groups = list(chain.from_iterable(optimizer.param_groups for optimizer in optimizers))
        for entry in entries:
            require_groups(groups, entry.tags, "Binding.tags")
        self.schedulers: list[_OptimizerSchedulers] = []
        for optimizer in optimizers:
            selected = [entry for entry in entries if select_groups(optimizer.param_groups, entry.tags)]
            if selected:
                self.schedulers.append(_OptimizerSchedulers(optimizer, self.clock, selected, config.on_change))

    def step(self) -> None:
        """Count a batch, and write the values of the next batch."""
        self.clock.tick()
        super().step()

    @property
    def _bound(self) -> list[Bound]:
        """The bound schedules of all optimizers."""
        return list(chain.from_iterable(scheduler.bound for scheduler in self.schedulers))

    def get_metrics(self) -> dict[str, float]:
        """The values that torchtitan logs of a step, all named as it names `lr/AdamW`."""
        metrics: dict[str, float] = super().get_metrics()
        for scheduler in self.schedulers:
            groups, optimizer = scheduler.optimizer.param_groups, type(scheduler.optimizer).__name__
            for key, i, value in scheduler.scheduled_values():
                name = f"{key}/{optimizer}" if len(groups) == 1 else f"{key}/{optimizer}/{i}"
                metrics[name] = float(value)
        return metrics

    def begin_at(self, batches: int, **counts: object) -> None:
        """Set the clock to the position of a run that had other schedulers, after `batches`, before it continues.

        Raises `ValueError` without `on_change="new"`.
        """
        self.schedulers[0].begin_at(batches, **counts)

    def state_dict(self) -> StateDict:
        """Each schedule as a string, with its value and the clock's counters. The groups of a rank do not change it.

        The state is always one tuple under one key: a sharded checkpoint is read into the existing state, and
        torch.distributed.checkpoint does not look into a tuple.
        """
        states: list[StateDict] = []
        for bound in self._bound:
            if not any(bound.is_of(state) for state in states):
                state = bound.state_dict()
                state.pop("base", None)  # the initial values of the groups on this rank
                states.append({**state, "value": state["value"][:1]})
        return {"schedules": tuple(states)}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Resume from a state, clock included. For the state of other schedules, raise `ValueError` and change nothing.

        With `on_change="new"`, each schedule continues from the state of its key and tags, if there is one.
        """
        states = state_dict["schedules"]
        saved_kinds, present_kinds = _describe_states(states), _describe_states(self.state_dict()["schedules"])
        if self.on_change == "same" and saved_kinds != present_kinds:
            raise ValueError(
                f"on_change='same': the state is of {saved_kinds}, and here is {present_kinds}. "
                f'Make the schedules that were saved, or set on_change="new" to continue with the present ones.'
            )
        pairs = [(bound, _expand_state(bound, state)) for bound, state in pair_states(self._bound, states)]
        load_states(pairs, states, self.clock)
        self.schedulers[0].loaded = True  # of which `begin_at` asks


def _check_inherited(config: Schedules.Config) -> None:
    """Raise `ValueError` for an argument of torchtitan's own schedule, which the schedules of entries ignore."""
    defaults = LRSchedulersContainer.Config()
    inherited = {option.name: getattr(config, option.name) for option in fields(defaults)}
    ignored = ", ".join(f"{name}={value!r}" for name, value in inherited.items() if value != getattr(defaults, name))
    if ignored:
        raise ValueError(f"Schedules.Config: {ignored} has no effect on the schedules of entries. Leave it out.")


def _prepare_clock(clock: Clock, entries: Iterable[Binding]) -> None:
    """Let the clock count the units of the schedules. Raises `ValueError` if a conversion factor is missing."""
    units = run_units(clock, [entry.schedule for entry in entries])
    for unit in units - {TimeUnit.SECOND}:
        clock.horizon.change(1, TimeUnit.BATCH, unit)  # raises if no conversion factor links them
    if TimeUnit.SECOND in units and dist.is_initialized():
        clock.process_group = True  # all ranks use the seconds of the first rank


def _describe_states(states: Iterable[StateDict]) -> list[str]:
    """Describe states by their keys and tags."""
    return sorted(f"{state['key']!r} with tags={state['tags']}" for state in states)


def _expand_state(bound: Bound, state: StateDict) -> StateDict:
    """Complete a state for the groups of a scheduler: with their initial values, or with the value for each."""
    if bound.relative:
        return {**state, "base": list(bound.factors)}
    return {**state, "value": state["value"] * len(bound.factors)}
