"""State ahead of the first step for optimizers that are not ours.

torch optimizers create their state inside the first step that finds a gradient. A dummy step on zero gradients creates
it too, but leaves step counters at one and moments decayed, so the training that follows is another one. Here the
steps run on copies. Dicts that remember what each key was given *first* show the initial values; two copies, fed
with different gradients, show which of these depend on the gradient and so are no initial values; and two more
copies, one with the state and one without, must then train bit for bit alike.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..core.optimizer import Optimizer
from .trial_copies import (
    Recorder,
    Refused,
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
)

Foreign = TypeVar("Foreign", bound=torch.optim.Optimizer)

CAPTURED_STEPS = 3  # an optimizer may create a key in its second or third step
VERIFIED_STEPS = 5
LATE = 2  # the steps before the parameters that wait get their first gradient

ADVICE: dict[type[torch.optim.Optimizer], str] = {
    torch.optim.LBFGS: "LBFGS keeps a history that grows as it steps, so it has no such state",
    torch.optim.SGD: "torch.optim.SGD starts its buffer from the first gradient, which with dampening no initial value "
    "can reproduce: use optim.SGD, which computes the same and has its state from the start, or dampening=0",
}
DEFAULT_ADVICE = "Use an optimizer of `optim`, or leave it to create its state in its first step"


# What to add: to the dicts of optimizer.state by their keys, and to the groups by their numbers.
Initial = tuple[dict[Any, Any], dict[Any, Any]]


def preinitialize(optimizer: Foreign) -> Foreign:
    """The same optimizer, with all its state there before the first step.

    For any torch.optim.Optimizer. No step is made: parameters, gradients, counters, moments, hyperparameters and
    generators of random numbers stay as they are, no hook is called, and the training that follows is bit for bit
    the one without this call (but for the sign of zeros where parameters are complex). Every parameter gets its
    state, also one that does not require a gradient; a group gets the keys that the optimizer keeps there itself.
    State that exists stays as it is, so that a run in progress can be completed after add_param_group(). A state of
    which the constructor made some keys gets the missing ones. The optimizers of this package have their state since
    their construction and are returned as they are. docs/optimizers.md has a table of what it does for those of others.

    Call it when parameters and hyperparameters have their values, so after loading weights and making schedulers:
    some initial values are made from them (the step size of Rprop is the lr, a schedule-free average is a copy of the
    parameter). It works on temporary copies, which take two to three times the memory of parameters, gradients and
    state. With DTensor parameters every rank has to call it.

    Raises TypeError if it is given no optimizer, and ValueError, with nothing changed, if
    * no initial value gives the same training (torch.optim.SGD with dampening, where the first gradient enters the
      buffer in a way of its own), if the state keeps growing (LBFGS), or if it depends on random numbers;
    * the keys of the state depend on which parameters have gradients, or it holds an object that is no tensor, number,
      text or collection of these, as nobody can tell what that has;
    * its step fails without a closure, or it cannot be copied;
    * it wraps another optimizer, which should be preinitialized first and wrapped then;
    * parameters are on the meta device.

    >>> import torch
    >>> from optim import preinitialize
    >>> model = torch.nn.Linear(3, 2)
    >>> optimizer = preinitialize(torch.optim.Adam(model.parameters()))
    >>> {key: tuple(value.shape) for key, value in optimizer.state[model.weight].items()}
    {'step': (), 'exp_avg': (2, 3), 'exp_avg_sq': (2, 3)}
    >>> optimizer.state[model.bias]["step"].item()
    0.0
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"preinitialize: optimizer={optimizer!r:.80}: pass an instance of torch.optim.Optimizer.")
    if isinstance(optimizer, Optimizer):
        return optimizer
    try:
        initial = find(optimizer)
    except Refused as refused:
        advice = ADVICE.get(type(optimizer), DEFAULT_ADVICE)
        raise ValueError(
            f"preinitialize: optimizer {type(optimizer).__name__} cannot have its state before its first step: "
            f"{refused}. {refused.fix or advice}."
        ) from refused.__cause__
    install(optimizer, initial)
    return optimizer


def find(optimizer: torch.optim.Optimizer) -> Initial:
    """The state that is missing, verified."""
    if any(parameter.is_meta for parameter in parameters(optimizer)):
        raise Refused("its parameters are on the meta device", "Give them memory and values first")
    one, other = capture(optimizer, 0), capture(optimizer, 1)
    found = agreed(one[0], other[0], "state"), agreed(one[1], other[1], "group")
    try:
        verify(optimizer, found)
    except Refused:
        # Some count with "1 if there is no counter yet, else one more": what comes first is not the initial value.
        found = before_counting(found[0]), before_counting(found[1])
        verify(optimizer, found)
    return found


def install(optimizer: torch.optim.Optimizer, initial: Initial) -> None:
    add(optimizer.state, initial[0])
    add(dict(enumerate(optimizer.param_groups)), initial[1])


def add(there: dict[Any, Any], new: dict[Any, Any]) -> None:
    """Put in what is missing, in the dicts inside as well: a constructor may have made some keys of a state."""
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(inside := there.get(key), dict):
            add(inside, value)
        elif there.get(key) is None:
            there[key] = value


def gradients(optimizer: torch.optim.Optimizer, number: int, waiting: int | None = None) -> list[Tensor | None]:
    """One for each parameter, other ones for each number; every second parameter may have to wait for its first."""
    every, sparse = parameters(optimizer), takes_sparse(optimizer)
    given = [index for index, parameter in enumerate(every) if trainable(parameter)]
    late = given[waiting::2] if waiting is not None and number < LATE else []
    found: list[Tensor | None] = [None] * len(every)
    for index in sorted({*given} - {*late}):
        found[index] = random_gradient(every[index], 1000003 * number + index, sparse)
    return found


