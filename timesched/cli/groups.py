"""Print the parameter groups of the optimizer: tags, sizes, hyperparameters and names of parameters."""

from __future__ import annotations

import argparse

from optim import param_group_table
from timesched.cli.memory import add_optimizer_options, read_optimizer


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    groups = commands.add_parser("groups", help="the parameter groups of the optimizer", description=__doc__)
    add_optimizer_options(groups)
    names = "how many parameter names of each group to print (default: 3, or all with `matrices`)"
    groups.add_argument("--names", type=_read_count, metavar="N", help=names)
    groups.set_defaults(run=_run_groups)


def _read_count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0, such as 10")
    return int(text)


def _run_groups(options: argparse.Namespace) -> int:
    print(param_group_table(read_optimizer(options), options.names))
    return 0
