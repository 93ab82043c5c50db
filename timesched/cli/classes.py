"""Print the classes that a SCHEDULE may name, each with its arguments, and what it does."""

from __future__ import annotations

import argparse
import inspect

from optim.config.names import LR
from optim.scheduler import DEFAULTS
from timesched.reading import SCHEDULE

_KINDS = {
    "Schedules, which multiply the initial value": SCHEDULE,
    "Schedulers, which set a learning rate, or with WD in place of LR a weight decay": LR,
}
_HIDDEN_ARGUMENTS = ("optimizer", "horizon", *DEFAULTS)


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    commands.add_parser("list", help="list the schedules", description=__doc__).set_defaults(run=_run_list)


def _run_list(options: argparse.Namespace) -> int:
    for title, family in _KINDS.items():
        print(f"{title}:\n")
        for name, cls in family.public_classes.items():
            parameters = [p for p in inspect.signature(cls).parameters.values() if p.name not in _HIDDEN_ARGUMENTS]
            signature = (p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters)
            about = " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())
            print(f"{name}({', '.join(signature)})\n    {about}\n")
    return 0
