"""How much memory the state of an optimizer takes, without taking it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ..core.optimizer import Optimizer
from ..core.state_follows import plan
from .trial_copies import (
    Refused,
    like,
    parameters,
    plain_tensors,
    random_gradient,
    same_values,
    start,
    step,
    takes_sparse,
    tensors,
    trainable,
    trial_copy,
    without_state,
)

# How a step runs, where the meta device lacks a way or an operation (maximize: to negate a sparse gradient). The
# state has the same size with all of them.
SWITCHES = ("fused", "capturable", "differentiable", "maximize")
STEPS = 3


def state_bytes(target: torch.optim.Optimizer | tuple[Any, ...]) -> int:
    """The bytes of all state tensors of an optimizer, once every parameter has had a gradient.

    target is an optimizer, or (class, parameters) or (class, parameters, arguments): what would be given to the
    class, with the keyword arguments as a dict. The optimizer is then built on the meta device, so that nothing is
    allocated; the parameters may be there as well. State that does not exist yet, as in any torch optimizer before
    its first step, is counted as it will be; nothing is changed. For a moment there is new state of parameters that
    were cast, resized or replaced since an optimizer here made theirs. Where steps on the meta device fail and every
    parameter has state already, of which a part may be missing, there is a copy, which is stepped.

    Each tensor of the state counts with its number of elements times the bytes of an element. One that is there under
    several keys counts once, one that is a parameter does not count, a DTensor counts with its local part. Python
    numbers, the hyperparameters and what an optimizer keeps outside of its `state` count nothing. Parameters that
    do not require a gradient count like the others.

    Raises TypeError if target is something else, and ValueError if
    * a step fails on the meta device, because it needs values to decide on, or the addresses of tensors: the fix is to
      pass an optimizer that has its state;
    * state of an optimizer here does not fit a parameter that was resized: the next step would raise the same;
    * the step fails on a copy as well, because it needs a closure (LBFGS);
    * its size is not constant, or it holds an object that is no tensor, number, text or collection of these.

    >>> import torch
    >>> from optim import state_bytes
    >>> weight = torch.nn.Parameter(torch.zeros(1000, 1000))
    >>> state_bytes(torch.optim.AdamW([weight]))  # two moments, and four bytes of a step counter
    8000004
    >>> ten_billion = [torch.empty(100_000, 100_000, dtype=torch.bfloat16, device="meta")]
    >>> state_bytes((torch.optim.SGD, ten_billion, {"lr": 0.1, "momentum": 0.9}))
    20000000000
    """
    kind = target[0] if isinstance(target, tuple) and len(target) in (2, 3) else None
    if isinstance(target, torch.optim.Optimizer):
        optimizer = target
    elif isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer):
        optimizer = built_on_meta(*target)
    else:
        raise TypeError(f"state_bytes: target={target!r:.80}: pass an optimizer, or (class, parameters, arguments).")
    try:
        if isinstance(optimizer, Optimizer):
            planned = {**optimizer.state, **plan(optimizer)}
            return count(optimizer, {p: planned[p] for p in parameters(optimizer)})
        return foreseen(optimizer)
    except Refused as refused:
        fix = "Pass an optimizer that has its state, after optim.preinitialize() or a step"
        if not refused.fix and not without_state(optimizer):
            fix = "Add up the tensors in its state yourself, after a step"
        raise ValueError(
            f"state_bytes: the state of {type(optimizer).__name__} cannot be foreseen: {refused}. {refused.fix or fix}."
        ) from refused.__cause__


def count(optimizer: torch.optim.Optimizer, state: Mapping[Any, Any]) -> int:
    found = {id(tensor): tensor for value in state.values() for tensor in tensors(value)}
    for parameter in parameters(optimizer):
        found.pop(id(parameter), None)
    return sum(x.numel() * x.element_size() for tensor in found.values() for x in plain_tensors(tensor))


def on_meta(parameter: Tensor) -> Tensor:
    return like(parameter, torch.empty_like(parameter, device="meta", requires_grad=False))


def state_on_meta(tensor: Tensor) -> Tensor:
    return tensor.clone() if tensor.dim() == 0 and tensor.device.type == "cpu" else on_meta(tensor)  # a step counter


def built_on_meta(kind: type[torch.optim.Optimizer], given: Any, arguments: Any = None) -> torch.optim.Optimizer:
    if not isinstance(arguments, dict | None):
        raise TypeError(f"state_bytes: arguments={arguments!r:.80}: pass a dict, as {{'lr': 0.1}}.")

    def converted(value: Any) -> Any:
        if isinstance(value, Tensor):
            return on_meta(value).requires_grad_(value.requires_grad)
        if isinstance(value, dict):
            return {**without_switches(value), "params": converted(value["params"])} if "params" in value else value
        if isinstance(value, str) or not isinstance(value, Iterable):
            return value
        return (tuple if isinstance(value, tuple) else list)(map(converted, value))

    with HostReads(answer=True):
        return kind(converted(given), **without_switches(arguments or {}))


def without_switches(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same arguments, ready for the meta device: switches off, and tensor hyperparameters readable."""
    off = {key: False if key in SWITCHES and value else value for key, value in values.items()}
    return {key: value.cpu() if isinstance(value, Tensor) and key != "params" else value for key, value in off.items()}


