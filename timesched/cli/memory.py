"""`timesched memory`: the bytes of an optimizer's state, before there is a model in memory."""

from __future__ import annotations

import argparse
from typing import Any

from optim import WeightAverage
from optim.initial_state import nbytes
from timesched.cli.schedules import config_of, model_of
from timesched.cli.trial import trial
from timesched.clock import Clock
from timesched.drawing.table import Table


def add(commands: Any) -> None:
    about = (
        "Print the bytes of the optimizer's state, for each parameter group and kind of state. Nothing is allocated."
    )
    memory = commands.add_parser("memory", help="the bytes of optimizer state", description=about)
    memory.add_argument("config", metavar="CONFIG", help="a YAML config, or - for standard input")
    memory.add_argument(
        "--model", required=True, metavar="MODULE:NAME", help="a function without arguments that returns the model"
    )
    memory.add_argument("--average", action="store_true", help="with an optim.WeightAverage of the weights")
    memory.set_defaults(run=_memory)


def _memory(options: argparse.Namespace) -> int:
    made = trial(config_of(options.config), model_of(options.model))
    if made.optimizer is None:
        raise ValueError(made.problems[0])
    print(memory_table(made.optimizer, options.average))
    return 0


def memory_table(optimizer: Any, averaged: bool = False) -> Table:
    """A row for each parameter group, and one for all, with a column for each kind of state, `average` included."""
    state_of = {p: dict(state) for p, state in optimizer.state.items()}
    if averaged:
        for p, state in WeightAverage(list(state_of), Clock("1ba")).state.items():
            state_of[p].update(state)
    kinds = list(dict.fromkeys(kind for state in state_of.values() for kind in state))
    rows: list[tuple[Any, ...]] = []
    for i, group in enumerate(optimizer.param_groups):
        parameters = group["params"]
        states = [state_of[p] for p in parameters]
        each = [nbytes(state[kind] for state in states if kind in state) for kind in kinds]
        tags = ", ".join(group.get("tags", ())) or "-"
        rows.append((i, tags, sum(p.numel() for p in parameters), *each, sum(each)))
    total = [sum(row[k] for row in rows) for k in range(2, len(kinds) + 4)]
    return Table(("group", "tags", "parameters", *kinds, "bytes"), [*rows, ("all", "", *total)])
