"""Steps of an optimizer of any class on copies of one of its parameters, which the optimizer itself does not notice."""

from __future__ import annotations

import copy
import gc
import random
import sys
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any
from weakref import ReferenceType

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils._pytree import tree_flatten_with_path, tree_leaves

from ..base.sharding import local

Path = tuple[Any, ...]  # where a leaf is in nested dicts, lists and tuples
Values = dict[str, dict[str, Any]]  # what there is of a parameter: its "state", and the other keys of its "group"


class Unproven(Exception):
    """Why the state of an optimizer cannot be made before its first step, in words."""


class Trial:
    """An optimizer of the same class and attributes, whose only parameters are copies of one with given weights.

    Its other groups are there, without parameters: what a class does may depend on the place of a group.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, group: dict[str, Any], p: Tensor, weights: Sequence[Tensor]
    ) -> None:
        self.optimizer: Any = type(optimizer).__new__(type(optimizer))
        vars(self.optimizer).update(copied(attributes(optimizer), optimizer, self.optimizer))
        vars(self.optimizer).update({name: OrderedDict() for name in vars(optimizer) if is_hooks(name)})
        self.params = [parameter_like(p, x) for x in weights]
        self.optimizer.param_groups = []
        for each in optimizer.param_groups:
            others = copied(without_params(each), optimizer, self.optimizer)
            self.optimizer.param_groups.append({**others, "params": []})
            if each is group:
                self.group: dict[str, Any] = self.optimizer.param_groups[-1]
        self.group["params"] += self.params
        self.optimizer.state = copy.copy(optimizer.state)
        self.optimizer.state.clear()
        if p in optimizer.state:
            for q in self.params:
                self.optimizer.state[q] = copied(optimizer.state[p], optimizer, self.optimizer)

    def values(self) -> list[Values]:
        """What there is of each parameter now."""
        state, group = self.optimizer.state, without_params(self.group)
        return [{"state": state.get(q, {}), "group": group} for q in self.params]

    def begin_with(self, initial: Sequence[Values]) -> None:
        """Give each parameter its values from before the first step."""
        for q, values in zip(self.params, copy.deepcopy(initial)):
            give(self.optimizer, self.group, q, values)

    def step(self, gradients: Sequence[Tensor | None], seed: int) -> None:
        """A step of the class itself, which none of what wraps or follows the real optimizer's step hears of.

        Raises Unproven if the class raises anything, or changes what is neither a parameter's state nor its group.
        """
        before = copied(self.others(), self.optimizer, self.optimizer)
        self.unchecked_step(gradients, seed)
        refuse_other_keys(self.optimizer)
        for path in differences(before, self.others()):
            raise Unproven(f"its step changes an attribute of the {path[0].key}, {path[1].key!r}")

    def others(self) -> dict[str, Any]:
        """What a step changes only where a class keeps its state elsewhere."""
        found = {"optimizer": attributes(self.optimizer)}
        return {**found, **{f"parameter {i}": dict(vars(q)) for i, q in enumerate(self.params)}}

    def unchecked_step(self, gradients: Sequence[Tensor | None], seed: int) -> None:
        """A step that may change anything."""
        for q, gradient in zip(self.params, gradients):
            q.grad = None if gradient is None else gradient.clone()
        set_seeds(seed, self.params[0].device)
        try:
            type(self.optimizer).step(self.optimizer)
        except Exception as error:
            raise Unproven(f"its step raises {type(error).__name__}: {error}") from error


def copied(values: Any, optimizer: torch.optim.Optimizer, instead: torch.optim.Optimizer) -> Any:
    """A copy in which bound methods of the optimizer are those of another one."""
    known: dict[int, Any] = {id(optimizer): instead}
    for x in tree_leaves(values):
        if isinstance(x, Tensor):  # which deepcopy() cannot copy where tensors are fake
            known[id(x)] = x.detach().clone()
    return copy.deepcopy(values, known)


def parameter_like(p: Tensor, weights: Tensor) -> Tensor:
    """A new parameter with these weights and the attributes of `p`."""
    q = weights.detach().clone()
    q = Parameter(q, p.requires_grad) if isinstance(p, Parameter) else q.requires_grad_(p.requires_grad)
    vars(q).update({name: copy.deepcopy(x) for name, x in vars(p).items() if name not in vars(q)})
    return q


def attributes(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What a copy takes over. A scheduler or trainer may have put a `step` there, which is bound to the real one."""
    left_out = ("step", "state", "param_groups")
    return {name: x for name, x in vars(optimizer).items() if name not in left_out and not is_hooks(name)}


