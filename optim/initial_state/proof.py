"""What an optimizer of any class makes of a parameter in its first step, found by trials and proven by others.

Two copies of the parameter take a step with zero gradients, one with its weights and one with random ones. What they
show is proven if copies train alike, to the bit, where it is made by the first step and where it was there before.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_unflatten

from ..base.sharding import local
from .trial import (
    Path,
    Trial,
    Unproven,
    Values,
    differences,
    leaves,
    refuse_shared,
    same,
    set_seeds,
    shortened,
    undisturbed,
)

TrialOf = Callable[[Sequence[Tensor]], Trial]  # a trial whose parameters have these weights
Guesses = dict[Path, list[tuple[Any, ...]]]  # for each leaf, what it may be at first; a value for each of the weights


class Observed(NamedTuple):
    """What there is of a copy before its first step, after it, and after the second."""

    before: Values
    first: Values
    second: Values


def initial_values(optimizer: torch.optim.Optimizer, group: dict[str, Any], p: Tensor, check: int) -> Values:
    """What the first step adds to the state of a parameter and to its group, with the values from before that step.

    Raises Unproven where a training of `check` steps is another one with it.
    """
    refuse_shared(optimizer, group, p)
    trial_of = partial(Trial, optimizer, group, p)
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
    for i, values in enumerate(weights):  # with seeds of their own: what is drawn at random is no constant
        observed.append(observe(trial_of([values]), lr, seed=10 * i))
    guesses = guess(observed, weights)
    chosen = dict.fromkeys(guesses, 0)
    why = ""  # the likeliest is not proven
    while True:
        initial = []
        for i, seen in enumerate(observed):
            initial.append(added(seen, {path: guesses[path][k][i] for path, k in chosen.items()}))
        wrong = disproof(trial_of, weights, initial, check)
        if not wrong:
            return initial[0]
        why = why or next(iter(wrong.values()))
        unsettled = [path for path in wrong if path in chosen and chosen[path] + 1 < len(guesses[path])]
        if not unsettled:
            raise Unproven(why)
        chosen[min(unsettled, key=lambda path: size(guesses[path][0][0]))] += 1  # it shows in larger tensors, too


# What the first step adds


def observe(trial: Trial, lr: float | None, seed: int) -> Observed:
    """Two steps with zero gradients."""
    if lr is not None:
        set_lr(trial, lr)
    moments = copy.deepcopy(trial.values())
    for k in (1, 2):
        trial.step([torch.zeros_like(trial.params[0])], seed + k)
        moments += copy.deepcopy(trial.values())
    return Observed(*moments)


def set_lr(trial: Trial, lr: float) -> None:
    if "lr" in trial.group:
        before = trial.group["lr"]
        trial.group["lr"] = torch.full_like(before, lr) if isinstance(before, Tensor) else lr


def guess(observed: Sequence[Observed], weights: Sequence[Tensor]) -> Guesses:
    """What each value that the first step added may have been before it, the likeliest first."""
    guesses: Guesses = {}
    firsts, seconds = [leaves(seen.first) for seen in observed], [leaves(seen.second) for seen in observed]
    for path in firsts[0]:
        part, key = path[0].key, path[1].key
        if any(path not in moment for moment in firsts + seconds):
            raise Unproven(f"{named(path)} is not there after each of two steps")
        first, second = [moment[path] for moment in firsts], [moment[path] for moment in seconds]
        if key not in observed[0].before[part]:
            guesses[path] = possible_values(path, first, second, weights)
        elif part == "group" and left_open(observed[0].before[part][key]) and same(first[0], second[0]):
            guesses[path] = [tuple(seen.before[part][key] for seen in observed), tuple(first)]  # decided for good
        if part == "group" and path in guesses:  # which other parameters have, too
            guesses[path] = [values for values in guesses[path] if same(*values)]
        if not guesses.get(path, True):
            raise Unproven(f"{named(path)} is neither zero, nor the weights, nor a constant: {shortened(first[0])}")
    return guesses


def left_open(x: Any) -> bool:
    return x is None or x is False


def possible_values(
    path: Path, first: Sequence[Any], second: Sequence[Any], weights: Sequence[Tensor]
) -> list[tuple[Any, ...]]:
    """What may have been there, if two steps with zero gradients made these values of it."""
    x = first[0]
    if has_nan(x):
        raise Unproven(f"{named(path)} is NaN where the gradient is zero")
    stays = same(*first, *second)
    if isinstance(x, Tensor) and (stays or are_copies(first, weights)):
        return [tuple(first)]
    if isinstance(x, Tensor) and x.numel() != 1 and not same(*first):
        return []
    if isinstance(x, (Tensor, bool, int, float, complex)):
        possible = distinct([tuple(first)] * stays + list(zip(*map(numbers_before, first, second))))
        if isinstance(x, Tensor) and (x.numel() != 1 or x.shape == weights[0].shape):
            # More than a count: beside gradients, a wrong first value could be too small to notice.
            possible = [values for values in possible if same(values[0], values[0].round())]
        return possible
    if x is None or path[0].key == "group":
        return [tuple(first)]
    raise Unproven(f"{named(path)} is no tensor and no number: {shortened(x)}")


def are_copies(tensors: Sequence[Tensor], weights: Sequence[Tensor]) -> bool:
    """Whether they are the weights in their order, whatever their shape."""
    pairs = [(local(x, x), local(w, w)) for x, w in zip(tensors, weights)]
    return all(same(x.flatten(), w.flatten().to(x.dtype)) for x, w in pairs)


def numbers_before(first: Any, second: Any) -> list[Any]:
    """What a number, or a tensor of them, was that two steps made these: a count, a constant, a sum, a product."""
    if isinstance(first, Tensor):
        possible = [first * 0, first * 0 + 1, first - (second - first), first, first**2 / second]
        return [x.to(first.dtype) for x in possible]
    ratio = first**2 / second if second else first
    return [type(first)(x) for x in (0, 1, first - (second - first), first, ratio)]


def distinct(guesses: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Each guess once, and none that is NaN."""
    found: list[tuple[Any, ...]] = []
    for values in guesses:
        known = any(all(map(same, values, others)) for others in found)
        if not known and not any(map(has_nan, values)):
            found.append(values)
    return found


