"""The schedules that a command line names, and the run that its options describe."""

from __future__ import annotations

import argparse
import ast
import importlib
import math
import os
import re
import sys
from pathlib import Path
from typing import Any

import torch

from optim.closed_form.preview import sources
from optim.config.read import read
from optim.config.resolve import located
from optim.names import SCHEDULE
from timesched.cli.trial import trial
from timesched.clock import Clock
from timesched.drawing.lines import Source
from timesched.horizon import Horizon
from timesched.schedule import Schedule

_CONFIG = re.compile(r"(?P<path>.*\.ya?ml)(:(?P<entry>\d+))?")


def add_run(command: argparse.ArgumentParser) -> None:
    """The options that describe a run."""
    group = command.add_argument_group("the run", "in place of what a config says of it")
    group.add_argument("--max-duration", metavar="TIME", help="its length, such as 90ep or 1e12tok")
    group.add_argument("--batches-per-epoch", type=int, metavar="N")
    group.add_argument("--samples-per-batch", type=int, metavar="N")
    group.add_argument("--tokens-per-sample", type=int, metavar="N")
    group.add_argument("--ssr", type=float, default=1.0, metavar="RATIO", help="the scale-schedule ratio")


def finite(text: str) -> float:
    """A number of an option: finite, and 0 or more."""
    number = float(text)
    if not 0.0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a finite number of 0 or more: write one, such as 0.1")
    return number


def clock_of(options: argparse.Namespace) -> Clock | None:
    """The clock of a run that the options describe; None where they give no length."""
    rates = ("batches_per_epoch", "samples_per_batch", "tokens_per_sample")
    given = {name: getattr(options, name) for name in rates}
    if options.max_duration is None:
        if any(value is not None for value in given.values()) or options.ssr != 1.0:
            raise ValueError("the options of a run need its length: give --max-duration, such as --max-duration 90ep.")
        return None
    return Clock(options.max_duration, **given, ssr=options.ssr)


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


def sources_of(text: str, clock: Clock | None, rate: float | None = None) -> list[Source]:
    """What a SCHEDULE of the command line is, on the run of the clock, or else on that of its config.

    `rate`: the learning rate that multipliers are taken of; None for the multipliers, or for that of a config.
    """
    config = _CONFIG.fullmatch(text)
    if config is None:
        schedule = schedule_of(text)
        if clock is None:
            raise ValueError(f"{text} needs a run: give --max-duration, such as --max-duration 90ep.")
        return [Source(text, schedule, Horizon.of(clock), 1.0 if rate is None else rate)]
    found = written(read(Path(config["path"])), clock, config["path"])
    chosen = [source for i, source in found if config["entry"] in (None, str(i))]
    if not chosen:
        raise ValueError(f"{text}: 'schedulers' has no entry of that number, or none at all; they count from 0.")
    return chosen


def schedule_of(text: str) -> Schedule:
    """The schedule that a text such as `Name(1, key=[2, Other()])` stands for; a name alone stands for `Name()`.

    Nothing is evaluated: arguments are literals, lists and such calls.
    """
    try:
        tree = ast.parse(f"{text}()" if text.isidentifier() else text, mode="eval")
        compile(tree, "SCHEDULE", "eval")  # which refuses an argument that is there twice
    except SyntaxError as error:
        raise ValueError(f"{text!r:.80} is no call such as Name(argument=1): {error.msg}") from None
    made = _made(tree.body)
    if not isinstance(made, Schedule):
        raise ValueError(f"{text!r} is no schedule: write one as \"LinearScheduler(t_max='90ep')\", or a .yaml file.")
    return made


def _made(node: ast.expr) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        cls = SCHEDULE.find(node.func.id, "SCHEDULE")
        return cls(*map(_made, node.args), **{each.arg or "**": _made(each.value) for each in node.keywords})
    if isinstance(node, ast.List):
        return [_made(each) for each in node.elts]
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"{ast.unparse(node):.80} is no literal: write numbers, texts in quotes, and lists.") from None


def written(config: Any, clock: Clock | None, where: str) -> list[tuple[int, Source]]:
    """What the schedulers of a config write, each with the index of its entry; `where` begins the errors."""
    with located(where):
        made = trial(config, clock=clock)
        if made.problems:
            raise ValueError(made.problems[0])
        return [(i, source) for i, each in enumerate(made.schedulers) for source in sources(each, made.clock)]
