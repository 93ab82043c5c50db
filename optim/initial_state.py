"""State ahead of the first step for optimizers of torch, and the size of the state of any optimizer here or there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from .algorithms import adadelta, adagrad, adam, adamax, asgd, nadam, radam, rmsprop, rprop, sgd
from .base.hyperparameters import absent
from .base.scalar_states import STEP
from .base.sharding import local, notice_dtensor
from .muon import muon
from .state.optimizer import Optimizer, State
from .step.rule_optimizer import RuleOptimizer

AnyOptimizer = TypeVar("AnyOptimizer", bound=torch.optim.Optimizer)

# Torch's class of the same name has the same state, but for where some of its numbers lie.
SAME_STATE: tuple[type[RuleOptimizer], ...] = (
    *(adadelta.Adadelta, adagrad.Adagrad, adam.Adam, adam.AdamW, adamax.Adamax, asgd.ASGD, muon.Muon, nadam.NAdam),
    *(radam.RAdam, rmsprop.RMSprop, rprop.Rprop, sgd.SGD),
)
INSTEAD = {
    "Adafactor": "its state is another one than that of optim.Adafactor: use that class",
    "LBFGS": "its history grows as it steps: leave it to make its state in its first step",
    "SparseAdam": "it takes sparse gradients: leave it to make its state, or use optim.Adam with dense gradients",
}


def preinitialize(optimizer: AnyOptimizer) -> AnyOptimizer:
    """The same optimizer, with all its state there before the first step.

    For the optimizers of this package, which are returned as they are, and for those of `torch.optim` that have the
    same state as the class of the same name here: ASGD, Adadelta, Adagrad, Adam, AdamW, Adamax, Muon, NAdam, RAdam,
    RMSprop, Rprop and SGD. No step is made, and the training that follows is bit for bit the one without this call (but
    for the sign of zeros with SGD, whose first buffer is then 0 plus the gradient, and for last bits in bfloat16 with
    its `foreach=True`, where a parameter has its first gradient later than others). Every parameter gets its state,
    also one that does not require a gradient. State that exists stays as it is, so that a run in progress can be
    completed after add_param_group().

    Call it when parameters and hyperparameters have their values, so after making schedulers: the step size of Rprop
    and the eta of ASGD begin with the lr.

    Raises TypeError if it is given no optimizer, and ValueError, with nothing changed, for any other class, a subclass
    of torch's included, and for torch.optim.SGD with momentum and dampening, whose first gradient enters the buffer
    undampened.

    >>> import torch
    >>> from optim import preinitialize
    >>> model = torch.nn.Linear(3, 2)
    >>> optimizer = preinitialize(torch.optim.Adam(model.parameters()))
    >>> {
    ...     key: tuple(value.shape)
    ...     for key, value in optimizer.state[model.weight].items()
    ... }
    {'step': (), 'exp_avg': (2, 3), 'exp_avg_sq': (2, 3)}
    >>> optimizer.state[model.bias]["step"].item()
    0.0
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"preinitialize: optimizer={optimizer!r:.80}: pass an instance of torch.optim.Optimizer.")
    optimizer.state.update(missing_state(optimizer, "preinitialize"))
    return optimizer


def state_bytes(target: torch.optim.Optimizer | tuple[Any, ...]) -> int:
    """The bytes of all state tensors of an optimizer, once every parameter has had a gradient.

    target is an optimizer, or (class, parameters) or (class, parameters, arguments): what would be given to the
    class, with the keyword arguments as a dict. The optimizer is then built without allocating anything, and the
    parameters may be on the meta device. The classes are those that `preinitialize` takes. State that does not exist
    yet, as in any torch optimizer before its first step, is counted as it will be; nothing is changed.

    Each tensor of the state counts with its number of elements times the bytes of an element, a DTensor with its local
    part. Parameters that do not require a gradient count like the others.

    Raises TypeError if target is something else, and ValueError for an optimizer that `preinitialize` refuses.

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
    described: tuple[Any, ...] = target if isinstance(target, tuple) and len(target) in (2, 3) else (None, None)
    kind, given, arguments = described[0], described[1], dict(*described[2:])
    arguments = {key: x.item() if isinstance(x, Tensor) else x for key, x in arguments.items()}
    with FakeTensorMode(allow_non_fake_inputs=True):  # what is made here takes no memory
        if isinstance(target, torch.optim.Optimizer):
            optimizer = target
        elif isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer):
            optimizer = kind(given, **arguments)
        else:
            raise TypeError(
                f"state_bytes: target={target!r:.80}: pass an optimizer, or (class, parameters, arguments)."
            )
        states = {**optimizer.state, **missing_state(optimizer, "state_bytes")}
    tensors = []
    for state in states.values():
        tensors += [x for x in state.values() if isinstance(x, Tensor)]
    return nbytes(tensors)


def nbytes(tensors: Iterable[Tensor]) -> int:
    """The bytes of some tensors; of distributed ones, those of the local part."""
    total = 0
    for x in tensors:
        notice_dtensor(x)
        total += local(x, x).nbytes
    return total


def missing_state(optimizer: torch.optim.Optimizer, asked: str) -> dict[Tensor, State]:
    """The initial state of each parameter that has none."""
    if isinstance(optimizer, Optimizer):
        return {}
    kind = next((each for each in SAME_STATE if type(optimizer) is getattr(torch.optim, each.__name__, None)), None)
    name = type(optimizer).__name__
    if kind is None:
        instead = "take the optimizer that it wraps or extends, or leave it to make its state in its first step"
        why = INSTEAD.get(name, instead) if type(optimizer) is getattr(torch.optim, name, None) else instead
        known = ", ".join(each.__name__ for each in SAME_STATE)
        raise ValueError(f"{asked}: {name} is no optimizer of `optim`, and none of torch.optim's {known}: {why}.")
    missing: dict[Tensor, State] = {}
    ours = kind.__new__(kind)  # asked for initial states alone
    for group in optimizer.param_groups:
        if kind is sgd.SGD and not (absent(group["momentum"]) or absent(group["dampening"])):
            raise ValueError(
                f"{asked}: torch.optim.SGD with momentum and dampening={group['dampening']!r} takes its first gradient "
                "undampened, which no initial buffer can do: use optim.SGD, which computes the same, or dampening=0."
            )
        # Torch's Adagrad reads this one from the constructor, whatever the group says.
        first = {key: optimizer.defaults[key] for key in ("initial_accumulator_value",) if key in group}
        for p in group["params"]:
            if not optimizer.state.get(p) and (p.is_floating_point() or p.is_complex()):
                state = ours.parameter_state(p, {**group, **first})
                if group.get("fused") and STEP in state:
                    state[STEP] = state[STEP].float()
                elif not group.get("capturable") and kind is not asgd.ASGD:  # torch then keeps counts on the host
                    state.update({key: x.cpu() for key, x in state.items() if key in (STEP, "mu_product")})
                missing[p] = state
    return missing
