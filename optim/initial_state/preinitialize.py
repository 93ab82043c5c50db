"""State ahead of the first step for optimizers that are not ours, and the size of the state of any optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from ..algorithms import adadelta, adagrad, adam, adamax, asgd, nadam, radam, rmsprop, rprop, sgd
from ..base.hyperparameters import absent
from ..base.scalar_states import STEP
from ..base.sharding import local, notice_dtensor
from ..muon import muon
from .proof import initial_values
from ..state.optimizer import Optimizer, State
from ..step.rule_optimizer import RuleOptimizer
from .trial import Trial, Unproven, Values, differences, give, refuse_other_keys, refuse_shared, undisturbed

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


def preinitialize(optimizer: AnyOptimizer, *, check: int = 3) -> AnyOptimizer:
    """The same optimizer, with all its state there before the first step.

    No step of this optimizer is made, and the training that follows is bit for bit the one without this call. Every
    parameter gets its state, also one that does not require a gradient. State that exists stays as it is, so that a run
    in progress can be completed after add_param_group(). What is done depends on the class:

    * The optimizers of this package are returned as they are.
    * Those of `torch.optim` that have the state of the class of the same name here are known: ASGD, Adadelta, Adagrad,
      Adam, AdamW, Adamax, Muon, NAdam, RAdam, RMSprop, Rprop and SGD. (The training differs in the sign of zeros with
      SGD, whose first buffer is then 0 plus the gradient, and in last bits in bfloat16 with its `foreach=True`, where a
      parameter has its first gradient later than others.)
    * An optimizer of any other class is tried, parameter by parameter, on copies with zero gradients, and what that
      shows is proven: copies that begin with it train alike, to the bit (but for the sign of zeros), for `check` steps
      with random gradients. The optimizer itself, its hooks and the random generators are left alone.

    Call it when parameters and hyperparameters have their values, so after making schedulers: some state begins with
    the weights, the step size of Rprop and the eta of ASGD with the lr.

    Raises TypeError if it is given no optimizer. Raises ValueError, with nothing changed, for a class whose state is
    not proven, such as one that begins with the first gradient, and for torch's Adafactor, LBFGS, SparseAdam, and SGD
    with momentum and dampening, whose first gradient enters the buffer undampened.

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
    if not isinstance(check, int) or check < 1:
        raise ValueError(f"preinitialize: check={check!r}: pass the number of steps of the proof, at least 1.")
    if is_known(optimizer):
        optimizer.state.update(missing_state(optimizer, "preinitialize"))
        return optimizer
    for group, p, values in proven_values(optimizer, check):  # all of them, before anything is changed
        give(optimizer, group, p, values)
    return optimizer


def state_bytes(target: torch.optim.Optimizer | tuple[Any, ...]) -> int:
    """The bytes of all state tensors of an optimizer, once every parameter has had a gradient.

    target is an optimizer, or (class, parameters) or (class, parameters, arguments): what would be given to the
    class, with the keyword arguments as a dict. The optimizer is then built without allocating anything, and the
    parameters may be on the meta device. State that does not exist yet, as in any torch optimizer before its first
    step, is counted as it will be; nothing is changed. Of a class that `preinitialize` does not know, a copy takes a
    step for this, on tensors without values.

    Each tensor of the state counts with its number of elements times the bytes of an element, a DTensor with its local
    part. Parameters that do not require a gradient count like the others.

    Raises TypeError if target is something else. Raises ValueError for an optimizer of torch that `preinitialize`
    refuses, and for one whose first step reads the values of its tensors.

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
        missing = missing_state(optimizer, "state_bytes") if is_known(optimizer) else state_without_values(optimizer)
        return nbytes(tree_leaves(list({**optimizer.state, **missing}.values())))


def nbytes(values: Iterable[Any]) -> int:
    """The bytes of the tensors among some values; of distributed ones, those of the local part."""
    total = 0
    for x in values:
        if isinstance(x, Tensor):
            notice_dtensor(x)
            total += local(x, x).nbytes
    return total


def is_known(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it is ours, or of a class of torch's own of which we know what state it has, or why it can have none."""
    name = type(optimizer).__name__
    by_name = {*INSTEAD, *(kind.__name__ for kind in SAME_STATE)}
    return isinstance(optimizer, Optimizer) or (name in by_name and type(optimizer) is getattr(torch.optim, name, None))


def missing_state(optimizer: torch.optim.Optimizer, asked: str) -> dict[Tensor, State]:
    """The initial state of each parameter that has none, in an optimizer that is known."""
    if isinstance(optimizer, Optimizer):
        return {}
    name = type(optimizer).__name__
    if name in INSTEAD:
        known = ", ".join(each.__name__ for each in SAME_STATE)
        raise ValueError(
            f"{asked}: {name} is no optimizer of `optim`, and none of torch.optim's {known}: {INSTEAD[name]}."
        )
    kind = next(each for each in SAME_STATE if each.__name__ == name)
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


def proven_values(optimizer: torch.optim.Optimizer, check: int) -> list[tuple[dict[str, Any], Tensor, Values]]:
    """For each parameter of an optimizer of any class, its group and what both lack, proven by trials."""
    found = []
    in_group: dict[int, Values] = {}  # what the first parameter of a group shows
    where = ""
    try:
        refuse_other_keys(optimizer)
        for i, j, group, p in numbered_parameters(optimizer):
            where = f", parameter {j} of group {i}"
            values = initial_values(optimizer, group, p, check)
            if differences(in_group.setdefault(i, values)["group"], values["group"]):
                raise Unproven(
                    "its first step settles something in its group that it leaves open for another one there"
                )
            found.append((group, p, values))
    except Exception as error:
        why = error if isinstance(error, Unproven) else f"it cannot be tried: {type(error).__name__}: {error}"
        raise ValueError(
            f"preinitialize: {type(optimizer).__name__}{where}: {why}. Leave it to make its state in its first step."
        ) from error
    return found


def state_without_values(optimizer: torch.optim.Optimizer) -> dict[Tensor, State]:
    """The state that the first step of an optimizer of any class makes, to be called where tensors are fake."""
    found = {}
    for i, j, group, p in numbered_parameters(optimizer):
        try:
            refuse_shared(optimizer, group, p)
            with undisturbed(p.device):
                trial = Trial(optimizer, group, p, [p])
                trial.unchecked_step([torch.zeros_like(p)], seed=0)
        except Exception as error:
            if optimizer.state.get(p):  # made by steps that did read values
                continue
            raise ValueError(
                f"state_bytes: {type(optimizer).__name__}, parameter {j} of group {i}: its state is not known without "
                f"the values of tensors: {error}. Count the bytes of its state after its first step."
            ) from error
        found[p] = trial.values()[0]["state"]
    return found


def numbered_parameters(optimizer: torch.optim.Optimizer) -> Iterator[tuple[int, int, dict[str, Any], Tensor]]:
    """Each parameter that may have a gradient, with its group and both their numbers."""
    for i, group in enumerate(optimizer.param_groups):
        for j, p in enumerate(group["params"]):
            if p.is_floating_point() or p.is_complex():
                notice_dtensor(p)
                yield i, j, group, p
