"""`WeightAverage`: an average of a model's weights over time instead of steps."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from itertools import chain, islice
from operator import attrgetter, is_
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT, register_optimizer_step_pre_hook

from timesched.maths.ops import check_not_in_graph, host_scalar
from timesched.run.clock import Clock
from timesched.run.horizon import Horizon, Position
from timesched.schedulers.half_life import half_lives
from timesched.time.timestamp import Timestamp
from timesched.time.units import Counter, EpochCounter, Exact, TimeUnit, unit_of
from timesched.time.value import Time
from timesched.types import ParamGroup, StateDict

from .base.hyperparameters import SWITCH, Number, all_parameters, rule_table
from .base.sharding import distribution, local_shard, local_shards
from .state.checkpoint import parameter_names
from .state.optimizer import Optimizer, State, fill_state
from .state.step_wrapper import makes_no_state
from .step.rule_optimizer import RuleOptimizer, swapped_averages

AVERAGE = "average"  # the key of the state

# The counts of the clock that a group holds, as plain ints. 0 as batches_per_epoch: not known.
COUNTS = ("iteration", "epoch", "batch", "sample", "token", "batch_in_epoch", "total_wct", "batches_per_epoch")
START = {name: f"start_{name}" for name in COUNTS}  # the keys of the counts when the average began
LAST = {name: f"last_{name}" for name in COUNTS}  # the keys of the counts at the last step
_COUNT = Number(least=0, integer=True)


class RunTimes(NamedTuple):
    """The half-life and the start of an average on one run."""

    horizon: Horizon
    counter: Counter  # measures the time: the counter of the half-life, else of the start, else of the run's length
    half_life: Exact | None  # a time on this counter; None for a share and for the mean
    start: Position | None  # None: when the average was constructed or the group was added
    units: set[TimeUnit]  # the units that the average reads


class WeightAverage(Optimizer):
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

    hyper = rule_table(dict.fromkeys([*START.values(), *LAST.values()], _COUNT), begun=SWITCH)
    _latest_times: RunTimes | None = None
    _compiled: Callable[..., None] | None = None

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
        self.half_life = _read_half_life(half_life)
        self.start = None if start is None else Time.from_input(start)
        if self.start is not None and self.start.exact < 0:
            raise ValueError(f"WeightAverage.start={str(start)!r}: it is before 0. Pass a time of 0 or more.")
        super().__init__(params, {})
        averaged = _select_buffers(buffers)
        if averaged:  # they have names if the parameters have names
            has_names = "param_names" in self.param_groups[0]
            self.add_param_group({"params": list(averaged.items() if has_names else averaged.values())})
            self._buffer_names, self._buffer_group = list(averaged), self.param_groups[-1]

    def add_param_group(self, param_group: ParamGroup) -> None:
        """Add a group whose average begins now, or at `start`."""
        self._check_not_swapped("add_param_group()")
        if isinstance(param_group, dict):
            param_group = {**self._initial_group_values(), **param_group}
        super().add_param_group(param_group)

    def _replace_moved_buffers(self) -> None:
        """Put the module's present buffers into their group, and keep their states. `model.to()` replaces buffers."""
        present = [attrgetter(name)(self.buffers) for name in self._buffer_names]
        if all(map(is_, present, self._buffer_group["params"])):
            return
        states = [self.state.pop(buffer, {}) for buffer in self._buffer_group["params"]]
        self._buffer_group["params"] = present
        self.state.update(zip(present, states))

    def _initial_group_values(self) -> dict[str, Any]:
        """The values of a group whose average equals the current weights."""
        now = self.clock.state_dict()
        return {**_save_moment(now, START), **_save_moment(now, LAST), "begun": self.start is None}

    preinitialize = fill_state

    def new_state(self, p: Tensor, group: ParamGroup) -> State:
        return {AVERAGE: self._weights(p).to(_average_dtype(p), copy=True)}

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
                group.update(self._initial_group_values())

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: the gradients belong to the optimizer of the model."""

    @makes_no_state
    def step(self, closure: Callable[[], object] | None = None) -> Any:
        """Add the current weights to the average, after `clock.tick()`.

        Raises `TypeError` for a closure. Raises `ValueError` if the clock is before the last step, or does not count
        the unit. After an error nothing has changed.
        """
        check_not_in_graph("WeightAverage.step() reads a clock, which no graph can. Call average.compile() instead.")
        self._check_not_swapped("step()")
        if closure is not None:
            raise TypeError("WeightAverage.step() computes no loss. Pass the closure to the optimizer of the model.")
        groups = [group for group in self.param_groups if group is not self._buffer_group]  # these follow their module
        self.check_not_all_on_meta(all_parameters(groups))
        self._replace_moved_buffers()
        self._keeper.follow(self)
        times = self._run_times()
        for unit in times.units:
            self.clock._check_counts(unit)
        now = self.clock.state_dict()
        has_begun = _has_begun(times, now)
        shares = [self._current_share(group, times, now, has_begun) for group in self.param_groups]
        present_values = {**_save_moment(now, LAST), "begun": has_begun}
        all_averages = iter(self._averages())
        moves_in_graph = []
        for group, share in zip(self.param_groups, shares):
            params = group["params"]
            averages, weights = list(islice(all_averages, len(params))), local_shards(params)
            if not share:
                continue
            if self._compiled is not None and self.optimizer is None and share != 1.0:
                moves_in_graph.append((averages, weights, host_scalar(share, torch.float64)))
            else:
                self._move(params, averages, weights, share)
            group.update(present_values)
        if self._compiled is not None and moves_in_graph:
            self._compiled(moves_in_graph)

    def _move(self, params: list[Tensor], averages: list[Tensor], weights: list[Tensor], share: float) -> None:
        """Move the averages towards the weights, by a share of the difference.

        A share of 1 copies the weights. A sum would keep a NaN from before the start.
        """
        if all([x.dtype == average.dtype for x, average in zip(weights, averages)]):
            torch._foreach_copy_(averages, weights) if share == 1.0 else torch._foreach_lerp_(averages, weights, share)
            return
        for p, x, average in zip(params, weights, averages):  # one after the other, since each needs memory
            value = x if self.optimizer is None else local_shard(self._weights(p), p)
            average.copy_(value) if share == 1.0 else average.lerp_(value.to(average.dtype), share)

    def _averages(self) -> list[Tensor]:
        """The averages of all parameters, as the shards of this rank."""
        params = all_parameters(self.param_groups)
        in_order = all(map(is_, params, self.state))  # nearly always true, and then no lookup is needed
        states = self.state.values() if in_order else [self.state[p] for p in params]
        return local_shards([state[AVERAGE] for state in states])

    def compile(self, **options: Any) -> None:
        """Compile the update of the averages with `torch.compile(fullgraph=True, **options)`, as one graph.

        The factor 1 - k is a tensor that each step writes, so that a new value needs no compilation. With master
        weights the averages are updated uncompiled.
        """
        # Dynamo limits recompilations by code object. Each average needs its own, or it would use up a shared limit.
        function = types.FunctionType(_move_all.__code__.replace(), _move_all.__globals__)
        self._compiled = torch.compile(function, **{"fullgraph": True, "dynamic": False, **options})

    # The share of a step

    def _run_times(self) -> RunTimes:
        """The half-life and the start on the run of the clock. They are kept until its horizon changes."""
        horizon, times = self.clock.horizon, self._latest_times
        if times is None or times.horizon is not horizon:
            start = None if self.start is None else horizon.place(self.start, scale=False)
            half_life: Exact | None = None
            if isinstance(self.half_life, Time):
                half_life, counter = horizon.place(self.half_life, scale=False)
            else:
                _, counter = start or horizon.place("1dur", scale=False)
            units = {unit_of(counter)} | (set() if start is None else {unit_of(start[1])})
            self._latest_times = times = RunTimes(horizon, counter, half_life, start, units)
        return times

    def _current_share(self, group: ParamGroup, times: RunTimes, now: Mapping[str, int], has_begun: bool) -> float:
        """1 - k for a group: the share of the current weights in the average. It is 0 if no time has passed."""
        last = self._read_moment(group, LAST)
        t0, t1 = _count(last, times.counter), _count(now, times.counter)
        if t1 < t0:
            unit = unit_of(times.counter).value
            raise ValueError(
                f"WeightAverage: the clock is at {t1}{unit}, and the last step was at {t0}{unit}. Load the "
                "state that was saved with the clock, or call reset_state() to start from the current weights."
            )
        if t1 == t0:
            return 0.0
        if times.start is not None and not (has_begun and group["begun"] and _has_begun(times, last)):
            return 1.0
        # The formulas of k in the class's docstring, each as 1 - k.
        if times.half_life is not None:
            return -math.expm1(-math.log(2) * half_lives(t1 - t0, times.half_life))
        s = times.start[0] if times.start else _count(self._read_moment(group, START), times.counter)
        mean = float((t1 - t0) / (t1 - s))
        if self.half_life is None or mean == 1.0:
            return mean
        return -math.expm1(math.log(2) / self.half_life * math.log1p(-mean))

    def _read_moment(self, group: ParamGroup, keys: Mapping[str, str]) -> Mapping[str, int]:
        """The moment that a group holds under these keys, in epochs of the present length."""
        moment = {name: group[key] for name, key in keys.items()}
        if moment["batches_per_epoch"] == (self.clock.horizon.conversion_factors.batches_per_epoch or 0):
            return moment
        known = {name: count for name, count in moment.items() if count}
        state = self.clock._read_state({**Timestamp().state_dict(), **known}).state_dict()
        return {**state, "total_wct": moment["total_wct"], "batch_in_epoch": math.floor(state["batch_in_epoch"])}

    def units(self) -> set[TimeUnit]:
        """The units that the average reads on its clock: of the half-life and the start, or of the run's length.

        >>> from timesched import Clock
        >>> average = WeightAverage([torch.zeros(1)], Clock("10ba"), half_life="200tok", start="0.5dur")
        >>> sorted(unit.value for unit in average.units())
        ['ba', 'tok']
        """
        return self._run_times().units

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
        self._keeper.follow(self)
        if model is None and any(distribution(p) is not None for p in all_parameters(self.param_groups)):
            raise ValueError(
                "WeightAverage.swapped(): FSDP may hold gathered copies of parameters that are DTensors. Pass the "
                "model, as in average.swapped(model)."
            )
        weights = [x.clone() for x in _present_shards(self)]  # all before the first write: they may share storage
        buffers = [*_persistent_buffers(self.buffers).values(), *_persistent_buffers(model).values()]
        copies = [buffer.clone() for buffer in buffers]
        hook = register_optimizer_step_pre_hook(self._check_step)
        swapped_averages.append(self)
        try:
            _drop_gathered(model)
            _write_parameters(self, self._averages())
            yield
        finally:
            swapped_averages.remove(self)
            hook.remove()
            for buffer, copy in zip(buffers, copies):  # the block may have computed other statistics
                buffer.copy_(copy)
            self._replace_moved_buffers()
            _write_parameters(self, weights)
            _drop_gathered(model)

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
        groups = state_dict.get("param_groups", self.param_groups)
        saved, present = len(groups), len(self.param_groups)
        if saved != present:
            raise ValueError(
                f"WeightAverage.load_state_dict(): the state has {saved} parameter groups, and this average has "
                f"{present}. Construct it with the saved groups, and with buffers= if buffers were saved."
            )
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
        names = ("clock", "optimizer", "half_life", "start", "buffers", "_buffer_names", "_buffer_group")
        own = {name: getattr(self, name) for name in names}
        return {**super().__getstate__(), **own}


def _read_half_life(half_life: object) -> Any:
    """Read a half-life: a time above 0, a share above 0, or None."""
    if half_life is None:
        return None
    if isinstance(half_life, (int, float)) and not isinstance(half_life, bool):
        if not (math.isfinite(half_life) and half_life > 0):
            raise ValueError(
                f"WeightAverage.half_life={half_life!r}: it is not finite and above 0. Pass a share of the time so "
                "far, such as 0.05, or a time with its unit, such as '200Mtok'."
            )
        if 0.9 <= half_life < 1:  # a usual decay, and a share that nobody needs
            batches = round(math.log(0.5) / math.log(half_life))
            raise ValueError(
                f"WeightAverage.half_life={half_life!r}: as a share, it would average over most of the run. For a "
                f"decay of {half_life!r} in each batch, pass '{batches}ba'. For a share of the time so far, pass less "
                "than 0.9, such as 0.05."
            )
        return float(half_life)
    time = Time.from_input(half_life)
    if time.exact <= 0:
        raise ValueError(f"WeightAverage.half_life={str(half_life)!r}: it is not above 0. Pass a longer time.")
    return time


def _has_begun(times: RunTimes, moment: Mapping[str, int]) -> bool:
    """Whether an average with a start has begun at a moment. Without one, it has always begun."""
    return times.start is None or _count(moment, times.start[1]) >= times.start[0]


def _count(moment: Mapping[str, int], counter: Counter) -> Exact:
    """The count of a counter at a moment."""
    if isinstance(counter, EpochCounter):
        return counter.after(moment["epoch"], moment["batch_in_epoch"])  # type: ignore[no-any-return]  # of numbers
    if counter is TimeUnit.SECOND:
        return Fraction(moment["total_wct"], 10**6)
    return moment[counter.name.lower()]


def _save_moment(moment: Mapping[str, int], keys: Mapping[str, str]) -> dict[str, int]:
    """The counts of a moment, under the keys of a group."""
    return {key: moment.get(name, 0) for name, key in keys.items()}


def _persistent_buffers(module: torch.nn.Module | None) -> dict[str, Tensor]:
    """The buffers of a module that its state dict has, by name."""
    buffers: dict[str, Tensor] = {}
    if module is None:
        return buffers
    for name, buffer in module.named_buffers():
        path, _, own_name = name.rpartition(".")
        if own_name not in module.get_submodule(path)._non_persistent_buffers_set:
            buffers[name] = buffer
    return buffers


def _select_buffers(module: torch.nn.Module | None) -> dict[str, Tensor]:
    """Select the buffers to average, by name: running statistics. The average of unit vectors is no unit vector."""
    statistics = {}
    for name, buffer in _persistent_buffers(module).items():
        if name.rpartition(".")[2].startswith("running_") and buffer.is_floating_point():
            statistics[name] = buffer
    return statistics


def _average_dtype(p: Tensor) -> torch.dtype:
    """The dtype of the average of a parameter."""
    if p.dtype in (torch.float64, torch.complex128):
        return p.dtype
    return torch.complex64 if p.is_complex() else torch.float32


def _move_all(moves: list[tuple[list[Tensor], list[Tensor], Tensor]]) -> None:
    """Move averages towards the weights by a share of the difference, for each group. This function is compiled."""
    for averages, weights, share in moves:
        for average, x in zip(averages, weights):
            average.lerp_(x.to(average.dtype), share.to(average.dtype).to(average.device))


def _present_shards(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The present values of the parameters on this rank. Writing into these tensors changes the parameters."""
    return local_shards([p.detach() for p in all_parameters(optimizer.param_groups)])


def _write_parameters(optimizer: torch.optim.Optimizer, values: list[Tensor]) -> None:
    """Copy values into the parameters, whose dtypes and devices stay."""
    for x, value in zip(_present_shards(optimizer), values):
        x.copy_(value)


def _drop_gathered(model: torch.nn.Module | None) -> None:
    """Drop the gathered parameters of FSDP modules, so that they are gathered again when needed."""
    if model is None:
        return
    from torch.distributed.fsdp import FSDPModule  # late, since it takes half as long to import as torch

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
