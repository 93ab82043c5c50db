"""The base class of the optimizers here: a subclass defines its state and its update rule, and the rest follows."""

from __future__ import annotations

import inspect
import types
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import chain
from operator import itemgetter
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Unpack as Unpack  # noqa: PLC0414  # for the optimizers, which import it from here

from timesched.ops import check_compiler

from ..base.hyperparameters import SWITCH, Number, Rule, check_group
from ..base.sharding import local, notice_dtensor, placed_as
from ..base.tensor_lists import Tensors
from ..precision.bits import join, split_
from ..precision.options import DEFAULTS, REMAINDER, RULES, asked_dtype, check, has_remedy
from ..precision.options import Precision as Precision  # noqa: PLC0414  # likewise
from ..precision.widened import low
from ..state.keeper import form, text
from ..state.optimizer import Optimizer, State, counter
from ..state.step_wrapper import makes_no_state
from .execution import eager_step, step_on_tensors
from .known_counts import KnownCounts
from .work import STEP, Factors, Work, as_plain_tensors, grouped_by_kind

# On the CPU, inductor looks for fewer pairs of loops to fuse: all tensors share small arrays of factors, so that each
# would be compared with each. Those of one tensor are still found, and 150 tensors compile in 0.6 of the time.
INDUCTOR_ON_CPU = {"max_fusion_buffer_group_pairwise_attempts": 2}

MOST_GRAPHS = 2  # for sets of parameters that have gradients: such as with and without a part that is frozen

COMMON: dict[str, Rule] = {"lr": Number(low=0.0), "weight_decay": Number(low=0.0), "maximize": SWITCH}


