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
from .guesses import guesses_of, named, observe, set_lr, values_before
from .trial import Trial, Unproven, Values, refuse_shared
from .undisturbed import set_seeds, undisturbed

TrialOf = Callable[[Sequence[Tensor]], Trial]  # a trial whose parameters have these weights


def initial_values(optimizer: torch.optim.Optimizer, i: int, p: Tensor, check: int) -> Values:
    """What the first step adds to the state of a parameter and to its group, the i-th, as it is before that step.

    Raises Unproven where a training of `check` steps is another one with it.
    """
    refuse_shared(optimizer, optimizer.param_groups[i], p)
    trial_of = partial(Trial, optimizer, i, p)
    with undisturbed(p.device):
        set_seeds(0, p.device)
        weights = (p.detach(), torch.randn_like(p.detach()))
        try:  # weight decay then leaves the weights as they are, so that a copy of them is known for one
            return found_and_proven(trial_of, weights, check, lr=0.0)
        except Unproven:
            return found_and_proven(trial_of, weights, check, lr=None)


def found_and_proven(trial_of: TrialOf, weights: Sequence[Tensor], check: int, lr: float | None) -> Values:
    """The values that steps with this lr show (None: with the group's own), once a training proves them."""
    observed = []
    for n, each in enumerate(weights):  # with seeds of their own: what is drawn at random is no constant
        observed.append(observe(trial_of([each]), lr, seed=10 * n))
    guesses = guesses_of(observed, weights)
    reason = ""  # why the likeliest are wrong
    while True:
        initial = []
        for n, seen in enumerate(observed):
            initial.append(values_before(seen, {path: possible[0][n] for path, possible in guesses.items()}))
        wrong = disproof(trial_of, weights, initial, check)
        if not wrong:
            return initial[0]
        reason = reason or next(iter(wrong.values()))
        left = [path for path in wrong if len(guesses.get(path, ())) > 1]
        if not left:
            raise Unproven(reason)
        smallest = min(left, key=lambda path: size(guesses[path][0][0]))  # whose fault shows in larger tensors, too
        guesses[smallest].pop(0)


def size(x: Any) -> int:
    return x.numel() if isinstance(x, Tensor) else 0


def disproof(trial_of: TrialOf, weights: Sequence[Tensor], initial: Sequence[Values], check: int) -> dict[Path, str]:
    """Where, and how, a training that begins with the initial values is another one."""
    for indices in ([0], [1], [1, 0]):  # the weights of one parameter, or of two
        chosen = [weights[n] for n in indices]
        lazy, early = trial_of(chosen), trial_of(chosen)
        early.begin_with([initial[n] for n in indices])
        is_late = len(indices) > 1 and may_lack_a_gradient(trial_of(chosen))
        wrong = training_differs(lazy, early, check, is_late)
        if wrong:
            return wrong
    return {}


def may_lack_a_gradient(trial: Trial) -> bool:
    """Whether the last parameter may; there are classes whose step fails then."""
    try:
        trial.step([*map(torch.zeros_like, trial.params[:-1]), None], seed=1)
    except Unproven:
        return False
    return True


def training_differs(lazy: Trial, early: Trial, check: int, is_late: bool) -> dict[Path, str]:
    """Compare after each step. If `is_late`, the last parameter has its first gradient one step late.

    Raises Unproven also if a step makes state that is not there early.
    """
    given = [set(values["state"]) for values in early.values()]
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
            mine, other = everything(lazy, n), everything(early, n)
            for key in other["state"]:
                if key not in given[n]:
                    why = "but not by a first step whose gradient is zero"
                    raise Unproven(f"state[{key!r}] is made in step {k}, {why}")
            wrong = differences(mine, other)
            if gradient is None:  # what is made by its first gradient is there early alone
                wrong = {path: texts for path, texts in wrong.items() if path in leaves(mine)}
            if wrong:
                return {path: in_words(path, *texts, k, is_late) for path, texts in wrong.items()}
    return {}


def everything(trial: Trial, n: int) -> dict[str, Any]:
    """What there is of a parameter, and its weights."""
    return {**trial.values()[n], "weights": trial.params[n].detach()}


def in_words(path: Path, as_made: str, as_given: str, k: int, is_late: bool) -> str:
    late = " of a group whose last parameter has its first gradient late" if is_late else ""
    why = " (it depends on the first gradient)" if k == 1 and not is_late else ""
    return f"{named(path)} is {as_made} after step {k}{late}, but {as_given} if it was there before{why}"
