"""`optim.preinitialize`: all state of an optimizer before its first step. All is planned, then given to it."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor

from .compare import differences
from .known import is_known, missing_state
from .proof import initial_values
from .trial import Unproven, Values, check_state_keys, numbered_parameters, write_values

AnyOptimizer = TypeVar("AnyOptimizer", bound=torch.optim.Optimizer)


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
        write_values(optimizer, group, p, values)
    return optimizer


def proven_values(optimizer: torch.optim.Optimizer, check: int) -> list[tuple[dict[str, Any], Tensor, Values]]:
    """For each parameter of an optimizer of any class, its group and what both lack, proven by trials."""
    proven = []
    first_in_group: dict[int, Values] = {}
    where = ""
    try:
        check_state_keys(optimizer)
        for i, j, group, p in numbered_parameters(optimizer):
            where = f", parameter {j} of group {i}"
            values = initial_values(optimizer, i, p, check)
            if differences(first_in_group.setdefault(i, values)["group"], values["group"]):
                raise Unproven(
                    "its first step settles something in its group that it leaves open for another one there"
                )
            proven.append((group, p, values))
    except Exception as error:  # whatever a class raises: nothing of the optimizer is changed yet
        why = error if isinstance(error, Unproven) else f"it cannot be tried: {type(error).__name__}: {error}"
        raise ValueError(
            f"preinitialize: {type(optimizer).__name__}{where}: {why}. Leave it to make its state in its first step."
        ) from error
    return proven
