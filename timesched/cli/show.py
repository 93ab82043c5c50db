"""`timesched show` and `timesched plot`: the values of schedules over a run."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from dataclasses import replace
from typing import Any

from timesched.cli.schedules import add_run, clock_of, finite, sources_of
from timesched.drawing.axes import save
from timesched.drawing.lines import Line, Source, line
from timesched.drawing.table import values_table
from timesched.drawing.text import text


def add(commands: Any) -> None:
    show = commands.add_parser(
        "show", help="a table of values", description="Print the values of schedules over a run."
    )
    plot = commands.add_parser("plot", help="a picture", description="Draw schedules over a run, all in one picture.")
    for command in (show, plot):
        command.add_argument("schedules", nargs="+", metavar="SCHEDULE")
        add_run(command)
        command.add_argument("--lr", type=finite, metavar="RATE", help="the learning rate, which multipliers multiply")
        command.add_argument("--unit", help="of the count beside the share: ep, ba, sp, tok, ... (default: the run's)")
    show.add_argument("--every", default="0.1dur", metavar="TIME", help="a row each, such as 1000ba (default: 0.1dur)")
    show.add_argument("--format", choices=("table", "csv", "json"), default="table")
    plot.add_argument("--out", metavar="FILE", help="a .png or .svg file, by matplotlib; without, text is printed")
    show.set_defaults(run=_show)
    plot.set_defaults(run=_plot)


def _sources(options: argparse.Namespace) -> list[Source]:
    clock = clock_of(options)
    found = [(each, source) for each in options.schedules for source in sources_of(each, clock, options.lr)]
    several = len(options.schedules) > 1  # each of which may be a config that writes 'lr'
    return [
        replace(source, name=f"{each} {source.name}") if several and source.name != each else source
        for each, source in found
    ]


def _show(options: argparse.Namespace) -> int:
    table = values_table(_sources(options), options.every, options.unit)
    write = {"csv": table.csv, "json": table.json}.get(options.format, table.__str__)
    print(write().rstrip("\n"))
    return 0


def _plot(options: argparse.Namespace) -> int:
    lines = [line(source, options.unit) for source in _sources(options)]
    units = sorted({line.unit.value for line in lines})
    if units[1:]:
        raise ValueError(f"the runs are counted in {' and '.join(units)}, and one axis has one unit: give --unit dur.")
    if options.out is None:
        print(picture(lines))
    else:
        save(lines, options.out)
    return 0


def picture(lines: list[Line]) -> str:
    """Lines as text that the terminal can show; without colours where the output is piped."""
    colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    try:
        "⣿┊".encode(sys.stdout.encoding or "ascii")
        braille = True
    except UnicodeEncodeError:
        braille = False
    return text(lines, shutil.get_terminal_size().columns, colours, braille)
