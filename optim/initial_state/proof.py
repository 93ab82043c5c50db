"""Guesses the state of a parameter before its first step, for an optimizer of any class, and proves the guess.

A guess is proven if two copies train bit for bit the same: a lazy copy, whose first step makes the state, and an early
copy, which starts with the guessed state. If they differ, the next guess is tried.

This optimizer halves its step size in each step. It keeps the product in its state, from the first step:

>>> import torch
>>> class Halving(torch.optim.Optimizer):
...     def step(self):
...         for p in self.param_groups[0]["params"]:
...             state = self.state[p]
...             state["product"] = state.get("product", 1.0) * 0.5
...             p.data -= state["product"] * p.grad
>>> weight = torch.nn.Parameter(torch.ones(2))
>>> initial_values(Halving([weight], {}), 0, weight, check=3)
{'state': {'product': 1.0}, 'group': {}}

1. Two steps with zero gradients show that the product is 0.5, then 0.25.
2. The guesses for such a pair are 0, 1, 0.75, 0.5 and 1, in this order (see `earlier_numbers`).
3. An early copy that starts with 0 has the product 0 after its first step, and the lazy copy has 0.5. 0 is wrong.
4. An early copy that starts with 1 has the same product and weights as the lazy copy, after each of the `check` steps
   with random gradients. 1 is proven.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .compare import Path, differences, leaves
from .global_state import preserve_global_state, set_seeds
from .guesses import describe_path, make_guesses, make_initial_values, observe, set_lr
from .trial import Trial, Unproven, Values, check_not_shared

MakeTrial = Callable[[Sequence[Tensor]], Trial]  # makes a trial whose parameters have the given weights


def initial_values(optimizer: torch.optim.Optimizer, i: int, p: Tensor, check: int) -> Values:
    """The initial values of all that the first step adds to the state of a parameter and to its group, the i-th.

    Raises Unproven if no guess gives the same training for `check` steps.
    """
    check_not_shared(optimizer, optimizer.param_groups[i], p)
    make_trial = partial(Trial, optimizer, i, p)
    with preserve_global_state(p.device):
        set_seeds(0, p.device)
        weights = (p.detach(), torch.randn_like(p.detach()))
        try:  # with lr 0, weight decay keeps the weights, so that a copy of the weights is recognized
            return find_proven_values(make_trial, weights, check, lr=0.0)
        except Unproven:
            return find_proven_values(make_trial, weights, check, lr=None)


def find_proven_values(make_trial: MakeTrial, weights: Sequence[Tensor], check: int, lr: float | None) -> Values:
    """Find the values that a training proves, from steps with this learning rate (None: the group's own)."""
    observations = []
    for n, own_weights in enumerate(weights):  # different seeds, so that random values do not look constant
        observations.append(observe(make_trial([own_weights]), lr, seed=10 * n))
    guesses = make_guesses(observations, weights)
    reason = ""  # why the most likely guesses are wrong
    while True:
        initial = []
        for n, observation in enumerate(observations):
            initial.append(make_initial_values(observation, {path: ranked[0][n] for path, ranked in guesses.items()}))
        wrong = find_disproof(make_trial, weights, initial, check)
        if not wrong:
            return initial[0]
        reason = reason or next(iter(wrong.values()))
        replaceable = [path for path in wrong if len(guesses.get(path, ())) > 1]
        if not replaceable:
            raise Unproven(reason)
        # A wrong small value also changes larger tensors, so it is replaced first.
        smallest = min(replaceable, key=lambda path: element_count(guesses[path][0][0]))
        guesses[smallest].pop(0)


def element_count(x: object) -> int:
    return x.numel() if isinstance(x, Tensor) else 0


def find_disproof(
    make_trial: MakeTrial, weights: Sequence[Tensor], initial: Sequence[Values], check: int
) -> dict[Path, str]:
    """Find the leaves that differ in a training that starts with the initial values, and describe the differences."""
    for indices in ([0], [1], [1, 0]):  # trainings with one parameter, and with two
        chosen_weights = [weights[n] for n in indices]
        lazy, early = make_trial(chosen_weights), make_trial(chosen_weights)
        early.set_initial_values([initial[n] for n in indices])
        is_late = len(indices) > 1 and can_step_without_gradient(make_trial(chosen_weights))
        wrong = compare_trainings(lazy, early, check, is_late)
        if wrong:
            return wrong
    return {}


def can_step_without_gradient(trial: Trial) -> bool:
    """Whether a step works if the last parameter has no gradient. For some classes it fails."""
    try:
        trial.step([*map(torch.zeros_like, trial.params[:-1]), None], seed=1)
    except Unproven:
        return False
    return True


def compare_trainings(lazy: Trial, early: Trial, check: int, is_late: bool) -> dict[Path, str]:
    """Compare two trainings after each step. With `is_late`, the last parameter gets its first gradient one step late.

    Raises Unproven if a later step makes state that the early copy did not start with.
    """
    early_keys = [set(values["state"]) for values in early.values()]
    for k in range(1, check + 1 + is_late):
        set_seeds(1000 * k, lazy.params[0].device)
        # Gradients of all sizes, since next to a large gradient, a small value would be lost in rounding.
        gradients: list[Tensor | None] = [torch.randn_like(q) ** 5 for q in lazy.params]
        if is_late and k == 1:
            gradients[-1] = None
        for trial in (lazy, early):
            if k == 2 and not is_late and trial.group.get("lr") == 0:
                set_lr(trial, 1e-3)  # like the end of a warmup from 0: shows what depends on the weights
            trial.step(gradients, seed=1000 * k + 1)
        for n, gradient in enumerate(gradients):
            lazy_values, early_values = values_and_weights(lazy, n), values_and_weights(early, n)
            for key in early_values["state"]:
                if key not in early_keys[n]:
                    raise Unproven(f"state[{key!r}] is made in step {k}, but not by a first step with zero gradients")
            wrong = differences(lazy_values, early_values)
            if gradient is None:  # only the early copy has the state that its first gradient makes
                wrong = {path: texts for path, texts in wrong.items() if path in leaves(lazy_values)}
            if wrong:
                return {path: describe_difference(path, *texts, k, is_late) for path, texts in wrong.items()}
    return {}


def values_and_weights(trial: Trial, n: int) -> dict[str, Any]:
    """The state, group and weights of a parameter."""
    return {**trial.values()[n], "weights": trial.params[n].detach()}


def describe_difference(path: Path, lazy_text: str, early_text: str, k: int, is_late: bool) -> str:
    late = " of a group whose last parameter has its first gradient late" if is_late else ""
    why = " (it depends on the first gradient)" if k == 1 and not is_late else ""
    return f"{describe_path(path)} is {lazy_text} after step {k}{late}, but {early_text} if it existed before{why}"
