"""Copies of optimizers to try things on: their steps touch neither the original nor anything else."""

from __future__ import annotations

import copy
import random
import sys
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

AnyOptimizer = TypeVar("AnyOptimizer", bound=torch.optim.Optimizer)


# What some steps on a copy cannot show, by package and class.
LATER_STATE = {
    ("pytorch_optimizer", "SWATS"): "it adds a buffer when it changes from Adam to SGD, at a step that depends on the "
    "gradients",
}


class Refused(Exception):
    """What is in the way, and the fix if it is a special one."""

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.fix = fix


class Recorder(dict[Any, Any]):
    """A dict that keeps a copy of what each new key was given first, in the dicts inside it as well.

    A key that held None counts as new. memo is that of copy.deepcopy: one object under several keys stays one object,
    a copied parameter becomes the original.
    """

    def __init__(self, content: Mapping[Any, Any], memo: dict[int, Any], makes_dicts: bool = False) -> None:
        super().__init__((key, Recorder(one, memo) if type(one) is dict else one) for key, one in content.items())
        self.memo = memo
        self.makes_dicts = makes_dicts  # as a defaultdict does
        self.first: dict[Any, Any] = {}

    def __setitem__(self, key: Any, value: Any) -> None:
        if type(value) is dict:
            new, value = value, Recorder({}, self.memo)
            value.update(new)
        elif self.get(key) is None and key not in self.first:
            self.first[key] = copy.deepcopy(value, self.memo)
        super().__setitem__(key, value)

    def __missing__(self, key: Any) -> Any:
        if not self.makes_dicts:
            raise KeyError(key)
        self[key] = {}
        return self[key]

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *args: Any, **kwargs: Any) -> None:
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def initial(self) -> dict[Any, Any]:
        """The first values of the keys that were new and have stayed."""
        found: dict[Any, Any] = {}
        for key, now in self.items():
            if isinstance(now, Recorder):
                found[self.memo.get(id(key), key)] = now.initial()
            elif key in self.first:
                first = self.first[key]
                if type(first) in (int, float) and isinstance(now, Tensor) and now.dim() == 0:
                    first = torch.full_like(now, first)  # of the kind that it will be
                found[self.memo.get(id(key), key)] = first
        return found


def plain_tensors(tensor: Tensor) -> Iterator[Tensor]:
    """The plain tensors that a tensor is made of: of a DTensor its local part, of a plain tensor itself."""
    if hasattr(tensor, "__tensor_flatten__"):
        for part in (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]):
            if isinstance(part, Tensor):  # torch 2.13 names the mesh of a DTensor as well
                yield from plain_tensors(part)
    elif tensor.is_sparse:
        yield from (tensor._indices(), tensor._values())
    else:
        yield tensor


def tensors(value: Any, name: str = "state") -> Iterator[Tensor]:
    """All tensors in a tree. Refused if there is an object in it that may hold more, where nobody sees them."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from tensors(one, f"{name}[{key!r}]" if isinstance(key, str | int) else name)
    elif isinstance(value, list | tuple | set | frozenset | deque):
        for one in value:
            yield from tensors(one, name)
    elif not isinstance(value, int | float | complex | str | bytes | None):
        raise Refused(f"{name} is an object of type {type(value).__name__}, whose content is unknown")


def parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    if not hasattr(optimizer, "param_groups"):  # wrappers may skip the constructor of torch's class
        raise Refused("it has no param_groups", "Pass the optimizer that it wraps")
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def takes_sparse(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it takes sparse gradients only: the one that does is torch's."""
    return isinstance(optimizer, torch.optim.SparseAdam)


def trainable(parameter: Tensor) -> bool:
    return parameter.is_floating_point() or parameter.is_complex()


def without_state(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p for p in parameters(optimizer) if trainable(p) and not optimizer.state.get(p)]


