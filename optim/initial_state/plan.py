"""`optim.preinitialize`: all state of an optimizer before its first step. It is planned first, then written."""

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
    """Create all state of an optimizer before its first step, and return the optimizer.

    No step of this optimizer is made. Training is bit-identical with and without this call. Every parameter gets its
    state, also a parameter that does not require a gradient. Existing state is kept, so you can complete a run in
    progress after add_param_group(). The method depends on the class:

    * The optimizers of this package are returned unchanged.
    * The optimizers of `torch.optim` with the same state as our class of the same name are known: ASGD, Adadelta,
      Adagrad, Adam, AdamW, Adamax, Muon, NAdam, RAdam, RMSprop, Rprop and SGD. (There are two differences. With SGD the
      sign of zeros differs, since the first buffer is then 0 plus the gradient. In bfloat16 with `foreach=True`, its
      last bits differ if a parameter has its first gradient later than others.)
    * An optimizer of any other class is tried on copies, one parameter at a time. Steps with zero gradients suggest an
      initial state, which is then proven. Copies that start with this state train bit for bit like copies without it
      (except for the sign of zeros), for `check` steps with random gradients. The optimizer itself, its hooks and the
      random generators do not change.

    Call it when parameters and hyperparameters have their final values, so after you make schedulers. Some state starts
    with the weights; the step size of Rprop and the eta of ASGD start with the lr.

    Raises TypeError if `optimizer` is no optimizer. Raises ValueError, with nothing changed, for a class whose state is
    not proven, such as state that starts with the first gradient. Also for torch's Adafactor, LBFGS, SparseAdam, and
    for SGD with momentum and dampening, whose first gradient enters the buffer undampened.

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
        raise TypeError(f"preinitialize.optimizer={optimizer!r:.80}: this is no optimizer. Pass an instance.")
    if not isinstance(check, int) or check < 1:
        raise ValueError(f"preinitialize.check={check!r}: this is no number of steps. Pass an integer of at least 1.")
    if is_known(optimizer):
        optimizer.state.update(missing_state(optimizer, "preinitialize"))
        return optimizer
    for group, p, values in proven_values(optimizer, check):  # all values are proven before the first is written
        write_values(optimizer, group, p, values)
    return optimizer


def proven_values(optimizer: torch.optim.Optimizer, check: int) -> list[tuple[dict[str, Any], Tensor, Values]]:
    """The group and the proven missing values of each parameter, for an optimizer of any class."""
    proven = []
    first_in_group: dict[int, Values] = {}
    where = ""
    try:
        check_state_keys(optimizer)
        for i, j, group, p in numbered_parameters(optimizer):
            where = f", parameter {j} of group {i}"
            values = initial_values(optimizer, i, p, check)
            if differences(first_in_group.setdefault(i, values)["group"], values["group"]):
                raise Unproven("its first step sets a key of the group, but not for all parameters of the group")
            proven.append((group, p, values))
    except Exception as error:  # a class may raise anything; the optimizer has not changed yet
        why = error if isinstance(error, Unproven) else f"it cannot be tried: {type(error).__name__}: {error}"
        raise ValueError(
            f"preinitialize: {type(optimizer).__name__}{where}: {why}. Let it make its state in its first step."
        ) from error
    return proven