def capture(optimizer: torch.optim.Optimizer, run: int) -> Initial:
    """What the first steps of a copy assign first to keys that are new."""
    clone = trial_copy(optimizer, same_values)
    memo: dict[int, Any] = {id(p): original for p, original in zip(parameters(clone), parameters(optimizer))}
    state = Recorder(clone.state, memo, makes_dicts=True)
    groups = [Recorder(group, memo) for group in clone.param_groups]
    clone.__dict__.update(state=state, param_groups=groups)
    start(clone)
    for number in range(CAPTURED_STEPS):
        # The second run draws other random numbers as well: a random value is no initial value either.
        step(clone, gradients(clone, 100 * run + number), draw=run > 0)
    initial = state.initial(), {index: group.initial() for index, group in enumerate(groups)}
    for _ in chain(tensors(state), tensors(initial[1], "group")):
        pass  # refuses what cannot be looked into
    return initial


def agreed(one: Any, other: Any, name: str) -> Any:
    """The value that both runs found, or where they differ the neutral element of addition."""
    if type(one) is type(other) is dict:
        if one.keys() != other.keys():
            raise Refused(f"the keys of its {name} depend on the gradients")
        return {key: agreed(one[key], other[key], label(name, key)) for key in one}
    if not any(difference(one, other, name)):
        return one
    if isinstance(one, Tensor) and one.dtype != torch.bool:
        # -0.0 + x is x for every x, where 0.0 + x turns -0.0 into 0.0
        return -torch.zeros_like(one)
    if type(one) in (int, float):
        return type(one)(0)
    raise Refused(f"the first value of {name} depends on the gradients or on random numbers")


def before_counting(value: Any) -> Any:
    """The same, with 0 for each integer 1, also in a 0-dim tensor."""
    if type(value) is dict:
        return {key: before_counting(one) for key, one in value.items()}
    if isinstance(value, Tensor) and value.dim() == 0 and value.dtype == torch.int64 and value == 1:
        return torch.zeros_like(value)
    return 0 if type(value) is int and value == 1 else value


def verify(optimizer: torch.optim.Optimizer, initial: Initial) -> None:
    """Refused unless a copy with the state and a copy without it train alike, bit for bit, and add nothing to it."""
    for waiting in (None, 0, 1):
        plain, filled = trial_copy(optimizer, same_values), trial_copy(optimizer, same_values)
        memo = {id(original): p for original, p in zip(parameters(optimizer), parameters(filled))}
        install(filled, copy.deepcopy(initial, memo))
        before = outline(filled.state)
        start(plain)
        start(filled)
        for number in range(VERIFIED_STEPS):
            given = gradients(plain, number, waiting)
            try:
                step(plain, given)
            except Refused:
                if waiting is None:
                    raise
                break  # cannot go without a gradient: nothing to compare
            step(filled, given)
            for found in differences(plain, filled):
                raise Refused(f"with all state from the start, {found} would differ after step {number + 1}")
        after = outline(filled.state)
        for key in {**before, **after}:
            if before.get(key, {}) != after.get(key, {}):
                cause = "as it steps" if waiting is None else "with the parameters that have a gradient"
                raise Refused(f"its state changes in kind {cause}, from {before.get(key)} to {after.get(key)}")


def differences(plain: torch.optim.Optimizer, filled: torch.optim.Optimizer) -> Iterator[str]:
    counterpart = {id(a): b for a, b in zip(parameters(plain), parameters(filled))}
    for index, (a, b) in enumerate(zip(parameters(plain), parameters(filled))):
        yield from difference(a, b, f"parameter {index}")
    for key, value in plain.state.items():
        waits = isinstance(key, Tensor) and key.grad is None  # so the plain one may lack keys
        if value != {} and not waits:
            yield from difference(value, filled.state.get(counterpart.get(id(key), key)), "state")
    for one, other in zip(plain.param_groups, filled.param_groups):
        for name in one.keys() - {"params"}:
            yield from difference(one[name], other.get(name), label("group", name))


def difference(one: Any, other: Any, name: str) -> Iterator[str]:
    """The names of the values in which two trees differ."""
    if isinstance(one, list | tuple | deque) and isinstance(other, list | tuple | deque):
        one, other = dict(enumerate(one)), dict(enumerate(other))
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            yield f"the keys of {name}"
        else:
            for key in one:
                yield from difference(one[key], other[key], label(name, key))
    elif isinstance(one, Tensor) and isinstance(other, Tensor):
        if not all(bits_equal(a, b) for a, b in zip(plain_tensors(one), plain_tensors(other))):
            yield name
    elif type(one) is not type(other):
        yield name
    elif isinstance(one, int | float | complex | str | set | None) and repr(one) != repr(other):
        yield name  # repr: nan is like nan, and 0.0 unlike -0.0; another object is the optimizer's own affair


def bits_equal(one: Tensor, other: Tensor) -> bool:
    alike = (one.shape, one.dtype) == (other.shape, other.dtype)
    return alike and torch.equal(*(x.detach().reshape(-1).view(torch.uint8) for x in (one, other)))


def label(name: str, key: Any) -> str:
    return f"{name}[{key!r}]" if isinstance(key, str | int) else name


def outline(value: Any) -> Any:
    """Keys, shapes and dtypes. Numbers may change as they like."""
    if isinstance(value, dict):
        return {key: outline(one) for key, one in value.items()}
    if isinstance(value, list | tuple | deque):
        return [outline(one) for one in value]
    return (tuple(value.shape), value.dtype) if isinstance(value, Tensor) else None
