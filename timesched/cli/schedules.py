"""The schedules that a command line names, and the run that its options describe."""

from __future__ import annotations

import argparse
import ast
import importlib
import math
import os
import sys
import warnings
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from optim.config.names import CLOSED_FORM, LR, SCHEDULE, SCHEDULER
from optim.config.problems import prefix_errors
from optim.config.read import read
from timesched.cli.peers import PEERS
from timesched.cli.trial import Trial, trial
from timesched.clock import Clock
from timesched.drawing.lines import Source
from timesched.drawing.schedulers import sources
from timesched.half_life import HalfLife
from timesched.hints import arguments_of, similar_names

_RUN = ("max_duration", "batches_per_epoch", "samples_per_batch", "tokens_per_sample", "ssr")
_SUFFIXES = ((SCHEDULE, "Scheduler"), (LR, "LR"), (CLOSED_FORM, "WD"))


def add_run(command: argparse.ArgumentParser) -> None:
    """The options that describe a run."""
    group = command.add_argument_group("the run", "each in place of what a config says of it")
    group.add_argument("--max-duration", metavar="TIME", help="its length, such as 90ep or 1e12tok")
    group.add_argument("--batches-per-epoch", type=int, metavar="N")
    group.add_argument("--samples-per-batch", type=int, metavar="N")
    group.add_argument("--tokens-per-sample", type=int, metavar="N")
    group.add_argument("--ssr", type=float, metavar="RATIO", help="the scale-schedule ratio (default: 1)")


def run_of(options: argparse.Namespace) -> dict[str, Any]:
    """What the options say of a run, under the keys of a config."""
    run = {name: value for name in _RUN if (value := getattr(options, name)) is not None}
    if "max_duration" in run:
        Clock(**run)  # raises where the options, and not a config, are wrong
    return run


