"""The base class of the optimizers here: a subclass defines its state and its update rule.

The class has four parts: methods of a subclass, the state, a step (stepper.py runs it), float32 values of parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack as Unpack  # noqa: PLC0414  # for the optimizers, which import it from here

from timesched.findings import warn_once
from timesched.hints import argument_hint, arguments_of, show_options
from timesched.maths.ops import check_compiler
from timesched.rules import Rule
from timesched.types import ParamGroup, StateDict

from ..base.hyperparameters import NON_NEGATIVE, SWITCH, check_group, is_switched_off
from ..base.scalar_states import STEP, scalar_state
from ..base.sharding import local_shard, make_dtensor_like
from ..base.tensor_lists import Tensors
from ..precision import options as precision
from ..precision.bits import join, split_
from ..precision.options import OptimizerOptions as OptimizerOptions  # noqa: PLC0414  # likewise
from ..state.optimizer import NewStateOptimizer, Optimizer, State
from ..state.step_wrapper import makes_no_state
from ..state.tensor_kinds import cast_invariants, describe_tensor
from .execution import step_on_tensors
from .fused import Kernel
from .gather import gather
from .stepper import Stepper
from .work import Factors, RoundAsState, Work

# The averages that are inside of `WeightAverage.swapped()`, which adds and removes them. Their parameters hold the
# average at present, so `_check_not_swapped` below refuses to read master weights.
swapped_averages: list[Optimizer] = []

COMMON: dict[str, Rule] = {"lr": NON_NEGATIVE, "weight_decay": NON_NEGATIVE, "maximize": SWITCH}


class RuleOptimizer(NewStateOptimizer):
    """An optimizer that is an update rule: a subclass defines the state and the rule.

    The rule is in two functions. `factors` computes the numbers of a step that are the same for all elements, such as
    1 - β1. `update` is the equation, over lists of tensors. Their arguments are:

        h: the hyperparameters of the group, by name.
        s: the scalar states (one number for each parameter, such as `step`), by name.
        f: the factors, by name.
        p: the parameters, and g their gradients: lists of tensors.
        Each state that belongs to the elements, by its name: a list with a tensor for each parameter.

    Those of `h`, `s` and `f` that change from step to step may be numbers or tensors; see work.py.
    """

    may_be_missing = frozenset(("maximize",))
    elementwise: ClassVar[bool] = True  # the update of an element depends only on this element
    matrices_apart: ClassVar[bool] = False  # matrices have other states than vectors, and are updated separately
    reads: ClassVar[tuple[str, ...]] = (STEP,)  # the scalar states that `factors` needs
    counts_steps: ClassVar[bool] = True  # whether each parameter has the state `step`
    states: ClassVar[tuple[str, ...]] = ()  # the names of the states of elements, if no group switches one of them off
    row_states: ClassVar[tuple[str, ...]] = ()  # those that have a number for each row, to which no precision applies
    decouples_weight_decay: ClassVar[bool] = False  # whether it is no L2 penalty, if no hyperparameter decides this
    fused: ClassVar[Kernel | None] = None  # torch's kernel for the whole step, where it supports the step
    prepares_steps: ClassVar[bool] = True  # False for a class that overrides `step_shared`

    def __init__(self, params: ParamsT, arguments: dict[str, Any]) -> None:
        """`arguments`: the constructor's arguments, `locals()` there; those in `hyper` are the defaults of groups."""
        self._stepper = Stepper()
        options = dict(arguments["options"])
        enable_global_step = options.pop("enable_global_step", False)
        for unknown in options.keys() - precision.RULES.keys():
            hint = argument_hint(unknown, arguments_of(type(self)))
            raise TypeError(f"{type(self).__name__} has no argument {unknown!r}{hint}")
        defaults = {name: value for name, value in arguments.items() if name in self.hyper} | options
        super().__init__(params, defaults, enable_global_step)

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls.prepares_steps = cls.step_shared is RuleOptimizer.step_shared
        show_options(cls, {"enable_global_step": False, **precision.DEFAULTS})

    def __setstate__(self, state: StateDict) -> None:
        super().__setstate__(state)
        self._stepper = Stepper()

    # The methods of a subclass: the plan of a step. Names and answers may depend only on the kind of the step, which is
    # defined in __init__.py.

    def scalar_states(self, group: ParamGroup) -> dict[str, Any]:
        """The first values of the states that are one number for each parameter, by name."""
        return {STEP: 0.0} if self.counts_steps else {}

    def tensor_states(self, group: ParamGroup, p: Tensor) -> tuple[str | None, ...]:
        """The names of the states that belong to the elements, with None in place of a state that is switched off.

        Stochastic rounding uses the positions of the names: each state has different noise.
        """
        return self.states

    def advances_count(self, group: ParamGroup) -> bool:
        """Whether a step advances a count that exists although neither the rule nor an option needs it."""
        return True

    # The methods of a subclass: the first values, and the rule

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
        """Outside of graphs, do the work that several ranks share. Returns the remaining work."""
        return works

    # The state

    def initial_states(self, groups: list[ParamGroup]) -> dict[Tensor, State]:
        for group in groups:
            if group["params"]:
                self._warn_of_growing_penalty(group)
                check_group(precision.RULES, group, f"{type(self).__name__}.")
                precision.warn_of_lost_updates(group, type(self).__name__)
        return super().initial_states(groups)

    def _warn_of_growing_penalty(self, group: ParamGroup) -> None:
        """Warn once in a process of an L2 penalty in groups with the width factors of `base_rule="adam"`."""
        is_decoupled = group.get("decoupled_weight_decay", self.algorithm_of(group).decouples_weight_decay)
        if group.get("base_rule") == "adam" and not is_decoupled and not is_switched_off(group.get("weight_decay", 0)):
            text = (
                f"{type(self).__name__}.weight_decay={group['weight_decay']!r}: with base_model=, the share of an L2 "
                "penalty grows with the width. Use AdamW, decoupled_weight_decay=True where it exists, or no penalty."
            )
            warn_once(RuleOptimizer, "growing penalty", text, 2)

    def new_state(self, p: Tensor, group: ParamGroup) -> State:
        """The initial state of a parameter, with the states and dtypes of its group's precision options."""
        algorithm = self.algorithm_of(group)
        state: State = algorithm.initial_state(p, group)
        if precision.has_precision_option(group) or group.get("state_dtype"):
            self._apply_precision_options(algorithm, state, p, group)
        if STEP not in state and STEP in self._scalar_names(algorithm, group):
            state[STEP] = scalar_state(p)
        if p.is_cuda:
            for name, first in algorithm.scalar_states(group).items():
                if not isinstance(first, Tensor):
                    self._stepper.known_counts.remember([state[name]], first)
        return state

    def _apply_precision_options(self, algorithm: Any, state: State, p: Tensor, group: ParamGroup) -> None:
        """Give a new state the dtypes of its group's precision options, and the remainder of a master weight."""
        candidates = [name for name in algorithm.tensor_states(group, p) if name not in (None, *algorithm.row_states)]
        names = [name for name in candidates if state[name].shape == p.shape]
        # All groups share the same options, which may name states that only other algorithms have.
        others = [other.tensor_states(other.defaults, p) for other in self.algorithms() if other is not algorithm]
        precision.check_precision(group, p, names, set(chain(*others)), type(self).__name__)
        if precision.is_widened(group, p):  # an initial value is rounded once, from float32 to the dtype of the state
            wide_state = algorithm.initial_state(torch.zeros_like(p, dtype=torch.float32), group)
            for name in names:
                default = torch.float32 if precision.has_precision_option(group) else state[name].dtype
                state[name] = wide_state[name].to(precision.requested_dtype(group, name) or default)
            if precision.has_remainder(group, p):
                state[precision.REMAINDER] = torch.zeros_like(p)

    def _scalar_names(self, algorithm: Any, group: ParamGroup) -> tuple[str, ...]:
        """The names of the algorithm's scalar states, and of a step count if an option needs it."""
        names = algorithm.scalar_states(group)
        counts = self.enable_global_step or group.get("stochastic_rounding")
        return (*names, STEP) if counts and STEP not in names else tuple(names)

    def needed_states(self, group: ParamGroup, p: Tensor) -> set[str]:
        algorithm = self.algorithm_of(group)
        tensor_states = algorithm.tensor_states(group, p)
        return {*self._scalar_names(algorithm, group), *precision.active_states(tensor_states, group, p)}

    def optional_states(self, group: ParamGroup, p: Tensor) -> set[str]:
        unrounded = {**group, "stochastic_rounding": False}  # then an option needs no count
        return {precision.REMAINDER, STEP}.difference(self._scalar_names(self.algorithm_of(group), unrounded))

    def state_names_to_sparsify(self) -> list[str]:
        names: dict[str, None] = {}  # keeps the order
        for group in self.param_groups:
            for p in group["params"]:
                for name in (*self.algorithm_of(group).tensor_states(group, p), precision.REMAINDER):
                    if name in self.state[p] and self.state[p][name].shape == p.shape:
                        names[name] = None
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
            step_on_tensors(gather(self))
        else:
            self._stepper.step(self)
        return loss

    def compile(self, **options: object) -> None:
        """Compile the update with `torch.compile(fullgraph=True, **options)`, as `nn.Module.compile` does with a model.

        The update is one graph, starting at the first step. The numbers in the groups become 0-dim float64 tensors, so
        that a change compiles nothing again: change them with `group["lr"].fill_(value)` or a scheduler. Wrappers of
        `step`, added before or after, stay outside of the graph. On the CPU, inductor gets options that make compiling
        and steps faster, unless you pass `mode` or `options`.
        """
        check_compiler()
        self.hold_tensors()
        self._stepper.compile(self, options)

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
        shard, low_half = local_shard(p.detach(), p), self.state[p].get(precision.REMAINDER)
        dtype = torch.float32 if p.dtype is torch.bfloat16 else p.dtype
        value = shard.to(dtype, copy=True) if low_half is None else join(shard, local_shard(low_half, p))
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
            if precision.REMAINDER in self.state[p]:
                copy = local_shard(value, p).float().clone()  # split_ overwrites it
                split_(copy, [local_shard(p, p)], [local_shard(self.state[p][precision.REMAINDER], p)])
            else:
                p.copy_(value)
