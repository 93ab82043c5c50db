"""The base class: an optimizer whose state exists completely before its first step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT
from torch.utils.hooks import RemovableHandle

from timesched.binding.owner import find_owners
from timesched.rules import Rule
from timesched.types import ParamGroup, StateDict

from ..base.hyperparameters import SWITCH, all_parameters, check_group, read_tags
from ..base.scalar_states import STEP, scalar_state
from ..base.sharding import remember_dtensor
from ..precision.options import name_dtypes
from . import checkpoint
from .keeper import State as State  # noqa: PLC0414  # for the optimizers, which import it from here
from .keeper import StateKeeper
from .step_wrapper import wrap_step


class Optimizer(torch.optim.Optimizer, ABC):
    """A `torch.optim.Optimizer` that allocates all of its state before the first step.

    A subclass creates the state of a parameter in `preinitialize()`, and only updates it in `step()`. A step runs
    without gradients, a closure with them. The constructor calls `preinitialize()` for all groups. When a group is
    added later, `preinitialize()` is called again, and `param_groups` then contains only the new group.

    >>> import torch
    >>> class Momentum(Optimizer):
    ...     def __init__(self, params, lr):
    ...         super().__init__(params, {"lr": lr})
    ...     def preinitialize(self):
    ...         for group in self.param_groups:
    ...             for p in group["params"]:
    ...                 self.state[p]["velocity"] = torch.zeros_like(p)
    ...     def step(self, closure=None):
    ...         for group in self.param_groups:
    ...             for p in group["params"]:
    ...                 if p.grad is not None:
    ...                     velocity = self.state[p]["velocity"].mul_(0.9).add_(p.grad)
    ...                     p.sub_(velocity, alpha=group["lr"])
    ...     def state_names_to_sparsify(self):
    ...         return ["velocity"]
    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> optimizer = Momentum([weight], lr=0.5)
    >>> list(optimizer.state[weight])
    ['velocity']
    >>> weight.grad = torch.ones(2)
    >>> optimizer.step()
    >>> weight.tolist()
    [0.5, 0.5]

    Args:
        params: tensors, named tensors, or dicts that are parameter groups. The `tags` of a group (one name or
            several) become a set.
        defaults: the hyperparameters of groups that do not set them.
        enable_global_step: give each parameter the state `step`, a count for `increment_global_step`.

    Raises:
        RuntimeError: a step created state that `preinitialize()` did not create. The message names the key.
    """

    hyper: ClassVar[Mapping[str, Rule]] = {}  # the rules for the values of a group, by key
    structural: ClassVar[tuple[str, ...]] = ()  # switches on which the state or the formula depends
    may_be_missing: ClassVar[frozenset[str]] = frozenset()  # keys that a state dict of torch's class may lack

    def __init__(self, params: ParamsT, defaults: dict[str, object], enable_global_step: bool = False) -> None:
        self._keeper = StateKeeper()
        self._is_ready = False  # afterwards, a new group gets its state at once
        self._is_stepping = False  # a step may call the step of its base class
        SWITCH.read(f"{type(self).__name__}.enable_global_step", enable_global_step)
        self.enable_global_step = enable_global_step
        self._zero_grad_pre_hooks: OrderedDict[int, Callable[..., Any]] = OrderedDict()
        self._zero_grad_post_hooks: OrderedDict[int, Callable[..., Any]] = OrderedDict()
        check_group(self.hyper, defaults, f"{type(self).__name__}.")
        if not isinstance(params, (Tensor, Iterable)):
            raise TypeError(
                f"{type(self).__name__}.params={params!r}: it must be a list or iterator. Pass the parameters, or "
                "dicts with the key 'params'."
            )
        super().__init__(params, defaults)
        self._is_ready = True
        self._keeper.keep(self, self.initial_states(self.param_groups))

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if not getattr(cls.step, "__isabstractmethod__", False):
            cls.step = wrap_step(cls.step)  # type: ignore[method-assign]  # what torch does at construction

    # The methods of a subclass: the state

    @abstractmethod
    def preinitialize(self) -> None:
        """Fill `self.state` for each parameter of `self.param_groups`. Only this method may create state."""

    # The methods of a subclass: the step, and what it accepts

    @abstractmethod
    def step(self, closure: Callable[[], object] | None = None) -> Any:
        """Update the parameters that have a gradient, and their state. Returns what the closure returns."""

    def algorithm_of(self, group: ParamGroup) -> Any:
        """The optimizer whose hyperparameters, states and formula a group has: this one, or one of several."""
        return self

    def algorithms(self) -> list[Any]:
        """The optimizers from which `algorithm_of` chooses one."""
        return [self]

    def check_combination(self, group: ParamGroup, where: str) -> None:
        """Raise `ValueError` if values that are valid alone cannot be combined. Subclasses override this."""

    def check_parameter(self, p: Tensor, group: ParamGroup, where: str) -> None:
        """Raise `ValueError` for a parameter that cannot be optimized in a group. Subclasses add checks."""
        if not (p.is_floating_point() or p.is_complex()):
            raise ValueError(
                f"{where}a parameter has dtype {p.dtype}. Pass only floating-point and complex parameters."
            )
        if p.layout is not torch.strided:
            raise ValueError(f"{where}a parameter has the layout {p.layout}. Pass only dense parameters.")

    # The methods of a subclass: what a load asks

    def needed_states(self, group: ParamGroup, p: Tensor) -> set[str]:
        """The names of the states that parameter `p` needs with a group's values. Empty if a subclass does not say."""
        return set()

    def optional_states(self, group: ParamGroup, p: Tensor) -> set[str]:
        """The names of the states that only precision options need: a load adds them at 0, or drops them."""
        return set()

    def adapt_state(self, state: State, p: Tensor, group: ParamGroup) -> State:
        """A parameter's saved state in the form of this class. Subclasses override this to read other forms.

        The form of torch's class of the same name is an example. `optional_states` are adapted afterwards.
        """
        return state

    # State, and groups that come later

    def initial_states(self, groups: list[ParamGroup]) -> dict[Tensor, State]:
        """The initial state of the parameters of some groups, in new tensors. The optimizer does not change.

        `preinitialize()` reads `param_groups` and fills `state`. So it runs while the optimizer has only these groups.
        """
        previous = self.param_groups, self.state
        self.param_groups, self.state = groups, defaultdict(dict)
        try:
            self.preinitialize()
            for p in all_parameters(groups):
                state = self.state[p]  # an entry also without state, so that a checkpoint names all parameters
                if self.enable_global_step:
                    state.setdefault(STEP, scalar_state(p))
            return dict(self.state)
        finally:
            self.param_groups, self.state = previous

    def reset_state(self, params: Tensor | Iterable[Tensor] | None = None) -> None:
        """Reset the state of these parameters, or of all parameters, to the state at construction.

        State tensors that fit their parameter are overwritten in place. A tensor that is in no group is a `ValueError`.

        >>> import torch
        >>> import optim
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> optimizer = optim.Adam([weight])
        >>> weight.grad = torch.ones(1)
        >>> optimizer.step()
        >>> optimizer.reset_state([weight])
        >>> optimizer.state[weight]["step"].item()
        0.0
        """
        self._keeper.reset(self, params)

    def add_param_group(self, param_group: ParamGroup) -> None:
        """Add a group, and create its state at once. An invalid group raises an error, and nothing is added."""
        where = f"{type(self).__name__}, group {len(self.param_groups)}: "
        group = self._read_new_group(param_group, where)
        algorithm, given_keys = self.algorithm_of(group), set(group)
        group_count = len(self.param_groups)
        try:
            super().add_param_group(group)
            if algorithm is not self:  # torch has filled the group from the defaults of this class
                for key in self.defaults.keys() - given_keys:
                    del group[key]
                group.update({**algorithm.defaults, **group})
            remember_dtensor(group["params"])
            for p in group["params"]:
                algorithm.check_parameter(p, group, where)
            states = self.initial_states(self.param_groups[group_count:]) if self._is_ready else {}
        except BaseException:
            del self.param_groups[group_count:]
            raise
        if self._is_ready:
            self._keeper.keep(self, states)

    def _read_new_group(self, param_group: ParamGroup, where: str) -> ParamGroup:
        """A copy of a group that a user adds, with its tags as a set and its parameters as a list. Checks its values.

        `where`: the begin of a message.
        """
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group={param_group!r}: it must be a dict. Pass a dict with the key 'params'.")
        if "params" not in param_group:
            raise ValueError(f"param_group={param_group!r}: it has no 'params'. Put its parameters under this key.")
        group = dict(param_group)
        if "tags" in group:
            group["tags"] = read_tags(group["tags"], where)
        algorithm = self.algorithm_of(group)
        if "algorithm" in group and self.hyper and "algorithm" not in self.hyper:
            raise ValueError(
                f"{where}algorithm={group['algorithm']!r}: {type(self).__name__} has one algorithm for all groups. "
                "Give such groups to optim.Muon, or make them without `matrices`."
            )
        check_group(algorithm.hyper, group, where)
        algorithm.check_combination({**algorithm.defaults, **group}, where)
        params = group["params"]
        if not isinstance(params, set):  # torch refuses a set, since it has no order
            group["params"] = params = [params] if isinstance(params, Tensor) else list(params)
        tensors = [x[1] if isinstance(x, tuple) and len(x) == 2 else x for x in params]
        if len({id(x) for x in tensors}) < len(tensors):
            raise ValueError(f"{where}params has a parameter twice. Pass each parameter once.")
        return group

    def check_not_all_on_meta(self, params: list[Tensor]) -> None:
        """Raise `RuntimeError` for a step that can train nothing: `model.to_empty()` has replaced the parameters."""
        if params and all(map(attrgetter("is_meta"), params)) and all(p.grad is None for p in params):
            raise RuntimeError(
                f"{type(self).__name__}: all parameters are on the meta device, and none has a gradient. "
                f"model.to_empty() replaces the parameters of a model. Make the {type(self).__name__} after it."
            )

    # Hyperparameters as tensors

    def hold_tensors(self) -> None:
        """Turn the hyperparameters that are numbers into 0-dim tensors, in float64 where the device has it.

        In a graph of your own, numbers are constants, but tensors are read again in each step, and schedules update
        them in place. Afterwards, the schedulers of this optimizer count in tensors, so that they can step in the
        graph, too. Call `hold_tensors()` again for groups that are added later. `compile()` does all this by itself.

        >>> import torch
        >>> import optim
        >>> optimizer = optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
        >>> optimizer.hold_tensors()
        >>> optimizer.param_groups[0]["lr"]
        tensor(0.5000, dtype=torch.float64)
        """
        for group in self.param_groups:
            for name in self.algorithm_of(group).hyper:
                self.hold_tensor(group, name)
        for scheduler in find_owners(self):
            scheduler.hold_tensors()

    def hold_tensor(self, group: ParamGroup, name: str) -> None:
        """Turn a group's hyperparameter from a number into a 0-dim tensor, which a schedule then updates in place.

        Tensors, hyperparameters that cannot change, and keys that are not hyperparameters stay as they are. For
        parameters on the meta device, the tensor is on the host, since it has a value.
        """
        rules = self.algorithm_of(group).hyper
        if name in rules and group["params"]:
            p = group["params"][0]
            group[name] = rules[name].held_value(group[name], torch.device("cpu") if p.is_meta else p.device)

    # Copies and checkpoints

    def __getstate__(self) -> StateDict:
        own = dict(enable_global_step=self.enable_global_step, _keeper=self._keeper, _is_ready=True, _is_stepping=False)
        return {**super().__getstate__(), **own}  # type: ignore[no-untyped-call, unused-ignore]  # torch 2.7

    def __setstate__(self, state: StateDict) -> None:
        super().__setstate__(state)
        self.defaults.pop("differentiable", None)  # torch adds this key; here it is not a hyperparameter
        for name in ("_zero_grad_pre_hooks", "_zero_grad_post_hooks"):
            self.__dict__.setdefault(name, OrderedDict())

    def state_dict(self) -> StateDict:
        """The state in torch's form, with the tensors in use; `tags` become sorted lists, dtypes in groups names."""
        self._keeper.follow(self)
        state = super().state_dict()
        for group in state.get("param_groups", ()):  # a hook may return any mapping
            group.update({key: name_dtypes(x) for key, x in group.items() if key.endswith("dtype")})
            if "tags" in group:
                group["tags"] = sorted(group["tags"])
        return state

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load a state dict of this class or of torch's class of the same name, at any step.

        The values are copied into the existing tensors. Everything is checked before anything changes.

        Raises:
            ValueError: the dict belongs to another optimizer, its groups, keys or shapes differ, or a hyperparameter
                breaks its rule. The message names the difference, and nothing has changed.
        """
        self._keeper.follow(self)
        saved = dict(state_dict)
        for pre_hook in list(self._optimizer_load_state_dict_pre_hooks.values()):
            replaced = pre_hook(self, saved)
            saved = saved if replaced is None else dict(replaced)
        checkpoint.load(self, saved)
        for post_hook in list(self._optimizer_load_state_dict_post_hooks.values()):
            post_hook(self)

    # Methods of the Cerebras suite, for scripts that are written for it

    def state_names_to_sparsify(self) -> list[str]:
        """The names of states to sparsify together with a sparse parameter. The base class returns an empty list."""
        return []

    def increment_global_step(self, p: Tensor) -> Tensor:
        """Add 1 to the state `step` of parameter `p` and return it, a 0-dim tensor.

        Raises `RuntimeError` if the parameter has no such state: construct with `enable_global_step=True`.
        """
        count: Tensor | None = self.state[p].get(STEP) if p in self.state else None
        if count is None:
            raise RuntimeError(
                f"{type(self).__name__}: this parameter has no state 'step'. Construct with enable_global_step=True."
            )
        count.view(1).add_(1)  # a graph on the CPU would drop this addition to a 0-dim float64 tensor itself
        return count

    def visit_state(self, fn: Callable[[object], object]) -> None:
        """Call `fn` with each state value. A result that is not None replaces the value."""
        for state in self.state.values():
            for name, value in state.items():
                if (result := fn(value)) is not None:
                    state[name] = result

    def apply(self, fn: Callable[[object], object]) -> Optimizer:
        """Call `fn` with this optimizer, like `nn.Module.apply` with modules. Returns the optimizer."""
        fn(self)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients, or fill them with zeros, between the hooks registered for it."""
        args, kwargs = (), {"set_to_none": set_to_none}
        for hook in list(self._zero_grad_pre_hooks.values()):
            hook(self, args, kwargs)
        super().zero_grad(set_to_none)
        for hook in list(self._zero_grad_post_hooks.values()):
            hook(self, args, kwargs)

    def register_zero_grad_pre_hook(self, hook: Callable[..., object]) -> RemovableHandle:
        """Call `hook(optimizer, args, kwargs)` before each `zero_grad`. Call `remove()` of the result to stop this."""
        handle = RemovableHandle(self._zero_grad_pre_hooks)
        self._zero_grad_pre_hooks[handle.id] = hook
        return handle

    def register_zero_grad_post_hook(self, hook: Callable[..., object]) -> RemovableHandle:
        """Call `hook(optimizer, args, kwargs)` after each `zero_grad`. Call `remove()` of the result to stop this."""
        handle = RemovableHandle(self._zero_grad_post_hooks)
        self._zero_grad_post_hooks[handle.id] = hook
        return handle


class NewStateOptimizer(Optimizer):
    """The base class of the optimizers here. A subclass creates the state of one parameter in `new_state`.

    A user's subclass of such an optimizer may still define `preinitialize`, which first calls this one.
    """

    @abstractmethod
    def new_state(self, p: Tensor, group: ParamGroup) -> State:
        """The initial state of a parameter, in new tensors."""

    def preinitialize(self) -> None:
        for group in self.param_groups:
            self.state.update((p, self.new_state(p, group)) for p in group["params"])

    def initial_states(self, groups: list[ParamGroup]) -> dict[Tensor, State]:
        if type(self).preinitialize is not NewStateOptimizer.preinitialize:  # a user's subclass adds states
            return super().initial_states(groups)
        return {p: self.new_state(p, group) for group in groups for p in group["params"]}
