"""Guesses of the initial state of a parameter, from two steps with zero gradients.

The steps are made on two copies of the parameter: one with its own weights, and one with random weights. A guess is a
pair of values, one for each copy. For example, a value that is 1 after the first step and 2 after the second may be a
counter that starts at 0.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_unflatten

from ..base.sharding import local_shard
from .compare import Path, are_equal, leaves, short_text
from .trial import Trial, Unproven, Values

Guess = tuple[Any, ...]
Guesses = dict[Path, list[Guess]]  # for each leaf of the values, the most likely first


class Observation(NamedTuple):
    """The values of a copy before its first step, after it, and after the second step."""

    before: Values
    first: Values
    second: Values


def observe(trial: Trial, lr: float | None, seed: int) -> Observation:
    """Make two steps with zero gradients and this learning rate (None: the learning rate of the group)."""
    if lr is not None:
        set_lr(trial, lr)
    values = [copy.deepcopy(trial.values()[0])]
    for k in (1, 2):
        trial.step([torch.zeros_like(trial.params[0])], seed + k)
        values.append(copy.deepcopy(trial.values()[0]))
    return Observation(*values)


def set_lr(trial: Trial, lr: float) -> None:
    if "lr" in trial.group:
        before = trial.group["lr"]
        trial.group["lr"] = torch.full_like(before, lr) if isinstance(before, Tensor) else lr


def make_guesses(observations: Sequence[Observation], weights: Sequence[Tensor]) -> Guesses:
    """Guess the initial value of each leaf that the first step added to the state, or set in the group."""
    guesses: Guesses = {}
    before = observations[0].before
    after_first = [leaves(observation.first) for observation in observations]
    after_second = [leaves(observation.second) for observation in observations]
    for path in after_first[0]:
        part, key = path[0].key, path[1].key
        if any(path not in values for values in after_first + after_second):
            raise Unproven(f"{describe_path(path)} is not there after each of two steps")
        first, second = tuple(values[path] for values in after_first), tuple(values[path] for values in after_second)
        value_before = before[part].get(key)
        if key not in before[part]:
            possible = possible_values(path, first, second, weights)
        elif part == "group" and (value_before is None or value_before is False) and are_equal(first[0], second[0]):
            possible = [(value_before, value_before), first]  # the first step sets it once and for all
        else:
            continue  # it existed before
        if part == "group":  # which the parameters of the group share
            possible = [guess for guess in possible if are_equal(*guess)]
        if not possible:
            value = short_text(first[0])
            raise Unproven(f"{describe_path(path)} is neither zero, nor the weights, nor a constant: {value}")
        guesses[path] = possible
    return guesses


def possible_values(path: Path, first: Guess, second: Guess, weights: Sequence[Tensor]) -> list[Guess]:
    """The initial values that two steps with zero gradients may have turned into these values."""
    x = first[0]
    if has_nan(x):
        raise Unproven(f"{describe_path(path)} is NaN where the gradient is zero")
    if isinstance(x, Tensor):
        return possible_tensors(first, second, weights)
    if isinstance(x, (bool, int, float, complex)):
        possible = possible_numbers(first, second)
        return [first, *possible] if are_equal(*first, *second) else possible
    if x is None or path[0].key == "group":
        return [first]
    raise Unproven(f"{describe_path(path)} is no tensor and no number: {short_text(x)}")


def possible_tensors(first: Guess, second: Guess, weights: Sequence[Tensor]) -> list[Guess]:
    """The initial tensors: a constant, the weights, or as for numbers. An average of gradients starts with 0 or 1."""
    if are_equal(*first, *second) or are_copies_of_weights(first, weights):
        return [first]
    x = first[0]
    if x.numel() == 1 and x.shape != weights[0].shape:  # a count
        return possible_numbers(first, second)
    if x.numel() != 1 and not are_equal(*first):
        return []
    # Together with gradients, the error of a wrong initial value could be too small to notice.
    return [guess for guess in possible_numbers(first, second) if are_equal(guess[0], guess[0].round())]


def are_copies_of_weights(tensors: Sequence[Tensor], weights: Sequence[Tensor]) -> bool:
    """Whether the tensors are the weights, in the same order and in any shape."""
    pairs = [(local_shard(x, x), local_shard(w, w)) for x, w in zip(tensors, weights)]
    return all(are_equal(x.flatten(), w.flatten().to(x.dtype)) for x, w in pairs)


def possible_numbers(first: Guess, second: Guess) -> list[Guess]:
    possible = zip(*map(earlier_numbers, first, second))
    return [guess for guess in possible if not any(map(has_nan, guess))]


def earlier_numbers(first: Any, second: Any) -> list[Any]:
    """The initial numbers that fit these two: of a count, a product, a sum, a constant, or a product again."""
    if isinstance(first, Tensor):
        possible = [first * 0, first * 0 + 1, first - (second - first), first, first**2 / second]
        return [x.to(first.dtype) for x in possible]
    ratio = first**2 / second if second else first
    return [type(first)(x) for x in (0, 1, first - (second - first), first, ratio)]


def has_nan(x: object) -> bool:
    return isinstance(x, (Tensor, float)) and bool(torch.as_tensor(x).isnan().any())


def make_initial_values(observation: Observation, guess: dict[Path, object]) -> Values:
    """Make the state and the group keys that the first step added or set, with the leaves of a guess."""
    pairs, structure = tree_flatten_with_path(observation.first)
    values = tree_unflatten([guess.get(path, x) for path, x in pairs], structure)
    initial: Values = {"state": {}, "group": {}}
    for part, initial_part in initial.items():
        guessed_keys = {path[1].key for path in guess if path[0].key == part}
        for key, x in values[part].items():
            if key in guessed_keys or key not in observation.before[part]:
                initial_part[key] = x
    return initial


def describe_path(path: Path) -> str:
    """Describe where a leaf is, as in `state['step']`."""
    return f"{path[0].key}{keystr(path[1:])}"