class HostReads(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's is untyped
    """Lets a step on the meta device read tensors, although they have no values there."""

    def __init__(self, answer: bool | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's is untyped
        self.answer = answer

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            if args[0].dtype == torch.bool:
                return self.answer
            number = torch.ones((), dtype=args[0].dtype).item()
            return number if self.answer else number + number
        return func(*args, **(kwargs or {}))


class NoAddresses(TorchFunctionMode):
    """On the meta device all addresses are 0: an optimizer that goes by them would take one parameter for another."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is Tensor.data_ptr and args[0].is_meta:
            raise RuntimeError("it goes by the addresses of tensors, which the meta device does not have")
        return func(*args, **(kwargs or {}))


def foreseen(optimizer: torch.optim.Optimizer) -> int:
    """The bytes that copies on the meta device have after some steps, or if these fail, that a copy with values has."""
    try:
        sizes = {after_steps(optimizer, answer) for answer in (True, False)}
        if len(sizes) > 1:
            raise Refused(f"it depends on values whether it takes {' or '.join(map(str, sorted(sizes)))} bytes")
    except Refused:
        # A copy with values takes memory: only where there is state already, of which a part at most is missing.
        if without_state(optimizer) or any(parameter.is_meta for parameter in parameters(optimizer)):
            raise
        return after_steps(optimizer, None)
    return sizes.pop()


def after_steps(optimizer: torch.optim.Optimizer, answer: bool | None) -> int:
    """The bytes of the state of a copy after some steps: on the meta device with an answer, with values without."""
    if answer is None:
        clone = trial_copy(optimizer, same_values)
    else:
        clone = trial_copy(optimizer, on_meta, state_on_meta)
        for group in clone.param_groups:
            group.update(without_switches(group))
    sizes = []
    with HostReads(answer), NoAddresses():  # both are for tensors on the meta device only
        start(clone)
        for _ in range(STEPS):
            step(clone, [gradient(p, takes_sparse(optimizer)) if trainable(p) else None for p in parameters(clone)])
            sizes.append(count(clone, clone.state))
    # The first step is left out: some assign a number before they assign a tensor.
    if sizes[-1] != sizes[-2]:
        raise Refused(f"it takes {sizes[-2]} bytes after step {STEPS - 1} and {sizes[-1]} after step {STEPS}")
    return sizes[-1]


def gradient(parameter: Tensor, sparse: bool) -> Tensor:
    if not parameter.is_meta:
        return random_gradient(parameter, 0, sparse)
    if not sparse:
        return torch.empty_like(parameter, requires_grad=False)
    # No entry at all: on the meta device sparse tensors know few operations.
    rows = min(1, parameter.dim())
    indices = torch.empty((rows, 0), dtype=torch.int64, device="meta")
    values = torch.empty((0, *parameter.shape[rows:]), dtype=parameter.dtype, device="meta")
    return torch.sparse_coo_tensor(indices, values, parameter.shape, is_coalesced=True, check_invariants=False)
