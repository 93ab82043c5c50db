"""`WeightAverage`: an average of a model's weights over time instead of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT, register_optimizer_step_pre_hook

from timesched.maths.ops import check_not_in_graph
from timesched.run.clock import Clock
from timesched.time.units import TimeUnit
from timesched.time.value import Time
from timesched.types import ParamGroup, StateDict

from ..base.hyperparameters import all_parameters
from ..base.sharding import distribution, local_shard, local_shards
from ..state.checkpoint import parameter_names
from ..state.optimizer import NewStateOptimizer, State
from ..state.step_wrapper import makes_no_state
from ..step.rule_optimizer import RuleOptimizer, swapped_averages
from .share import GROUP_RULES, Timing
from .swapping import drop_gathered, persistent_buffers, present_shards, select_statistics, write_parameters

AVERAGE = "average"  # the key of the state


class WeightAverage(NewStateOptimizer):
    """An average of weights over the time of a clock, for evaluation or export. Call `step()` after each batch.

    At each step:

        k = 2**(-(t1 - t0)/h)                       if exponential
        k = ((t0 - s)/(t1 - s))**(log(2)/f)         if share
        k = (t0 - s)/(t1 - s)                       if mean
        A = k*A + (1 - k)*θ

    where θ is a parameter or a buffer, and A its average. t0 and t1 are the counts of the clock at the last step and at
    this step, and s is the start. The average is exponential if `half_life` is a time h, a share if it is a number f,
    and the mean if it is None. Weights count by how long ago they were, for any batch size. If you leave out a step,
    only the weights of this step are missing in the average. Before the start k is 0: the average equals the weights. A
    second step at the same count changes nothing.

    The averages are float32. Parameters in float64 and complex128 have averages of their own dtype, and other complex
    parameters have complex64. The averages exist from construction, and equal the weights at that time. After you load
    weights, call `reset_state()`. A `WeightAverage` is saved, moved and sharded like an optimizer, but updates no
    weights. Do not pass it as an optimizer to a trainer, GradScaler or `accelerator.prepare`. Save it under its own
    key.

    State of a parameter of shape S:
        average: S, A = θ

    Args:
        params: parameters, or groups of them.
        clock: the clock of the run. Call `clock.tick()` before `step()`.
        half_life: a time above 0, after which the weights count half (an exponential average), in any unit that the
            clock counts, or in `dur`. Or a number above 0, the half-life as a share of the time since the start: 0.05
            is 5 % of the time so far, while "0.05dur" is 5 % of the run. ln(2) is the mean. A number from 0.9 to below
            1 is an error, since it is probably a decay. Default: None, the mean of all weights since the start.
        start: when the average begins, a time of 0 or more. The ratio of the clock changes neither `start` nor
            `half_life`. Default: None, the time of construction, or when a group is added.
        optimizer: an optimizer of `optim`, whose master weights are averaged instead of bfloat16 parameters. Default:
            None.
        buffers: a module whose running statistics are averaged, too: its persistent floating-point buffers whose own
            name begins with `running_`, as in batch norms. They are one more group, after the groups of `params`. All
            other buffers keep their present values. Default: None, no buffers.

    Raises:
        TypeError, ValueError: `clock` is no Clock, `optimizer` is not from `optim`, `buffers` is no module, or
            `half_life` or `start` is no valid time. Or a parameter is neither floating-point nor complex. In a step:
            the clock is before the last step, does not count the unit, or may count differently on each rank.

    >>> import torch
    >>> from timesched import Clock
    >>> weight = torch.nn.Parameter(torch.zeros(1))
    >>> clock = Clock("10ba", samples_per_batch=8)
    >>> average = WeightAverage([weight], clock, half_life="8sp")
    >>> for _ in range(2):
    ...     _ = weight.detach().add_(1.0)
    ...     clock.tick()
    ...     average.step()
    >>> average.state[weight]["average"].item()
    1.25
    >>> with average.swapped():
    ...     weight.item()
    1.25
    >>> weight.item()
    2.0

    Sources: arXiv:2307.13813 for half-lives that scale with the batch, arXiv:2312.02696 for half-lives as a share of
    the time (its gamma is ln(2)/f - 1).
    """

    hyper = GROUP_RULES

    def __init__(
        self,
        params: ParamsT,
        clock: Clock,
        *,
        half_life: Time | str | float | None = None,
        start: Time | str | None = None,
        optimizer: RuleOptimizer | None = None,
        buffers: torch.nn.Module | None = None,
    ) -> None:
        if not isinstance(clock, Clock):
            raise TypeError(f"WeightAverage.clock={clock!r:.80}: this is no clock. Pass the run's timesched.Clock.")
        if optimizer is not None and not isinstance(optimizer, RuleOptimizer):
            raise TypeError(f"WeightAverage.optimizer={optimizer!r:.80}: it has no master weights. Pass one of optim.")
        if not isinstance(buffers, torch.nn.Module | None):
            raise TypeError(f"WeightAverage.buffers={buffers!r:.80}: this is no module. Pass one, as in buffers=model.")
        self.clock, self.optimizer, self.buffers = clock, optimizer, buffers
        self._buffer_names: list[str] = []
        self._buffer_group: ParamGroup = {"params": []}  # one of `param_groups`, if there are such buffers
        self._timing = Timing(half_life, start)
        super().__init__(params, {})
        averaged = select_statistics(buffers)
        if averaged:  # they have names if the parameters have names
            has_names = "param_names" in self.param_groups[0]
            self.add_param_group({"params": list(averaged.items() if has_names else averaged.values())})
            self._buffer_names, self._buffer_group = list(averaged), self.param_groups[-1]

    def add_param_group(self, param_group: ParamGroup) -> None:
        """Add a group whose average begins now, or at `start`."""
        self._check_not_swapped("add_param_group()")
        if isinstance(param_group, dict):
            param_group = {**self._timing.initial_values(self.clock), **param_group}
        super().add_param_group(param_group)

    def _replace_moved_buffers(self) -> None:
        """Put the module's present buffers into their group, and keep their states. `model.to()` replaces buffers."""
        present = [attrgetter(name)(self.buffers) for name in self._buffer_names]
        if all(map(is_, present, self._buffer_group["params"])):
            return
        states = [self.state.pop(buffer, {}) for buffer in self._buffer_group["params"]]
        self._buffer_group["params"] = present
        self.state.update(zip(present, states))

    def new_state(self, p: Tensor, group: ParamGroup) -> State:
        return {AVERAGE: self._weights(p).to(averaging_dtype(p), copy=True)}

    def _weights(self, p: Tensor) -> Tensor:
        """A parameter, or its master weights if the optimizer has them."""
        optimizer = None if self in swapped_averages else self.optimizer  # inside, the parameter holds the average
        if optimizer is not None and p.dtype is torch.bfloat16 and p in optimizer.state:
            return optimizer.float32_parameter(p)
        return p.detach()

    def reset_state(self, params: Any = None) -> None:
        """Start again from the current weights. Without `params`, all averages also start at the current time."""
        self._check_not_swapped("reset_state()")
        self._replace_moved_buffers()
        super().reset_state(params)
        if params is None:
            for group in self.param_groups:
                group.update(self._timing.initial_values(self.clock))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: the gradients belong to the optimizer of the model."""

    @makes_no_state
    def step(self, closure: Callable[[], object] | None = None) -> Any:
        """Add the current weights to the average, after `clock.tick()`.

        Raises `TypeError` for a closure. Raises `ValueError` if the clock is before the last step, or does not count
        the unit. After an error nothing has changed.
        """
        check_not_in_graph("WeightAverage.step() reads a clock, which no graph can. Call it outside of the graph.")
        self._check_not_swapped("step()")
        if closure is not None:
            raise TypeError("WeightAverage.step() computes no loss. Pass the closure to the optimizer of the model.")
        # The group of the buffers is left out: buffers follow their module.
        groups = [group for group in self.param_groups if group is not self._buffer_group]
        self.check_not_all_on_meta(all_parameters(groups))
        self._replace_moved_buffers()
        all_averages = iter(self._averages())
        for unit in self.units():
            self.clock._check_counts(unit)
        shares, present_values = self._timing.shares(self.param_groups, self.clock)
        for group, share in zip(self.param_groups, shares):
            averages = list(islice(all_averages, len(group["params"])))
            if share:
                self._move(group["params"], averages, share)
                group.update(present_values)

    def _move(self, params: list[Tensor], averages: list[Tensor], share: float) -> None:
        """Move the averages towards the weights, by a share of the difference.

        A share of 1 copies the weights. A sum would keep a NaN from before the start.
        """
        weights = local_shards(params)
        if all([x.dtype == average.dtype for x, average in zip(weights, averages)]):
            torch._foreach_copy_(averages, weights) if share == 1.0 else torch._foreach_lerp_(averages, weights, share)
            return
        for p, x, average in zip(params, weights, averages):  # one after the other, since each needs memory
            value = x if self.optimizer is None else local_shard(self._weights(p), p)
            average.copy_(value) if share == 1.0 else average.lerp_(value.to(average.dtype), share)

    def _averages(self) -> list[Tensor]:
        """The averages of all parameters in order, as the shards of this rank. They have followed their parameters."""
        return local_shards([state[AVERAGE] for state in self._keeper.follow(self)])

    def units(self) -> set[TimeUnit]:
        """The units that the average reads on its clock: of the half-life and the start, or of the run's length.

        >>> from timesched import Clock
        >>> average = WeightAverage([torch.zeros(1)], Clock("10ba"), half_life="200tok", start="0.5dur")
        >>> sorted(unit.value for unit in average.units())
        ['ba', 'tok']
        """
        return self._timing.times(self.clock.horizon).units

    # Swapped: the averages in the parameters

    @contextmanager
    def swapped(self, model: torch.nn.Module | None = None) -> Iterator[None]:
        """In a `with` block the parameters hold the average. After it, also after an error, they hold their weights.

        The block needs memory for one copy of the weights. State dicts, copies and pickles of this average are the same
        inside and outside of the block. Afterwards each weight has its parameter's present dtype and device.

        Args:
            model: the model that is evaluated. Its persistent buffers, and the buffers of `buffers`, have their values
                again after the block, unless they were replaced. FSDP modules drop their gathered parameters at both
                ends of the block. Default: None, only if no parameter is a DTensor.

        Raises:
            ValueError: a parameter is a DTensor, and there is no `model`.
            RuntimeError: this average is swapped already. Inside the block: `reset_state()`, `add_param_group()`, a
                step of this average, and a step or `float32_parameters()` of an optimizer that has one of the
                parameters.
        """
        self._check_not_swapped("swapped()")
        self._replace_moved_buffers()
        averages = self._averages()
        if model is None and any(distribution(p) is not None for p in all_parameters(self.param_groups)):
            raise ValueError(
                "WeightAverage.swapped(): FSDP may hold gathered copies of parameters that are DTensors. Pass the "
                "model, as in average.swapped(model)."
            )
        weights = [x.clone() for x in present_shards(self)]  # all before the first write: they may share storage
        buffers = [*persistent_buffers(self.buffers).values(), *persistent_buffers(model).values()]
        copies = [buffer.clone() for buffer in buffers]
        hook = register_optimizer_step_pre_hook(self._check_step)
        swapped_averages.append(self)
        try:
            drop_gathered(model)
            write_parameters(self, averages)
            yield
        finally:
            swapped_averages.remove(self)
            hook.remove()
            for buffer, copy in zip(buffers, copies):  # the block may have computed other statistics
                buffer.copy_(copy)
            self._replace_moved_buffers()
            write_parameters(self, weights)
            drop_gathered(model)

    def _check_not_swapped(self, action: str) -> None:
        if self in swapped_averages:
            raise RuntimeError(
                f"WeightAverage: {action} is not possible inside swapped(), where the parameters hold the average. "
                "Leave the `with` block first."
            )

    def _check_step(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        """The hook of all optimizers before a step."""
        if any(p in self.state for p in all_parameters(optimizer.param_groups)):
            self._check_not_swapped(f"a step of {type(optimizer).__name__}")

    # Saved and copied

    def load_state_dict(self, state_dict: StateDict) -> None:
        self._replace_moved_buffers()
        groups = state_dict.get("param_groups", ())  # if this or "state" is missing, `super()` raises an error
        numbers = list(chain.from_iterable(group.get("params", ()) for group in groups))
        pairs = zip(numbers, parameter_names(groups) or numbers)
        states = state_dict.get("state")
        lacking = [str(name) for number, name in pairs if states is not None and not states.get(number)]
        if lacking:
            raise ValueError(
                f"WeightAverage.load_state_dict(): the state lacks the average of the parameters {', '.join(lacking)}. "
                "torch's set_optimizer_state_dict drops it if a parameter is frozen. Pass the average itself to "
                "torch.distributed.checkpoint, as 'average': average, or set requires_grad around the load."
            )
        super().load_state_dict(state_dict)

    def __getstate__(self) -> StateDict:
        names = ("clock", "optimizer", "buffers", "_buffer_names", "_buffer_group", "_timing")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in names}}


def averaging_dtype(p: Tensor) -> torch.dtype:
    """The dtype in which weights are averaged: at least single precision."""
    return torch.float32 if p.itemsize < 4 else torch.promote_types(p.dtype, torch.float32)  # torch promotes no float8
