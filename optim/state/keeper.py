"""State follows its parameter when the parameter is moved, cast or replaced.

Between steps, scripts change the parameters that the constructor saw: a model is moved or cast, a trainer puts other
tensors into the groups, the user clears `optimizer.state`. Each optimizer has a `StateKeeper`, which notices these
changes before any kernel runs.
"""

from __future__ import annotations

import warnings
from collections.abc import Container, Iterable, Mapping
from itertools import chain
from operator import is_
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from timesched.types import ParamGroup, StateDict

from ..base.hyperparameters import all_parameters
from ..base.sharding import remember_dtensor
from ..precision.options import REMAINDER
from .tensor_kinds import cast_invariants, describe_tensor, make_guards, tensor_kind

if TYPE_CHECKING:
    from .optimizer import Optimizer

State = dict[str, Any]


class StateKeeper:
    """Puts the state of an optimizer in place, and remembers the kinds of its parameters and states.

    `follow`, `reset` and a new group make states, and `keep` puts them in place. The optimizer has a reference to its
    keeper, so the keeper has none to the optimizer: its methods take it as argument.
    """

    def __init__(self) -> None:
        # The kind of each parameter, and the kinds of its states by name, since the last `keep`.
        self._kinds: dict[Tensor, tuple[Any, dict[str, Any]]] = {}
        self._guards: Any = None  # compares all kinds at once; None if that is not possible
        self.changes = 0  # how often the kinds have changed

    def __getstate__(self) -> StateDict:
        return {**self.__dict__, "_guards": None}  # guards can neither be copied nor pickled

    def follow(self, optimizer: Optimizer) -> list[State]:
        """Let the state follow all parameters, and return their states in order.

        If a parameter was moved or cast, its state is moved or cast with its values. If a parameter is new, or its
        state was cleared or had no values, the parameter gets its initial state. A different shape is a
        `ValueError`, and then nothing changes.
        """
        params, states = _parameters_and_states(optimizer)
        if self._guards is not None and len(params) == len(optimizer.state):  # no state of a parameter that left
            try:
                if self._guards.check(*_all_tensors(params, states)):
                    return states
            except TypeError:  # a parameter without state, another number of tensors, or an object that is no tensor
                pass
        self._follow_changes(optimizer)
        return _parameters_and_states(optimizer)[1]

    def _follow_changes(self, optimizer: Optimizer) -> None:
        """Let the state follow all parameters after a kind has changed."""
        class_name = type(optimizer).__name__
        places = _parameter_places(optimizer)
        for key in optimizer.state:
            if not isinstance(key, Tensor):
                raise ValueError(
                    f"{class_name}: optimizer.state has the key {key!r}, which is not a parameter. Delete "
                    f"optimizer.state[{key!r}], and keep such a value in param_groups."
                )

        # The parameters whose kind has changed, if the optimizer accepts them
        changed = {p: place for p, place in places.items() if not self.has_fitting_state(p, optimizer.state)}
        groups = _select_groups(optimizer, changed)
        remember_dtensor(changed)
        for group in groups:
            for p in group["params"]:
                optimizer.algorithm_of(group).check_parameter(p, group, f"{class_name}, {changed[p]}: ")

        # Initial states of the new kinds, with the values of the previous states where there are any
        fresh = optimizer.initial_states(groups) if groups else {}
        moved = {p: _move_state(optimizer.state.get(p), fresh[p], p, class_name, place) for p, place in changed.items()}
        self.keep(optimizer, moved)

    def reset(self, optimizer: Optimizer, params: Tensor | Iterable[Tensor] | None) -> None:
        """See `Optimizer.reset_state`."""
        places = _parameter_places(optimizer)
        chosen = {params} if isinstance(params, Tensor) else set(places if params is None else params)
        for unknown in chosen.difference(places):
            raise ValueError(
                f"{type(optimizer).__name__}: a tensor of shape {tuple(unknown.shape)} is in none of the groups. Pass "
                "parameters of the groups, or add it with add_param_group()."
            )
        states = optimizer.initial_states(_select_groups(optimizer, chosen))
        for p, fresh in states.items():
            if self.has_fitting_state(p, optimizer.state) and fresh.keys() == optimizer.state[p].keys():
                with torch.no_grad():  # in place, since the user may hold the addresses of the existing tensors
                    state = optimizer.state[p]
                    states[p] = {k: state[k].copy_(x) if isinstance(x, Tensor) else x for k, x in fresh.items()}
        self.keep(optimizer, states)

    def check_no_new_state(self, optimizer: Optimizer) -> None:
        """Raise `RuntimeError` if a step has created state."""
        for p, state in optimizer.state.items():
            known = self._kinds[p][1] if p in self._kinds else {}
            new_names = set(state).difference(known) if isinstance(state, dict) else {p}
            if new_names:
                names = ", ".join(sorted(map(repr, new_names)))
                raise RuntimeError(
                    f"{type(optimizer).__name__}: the state {names} of a parameter of shape "
                    f"{tuple(getattr(p, 'shape', ()))} was not created in preinitialize(). Create {names} there."
                )

    def keep(self, optimizer: Optimizer, states: Mapping[Tensor, State]) -> None:
        """Put these states in place, drop the state of parameters that are gone, and keep the kinds of all tensors."""
        optimizer.state.update(states)
        params = set(all_parameters(optimizer.param_groups))
        for stray in [p for p in optimizer.state if p not in params]:
            del optimizer.state[stray]
        self._kinds = {p: _state_kinds(p, state) for p, state in optimizer.state.items()}
        self._guards = None
        self.changes += 1
        if len(params) == len(optimizer.state):  # otherwise the next step gives state to a parameter that is new
            self._guards = make_guards(_all_tensors(*_parameters_and_states(optimizer)))

    def has_fitting_state(self, p: Tensor, states: Mapping[Tensor, State]) -> bool:
        """Whether a parameter and its state have the same kinds as when the state was created or last followed."""
        return p in states and self._kinds.get(p) == _state_kinds(p, states[p])