def finite(text: str) -> float:
    """A number of an option: finite, and 0 or more."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0.0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number of 0 or more: write one, such as 0.1")
    return number


def model_of(place: str | None) -> torch.nn.Module | None:
    """The model that `module:name` makes, a function or a class called without arguments, on the meta device."""
    if place is None:
        return None
    module, _, name = place.partition(":")
    if not name:
        raise ValueError(f"--model {place}: write module:name, where the name is a function that returns the model.")
    if os.getcwd() not in sys.path:  # as it is for `python -m`, and not for the installed program
        sys.path.insert(0, os.getcwd())
    try:
        make = getattr(importlib.import_module(module), name)
        with torch.device("meta"):  # without the memory of its parameters
            model = make()
    except Exception as error:  # there is no end to what a user's module may raise
        raise ValueError(f"--model {place}: {type(error).__name__}: {error}") from error
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"--model {place} returned a {type(model).__name__}, and no torch.nn.Module.")
    return model


def _place(text: str) -> tuple[str, int | None]:
    """The path of a config, and the number of its entry that is meant, or None for all."""
    path, _, entry = text.rpartition(":")
    return (path, int(entry)) if path and entry.isdecimal() else (text, None)


def is_config(text: str) -> bool:
    """Whether a SCHEDULE is a config, or an entry of one."""
    path, _ = _place(text)
    return path == "-" or path.endswith((".yaml", ".yml")) or os.path.isfile(path)


def config_of(path: str) -> Any:
    """The config in a file, or for `-` on standard input."""
    return read(f"{sys.stdin.read()}\n" if path == "-" else Path(path))


def trial_of(text: str, run: dict[str, Any], model: Any = None, rate: float | None = None) -> Trial:
    """What a SCHEDULE of the command line is, made on trial: a config, one entry of it, or a class with arguments.

    `run`: keys of the run, each in place of what a config says. `rate`: the initial learning rate of a class.
    """
    path, entry = _place(text)
    with warnings.catch_warnings():
        # `check` says so, too.
        said = ("warms up until", "lose every update", "is 0 in every group", "adjust_lr_fn='cerebras'")
        warnings.filterwarnings("ignore", f".*({'|'.join(said)})")
        if is_config(text):
            if rate is not None:
                raise ValueError(f"--lr is for schedules by name, and {path} has a learning rate: change it there.")
            with prefix_errors(path):
                return trial(config_of(path), model, run, only=entry)
        given = entry_of(text)
        if "max_duration" not in run and given.keys() <= SCHEDULE.public_classes.keys():
            raise ValueError(f"{text} needs a run: give --max-duration, such as --max-duration 90ep.")
        if _has_half_life(given):  # a value, which is no learning rate
            given = {name: {"key": "momentum", **arguments} for name, arguments in given.items()}
        optimizer = {"SGD": {"lr": 1.0 if rate is None else rate, "momentum": 0.9}}
        return trial({"optimizer": optimizer, "schedulers": [given]}, model, run, "SCHEDULE")


def _has_half_life(entry: Any) -> bool:
    """Whether an entry is a `HalfLife`, or one of its arguments is."""
    if isinstance(entry, list):
        return any(map(_has_half_life, entry))
    return isinstance(entry, dict) and ("HalfLife" in entry or any(map(_has_half_life, entry.values())))


def sources_of(text: str, run: dict[str, Any], rate: float | None = None) -> list[Source]:
    """What the schedulers of a SCHEDULE write. Raises `ValueError` where one of them could not be made."""
    made = trial_of(text, run, rate=rate)
    by_name = "SCHEDULE" in made.schedulers
    with prefix_errors("SCHEDULE" if by_name else text):
        made.problems.raise_all()
        if not made.schedulers:
            raise ValueError("there are no 'schedulers'.")
        found = list(chain.from_iterable(sources(each, made.clock) for each in made.schedulers.values()))
    if not by_name:
        return found
    one = made.schedulers["SCHEDULE"]
    name = type(one.schedule if one.relative else one).__name__ if text.isidentifier() else text
    quantity = "multiplier" if one.relative and rate is None else found[0].quantity
    return [replace(found[0], name=name, quantity=quantity)]


def entry_of(text: str) -> dict[str, Any]:
    """The entry of a config that a string such as `Name(1, key=[2, Other()])` stands for; a name alone is `Name()`.

    Nothing is evaluated: arguments are literals, lists and such calls.
    """
    try:
        tree = ast.parse(f"{text}()" if text.isidentifier() else text, mode="eval")
        compile(tree, "SCHEDULE", "eval")  # which refuses an argument that is there twice
    except SyntaxError as error:
        raise ValueError(f"{text!r:.80} is no call such as Name(argument=1): {error.msg}") from None
    made = _read(tree.body)
    if not isinstance(tree.body, ast.Call):
        raise ValueError(f"{text!r} is no schedule: write one as \"LinearScheduler(t_max='90ep')\", or a .yaml file.")
    return made  # type: ignore[no-any-return]  # of a call


def _read(node: ast.expr) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
        return _read_call(node, ast.unparse(node.func))
    if isinstance(node, ast.List):
        return [_read(each) for each in node.elts]
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"{ast.unparse(node):.80} is no literal: write numbers, strings and lists.") from None


def _read_call(call: ast.Call, function: str) -> dict[str, Any]:
    owner, _, name = function.rpartition(".")
    of_half_life = bool(owner) and name == "of" and class_of(owner.rpartition(".")[2]) is HalfLife
    cls = HalfLife if of_half_life else class_of(name)  # before the arguments are read
    positional = list(map(_read, call.args))
    named = {each.arg or "**": _read(each.value) for each in call.keywords}
    if of_half_life:  # as its repr is written
        known = HalfLife.of(*positional, **named)
        return {"HalfLife": {"time": str(known.time), "beta": known.beta}}
    takes = [each for each in arguments_of(cls).values() if each.name != "optimizer"]
    names = [each.name for each in takes if each.kind is each.POSITIONAL_OR_KEYWORD]
    if len(positional) > len(names) or not named.keys().isdisjoint(names[: len(positional)]):
        raise ValueError(f"{ast.unparse(call)}: too many arguments: {cls.__name__} takes {', '.join(names)}.")
    return {cls.__name__: {**dict(zip(names, positional)), **named}}


def _initials(name: str) -> str:
    return "".join(filter(str.isupper, name)).lower()


def class_of(name: str) -> type:
    """The class that a name stands for, also without its suffix, by the beginning (`Rex`) or by the initials (`WSD`).

    Schedules come before closed-form schedulers. Raises `ValueError` where several may be meant, or none.
    """
    wanted = name.lower()
    for family, suffix in _SUFFIXES:
        stems = {own: own.removesuffix(suffix) for own in family.public_classes}
        found = [own for own, stem in stems.items() if wanted in (own.lower(), stem.lower())]
        if not found:
            found = [own for own, stem in stems.items() if stem.lower().startswith(wanted) or wanted == _initials(stem)]
        if len(found) > 1:
            raise ValueError(f"there is no schedule {name!r}: did you mean {' or '.join(map(repr, found))}?")
        if found:
            return family.public_classes[found[0]]
    calls = [call for call, names in PEERS.items() if wanted in names.split()]
    meant = " or ".join(calls or map(repr, similar_names(name, SCHEDULER.public_classes)))
    raise ValueError(f"there is no schedule {name!r}: " + (f"did you mean {meant}?" if meant else "see timesched list"))
