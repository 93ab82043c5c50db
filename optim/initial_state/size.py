"""`optim.state_bytes`: the size of the state of an optimizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from ..base.sharding import local_shard
from ..state.optimizer import State
from .global_state import preserve_global_state
from .known import is_known, missing_state
from .trial import Trial, check_not_shared, numbered_parameters


def state_bytes(target: torch.optim.Optimizer | tuple[object, ...]) -> int:
    """The bytes of all state tensors of an optimizer, once every parameter has had a gradient.

    target is an optimizer, or (class, parameters) or (class, parameters, arguments), with the keyword arguments as a
    dict. Then the optimizer is built without allocating memory, and the parameters may be on the meta device. State
    that does not exist yet, as in any torch optimizer before its first step, is counted in advance. Nothing changes.
    For a class that `preinitialize` does not know, a copy makes a step on tensors without values.

    Each tensor of the state counts as its number of elements times the bytes of an element; a DTensor counts as its
    local part. Parameters that do not require a gradient count like the others.

    Raises TypeError if target is something else. Raises ValueError for an optimizer of torch that `preinitialize`
    rejects, and for an optimizer whose first step reads the values of its tensors.

    >>> import torch
    >>> from optim import state_bytes
    >>> weight = torch.nn.Parameter(torch.zeros(1000, 1000))
    >>> # two moments, and four bytes of a step counter:
    >>> state_bytes(torch.optim.AdamW([weight]))
    8000004
    >>> ten_billion = [
    ...     torch.empty(100_000, 100_000, dtype=torch.bfloat16, device="meta")
    ... ]
    >>> state_bytes((torch.optim.SGD, ten_billion, {"lr": 0.1, "momentum": 0.9}))
    20000000000
    """
    fake = FakeTensorMode(allow_non_fake_inputs=True)  # tensors that are made in this mode take no memory
    optimizer = target if isinstance(target, torch.optim.Optimizer) else make_optimizer(target, fake)
    with fake:
        missing = missing_state(optimizer, "state_bytes") if is_known(optimizer) else state_on_fake_tensors(optimizer)
        return total_bytes(tree_leaves(list({**optimizer.state, **missing}.values())))


def make_optimizer(target: object, fake: FakeTensorMode) -> torch.optim.Optimizer:
    """Make an optimizer from its class, parameters and arguments."""
    kind, params, *arguments = target if isinstance(target, tuple) and len(target) in (2, 3) else (None, None)
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        raise TypeError(f"state_bytes.target={target!r:.80}: no optimizer. Pass one, or (class, params, arguments).")
    values: dict[str, Any] = dict(*arguments)
    for key, x in values.items():
        if isinstance(x, Tensor):  # the class may read its value, which a fake tensor does not have
            values[key] = x.item()
    with fake:
        return kind(params, **values)


def total_bytes(values: Iterable[object]) -> int:
    """The total bytes of the tensors among the values. A distributed tensor counts as its local part."""
    return sum(local_shard(x, x).nbytes for x in values if isinstance(x, Tensor))


def state_on_fake_tensors(optimizer: torch.optim.Optimizer) -> dict[Tensor, State]:
    """The state that the first step of an optimizer of any class makes. The caller enables fake tensors."""
    states = {}
    for i, j, group, p in numbered_parameters(optimizer):
        try:
            check_not_shared(optimizer, group, p)
            with preserve_global_state(p.device):
                trial = Trial(optimizer, i, p, [p])
                trial.step_without_checks([torch.zeros_like(p)], seed=0)
        except Exception as error:  # a class may raise anything if it reads values, which fake tensors do not have
            if optimizer.state.get(p):  # earlier steps, on real tensors, made it
                continue
            raise ValueError(
                f"state_bytes: {type(optimizer).__name__}, parameter {j} of group {i}: its state is not known without "
                f"the values of tensors: {error}. Call state_bytes() after its first step."
            ) from error
        states[p] = trial.values()[0]["state"]
    return states