def _state_kinds(p: Tensor, state: State) -> tuple[Any, dict[str, Any]]:
    return tensor_kind(p), {name: tensor_kind(x) for name, x in state.items()}


def _parameter_places(optimizer: Optimizer) -> dict[Tensor, str]:
    """The place of each parameter, for messages. Raises `ValueError` for a parameter that the groups have twice."""
    places: dict[Tensor, str] = {}
    for i, group in enumerate(optimizer.param_groups):
        for j, p in enumerate(group["params"]):
            place = f"parameter {j} of group {i}"
            if p in places:
                raise ValueError(
                    f"{type(optimizer).__name__}: {places[p]} is also {place}. Put each parameter into one group, once."
                )
            places[p] = place
    return places


def _select_groups(optimizer: Optimizer, chosen: Container[Tensor]) -> list[ParamGroup]:
    """The groups of an optimizer that have some of the chosen parameters, reduced to these parameters."""
    groups = optimizer.param_groups
    reduced = [{**group, "params": list(filter(chosen.__contains__, group["params"]))} for group in groups]
    return [group for group in reduced if group["params"]]


def _parameters_and_states(optimizer: Optimizer) -> tuple[list[Tensor], list[Any]]:
    """All parameters, and their states in the same order. A parameter without state has None."""
    params = [p for group in optimizer.param_groups for p in group["params"]]  # in each step: without a call
    states = optimizer.state
    if len(params) == len(states) and all(map(is_, params, states)):  # nearly always, and then no lookup is needed
        return params, list(states.values())
    return params, list(map(states.get, params))


def _all_tensors(params: list[Tensor], states: list[State]) -> list[Any]:
    """All parameters, then all their states. Raises `TypeError` if a parameter has no state."""
    return [*params, *chain.from_iterable(map(dict.values, states))]


def _move_state(state: State | None, fresh: State, p: Tensor, class_name: str, place: str) -> State:
    """A parameter's state in tensors like the fresh ones. If there is no state with values, the fresh state itself."""
    if not state or any(isinstance(x, Tensor) and x.is_meta and not p.is_meta for x in state.values()):
        return fresh
    if REMAINDER in state and REMAINDER not in fresh:
        warnings.warn(
            f"{class_name}: {place} is {p.dtype} now, so the low bits of its master weights are lost. Call "
            "optimizer.float32_parameters() before such a cast, and load its result after the cast.",
            stacklevel=2,
        )
        state = {key: x for key, x in state.items() if key != REMAINDER}
    elif REMAINDER in fresh:
        state = {REMAINDER: fresh[REMAINDER], **state}
    for key in {**fresh, **state}:
        if key not in state or key not in fresh or cast_invariants(state[key]) != cast_invariants(fresh[key]):
            raise ValueError(
                f"{class_name}: {place} is {describe_tensor(p)}, and its state {key!r} is "
                f"{describe_tensor(state.get(key))} instead of {describe_tensor(fresh.get(key))}. To reset the state "
                "of this parameter, call optimizer.reset_state([parameter])."
            )
    with torch.no_grad():
        return {
            key: x if tensor_kind(x) == tensor_kind(fresh[key]) else fresh[key].copy_(x) for key, x in state.items()
        }
