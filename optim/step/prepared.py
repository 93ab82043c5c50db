"""A prepared step: it keeps what the kind of a step decides (defined in __init__.py), for all steps of this kind.

The kind decides which states a parameter has, whether torch has a kernel, and how the step runs. Each step compares the
kind, which takes a few calls for a group. If nothing differs, the step takes the present tensors and numbers, and runs
as it was prepared. Otherwise it is planned from the start (stepper.py), and a later step is prepared again.

A prepared step has no tensors, and no views of tensors: it finds parameters, gradients and states where they are now.
Three objects compare the kind:

* of parameters and states: the keeper, in each step. It counts their changes (state/keeper.py);
* of gradients: `PreparedStep.gradient_guards`;
* of groups, and which parameters have a gradient: `PreparedGroup.make_work`.

These steps are not prepared, but planned each time:

* with a hyperparameter that is a tensor, or anything else than numbers, switches and None;
* with several algorithms or work that ranks share (Muon), or with parameters that are complex or distributed;
* of bfloat16 parameters with a precision option, or of any parameters with `state_dtype`;
* of a group whose tensors differ in dtype or device, or are not all contiguous; on devices other than the CPU and CUDA;
* compiled steps.
"""

from __future__ import annotations

from operator import is_, itemgetter
from typing import Any, NamedTuple

from timesched.types import ParamGroup

from ..base.tensor_lists import Columns, select
from ..precision.options import RULES
from ..state.optimizer import Optimizer, State
from ..state.tensor_kinds import make_guards
from .routes import Part, Route
from .work import NUMBERS, Work


class PreparedGroup:
    """The step of one group: the kinds that it compares, and how it makes its work.

    `work` and `route` are from the planned step. Without a gradient, the work is empty, and there is no route.
    """

    def __init__(self, group: ParamGroup, work: Work, route: Route | None) -> None:
        self.route = route
        # Every step compares these:
        self.size, self._keys = len(group["params"]), frozenset(group)
        self._names = _number_names(group, work.algorithm)
        numbers = _read_numbers(group, self._names)
        self._types, self._truths = list(map(type, numbers)), list(map(bool, numbers))  # bool: neither 0 nor False
        self._active = [i for i, p in enumerate(group["params"]) if p.grad is not None]
        self._frozen = [i for i, p in enumerate(group["params"]) if p.grad is None]
        # The work of every step has these:
        self._algorithm, self._scalar_names = work.algorithm, list(work.scalars)
        self._state_names = [name for name in work.columns if name not in ("p", "g")]

    def make_work(self, group: ParamGroup, states: list[State]) -> Work | None:
        """The work of a step, whose gradients are not checked yet. None if the group is of another kind."""
        params = list(group["params"])  # a user may have put another iterable there, and kernels need lists
        if len(params) != self.size or group.keys() != self._keys:
            return None
        numbers = _read_numbers(group, self._names)
        if list(map(type, numbers)) != self._types or list(map(bool, numbers)) != self._truths:
            return None
        if self._frozen:
            if any([params[i].grad is not None for i in self._frozen]):
                return None
            params, states = select(params, self._active), select(states, self._active)
        columns: Columns = {"p": params, "g": [p.grad for p in params]}
        scalars: Columns = {}
        for name in self._state_names:
            columns[name] = list(map(itemgetter(name), states))
        for name in self._scalar_names:
            scalars[name] = list(map(itemgetter(name), states))
        # The values of the hyperparameters are the first of the numbers.
        return Work(self._algorithm, dict(zip(self._algorithm.hyper, numbers)), columns, scalars)


class PreparedStep(NamedTuple):
    """The step of an optimizer."""

    groups: list[PreparedGroup]
    gradient_guards: Any  # compares the gradients of all groups
    changes: int  # of the kinds of parameters and states, up to the preparation: the keeper's count
    enable_global_step: bool  # the optimizer's attribute, which decides about the state `step`

    def make_works(self, optimizer: Optimizer, states: list[State]) -> list[Part] | None:
        """The works of a step with their routes, or None if a kind differs. `states`: of all parameters, in order."""
        param_groups = optimizer.param_groups
        if self.changes != optimizer._keeper.changes or len(self.groups) != len(param_groups):
            return None
        if self.enable_global_step != optimizer.enable_global_step:
            return None
        parts: list[Part] = []
        gradients: list[Any] = []
        end = 0
        for group, prepared in zip(param_groups, self.groups):
            start, end = end, end + prepared.size
            work = prepared.make_work(group, states[start:end])
            if work is None:
                return None
            if prepared.route is not None:
                parts.append((work, prepared.route))
                gradients += work.columns["g"]
        return parts if self.gradient_guards.check(*gradients) else None


def prepare_step(optimizer: Optimizer, parts: list[Part]) -> PreparedStep | None:
    """Prepare the steps after a planned step, which had these parts. None if a step like this is not prepared.

    Each group must have one part, with all of its parameters that have a gradient. The parts are in the groups' order.
    """
    algorithm = type(optimizer)
    remaining_parts = iter(parts)
    groups: list[PreparedGroup] = []
    gradients: list[Any] = []
    for group in optimizer.param_groups:
        if not all(isinstance(x, tuple(NUMBERS)) for x in _read_numbers(group, _number_names(group, algorithm))):
            return None
        active = [p for p in group["params"] if p.grad is not None]
        if not active:
            groups.append(PreparedGroup(group, Work(algorithm, hyper={}, columns={}, scalars={}), route=None))
            continue
        work, route = next(remaining_parts)
        is_whole = len(active) == len(work.columns["p"]) and all(map(is_, active, work.columns["p"]))
        if not is_whole or work.widening or not route.on_numbers:
            return None  # the group has several parts, or the part has views of the tensors
        groups.append(PreparedGroup(group, work, route))
        gradients += work.columns["g"]
    guards = make_guards(gradients) if gradients else None
    step = PreparedStep(groups, guards, optimizer._keeper.changes, optimizer.enable_global_step)
    return None if guards is None else step


def _number_names(group: ParamGroup, algorithm: Any) -> list[str]:
    """The hyperparameters of a group, then its precision options."""
    return [*algorithm.hyper, *(name for name in RULES if name in group)]


def _read_numbers(group: ParamGroup, names: list[str]) -> list[Any]:
    """The values of a group under these names, with tuples in place of lists; then the elements of the tuples."""
    values: list[Any] = []
    elements: list[Any] = []
    for name in names:
        value = group[name]
        if isinstance(value, (list, tuple)):
            value = tuple(value)
            elements += value
        values.append(value)
    return values + elements
