"""`timesched list`: the classes that a command line may name."""

from __future__ import annotations

import argparse
import inspect
from typing import Any

from optim.config.names import LR, SCHEDULE
from optim.scheduler import COMMON_ARGUMENTS

_KINDS = {
    "Schedules, which multiply the initial value": SCHEDULE,
    "Schedulers, which set a learning rate, or with WD in place of LR a weight decay": LR,
}
_NOT_WRITTEN = ("optimizer", "horizon", *COMMON_ARGUMENTS)


def add(commands: Any) -> None:
    about = "Print the classes that a SCHEDULE may name, each with its arguments, and what it does."
    commands.add_parser("list", help="the schedules that there are", description=about).set_defaults(run=_list)


def _list(options: argparse.Namespace) -> int:
    for title, family in _KINDS.items():
        print(f"{title}:\n")
        for name, cls in family.public_classes.items():
            takes = [each for each in inspect.signature(cls).parameters.values() if each.name not in _NOT_WRITTEN]
            shown = (each.name if each.default is each.empty else f"{each.name}={each.default!r}" for each in takes)
            about = " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())
            print(f"{name}({', '.join(shown)})\n    {about}\n")
    return 0
