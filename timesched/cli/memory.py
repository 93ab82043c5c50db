"""Print the bytes of the optimizer's state, for each parameter group and kind of state. Nothing is allocated."""

from __future__ import annotations

import argparse
from itertools import chain

from torch.optim import Optimizer

from optim import WeightAverage
from optim.config.build import make_optimizer
from optim.config.read import check_keys, read_sections
from optim.config.resolve import resolve_optimizer
from optim.initial_state import total_bytes
from timesched.cli.schedules import make_model, read_config
from timesched.clock import Clock
from timesched.drawing.table import Table


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    memory = commands.add_parser("memory", help="the bytes of optimizer state", description=__doc__)
    add_optimizer_options(memory)
    memory.add_argument("--average", action="store_true", help="include an optim.WeightAverage of the weights")
    memory.set_defaults(run=_run_memory)


def add_optimizer_options(command: argparse.ArgumentParser) -> None:
    """Add the options from which `read_optimizer` makes the optimizer."""
    command.add_argument("config", metavar="CONFIG", help="a YAML config, or - for standard input")
    command.add_argument(
        "--model", required=True, metavar="MODULE:NAME", help="a function without arguments that returns the model"
    )


def read_optimizer(options: argparse.Namespace) -> Optimizer:
    """Make the optimizer of a config, for the model on the meta device."""
    config = read_sections(read_config(options.config))
    check_keys(config)
    # schedulers may set the learning rate, which the optimizer's entry may then leave out
    spec = resolve_optimizer(config["optimizer"], is_lr_scheduled=bool(config["schedulers"]))
    optimizer: Optimizer = make_optimizer(spec, make_model(options.model)).optimizer
    return optimizer


def _run_memory(options: argparse.Namespace) -> int:
    print(memory_table(read_optimizer(options), options.average))
    return 0


def memory_table(optimizer: Optimizer, has_average: bool = False) -> Table:
    """Return a row for each parameter group and one for all, with a column for each kind of state and for `average`."""
    state_of = {p: dict(state) for p, state in optimizer.state.items()}
    if has_average:
        for p, state in WeightAverage(list(state_of), Clock("1ba")).state.items():
            state_of[p].update(state)
    kinds = dict.fromkeys(chain.from_iterable(state_of.values()))  # each once, in order
    rows: list[tuple[object, ...]] = []
    counts = []
    for i, group in enumerate(optimizer.param_groups):
        states = [state_of[p] for p in group["params"]]
        sizes = [_total_bytes(kind, states) for kind in kinds]
        counts.append([sum(p.numel() for p in group["params"]), *sizes, sum(sizes)])
        rows.append((i, ", ".join(sorted(group.get("tags", ()))) or "-", *counts[-1]))
    rows.append(("all", "", *map(sum, zip(*counts))))
    return Table(("group", "tags", "parameters", *kinds, "bytes"), rows)


def _total_bytes(kind: str, states: list[dict[str, object]]) -> int:
    return total_bytes(state[kind] for state in states if kind in state)
