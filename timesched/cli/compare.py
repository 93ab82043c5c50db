"""`timesched diff`: how the schedules of two configs or checkpoints differ, in words and in values."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch

from optim.config.preview import column
from optim.config.read import read
from timesched.cli.schedules import add_run, clock_of, written
from timesched.cli.show import picture
from timesched.clock import Clock
from timesched.composition import ProductScheduler
from timesched.description import MISSING, differences
from timesched.drawing.lines import Source, counted, line, values
from timesched.resuming import read_horizon, rebuilt
from timesched.time.units import TimeUnit
from timesched.time.value import Time

_CONFIG = (".yaml", ".yml")
Side = tuple[Any, list[Source]]  # what one of the two says, in plain data, and what its schedulers write


def add(commands: Any) -> None:
    diff = commands.add_parser(
        "diff",
        help="how two configs or checkpoints differ",
        description="Compare the schedules of two YAML configs, or of two checkpoints (files of torch.save).",
    )
    diff.add_argument("a", metavar="A")
    diff.add_argument("b", metavar="B")
    add_run(diff)
    diff.add_argument("--no-plot", action="store_true", help="words and numbers alone")
    diff.set_defaults(run=_diff)


def _diff(options: argparse.Namespace) -> int:
    clock = clock_of(options)
    (one, sources_of_a), (other, sources_of_b) = (_side(Path(path), clock) for path in (options.a, options.b))
    said = list(differences(one, other, ""))
    for where, a, b in said:
        print(f"{where}: only in {'B' if a == MISSING else 'A'}" if MISSING in (a, b) else f"{where}: {a} -> {b}")
    moved = False
    in_b = {source.name: source for source in sources_of_b}
    for source in sources_of_a:
        if source.name in in_b:
            moved |= _compare(source, in_b[source.name], not options.no_plot)
    if not said and not moved:
        print("no difference")
    return 1 if said or moved else 0


def _side(path: Path, clock: Clock | None) -> Side:
    if path.suffix in _CONFIG:
        config = read(path)
        return config, [source for _, source in written(config, clock, str(path))]
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # there is no end to what torch.load raises for other files
        raise ValueError(
            f"{path} is neither a .yaml config nor a checkpoint of plain data and tensors: {error}"
        ) from None
    states = dict(_states(loaded, ""))
    if not states:
        raise ValueError(f"{path} holds no state of a scheduler of timesched or optim.")
    said = {
        place: {name: value for name, value in state.items() if name not in ("clock", "last_epoch")}
        for place, state in states.items()
    }
    found = [source for place, state in states.items() for source in _saved(state, clock, f"{path}: {place}")]
    return said, found


def _states(value: Any, place: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The states of schedulers in what a checkpoint holds, under their places in it."""
    if isinstance(value, Mapping) and {"key", "schedule", "last_epoch"} <= value.keys():
        yield place or "state", value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from _states(each, f"{place}.{name}" if place else str(name))
    elif isinstance(value, (list, tuple)):
        for i, each in enumerate(value):
            yield from _states(each, f"{place}[{i}]")


def _saved(state: Mapping[str, Any], clock: Clock | None, where: str) -> list[Source]:
    """What the scheduler of a state writes, on the horizon in it, or else on that of the clock."""
    horizon = read_horizon(state["horizon"]) if "horizon" in state else None if clock is None else clock.horizon
    if "base" not in state:
        on = Clock("1ba")
        if horizon is not None:
            on._set(horizon=horizon)
        config = {"optimizer": {"AdamW": {}}, "schedulers": [_entry(state["schedule"])]}
        return [source for _, source in written(config, None if horizon is None else on, where)]
    if horizon is None:
        raise ValueError(f"{where} does not hold the length of its run: give --max-duration.")
    schedule = rebuilt(state["schedule"])
    schedule = ProductScheduler(schedule) if isinstance(schedule, list) else schedule
    name = column(state["key"], state["tags"])
    return [Source(name, schedule, horizon, base) for base in dict.fromkeys(state["base"])]


def _entry(described: Any) -> Any:
    """An entry of a config from what a state says of a closed form."""
    if isinstance(described, Mapping):
        arguments = {name: _entry(value) for name, value in described["arguments"].items()}
        return {described["class"]: arguments}
    return [_entry(each) for each in described] if isinstance(described, list) else described


def _compare(a: Source, b: Source, plot: bool) -> bool:
    """Print where two schedules differ most; whether they differ at all."""
    unit, other = counted(a.horizon)[0], counted(b.horizon)[0]
    if unit is other:
        curves = [each.schedule.curve(each.horizon, unit) for each in (a, b)]
        places = sorted({*values(a), *values(b)})
        both = [(a.factor * curves[0](count), b.factor * curves[1](count), Time._of(count, unit)) for count in places]
    else:
        shares = [Time._of(Fraction(i, 1000), TimeUnit.DURATION) for i in range(1001)]
        both = [(a.at(share), b.at(share), share) for share in shares]
    in_a, in_b, where = max(both, key=lambda row: abs(row[0] - row[1]))
    if in_a == in_b:
        return False
    print(f"{a.name}: the largest difference is {abs(in_a - in_b):.4g}, at {where}: {in_a:.4g} in A, {in_b:.4g} in B")
    if plot:
        across = unit if unit is other else TimeUnit.DURATION
        print(picture([line(replace(each, name=name), across) for name, each in (("A", a), ("B", b))]))
    return True
