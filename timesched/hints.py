"""Hints in messages about unknown names: the known names that may be meant. No other module compares names."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any

# Arguments, and their names in torch, transformers and other packages.
NAMES_ELSEWHERE = {
    "alpha_f": ("end_factor", "eta_min", "lr_end", "min_lr", "min_lr_rate"),
    "alpha_i": ("start_factor",),
    "betas[0]": ("beta1",),
    "betas[1]": ("beta2",),
    "end_learning_rate": ("eta_min", "lr_end", "min_lr"),
    "eps": ("epsilon",),
    "lr": ("learning_rate",),
    "max_duration": ("max_steps", "num_train_epochs", "max_length"),
    "out": ("file", "output", "save"),
    "param_group_tags": ("tags",),
    "samples_per_batch": ("batch_size", "global_batch_size"),
    "t_decay": ("num_decay_steps",),
    "t_max": ("num_training_steps", "total_iters", "total_steps"),
    "t_warmup": ("num_warmup_steps", "warmup_iters", "warmup_ratio", "warmup_steps"),
    "tokens_per_sample": ("max_seq_len", "seq_len", "sequence_length"),
    "weight_decay": ("wd",),
}
CHOSEN_BY_DEVICE = ("capturable", "foreach", "fused")


def nearest_names(name: str, known: Iterable[str], most: int = 3, likeness: float = 0.6) -> list[str]:
    """At most `most` known names, the most similar first. `likeness`: from 0 for any name to 1 for equal names."""
    return difflib.get_close_matches(name, list(known), most, likeness)


def similar_names(name: str, known: Iterable[str]) -> list[str]:
    """The known names that may be meant: those with this name elsewhere, or else the most similar ones, best first."""
    names = {known_name.lower(): known_name for known_name in known}
    synonyms = [known_name for known_name in names.values() if name in NAMES_ELSEWHERE.get(known_name, ())]
    return synonyms or [names[lower_name] for lower_name in nearest_names(name.lower(), names)]


def name_hint(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the names that may be meant, or else all known names."""
    known = list(known)
    similar = " or ".join(map(repr, similar_names(name, known)))
    return f": did you mean {similar}?" if similar else f": there are {', '.join(known)}."


def argument_hint(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown argument: the names that may be meant, and all known names."""
    if name in CHOSEN_BY_DEVICE:
        return ": leave it out, since it is chosen by the device of the tensors."
    known = list(known)
    hint = name_hint(name, known)
    if hint.endswith("?"):
        hint += f" There are {', '.join(known)}."
    return f"{hint} Each alpha is a multiple of the initial value." if "'alpha_" in hint else hint


def arguments_of(cls: Any) -> Mapping[str, inspect.Parameter]:
    """The arguments of a constructor, by name.

    It does not use `inspect.signature(cls)`, which in Python 3.10 prefers an inherited `__new__` to an inherited
    `__init__`.
    """
    signature = getattr(cls, "__signature__", None)  # inspect, too, reads it first
    return signature.parameters if signature else {argument.name: argument for argument in init_arguments(cls)}


def init_arguments(cls: Any) -> list[inspect.Parameter]:
    """The arguments of `cls.__init__` without `self`."""
    _, *arguments = inspect.signature(cls.__init__).parameters.values()
    return arguments


class InitSignature:
    """A class attribute `__signature__`: `inspect.signature(cls)` then shows the arguments of `cls.__init__`.

    Only Python 3.10 needs it: there, `inspect.signature` prefers an inherited `__new__` to an inherited `__init__`.
    """

    def __get__(self, instance: object, cls: Any) -> inspect.Signature:
        if instance is not None:
            raise AttributeError("__signature__")  # an instance is called with other arguments
        return inspect.Signature(init_arguments(cls))


def show_options(cls: Any, defaults: Mapping[str, object]) -> None:
    """Set the signature of a class, which shows `**options: Unpack[...Options]` as arguments by name, with defaults."""
    arguments = init_arguments(cls)
    if arguments and re.fullmatch(r"Unpack\[\w*Options\]", str(arguments[-1].annotation)):
        kind = inspect.Parameter.KEYWORD_ONLY
        arguments[-1:] = [inspect.Parameter(name, kind, default=default) for name, default in defaults.items()]
    cls.__signature__ = inspect.Signature(arguments)


def check_argument_names(cls: type, keywords: Mapping[str, object]) -> None:
    """Raise `TypeError` with a hint, in place of Python's, for a keyword that a constructor does not take."""
    arguments = arguments_of(cls)
    if any(argument.kind is argument.VAR_KEYWORD for argument in arguments.values()):
        return
    for name in keywords:
        if name not in arguments:
            raise TypeError(f"{cls.__name__} has no argument {name!r}{argument_hint(name, arguments)}")