class RuleOptimizer(Optimizer):
    """An optimizer that is an update rule: a subclass defines the state and the rule."""

    elementwise: ClassVar[bool] = True  # an element's update depends on this element alone
    by_rank: ClassVar[bool] = False  # matrices have other states than vectors
    reads: ClassVar[tuple[str, ...]] = (STEP,)  # the scalar states that `factors` needs
    # A static method that takes the step of contiguous tensors with torch's fused kernel, or gives False; see fused.py.
    fused: ClassVar[Any] = None

    def __init__(self, params: Any, given: dict[str, Any], enable_global_step: bool = False) -> None:
        """`given`: the arguments of the constructor, `locals()` there; those in `hyper` are the defaults of groups."""
        self._compiled: Callable[..., None] | None = None
        self._sets: set[tuple[int, ...]] = set()  # of parameters that had gradients in compiled steps
        self._known = KnownCounts()
        precision = given.get("precision", {})
        for unknown in precision.keys() - RULES.keys():
            raise TypeError(f"{type(self).__name__} has no argument {unknown!r}: use those that its docstring names.")
        super().__init__(params, {k: v for k, v in given.items() if k in self.hyper} | precision, enable_global_step)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        taken = list(inspect.signature(cls.__init__).parameters.values())[1:]
        if taken and taken[-1].name == "precision":  # by name, for help() and for configs
            kind = inspect.Parameter.KEYWORD_ONLY
            taken[-1:] = [inspect.Parameter(name, kind, default=first) for name, first in DEFAULTS.items()]
        cls.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]  # where inspect looks first

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._compiled, self._sets = None, set()  # a copy is compiled anew
        self._known = KnownCounts()

    # What a subclass says

    def scalar_states(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """The states that are one number for each parameter: what each begins with, by name."""
        return {STEP: 0.0}

    def tensor_states(self, group: Mapping[str, Any], p: Tensor) -> tuple[str | None, ...]:
        """The names of the states that `update` takes, in its order; None for one that is switched off."""
        raise NotImplementedError

    def parameter_state(self, p: Tensor, group: Mapping[str, Any]) -> State:
        """The initial state of a parameter: zeros."""
        state: State = {name: counter(p, first) for name, first in self.scalar_states(group).items()}
        state.update((name, torch.zeros_like(p)) for name in self.tensor_states(group, p) if name)
        return state

    @staticmethod
    def factors(h: dict[str, Any], s: dict[str, Any], stored: Callable[[Any], Any]) -> Factors:
        """The factors that `update` needs beside the hyperparameters `h`, from these and the scalar states `s`.

        They are Python numbers, or tensors with one element for each parameter. `s` has this step counted, and gets the
        new values of scalar states; `stored` rounds a number as the state will.
        """
        raise NotImplementedError

    @staticmethod
    def update(k: Factors, p: Tensors, g: Tensors, *states: Tensors) -> None:
        """Update parameters and states in place. `k` holds the hyperparameters, the factors, and the placement."""
        raise NotImplementedError

    def take_shared(self, works: list[Work]) -> list[Work]:
        """Take those steps, outside of graphs, for which ranks work together. Gives the other work."""
        return works

    # What follows from it

    def preinitialize(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] = state = self._state_in_its_dtypes(p, group)
                for name, first in self.rule(group).scalar_states(group).items():
                    if p.is_cuda and not isinstance(first, Tensor):
                        self._known.note([state[name]], first)

    def _state_in_its_dtypes(self, p: Tensor, group: Mapping[str, Any]) -> State:
        check_group(RULES, group, f"{type(self).__name__}: ")
        rule = self.rule(group)
        state: State = rule.parameter_state(p, group)
        names = [name for name in rule.tensor_states(group, p) if name and state[name].shape == p.shape]
        others = [other.tensor_states(other.defaults, p) for other in self.rules() if other is not rule]
        check(group, p, names, set(chain(*others)), f"{type(self).__name__}: ")
        how = low(group, [p])
        if how is not None:
            wide = rule.parameter_state(torch.zeros_like(p, dtype=torch.float32), group)
            for name in names:
                rest = torch.float32 if has_remedy(group) else state[name].dtype
                state[name] = wide[name].to(asked_dtype(group, name) or rest)
            if how.remainder:
                state[REMAINDER] = torch.zeros_like(p)
        if STEP in self._scalar_names(group):
            state.setdefault(STEP, counter(p))
        return state

    def state_names_to_sparsify(self) -> list[str]:
        names: dict[str, None] = {}
        for group in self.param_groups:
            for p in group["params"]:
                states = {name: self.state[p].get(name) for name in self.rule(group).tensor_states(group, p) if name}
                names.update((name, None) for name, x in states.items() if x is not None and x.shape == p.shape)
                names.update(dict.fromkeys({REMAINDER}.intersection(self.state[p])))
        return list(names)

    @makes_no_state
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if torch.compiler.is_compiling():
            check_compiler()
            step_on_tensors(self.gather())
            return loss
        self._keeper.follow(self)
        live = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        compiled = self._compiled if live and self._is_compiled_for(live) else None
        if compiled is not None:
            self.hold_tensors()  # where a number was put in
        works = self.take_shared(self.gather())
        if compiled is not None and works:
            with suppress(torch._dynamo.exc.FailOnRecompileLimitHit):  # of too many shapes or settings: then eagerly
                compiled(works)
                works = []
        for work in works:
            eager_step(work, self._known)
        # Torch's kernels leave some versions as they were, by which autograd notices that what it kept for a backward
        # pass has changed.
        torch.autograd.graph.increment_version(live)
        return loss

    def float32_parameters(self) -> dict[Tensor, Tensor]:
        """The master weights, for an export, an average or an evaluation.

        A dict from each parameter to a new tensor of its shape, distributed as it is: in float32 for bfloat16
        parameters (without master weights the same values), in their own dtype for others.

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
        found = {}
        for p, state in self.state.items():
            here = local(p.detach(), p)
            wide = torch.float32 if p.dtype is torch.bfloat16 else p.dtype
            value = join(here, local(state[REMAINDER], p)) if REMAINDER in state else here.to(wide, copy=True)
            found[p] = placed_as(value, p)
        return found

    @torch.no_grad()
    def load_float32_parameters(self, values: Mapping[Tensor, Tensor]) -> None:
        """Set parameters, and with master weights their remainders too, from a dict as `float32_parameters()` gives.

        Parameters that are not in it stay as they are. Raises `ValueError`, with nothing changed, for a tensor that is
        no parameter here, and for a value that is no tensor of numbers of its shape and distribution.
        """
        self._keeper.follow(self)
        for p, value in values.items():
            notice_dtensor(value)
            known = isinstance(p, Tensor) and p in self.state and isinstance(value, Tensor)
            if (
                not known
                or form(value) != form(p)
                or value.is_meta
                or not (p.is_complex() or value.is_floating_point())
            ):
                raise ValueError(
                    f"{type(self).__name__}: {text(value)} is given for {text(p)}: pass a dict from parameters to "
                    "tensors as float32_parameters() returns it."
                )
        for p, value in values.items():
            if REMAINDER in self.state[p]:
                split_(local(value, p).float().clone(), [local(p, p)], [local(self.state[p][REMAINDER], p)])
            else:
                p.copy_(value)

    def _accelerator_graph_capture_health_check(self) -> None:
        """What torch asks before a step is captured as a CUDA graph: every optimizer here can be."""

    _cuda_graph_capture_health_check = _accelerator_graph_capture_health_check  # its name before torch 2.10

    def compile(self, **options: Any) -> None:
        """Compile the update with `torch.compile(fullgraph=True, **options)`, as `nn.Module.compile` does with a model.

        The update is one graph from the first step on. The numbers in the groups become 0-dim float64 tensors, so that
        changing them compiles nothing again; change them with `group["lr"].fill_(value)` or a scheduler.
        What wraps `step`, before or after, stays outside. On the CPU, inductor gets options of its own that make
        compiling and steps faster, unless `mode` or `options` are given.
        """
        check_compiler()
        self.hold_tensors()
        self._compiled = self._compiled_function(step_on_tensors, options)
        self._sets = set()

    def _compiled_function(self, function: Any, options: dict[str, Any]) -> Callable[..., Any]:
        """A function compiled with the options of `compile`."""
        # Dynamo counts its recompilations by code object: one optimizer's must not use up the limit of another.
        inner = types.FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
        on_cpu = all(p.is_cpu for group in self.param_groups for p in group["params"])
        if on_cpu and options.get("backend", "inductor") == "inductor" and not {"mode", "options"} & options.keys():
            options = {**options, "options": INDUCTOR_ON_CPU}
        return torch.compile(inner, **{"fullgraph": True, "dynamic": False, **options})

    def _is_compiled_for(self, live: list[Tensor]) -> bool:
        """Whether a step of these parameters, which have gradients, is compiled: at a third set of them, no more."""
        if self._compiled is None:
            return False
        self._sets.add(tuple(map(id, live)))
        if len(self._sets) > MOST_GRAPHS:
            self._compiled = None
            warnings.warn(
                f"{type(self).__name__}: this is the third set of parameters that have gradients, and each would be "
                "compiled anew: steps are taken uncompiled from now on. Compile only where the same parameters have "
                "gradients in every step.",
                stacklevel=4,
            )
        return self._compiled is not None

    def gather(self) -> list[Work]:
        """The work of a step: what has a gradient, by group, device and dtype. Checks all of it before any is done."""
        works: list[Work] = []
        numbers: dict[Tensor, int] = {}
        if any(group.get("stochastic_rounding") for group in self.param_groups):
            every = [p for group in self.param_groups for p in group["params"]]
            numbers = {p: i for i, p in enumerate(every)}
        for group in self.param_groups:
            live = [p for p in group["params"] if p.grad is not None]
            grads = [p.grad for p in live]
            self._check(live, grads, group)
            rule = self.rule(group)
            h = {name: group[name] for name in rule.hyper}
            scalars = self._scalar_names(group)
            for alike in grouped_by_kind(live, rule.by_rank):
                how = low(group, alike, numbers)
                names = (*rule.tensor_states(group, alike[0]), *([REMAINDER] if how and how.remainder else []))
                states = [self.state[p] for p in alike]
                # Steps are counted wherever there are counts beside the states in use, also while no factor needs them.
                more = STEP not in scalars and None not in names and all(STEP in state for state in states)
                counted = (*scalars, STEP) if more else scalars
                for name in (*counted, *names):
                    if name is not None and name not in states[0]:
                        self._refuse(group, name)
                work = Work(
                    type(rule),
                    h,
                    alike,
                    grads if len(alike) == len(live) else [p.grad for p in alike if p.grad is not None],
                    {name: list(map(itemgetter(name), states)) for name in counted},
                    [list(map(itemgetter(name), states)) if name else [] for name in names],
                    low=how,
                )
                works.append(as_plain_tensors(work))
        return works

    def _check(self, params: Tensors, grads: Tensors, group: Mapping[str, Any]) -> None:
        name = type(self).__name__
        if torch.compiler.is_compiling():
            for p in params:
                if not self._keeper.fits(p, self.state):
                    raise ValueError(
                        f"{name}: a parameter is {p.dtype} of shape {tuple(p.shape)} on {p.device}, and has no state "
                        "that fits it. In a graph state cannot follow its parameter: take one step outside the graph, "
                        "where it does, use optimizer.compile(), or call optimizer.reset_state() to begin anew."
                    )
        if all(
            [g.layout is torch.strided and g.shape == p.shape and g.dtype == p.dtype for p, g in zip(params, grads)]
        ):
            return
        for p, g in zip(params, grads):
            if g.layout is not torch.strided:
                raise RuntimeError(
                    f"{name}: a gradient of shape {tuple(g.shape)} has the layout {g.layout}: only dense gradients are "
                    "supported; make the layer give dense ones (sparse=False), or use torch.optim.SparseAdam."
                )
            wide = g.dtype == torch.float32 and low(group, [p]) is not None
            if g.shape != p.shape or (g.dtype != p.dtype and not wide):
                raise RuntimeError(
                    f"{name}: a parameter is {p.dtype} of shape {tuple(p.shape)} and its gradient {g.dtype} of shape "
                    f"{tuple(g.shape)}, and they have to be alike: call zero_grad() after a cast or a resize, and "
                    "leave grad_dtype as it is."
                )

    def needed_states(self, group: Mapping[str, Any], p: Tensor) -> set[str]:
        how = low(group, [p])
        names = (
            *self._scalar_names(group),
            *self.rule(group).tensor_states(group, p),
            REMAINDER if how and how.remainder else None,
        )
        return {name for name in names if name is not None}

    def _refuse(self, group: Mapping[str, Any], name: str) -> None:
        values = ", ".join(
            f"{key}={group[key]!r}" for key in self.rule(group).hyper if key not in ("lr", "weight_decay")
        )
        raise ValueError(
            f"{type(self).__name__}: with {values} the state {name!r} is needed, which was not asked for at "
            "construction; construct with these values, or with a tensor where one is 0 now and changes later."
        )

    def _scalar_names(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        names = self.rule(group).scalar_states(group)
        counts = self.enable_global_step or group.get("stochastic_rounding")
        return (*names, STEP) if counts and STEP not in names else tuple(names)
