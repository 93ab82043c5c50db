"""`timesched show` and `timesched plot`: print or draw the values of schedules over a run."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from dataclasses import replace

from timesched.cli.schedules import SCHEDULE_HELP, add_run_options, is_config, make_sources, read_finite, read_run
from timesched.cli.settings import add_set_option
from timesched.drawing.axes import save
from timesched.drawing.lines import Source, line, panels
from timesched.drawing.table import values_table
from timesched.drawing.text import text

_EXAMPLES = """\
examples:
  timesched {0} "LinearWithWarmupScheduler('0.1dur')" RexScheduler --max-duration 90ep --lr 3e-4
  timesched {0} "WSD('100ba')" --max-duration 1e9tok --samples-per-batch 256 --tokens-per-sample 2048
  timesched {0} run.yaml --samples-per-batch 512
  timesched {0} run.yaml --set optimizer.AdamW.lr=5e-4
"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    show = commands.add_parser(
        "show", help="a table of values", description="Print the values of schedules over a run."
    )
    plot = commands.add_parser(
        "plot", help="a picture", description="Draw schedules over a run, in one picture for each key."
    )
    for command, name in ((show, "show"), (plot, "plot")):
        command.epilog = _EXAMPLES.format(name)
        command.add_argument("schedules", nargs="+", metavar="SCHEDULE", help=SCHEDULE_HELP)
        add_run_options(command)
        add_set_option(command)
        peak = "the peak learning rate of a class (default: 1)"
        command.add_argument("--lr", type=read_finite, metavar="LR", help=peak)
        command.add_argument("--unit", help="count in this unit, such as ep or tok (default: the unit of the run)")
    every = "the time between two rows, such as 1000ba (default: 0.1dur)"
    show.add_argument("--every", default="0.1dur", metavar="TIME", help=every)
    show.add_argument("--format", choices=("table", "csv", "json"), default="table")
    out = "draw a .png, .svg, .pdf or .jpg file with matplotlib (default: text)"
    plot.add_argument("-o", "--out", metavar="FILE", help=out)
    show.set_defaults(run=_run_show)
    plot.set_defaults(run=_run_plot)


def _make_sources(options: argparse.Namespace) -> list[Source]:
    run = read_run(options)
    several = len(options.schedules) > 1  # each of which may be a config that writes 'lr'
    sources: list[Source] = []
    for schedule in options.schedules:
        for source in make_sources(schedule, run, options.settings, options.lr):
            name = f"{schedule} {source.name}" if several and is_config(schedule) else source.name
            sources.append(replace(source, name=name))
    return sources


def _run_show(options: argparse.Namespace) -> int:
    table = values_table(_make_sources(options), options.every, options.unit)
    write = {"csv": table.csv, "json": table.json}.get(options.format, table.__str__)
    print(write().rstrip("\n"))
    return 0


def _run_plot(options: argparse.Namespace) -> int:
    lines = [line(source, options.unit) for source in _make_sources(options)]
    units = sorted({line.unit.value for line in lines})
    if units[1:]:
        raise ValueError(
            f"--unit: the runs are counted in {' and '.join(units)}, and one axis has one unit. Pass --unit dur."
        )
    if options.out is not None:
        print(f"wrote {save(lines, options.out)}")
        return 0
    groups = panels(lines)
    titles = [f"{group[0].quantity}\n" if len(groups) > 1 else "" for group in groups]
    width = shutil.get_terminal_size().columns
    colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    print("\n\n".join(f"{title}{text(group, width, colours)}" for title, group in zip(titles, groups)))
    return 0
