"""`timesched diff`: how the schedules of two configs or checkpoints differ, in words and in values."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.torch_version import TorchVersion

from optim.closed_form.preview import column, of_groups
from optim.config.read import read
from optim.config.resolve import TAGS
from timesched.binding import on_horizon
from timesched.cli.schedules import add_run, clock_of, written
from timesched.cli.show import picture
from timesched.clock import Clock
from timesched.composition import ProductScheduler
from timesched.description import MISSING, differences
from timesched.drawing.lines import Source, counted, line, shares_of, values
from timesched.resuming import read_horizon, rebuilt
from timesched.time.units import FRACTIONAL, Exact, TimeUnit
from timesched.time.value import Time

_CONFIG = (".yaml", ".yml")
_EACH = 100_000  # the longest run that is compared at each count; a longer one at those of its lines
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
    in_a, in_b = ({source.name: source for source in found} for found in (sources_of_a, sources_of_b))
    for name in in_a:
        if name in in_b:
            moved |= _compare(in_a[name], in_b[name], not options.no_plot)
    for name in sorted(in_a.keys() ^ in_b.keys()):
        print(f"timesched diff: the values of {name} are not compared: only one of the two has it", file=sys.stderr)
    if not said and not moved:
        print("no difference")
    return 1 if said or moved else 0


def _side(path: Path, clock: Clock | None) -> Side:
    if path.suffix in _CONFIG:
        config = read(path)
        return config, [source for _, source in written(config, clock, str(path))]
    try:
        with torch.serialization.safe_globals(_harmless()):
            states = dict(_states(torch.load(path, map_location="cpu", weights_only=True), ""))
    except OSError:
        raise
    except Exception as error:  # there is no end to what torch.load raises for other files
        raise ValueError(
            f"{path} is neither a .yaml config nor a checkpoint of plain data and tensors ({type(error).__name__}): "
            f"save the state dicts of the schedulers in a file of their own."
        ) from None
    if not states:
        raise ValueError(f"{path} holds no state of a scheduler of timesched or optim.")
    said = {
        place: {name: value for name, value in state.items() if name not in ("clock", "last_epoch")}
        for place, state in states.items()
    }
    found: list[tuple[str, Source]] = []
    for place, state in states.items():
        try:
            found += [(place, source) for source in _saved(state, clock)]
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:  # of what anybody saved
            why = " ".join(str(error).split())
            print(f"timesched diff: {path}: the values of {place} are not compared: {why}", file=sys.stderr)
    names = Counter(source.name for _, source in found)  # as of two optimizers
    return said, [
        replace(source, name=f"{place}, {source.name}") if names[source.name] > 1 else source for place, source in found
    ]


def _harmless() -> list[Any]:
    """What Composer's and other trainers' checkpoints hold beside plain data: durations, versions, arrays."""
    try:
        import numpy
    except ImportError:
        return [timedelta, TorchVersion]
    array = numpy.zeros(1, numpy.uint32)  # as in the states of random numbers
    return [timedelta, TorchVersion, array.__reduce__()[0], numpy.ndarray, numpy.dtype, type(array.dtype)]


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


def _saved(state: Mapping[str, Any], clock: Clock | None) -> list[Source]:
    """What the scheduler of a state writes, on the horizon in it, or else on that of the clock."""
    horizon = read_horizon(state["horizon"]) if "horizon" in state else None if clock is None else clock.horizon
    if "base" not in state:
        config = {"optimizer": {"AdamW": {}}, "schedulers": [_entry(state["schedule"])]}
        on = None if horizon is None else on_horizon(Clock("1ba"), horizon)
        return [source for _, source in written(config, on, "")]
    if horizon is None:
        raise ValueError("the state does not hold the length of its run: give --max-duration.")
    schedule = rebuilt(state["schedule"])
    schedule = ProductScheduler(schedule) if isinstance(schedule, list) else schedule
    return of_groups(column(state["key"], state["tags"]), schedule, horizon, enumerate(state["base"]))


def _entry(described: Any) -> Any:
    """An entry of a config from what a state says of a closed form."""
    if isinstance(described, Mapping):
        arguments = {name: _entry(value) for name, value in described["arguments"].items()}
        tags = described.get(TAGS)  # which a child does not have
        return {described["class"]: {**arguments, **({TAGS: tags} if tags else {})}}
    return [_entry(each) for each in described] if isinstance(described, list) else described


def _compare(a: Source, b: Source, plot: bool) -> bool:
    """Print where two schedules differ most; whether they differ at all."""
    unit, other = counted(a.horizon)[0], counted(b.horizon)[0]
    if unit is other:
        value_of_a, value_of_b = a.curve(unit), b.curve(unit)
        last = max(counted(a.horizon)[1], counted(b.horizon)[1])
        each_count = unit not in FRACTIONAL and last <= _EACH
        places: Iterable[Exact] = range(int(last) + 1) if each_count else sorted({*values(a), *values(b)})
        both = [(value_of_a(count), value_of_b(count), Time._of(count, unit)) for count in places]
    else:
        shares = sorted({share for each in (a, b) for share in shares_of(each)})
        both = [(a.at(share), b.at(share), share) for share in (Time._of(x, TimeUnit.DURATION) for x in shares)]
    in_a, in_b, where = max(both, key=lambda row: abs(row[0] - row[1]))
    if in_a == in_b:
        return False
    print(f"{a.name}: the largest difference is {abs(in_a - in_b):.4g}, at {where}: {in_a:.4g} in A, {in_b:.4g} in B")
    if plot:
        across = unit if unit is other else TimeUnit.DURATION
        print(picture([line(replace(each, name=name), across) for name, each in (("A", a), ("B", b))]))
    return True