def trial_copy(
    optimizer: AnyOptimizer,
    convert: Callable[[Tensor], Tensor],
    convert_state: Callable[[Tensor], Tensor] | None = None,
) -> AnyOptimizer:
    """A copy of an optimizer whose parameters are `convert` of the original's, without hooks and step wrappers.

    copy.deepcopy(optimizer) would drop all attributes but three: Optimizer.__getstate__ says so.
    """
    for kind in type(optimizer).__mro__:
        if reason := LATER_STATE.get((kind.__module__.partition(".")[0], kind.__name__)):
            raise Refused(reason)
    members = {key: value for key, value in vars(optimizer).items() if key != "step"}  # a scheduler's wrapper
    for name, value in members.items():
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
        if any(isinstance(one, torch.optim.Optimizer) for one in inside):
            raise Refused(f"it wraps another optimizer, in {name}", "Pass that one, before it is wrapped")
        if name.startswith("_optimizer_") and name.endswith("_hooks"):
            members[name] = OrderedDict()
    clone = object.__new__(type(optimizer))
    memo: dict[int, Any] = {id(optimizer): clone}
    parameters(optimizer)  # refuses what has none
    for group in optimizer.param_groups:
        for value in (value for key, value in group.items() if key != "params"):
            for one in value if isinstance(value, list | tuple) else [value]:
                if isinstance(one, Tensor):  # a hyperparameter
                    memo[id(one)] = one.detach().clone()
        differentiable = group.get("differentiable", False)  # its steps write to parameters in grad mode
        for parameter in group["params"]:
            memo[id(parameter)] = convert(parameter).requires_grad_(trainable(parameter) and not differentiable)
    for tensor in tensors(optimizer.state):
        if convert_state is not None and id(tensor) not in memo:
            memo[id(tensor)] = convert_state(tensor)
    try:
        vars(clone).update(copy.deepcopy(members, memo))
    except Exception as error:  # other people's code may raise anything
        raise Refused(f"it cannot be copied ({summary(error)})") from error
    return clone


def like(parameter: Tensor, clone: Tensor) -> Tensor:
    """The clone as what the parameter is: a Parameter, and with the marks that some optimizers put on one."""
    if isinstance(parameter, torch.nn.Parameter):
        clone = torch.nn.Parameter(clone, requires_grad=False)
    vars(clone).update(vars(parameter))
    return clone


def same_values(parameter: Tensor) -> Tensor:
    return like(parameter, parameter.detach().clone())


def random_gradient(parameter: Tensor, seed: int, sparse: bool) -> Tensor:
    """Normal numbers, the small ones replaced by zeros of either sign, without a draw from anybody's generator."""
    grad = torch.empty_like(parameter, requires_grad=False)
    for values in plain_tensors(grad):
        numbers = torch.view_as_real(values) if values.is_complex() else values
        numbers.normal_(generator=torch.Generator(values.device).manual_seed(seed))
        numbers.mul_(numbers.abs().gt_(0.05))
        if values.is_complex():
            numbers.add_(0.0)  # no -0.0: torch itself loses the sign of a zero when it scales a complex number
    return grad.to_sparse(min(1, grad.dim())) if sparse else grad


@contextmanager
def undisturbed(devices: Iterable[torch.device], draw: bool = False) -> Iterator[None]:
    """Leaves every generator of random numbers as it was, and keeps hooks and warnings out.

    With `draw`, what runs inside finds the generators at another point than it would outside.
    """
    found = [device for device in dict.fromkeys(devices) if device.type in ("cuda", "xpu")]
    numpy = sys.modules.get("numpy")
    python_state, numpy_state = random.getstate(), numpy.random.get_state() if numpy else None
    registries: list[dict[int, Any]] = [_global_optimizer_pre_hooks, _global_optimizer_post_hooks]
    hooks = [dict(registry) for registry in registries]
    with warnings.catch_warnings(), torch.random.fork_rng(found, device_type=found[0].type if found else "cuda"):
        warnings.simplefilter("ignore")
        try:
            for registry in registries:
                registry.clear()
            if draw:
                random.random()
                if numpy:
                    numpy.random.random()
                for device in [torch.device("cpu"), *found]:
                    torch.rand(1, device=device)
            yield
        finally:
            random.setstate(python_state)
            if numpy:
                numpy.random.set_state(numpy_state)
            for registry, kept in zip(registries, hooks):
                registry.update(kept)


def step(optimizer: torch.optim.Optimizer, grads: Iterable[Tensor | None], draw: bool = False) -> None:
    for parameter, grad in zip(parameters(optimizer), grads):
        parameter.grad = None if grad is None else grad.clone()  # some optimizers write to gradients
    with undisturbed((parameter.device for parameter in parameters(optimizer)), draw), torch.enable_grad():
        try:
            optimizer.step()
        except Exception as error:  # other people's code may raise anything
            raise Refused(f"its step fails ({summary(error)})") from error


def start(optimizer: torch.optim.Optimizer) -> None:
    """Schedule-free optimizers step in their train mode only."""
    if callable(train := getattr(optimizer, "train", None)):
        train()


def summary(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0].rstrip(": .")