def is_hooks(name: str) -> bool:
    return name.startswith("_optimizer_") and name.endswith("_hooks")


def without_params(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: x for key, x in group.items() if key not in ("params", "param_names")}


def give(optimizer: torch.optim.Optimizer, group: dict[str, Any], p: Tensor, values: Values) -> None:
    """Add to the state of a parameter and to its group."""
    if values["state"]:
        optimizer.state[p].update(values["state"])
    group.update(values["group"])


def refuse_other_keys(optimizer: torch.optim.Optimizer) -> None:
    params = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for key in optimizer.state:
        if id(key) not in params:
            raise Unproven(f"{key!r:.40} is a key of its state and no parameter")


def refuse_shared(optimizer: torch.optim.Optimizer, group: dict[str, Any], p: Tensor) -> None:
    """Raise Unproven where a copy would reach the optimizer's parameters, a module or another optimizer."""
    copied = {
        "its attribute": attributes(optimizer),
        "its group's": without_params(group),
        "its state": optimizer.state.get(p, {}),
        "its parameter's attribute": vars(p),
    }
    todo: list[tuple[str, Any, bool]] = []  # how it is called, an object, and whether copies share it
    for what, values in copied.items():
        todo += [(f"{what} {name!r}", x, False) for name, x in values.items()]
    params = {id(each) for each_group in optimizer.param_groups for each in each_group["params"]}
    seen: dict[int, Any] = {}
    while todo:
        where, x, shared = todo.pop()
        if isinstance(x, (Parameter, Module, torch.optim.Optimizer)) or id(x) in params:
            if x is optimizer and not shared:
                continue  # a bound method of its own, which is copied
            raise Unproven(f"{where} reaches a {type(x).__name__} beside the parameter that is tried")
        if id(x) in seen or isinstance(x, (type, ModuleType, Tensor)):
            continue
        seen[id(x)] = x
        if isinstance(x, FunctionType):  # without the globals of its module
            todo += [(where, y, True) for y in (x.__closure__, x.__defaults__, x.__kwdefaults__)]
        elif isinstance(x, ReferenceType):
            todo.append((where, x(), True))
        else:
            todo += [(where, y, shared) for y in gc.get_referents(x)]


@contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """Random generators stay as they are; hooks for all optimizers are not called, and nobody is warned."""
    accelerator = None if device.type in ("cpu", "meta") else torch.get_device_module(device)
    indices = list(range(accelerator.device_count())) if accelerator else []
    numpy = sys.modules.get("numpy")
    of_python, of_numpy = random.getstate(), numpy and numpy.random.get_state()
    of_all: list[Any] = [_global_optimizer_pre_hooks, _global_optimizer_post_hooks]
    hooks = [(each, dict(each)) for each in of_all]
    try:
        with torch.random.fork_rng(indices, device_type=device.type), warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")
            for registered, _ in hooks:
                registered.clear()
            yield
    finally:
        for registered, before in hooks:
            registered.update(before)
        random.setstate(of_python)
        if numpy:
            numpy.random.set_state(of_numpy)


def set_seeds(seed: int, device: torch.device) -> None:
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed all accelerators, too
    if device.type not in ("cpu", "meta"):
        torch.get_device_module(device).manual_seed_all(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


# Comparing


def leaves(values: Any) -> dict[Path, Any]:
    """What is in nested dicts, lists and tuples, by where it is."""
    return dict(tree_flatten_with_path(values)[0])


def differences(mine: Any, other: Any) -> dict[Path, tuple[str, str]]:
    """What is not the same in two values, to the bit (but for the sign of zeros), by where it is."""
    a, b = leaves(mine), leaves(other)
    found = {}
    for path in dict.fromkeys([*a, *b]):
        if path not in a or path not in b or not same(a[path], b[path]):
            found[path] = (shortened(a.get(path, "absent")), shortened(b.get(path, "absent")))
    return found


def same(*values: Any) -> bool:
    return all(equal(values[0], other) for other in values[1:])


def equal(mine: Any, other: Any) -> bool:
    if mine is other or type(mine) is not type(other):
        return mine is other
    if isinstance(mine, Tensor):
        alike = mine.shape == other.shape and mine.dtype == other.dtype and mine.device == other.device
        return alike and torch.equal(local(mine, mine), local(other, other))
    if hasattr(mine, "__dict__") and type(mine).__eq__ is object.__eq__:  # type: ignore[comparison-overlap]
        return not differences(vars(mine), vars(other))
    return bool(mine == other)


def shortened(x: Any) -> str:
    """A value in one short line."""
    return " ".join(str(x).split())[:50]
