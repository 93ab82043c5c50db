"""The optimizers whose state is known without a trial: ours, and torch's optimizers that have the same state."""

from __future__ import annotations

import torch
from torch import Tensor

from ..algorithms import adadelta, adagrad, adam, adamax, asgd, nadam, radam, rmsprop, rprop, sgd
from ..base.hyperparameters import is_switched_off
from ..base.scalar_states import STEP
from ..base.sharding import note_dtensor
from ..muon import muon
from ..state.optimizer import Optimizer, State
from ..step.rule_optimizer import RuleOptimizer

# Torch's class of the same name has the same state, except for the device of some numbers.
_OURS: tuple[type[RuleOptimizer], ...] = (
    adadelta.Adadelta, adagrad.Adagrad, adam.Adam, adam.AdamW, adamax.Adamax, asgd.ASGD, muon.Muon, nadam.NAdam,
    radam.RAdam, rmsprop.RMSprop, rprop.Rprop, sgd.SGD,
)  # fmt: skip
SAME_STATE = {kind.__name__: kind for kind in _OURS}
# Torch's classes whose initial state we cannot make: why, and what to do instead.
UNSUPPORTED = {
    "Adafactor": "its state differs from optim.Adafactor. Use optim.Adafactor",
    "LBFGS": "its history grows with each step. Let it make its state in its first step",
    "SparseAdam": "its gradients are sparse. Let it make its state in its first step, or use optim.Adam",
}


def is_known(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer is ours, or of a class of torch whose initial state we know, or know to be impossible."""
    name = type(optimizer).__name__
    is_of_torch = type(optimizer) is getattr(torch.optim, name, None)
    return isinstance(optimizer, Optimizer) or (is_of_torch and (name in SAME_STATE or name in UNSUPPORTED))


def missing_state(optimizer: torch.optim.Optimizer, function_name: str) -> dict[Tensor, State]:
    """The initial state of each parameter without state, for a known optimizer.

    Raises ValueError for a class that cannot have an initial state. The error names `function_name`.
    """
    if isinstance(optimizer, Optimizer):
        return {}
    name = type(optimizer).__name__
    if name in UNSUPPORTED:
        raise ValueError(f"{function_name}: the initial state of {name} is not known: {UNSUPPORTED[name]}.")
    kind = SAME_STATE[name]
    ours = kind.__new__(kind)  # only used for its initial states
    missing: dict[Tensor, State] = {}
    for group in optimizer.param_groups:
        note_dtensor(group["params"])
        if kind is sgd.SGD and not (is_switched_off(group["momentum"]) or is_switched_off(group["dampening"])):
            raise ValueError(
                f"{function_name}: dampening={group['dampening']!r}: torch's SGD adds its first gradient undampened, "
                "which no initial buffer can do. Use optim.SGD, which computes the same, or dampening=0."
            )
        hyperparameters = dict(group)
        if kind is adagrad.Adagrad:  # torch's class reads it from the constructor's arguments, not from the group
            hyperparameters["initial_accumulator_value"] = optimizer.defaults["initial_accumulator_value"]
        for p in group["params"]:
            if not optimizer.state.get(p) and (p.is_floating_point() or p.is_complex()):
                state = ours.initial_state(p, hyperparameters)
                if group.get("fused") and STEP in state:
                    state[STEP] = state[STEP].float()
                elif not (group.get("capturable") or kind is asgd.ASGD or p.is_meta):  # torch has counts on the host
                    state.update({key: x.cpu() for key, x in state.items() if key in (STEP, "mu_product")})
                missing[p] = state
    return missing
