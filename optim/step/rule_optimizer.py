"""The base class of the optimizers here: a subclass defines its state and its update rule.

The class has five parts: methods of a subclass, the state, a step, a compiled step, the float32 values of parameters.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack as Unpack  # noqa: PLC0414  # for the optimizers, which import it from here

from timesched.findings import FindingWarning
from timesched.hints import argument_hint, arguments_of, show_options
from timesched.maths.ops import check_compiler
from timesched.once import warn_once
from timesched.rules import Rule
from timesched.types import ParamGroup, StateDict

from ..base.hyperparameters import NON_NEGATIVE, SWITCH, all_parameters, check_group, is_switched_off
from ..base.scalar_states import STEP, scalar_state
from ..base.sharding import local_shard, make_dtensor_like
from ..base.tensor_lists import Columns, Tensors
from ..precision.bits import join, split_
from ..precision.options import DEFAULTS, REMAINDER, RULES, check_precision, has_precision_option, requested_dtype
from ..precision.options import OptimizerOptions as OptimizerOptions  # noqa: PLC0414  # likewise
from ..precision.widened import make_widening
from ..state.keeper import cast_invariants, describe_tensor
from ..state.optimizer import Optimizer, State, fill_state
from ..state.step_wrapper import makes_no_state
from .execution import Route, eager_step, step_on_route, step_on_tensors
from .fused import Kernel
from .known_counts import KnownCounts
from .prepared import PreparedStep, prepare_step
from .work import Factors, RoundAsState, Work, convert_to_plain_tensors, group_by_kind

# On the CPU, inductor looks for fewer pairs of loops to fuse. All tensors share small arrays of factors, so it would
# compare every loop with every other. The loops of one tensor are still fused, and 150 tensors compile in 0.6 of the
# time.
INDUCTOR_ON_CPU = {"max_fusion_buffer_group_pairwise_attempts": 2}

MOST_GRAPHS = 2  # one for each set of parameters with gradients, such as with and without a frozen part

# The averages of weights inside of their `swapped()`: the parameters currently hold the average.
swapped_averages: list[Optimizer] = []

COMMON: dict[str, Rule] = {"lr": NON_NEGATIVE, "weight_decay": NON_NEGATIVE, "maximize": SWITCH}


def is_widened(group: ParamGroup, p: Tensor) -> bool:
    """Whether a parameter is stepped in float32 although it or its states are bfloat16."""
    return bool(group.get("state_dtype")) or (p.dtype is torch.bfloat16 and has_precision_option(group))


def has_remainder(group: ParamGroup, p: Tensor) -> bool:
    """Whether a parameter has master weights, whose low half is a state."""
    return p.dtype is torch.bfloat16 and bool(group.get("master_weights"))


def active_states(tensor_states: Sequence[str | None], group: ParamGroup, p: Tensor) -> list[str]:
    """The names of the states of elements that are not switched off, and of the remainder if there is one."""
    names = [name for name in tensor_states if name is not None]
    return [*names, REMAINDER] if has_remainder(group, p) else names


class RuleOptimizer(Optimizer):
    """An optimizer that is an update rule: a subclass defines the state and the rule.

    The rule is in two functions. `factors` computes the numbers of a step that are the same for all elements, such as
    1 - β1. `update` is the equation, over lists of tensors. Their arguments are:

        h: the hyperparameters of the group, by name.
        s: the scalar states (one number for each parameter, such as `step`), by name.
        f: the factors, by name.
        p: the parameters, and g their gradients: lists of tensors.
        Each state that belongs to the elements, by its name: a list with a tensor for each parameter.

    Those of `h`, `s` and `f` that change from step to step may be numbers or tensors; see execution.py.
    """

    may_be_missing = frozenset(("maximize",))
    elementwise: ClassVar[bool] = True  # the update of an element depends only on this element
    matrices_apart: ClassVar[bool] = False  # matrices have other states than vectors, and are updated separately
    reads: ClassVar[tuple[str, ...]] = (STEP,)  # the scalar states that `factors` needs
    counts_steps: ClassVar[bool] = True  # whether each parameter has the state `step`
    states: ClassVar[tuple[str, ...]] = ()  # the names of the states of elements, if no group switches one of them off
    decouples_weight_decay: ClassVar[bool] = False  # whether it is no L2 penalty, if no hyperparameter decides this
    fused: ClassVar[Kernel | None] = None  # torch's kernel for the whole step, where it supports the step
    _unprepared_steps = 0  # in a row, up to now

    def __init__(self, params: ParamsT, arguments: dict[str, Any]) -> None:
        """`arguments`: the constructor's arguments, `locals()` there; those in `hyper` are the defaults of groups."""
        self._compiled_step: Callable[..., None] | None = None
        self._parameter_sets: set[tuple[int, ...]] = set()  # the sets of parameters with gradients in compiled steps
        self._known_counts = KnownCounts()
        options = dict(arguments["options"])
        enable_global_step = options.pop("enable_global_step", False)
        for unknown in options.keys() - RULES.keys():
            hint = argument_hint(unknown, arguments_of(type(self)))
            raise TypeError(f"{type(self).__name__} has no argument {unknown!r}{hint}")
        defaults = {name: value for name, value in arguments.items() if name in self.hyper} | options
        super().__init__(params, defaults, enable_global_step)

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        show_options(cls, {"enable_global_step": False, **DEFAULTS})

    def __setstate__(self, state: StateDict) -> None:
        super().__setstate__(state)
        self._compiled_step, self._parameter_sets = None, set()  # a copy is compiled again
        self._known_counts = KnownCounts()

    # The methods of a subclass

    def scalar_states(self, group: ParamGroup) -> dict[str, Any]:
        """The first values of the states that are one number for each parameter, by name.

        The names may depend only on the types of the hyperparameters and on which of them are 0 or False: a prepared
        step asks only once. The same holds for `tensor_states` and `advances_count`.
        """
        return {STEP: 0.0} if self.counts_steps else {}

    def tensor_states(self, group: ParamGroup, p: Tensor) -> tuple[str | None, ...]:
        """The names of the states that belong to the elements, with None in place of a state that is switched off.

        Stochastic rounding uses the positions of the names: each state has different noise. The names may depend only
        on the parameter's kind, the types of the hyperparameters, and which of them are 0 or False.
        """
        return self.states

    def advances_count(self, group: ParamGroup) -> bool:
        """Whether a step advances a count that exists although neither the rule nor an option needs it.

        The answer may depend only on the types of the hyperparameters and on which of them are 0 or False.
        """
        return True

    def initial_state(self, p: Tensor, group: ParamGroup) -> State:
        """The initial state of a parameter, without the precision options: zeros. The optimizer does not change."""
        state: State = {name: scalar_state(p, first) for name, first in self.scalar_states(group).items()}
        state.update((name, torch.zeros_like(p)) for name in self.tensor_states(group, p) if name)
        return state

    @staticmethod
    def factors(h: Factors, s: Factors) -> Factors:
        """The factors that `update` needs in addition to the hyperparameters.

        They are Python numbers, or tensors with one element for each parameter. A factor with the name of a
        hyperparameter replaces it. `s` has the scalar states named in `reads`: `step` with this step counted, the
        others from the previous step.
        """
        raise NotImplementedError

    @classmethod
    def factors_and_scalars(cls, h: Factors, s: Factors, round_as_state: RoundAsState) -> tuple[Factors, Factors]:
        """The factors, and the new values of scalar states, by name. The count of steps is not among them.

        A rule defines this in place of `factors` if it has scalar states of its own. `round_as_state` rounds a number
        to the dtype of the state.
        """
        return cls.factors(h, s), {}

    @staticmethod
    def update(h: Factors, f: Factors, p: Tensors, g: Tensors, *_: Any, **states: Any) -> None:
        """Update parameters and states in place. A state that is switched off is not passed.

        If the update of an element depends on other elements (`elementwise` is False), `placement` is passed, too: the
        placement of distributed parameters, None for other parameters.
        """
        raise NotImplementedError

    def step_shared(self, works: list[Work]) -> list[Work]:
        """Outside of graphs, do the work that several ranks share. Returns the remaining work.

        A class that overrides this plans each of its steps.
        """
        return works

    # The state

    preinitialize = fill_state

    def initial_states(self, groups: list[ParamGroup]) -> dict[Tensor, State]:
        for group in groups:
            if group["params"]:
                self._warn_of_growing_penalty(group)
                check_group(RULES, group, f"{type(self).__name__}.")
        return super().initial_states(groups)

    def _warn_of_growing_penalty(self, group: ParamGroup) -> None:
        """Warn once in a process of an L2 penalty in groups with the width factors of `base_rule="adam"`."""
        is_decoupled = group.get("decoupled_weight_decay", self.algorithm_of(group).decouples_weight_decay)
        if group.get("base_rule") == "adam" and not is_decoupled and not is_switched_off(group.get("weight_decay", 0)):
            text = (
                f"{type(self).__name__}.weight_decay={group['weight_decay']!r}: with base_model=, the share of an L2 "
                "penalty grows with the width. Use AdamW, decoupled_weight_decay=True where it exists, or no penalty."
            )
            warn_once(RuleOptimizer, "growing penalty", text, 2, FindingWarning)

    def new_state(self, p: Tensor, group: ParamGroup) -> State:
        """The initial state of a parameter, with the states and dtypes of its group's precision options."""
        algorithm = self.algorithm_of(group)
        state: State = algorithm.initial_state(p, group)
        names = [name for name in algorithm.tensor_states(group, p) if name and state[name].shape == p.shape]
        # All groups share the same options, which may name states that only other algorithms have.
        others = [other.tensor_states(other.defaults, p) for other in self.algorithms() if other is not algorithm]
        check_precision(group, p, names, set(chain(*others)), type(self).__name__)
        if is_widened(group, p):  # an initial value is rounded once, from float32 to the dtype of the state
            wide_state = algorithm.initial_state(torch.zeros_like(p, dtype=torch.float32), group)
            for name in names:
                unasked = torch.float32 if has_precision_option(group) else state[name].dtype
                state[name] = wide_state[name].to(requested_dtype(group, name) or unasked)
        if has_remainder(group, p):
            state[REMAINDER] = torch.zeros_like(p)
        if STEP not in state and STEP in self._scalar_names(algorithm, group):
            state[STEP] = scalar_state(p)
        if p.is_cuda:
            for name, first in algorithm.scalar_states(group).items():
                if not isinstance(first, Tensor):
                    self._known_counts.remember([state[name]], first)
        return state

    def _scalar_names(self, algorithm: Any, group: ParamGroup) -> tuple[str, ...]:
        """The names of the algorithm's scalar states, and of a step count if an option needs it."""
        names = algorithm.scalar_states(group)
        counts = self.enable_global_step or group.get("stochastic_rounding")
        return (*names, STEP) if counts and STEP not in names else tuple(names)

    def needed_states(self, group: ParamGroup, p: Tensor) -> set[str]:
        algorithm = self.algorithm_of(group)
        return {*self._scalar_names(algorithm, group), *active_states(algorithm.tensor_states(group, p), group, p)}

    def state_names_to_sparsify(self) -> list[str]:
        names: dict[str, None] = {}  # keeps the order
        for group in self.param_groups:
            for p in group["params"]:
                for name in self.algorithm_of(group).tensor_states(group, p):
                    if name in self.state[p] and self.state[p][name].shape == p.shape:
                        names[name] = None
                if REMAINDER in self.state[p]:
                    names[REMAINDER] = None
        return list(names)

    # A step

    @makes_no_state
    def step(self, closure: Callable[[], object] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if torch.compiler.is_compiling():
            check_compiler()
            step_on_tensors(self.gather())
            return loss
        works = self._make_prepared_works()
        if works is None:
            active = self._step_unprepared()
        else:
            self._unprepared_steps = 0
            active = [p for work, _ in works for p in work.columns["p"]]
            for work, route in works:
                step_on_route(work, route, self._known_counts)
        # Torch's kernels do not change the versions of some tensors. Autograd needs them to notice that a tensor that
        # it kept for a backward pass has changed.
        torch.autograd.graph.increment_version(active)
        return loss

    def _make_prepared_works(self) -> list[tuple[Work, Route]] | None:
        """Let the state follow its parameters. Returns the work of the prepared step, or None if a kind differs."""
        states = self._keeper.unchanged_states(self)
        if states is None:
            self._keeper.follow_changes(self)
        prepared: PreparedStep | None = self._keeper.prepared_step
        if states is None or prepared is None or self._compiled_step is not None:
            return None
        return prepared.make_works(self, states)

    def _step_unprepared(self) -> list[Tensor]:
        """Plan a step and do it. Prepares the steps after it, and returns the parameters that were stepped."""
        params = all_parameters(self.param_groups)
        active = [p for p in params if p.grad is not None]
        if not active:
            self.check_not_all_on_meta(params)
        self._prepare_compiled_step(active)
        # Each stage returns the work that it leaves to the next stage.
        works = self.step_shared(self.gather())
        works = self._step_compiled(works)
        eager_step(works, self._known_counts)
        self._unprepared_steps += 1
        # The steps 2, 4, 8, ... in a row prepare the next one: kinds that change in every step are prepared rarely.
        is_due = self._unprepared_steps > 1 and self._unprepared_steps.bit_count() == 1
        if is_due and len(self.algorithms()) == 1 and type(self).step_shared is RuleOptimizer.step_shared:
            self._keeper.prepared_step = prepare_step(self, works)
        return active

    def gather(self) -> list[Work]:
        """The work of a step: parameters with a gradient, by group, device and dtype. Everything is checked first."""
        works: list[Work] = []
        numbers: dict[Tensor, int] = {}  # of all parameters, for stochastic rounding
        if any(group.get("stochastic_rounding") for group in self.param_groups):
            numbers = {p: i for i, p in enumerate(all_parameters(self.param_groups))}
        for group in self.param_groups:
            active = [p for p in group["params"] if p.grad is not None]
            if torch.compiler.is_compiling():
                self._check_state_fits(active)
            self._check_gradients(active, group)
            algorithm = self.algorithm_of(group)
            for params in group_by_kind(active, algorithm.matrices_apart):
                works.append(self._make_work(algorithm, group, params, numbers))
        return list(map(convert_to_plain_tensors, works))

    def _make_work(
        self, algorithm: Any, group: ParamGroup, params: list[Tensor], numbers: Mapping[Tensor, int]
    ) -> Work:
        """The work of some parameters of a group, with their gradients and states as they are."""
        hyper = {name: group[name] for name in algorithm.hyper}
        states = [self.state[p] for p in params]
        names = algorithm.tensor_states(group, params[0])
        scalar_names = self._scalar_names(algorithm, group)
        if STEP not in scalar_names and algorithm.advances_count(group) and all(STEP in state for state in states):
            scalar_names = (*scalar_names, STEP)
        scalars = self._columns(group, states, scalar_names)
        grads: list[Any] = [p.grad for p in params]
        columns: Columns = {"p": params, "g": grads}
        columns.update(self._columns(group, states, active_states(names, group, params[0])))
        widening = make_widening(group, columns, names, numbers) if is_widened(group, params[0]) else None
        return Work(type(algorithm), hyper=hyper, columns=columns, scalars=scalars, widening=widening)

    def _columns(self, group: ParamGroup, states: list[State], names: Sequence[str]) -> Columns:
        """The states of these names. Each is a list with one tensor for each parameter."""
        columns: Columns = {}
        for name in names:
            if name not in states[0]:
                self._raise_missing_state(group, name)
            columns[name] = [state[name] for state in states]
        return columns

    def _raise_missing_state(self, group: ParamGroup, name: str) -> None:
        """Raise `ValueError` for a state that a group needs after a change of its hyperparameters."""
        shown = [key for key in self.algorithm_of(group).hyper if key not in ("lr", "weight_decay")]
        values = ", ".join(f"{key}={group[key]!r}" for key in shown)
        raise ValueError(
            f"{type(self).__name__}: with {values}, a step needs the state {name!r}, which was not created at "
            "construction. Construct with these values, or with a tensor in place of a 0 that changes later."
        )

    def _check_state_fits(self, params: Tensors) -> None:
        """Raise `ValueError` for a parameter whose state does not fit it, since state cannot follow in a graph."""
        for p in params:
            if not self._keeper.has_fitting_state(p, self.state):
                raise ValueError(
                    f"{type(self).__name__}: a parameter is {p.dtype} of shape {tuple(p.shape)} on {p.device}, and its "
                    "state does not fit it. In a graph, state cannot follow: take one step outside the graph, use "
                    "optimizer.compile(), or call optimizer.reset_state()."
                )

    def _check_gradients(self, params: list[Tensor], group: ParamGroup) -> None:
        """Raise `RuntimeError` for a gradient that cannot be used."""
        name = type(self).__name__
        for p in params:
            g: Any = p.grad
            if g.layout is not torch.strided:
                raise RuntimeError(
                    f"{name}: a gradient of shape {tuple(g.shape)} has the layout {g.layout}, but it must be dense. "
                    "Use sparse=False in the layer, or torch.optim.SparseAdam."
                )
            has_other_dtype = g.dtype != p.dtype and not (g.dtype == torch.float32 and is_widened(group, p))
            if has_other_dtype or g.shape != p.shape:
                raise RuntimeError(
                    f"{name}: a parameter is {p.dtype} of shape {tuple(p.shape)}, but its gradient is {g.dtype} of "
                    f"shape {tuple(g.shape)}. Call zero_grad() after a cast or a resize, and do not change grad_dtype."
                )

    # A compiled step

    def compile(self, **options: object) -> None:
        """Compile the update with `torch.compile(fullgraph=True, **options)`, as `nn.Module.compile` does with a model.

        The update is one graph, starting at the first step. The numbers in the groups become 0-dim float64 tensors, so
        that a change compiles nothing again: change them with `group["lr"].fill_(value)` or a scheduler. Wrappers of
        `step`, added before or after, stay outside of the graph. On the CPU, inductor gets options that make compiling
        and steps faster, unless you pass `mode` or `options`.
        """
        check_compiler()
        self.hold_tensors()
        self._compiled_step = self._compile_function(step_on_tensors, options)
        self._parameter_sets = set()

    def _compile_function(self, function: Any, options: dict[str, Any]) -> Callable[..., Any]:
        """A function compiled with the options of `compile`."""
        # Dynamo counts recompilations for each code object: one optimizer must not use up the limit of another.
        inner = types.FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
        on_cpu = all(p.is_cpu for p in all_parameters(self.param_groups))
        if on_cpu and options.get("backend", "inductor") == "inductor" and not {"mode", "options"} & options.keys():
            options = {**options, "options": INDUCTOR_ON_CPU}
        return torch.compile(inner, **{"fullgraph": True, "dynamic": False, **options})

    def _prepare_compiled_step(self, active: list[Tensor]) -> None:
        """Prepare a compiled step of these parameters with gradients. A third set of parameters ends compiling."""
        if self._compiled_step is None or not active:
            return
        self._parameter_sets.add(tuple(map(id, active)))
        if len(self._parameter_sets) <= MOST_GRAPHS:
            self.hold_tensors()  # if the user has replaced a tensor by a number
        else:
            self._compiled_step = None
            warnings.warn(
                f"{type(self).__name__}: this is the third set of parameters with gradients, so later steps are not "
                "compiled. Compile only if the same parameters have gradients in every step.",
                stacklevel=6,
            )

    def _step_compiled(self, works: list[Work]) -> list[Work]:
        """Do the work in the compiled step, if there is one. Returns the remaining work."""
        if self._compiled_step is None or not works:
            return works
        try:
            self._compiled_step(works)
        except torch._dynamo.exc.FailOnRecompileLimitHit:  # too many shapes or settings: the step is eager
            return works
        return []

    def _accelerator_graph_capture_health_check(self) -> None:
        """torch calls this before it captures a step as a CUDA graph. Every optimizer here supports that."""

    _cuda_graph_capture_health_check = _accelerator_graph_capture_health_check  # its name before torch 2.10

    # The float32 values of parameters

    def float32_parameters(self) -> dict[Tensor, Tensor]:
        """The master weights, for an export, an average or an evaluation.

        Returns a dict from each parameter to a new tensor of its shape, distributed like the parameter. The tensor is
        in float32 for bfloat16 parameters (without master weights it has the same values), otherwise in the parameter's
        dtype. Raises `RuntimeError` inside `WeightAverage.swapped()`, where the parameters hold an average of weights.

        >>> import torch
        >>> import optim
        >>> weight = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
        >>> optimizer = optim.SGD([weight], lr=0.001, master_weights=True)
        >>> weight.grad = torch.ones_like(weight)
        >>> optimizer.step()
        >>> weight.item(), round(optimizer.float32_parameters()[weight].item(), 4)
        (1.0, 0.999)
        """
        self._keeper.follow(self)
        return {p: self.float32_parameter(p) for p in self.state}

    def float32_parameter(self, p: Tensor) -> Tensor:
        """The value of one parameter in `float32_parameters()`."""
        self._check_not_swapped(p)
        shard, state = local_shard(p.detach(), p), self.state[p]
        dtype = torch.float32 if p.dtype is torch.bfloat16 else p.dtype
        value = join(shard, local_shard(state[REMAINDER], p)) if REMAINDER in state else shard.to(dtype, copy=True)
        return make_dtensor_like(value, p)

    def _check_not_swapped(self, p: Tensor) -> None:
        """Raise `RuntimeError` for a parameter that holds an average, since its remainder belongs to the weight."""
        if any(p in average.state for average in swapped_averages):
            raise RuntimeError(
                f"{type(self).__name__}: master weights can neither be read nor loaded inside WeightAverage.swapped(), "
                "where the parameters hold the average. Leave its `with` block first."
            )

    @torch.no_grad()
    def load_float32_parameters(self, values: Mapping[Tensor, Tensor]) -> None:
        """Set parameters, and their remainders with master weights, from a dict of `float32_parameters()`.

        Parameters that are not in the dict do not change. A key that is not a parameter here is a `ValueError`, and so
        is a value whose shape or distribution differs or that is not a tensor of numbers. Then nothing changes. Inside
        `WeightAverage.swapped()`, it raises `RuntimeError`.
        """
        self._keeper.follow(self)
        for p, value in values.items():
            self._check_not_swapped(p)
            is_pair = isinstance(p, Tensor) and p in self.state and isinstance(value, Tensor)
            fits = is_pair and cast_invariants(value) == cast_invariants(p)
            if not fits or value.is_meta or not (p.is_complex() or value.is_floating_point()):
                raise ValueError(
                    f"{type(self).__name__}: {describe_tensor(value)} is not a value for {describe_tensor(p)}. Pass a "
                    "dict from parameters to tensors, as float32_parameters() returns it."
                )
        for p, value in values.items():
            if REMAINDER in self.state[p]:
                copy = local_shard(value, p).float().clone()  # split_ overwrites it
                split_(copy, [local_shard(p, p)], [local_shard(self.state[p][REMAINDER], p)])
            else:
                p.copy_(value)