def has_nan(x: Any) -> bool:
    return isinstance(x, (Tensor, float)) and bool(torch.as_tensor(x).isnan().any())


def size(x: Any) -> int:
    return x.numel() if isinstance(x, Tensor) else 0


def added(seen: Observed, initial: dict[Path, Any]) -> Values:
    """What the first step added to state and group, with these values."""
    pairs, structure = tree_flatten_with_path(seen.first)
    values = tree_unflatten([initial.get(path, x) for path, x in pairs], structure)
    found: Values = {}
    for part, before in seen.before.items():
        settled = {path[1].key for path in initial if path[0].key == part}
        found[part] = {key: x for key, x in values[part].items() if key in settled or key not in before}
    return found


def named(path: Path) -> str:
    return f"{path[0].key}{keystr(path[1:])}"


# Proof


def disproof(trial_of: TrialOf, weights: Sequence[Tensor], initial: Sequence[Values], check: int) -> dict[Path, str]:
    """Where, and how, a training that begins with the initial values is another one."""
    for indices in ([0], [1], [1, 0]):  # the weights of one parameter, or of two
        values = [weights[i] for i in indices]
        late = len(indices) > 1 and may_lack_a_gradient(trial_of(values))
        lazy, early = trial_of(values), trial_of(values)
        early.begin_with([initial[i] for i in indices])
        wrong = training_differs(lazy, early, check, late)
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


def training_differs(lazy: Trial, early: Trial, check: int, late: bool) -> dict[Path, str]:
    """Compare after each step. If `late`, the last parameter has its first gradient one step late.

    Raises Unproven also if a step makes state that is not there early.
    """
    at_first = [set(values["state"]) for values in early.values()]
    for k in range(1, check + 1 + late):
        set_seeds(1000 * k, lazy.params[0].device)
        # Of all sizes, since what is small is lost in rounding beside a large gradient.
        gradients: list[Tensor | None] = [torch.randn_like(q) ** 5 for q in lazy.params]
        if late and k == 1:
            gradients[-1] = None
        for trial in (lazy, early):
            if k == 2 and not late and trial.group.get("lr") == 0:
                set_lr(trial, 1e-3)  # as where a warmup begins at 0: what depends on the weights shows
            trial.step(gradients, seed=1000 * k + 1)
        when = f"after step {k}"
        if late:
            when += " of a group whose last parameter has its first gradient late"
        for i, gradient in enumerate(gradients):
            mine, other = everything(lazy, i), everything(early, i)
            for key in [key for key in other["state"] if key not in at_first[i]]:
                raise Unproven(f"state[{key!r}] is made in step {k}, but not by a first step whose gradient is zero")
            wrong = differences(mine, other)
            if gradient is None:  # what is made by its first gradient is there early alone
                wrong = {path: how for path, how in wrong.items() if path in leaves(mine)}
            if wrong:
                why = " (it depends on the first gradient)" if k == 1 and not late else ""
                return {
                    path: f"{named(path)} is {as_made} {when}, but {as_given} if it was there before{why}"
                    for path, (as_made, as_given) in wrong.items()
                }
    return {}


def everything(trial: Trial, i: int) -> dict[str, Any]:
    """What there is of a parameter, and its weights."""
    return {**trial.values()[i], "weights": trial.params[i].detach()}
