"""The schedules that a command line names, and the run that its options describe."""

from __future__ import annotations

import argparse
import importlib
import math
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from optim.config.names import SCHEDULER
from optim.config.read import read, read_sections
from optim.config.trial import Trial, make_trial
from timesched.cli.settings import set_keys
from timesched.drawing.lines import Source
from timesched.drawing.schedulers import sources
from timesched.findings import FindingWarning
from timesched.reading import SCHEDULE, prefix_errors, read_calls
from timesched.run.clock import Clock

SCHEDULE_HELP = "a class with its arguments, a config, or an entry of a config: see timesched --help"
_RUN_KEYS = ("max_duration", "batches_per_epoch", "samples_per_batch", "tokens_per_sample", "ssr")


def add_run_options(command: argparse.ArgumentParser) -> None:
    """Add the options that describe a run."""
    group = command.add_argument_group("the run", "each option replaces the same key of a config")
    group.add_argument("--max-duration", metavar="TIME", help="the length of the run, such as 90ep or 1e12tok")
    group.add_argument("--batches-per-epoch", type=int, metavar="N", help="the optimizer steps of an epoch")
    group.add_argument("--samples-per-batch", type=int, metavar="N", help="the samples of an optimizer step")
    group.add_argument(
        "--tokens-per-sample", type=int, metavar="N", help="the tokens of a sample, such as the sequence length"
    )
    group.add_argument(
        "--ssr", type=float, metavar="RATIO", help="the scale-schedule ratio, which stretches the run (default: 1)"
    )


def read_run(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options that describe a run, under the keys of a config."""
    run = {name: value for name in _RUN_KEYS if (value := getattr(options, name)) is not None}
    if "max_duration" in run:
        Clock(**run)  # raises if the options are wrong, before the config is read
    return run


def read_finite(text: str) -> float:
    """Read the number of an option, which must be finite and at least 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0.0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number of at least 0, such as 0.1")
    return number


def make_model(place: str | None) -> torch.nn.Module | None:
    """Call the function or class `module:name` without arguments, and return its model on the meta device."""
    if place is None:
        return None
    module, _, name = place.partition(":")
    if not name:
        raise ValueError(
            f"--model {place}: there is no name. Write module:name, for a function that returns the model."
        )
    if os.getcwd() not in sys.path:  # `python -m` adds the folder itself, the installed program does not
        sys.path.insert(0, os.getcwd())
    try:
        make = getattr(importlib.import_module(module), name)
        with torch.device("meta"):  # without the memory of its parameters
            model = make()
    except Exception as error:  # a user's module may raise any error
        raise ValueError(f"--model {place}: {type(error).__name__}: {error}") from error
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"--model {place}: it returned an object of type {type(model).__name__}. Return a torch.nn.Module."
        )
    return model


def _split_entry(text: str) -> tuple[str, int | None]:
    """Split the path of a config from the number of its entry, which is None for all entries."""
    path, _, entry = text.rpartition(":")
    return (path, int(entry)) if path and entry.isdecimal() else (text, None)


def is_config(text: str) -> bool:
    """Return whether a SCHEDULE is a config, or an entry of one."""
    path, _ = _split_entry(text)
    return path == "-" or path.endswith((".yaml", ".yml")) or os.path.isfile(path)


def read_trial(
    text: str,
    run: dict[str, object],
    settings: Sequence[str] = (),
    model: object = None,
    learning_rate: float | None = None,
) -> Trial:
    """Make the schedulers of a SCHEDULE on trial: of a config, of one entry, or of a class with arguments.

    `run`: keys of the run, which replace the keys of a config. `settings`: other keys of a config, each as in `--set`.
    `learning_rate`: the initial learning rate of a class.
    """
    path, number = _split_entry(text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FindingWarning)  # `check` prints these findings itself
        if is_config(text):
            if learning_rate is not None:
                raise ValueError(
                    f"--lr {learning_rate}: it is for schedules by name, and {path} has a learning rate. Change it "
                    f"there."
                )
            with prefix_errors(path):
                config = read(f"{sys.stdin.read()}\n" if path == "-" else Path(path))
                set_keys(config, settings)
                sections = _replace_run(read_sections(config), run)
                return make_trial(sections, _select_entries(sections["schedulers"], number), model)
        if settings:
            raise ValueError(f"--set {settings[0]}: it is for configs, and {text} is none. Change the text instead.")
        return _try_call(text, run, model, learning_rate)


