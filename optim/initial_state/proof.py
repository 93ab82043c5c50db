"""The state that a parameter has before its first step, in an optimizer of any class: guessed, then proven.

The proof of a guess: copies train alike, to the bit, where their state is made by the first step and where it was there
before.
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

MakeTrial = Callable[[Sequence[Tensor]], Trial]  # a trial whose parameters have these weights


def initial_values(optimizer: torch.optim.Optimizer, i: int, p: Tensor, check: int) -> Values:
    """What the first step adds to the state of a parameter and to its group, the i-th, as it is before that step.

    Raises Unproven where a training of `check` steps is another one with it.
    """
    check_not_shared(optimizer, optimizer.param_groups[i], p)
    make_trial = partial(Trial, optimizer, i, p)
    with preserve_global_state(p.device):
        set_seeds(0, p.device)
        weights = (p.detach(), torch.randn_like(p.detach()))
        try:  # weight decay then leaves the weights as they are, so that a copy of them is known for one
            return find_proven_values(make_trial, weights, check, lr=0.0)
        except Unproven:
            return find_proven_values(make_trial, weights, check, lr=None)


def find_proven_values(make_trial: MakeTrial, weights: Sequence[Tensor], check: int, lr: float | None) -> Values:
    """The values that steps with this lr show (None: with the group's own), once a training proves them."""
    observations = []
    for n, own_weights in enumerate(weights):  # with seeds of their own: what is drawn at random is no constant
        observations.append(observe(make_trial([own_weights]), lr, seed=10 * n))
    guesses = make_guesses(observations, weights)
    reason = ""  # why the likeliest are wrong
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
        # The fault of a small value shows in larger tensors, too.
        smallest = min(replaceable, key=lambda path: element_count(guesses[path][0][0]))
        guesses[smallest].pop(0)


def element_count(x: Any) -> int:
    return x.numel() if isinstance(x, Tensor) else 0


def find_disproof(
    make_trial: MakeTrial, weights: Sequence[Tensor], initial: Sequence[Values], check: int
) -> dict[Path, str]:
    """Where, and how, a training that begins with the initial values is another one."""
    for indices in ([0], [1], [1, 0]):  # the weights of one parameter, or of two
        chosen_weights = [weights[n] for n in indices]
        lazy, early = make_trial(chosen_weights), make_trial(chosen_weights)
        early.set_initial_values([initial[n] for n in indices])
        is_late = len(indices) > 1 and can_step_without_gradient(make_trial(chosen_weights))
        wrong = compare_trainings(lazy, early, check, is_late)
        if wrong:
            return wrong
    return {}


def can_step_without_gradient(trial: Trial) -> bool:
    """Whether the last parameter may; there are classes whose step fails then."""
    try:
        trial.step([*map(torch.zeros_like, trial.params[:-1]), None], seed=1)
    except Unproven:
        return False
    return True


def compare_trainings(lazy: Trial, early: Trial, check: int, is_late: bool) -> dict[Path, str]:
    """Compare after each step. If `is_late`, the last parameter has its first gradient one step late.

    Raises Unproven also if a step makes state that is not there early.
    """
    early_keys = [set(values["state"]) for values in early.values()]
    for k in range(1, check + 1 + is_late):
        set_seeds(1000 * k, lazy.params[0].device)
        # Of all sizes, since what is small is lost in rounding beside a large gradient.
        gradients: list[Tensor | None] = [torch.randn_like(q) ** 5 for q in lazy.params]
        if is_late and k == 1:
            gradients[-1] = None
        for trial in (lazy, early):
            if k == 2 and not is_late and trial.group.get("lr") == 0:
                set_lr(trial, 1e-3)  # as where a warmup begins at 0: what depends on the weights shows
            trial.step(gradients, seed=1000 * k + 1)
        for n, gradient in enumerate(gradients):
            lazy_values, early_values = values_and_weights(lazy, n), values_and_weights(early, n)
            for key in early_values["state"]:
                if key not in early_keys[n]:
                    why = "but not by a first step whose gradient is zero"
                    raise Unproven(f"state[{key!r}] is made in step {k}, {why}")
            wrong = differences(lazy_values, early_values)
            if gradient is None:  # what is made by its first gradient is there early alone
                wrong = {path: texts for path, texts in wrong.items() if path in leaves(lazy_values)}
            if wrong:
                return {path: describe_difference(path, *texts, k, is_late) for path, texts in wrong.items()}
    return {}


def values_and_weights(trial: Trial, n: int) -> dict[str, Any]:
    """What there is of a parameter, and its weights."""
    return {**trial.values()[n], "weights": trial.params[n].detach()}


def describe_difference(path: Path, lazy_text: str, early_text: str, k: int, is_late: bool) -> str:
    late = " of a group whose last parameter has its first gradient late" if is_late else ""
    why = " (it depends on the first gradient)" if k == 1 and not is_late else ""
    return f"{describe_path(path)} is {lazy_text} after step {k}{late}, but {early_text} if it was there before{why}"