def _try_call(text: str, run: dict[str, object], model: object, learning_rate: float | None) -> Trial:
    """The trial of a class with arguments, on an optimizer with this learning rate."""
    entry = read_entry(text)
    if "max_duration" not in run and entry.keys() <= SCHEDULE.public_classes.keys():
        raise ValueError(f"{text}: the schedule needs a run. Pass its length, such as --max-duration 90ep.")
    if _has_half_life(entry):  # it sets a value that is not a learning rate
        entry = {name: {"key": "momentum", **arguments} for name, arguments in entry.items()}
    optimizer = {"SGD": {"lr": 1.0 if learning_rate is None else learning_rate, "momentum": 0.9}}
    sections = _replace_run({"optimizer": optimizer, "schedulers": [entry]}, run)
    return make_trial(sections, {"SCHEDULE": entry}, model)


def _replace_run(sections: dict[str, Any], run: dict[str, object]) -> dict[str, Any]:
    """Replace the keys that describe a run. Raises `ValueError` if a `run` has no length."""
    sections = sections | run
    if run and sections.get("max_duration") is None:
        raise ValueError("max_duration: the options of a run need its length. Pass it, such as --max-duration 90ep.")
    return sections


def _select_entries(entries: Sequence[object], number: int | None) -> dict[str, object]:
    """The entry of a number, or all, by their paths in the config. Raises `ValueError` if there is no such entry."""
    selected = {f"schedulers[{i}]": entry for i, entry in enumerate(entries) if number in (None, i)}
    if number is not None and not selected:
        raise ValueError(f"schedulers[{number}]: there is no such entry. The first entry is 0.")
    return selected


def _has_half_life(entry: object) -> bool:
    """Return whether an entry is a `HalfLife`, or one of its arguments is."""
    if isinstance(entry, list):
        return any(map(_has_half_life, entry))
    return isinstance(entry, dict) and ("HalfLife" in entry or any(map(_has_half_life, entry.values())))


def make_sources(
    text: str, run: dict[str, object], settings: Sequence[str], learning_rate: float | None
) -> list[Source]:
    """Make the lines that the schedulers of a SCHEDULE write. The arguments are those of `read_trial`.

    Raises `ValueError` if a scheduler could not be made, or if there is none.
    """
    trial = read_trial(text, run, settings, learning_rate=learning_rate)
    if is_config(text):
        with prefix_errors(text):
            trial.problems.raise_all()
            if not trial.schedulers:
                raise ValueError("the config has no 'schedulers'. Add one.")
            return list(chain.from_iterable(sources(scheduler, trial.clock) for scheduler in trial.schedulers.values()))
    with prefix_errors("SCHEDULE"):
        trial.problems.raise_all()
        scheduler = trial.schedulers["SCHEDULE"]
        source = sources(scheduler, trial.clock)[0]
    name = type(scheduler.schedule if scheduler.relative else scheduler).__name__ if text.isidentifier() else text
    quantity = "multiplier" if scheduler.relative and learning_rate is None else source.quantity
    return [replace(source, name=name, quantity=quantity)]


def read_entry(text: str) -> dict[str, Any]:
    """The text of a call, or of a list of calls, as the entry of a config. A list is a product."""
    family = replace(SCHEDULER, bases=())  # without the classes of users
    entry = read_calls(
        text, lambda name: family.find(name, "SCHEDULE"), lambda cls, arguments: {cls.__name__: arguments}, "SCHEDULE"
    )
    return {"ProductScheduler": {"schedules": entry}} if isinstance(entry, list) else entry
