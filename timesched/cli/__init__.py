"""The command line, `timesched` or `python -m timesched`: look at a schedule before it runs.

It stands above both packages: it imports `optim`, and nothing imports it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from timesched.cli import check, compare, memory, show

_ABOUT = """\
Look at schedules before they run.

A SCHEDULE is the name of a class of timesched with its arguments, as in "LinearWithWarmupScheduler('0.1dur')"; or a
YAML config, for all its schedulers; or one of them, as in config.yaml:0. Arguments are literals; nothing is evaluated.
"""
_CODES = """\
exit codes: 0 done, and for check and diff nothing found; 1 check found something, or diff a difference; 2 an error,
which is one line on standard error.
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, too."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; {self.prog} --help says more\n")


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    plain = argparse.RawDescriptionHelpFormatter
    top = _Parser(prog="timesched", description=_ABOUT, epilog=_CODES, formatter_class=plain)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (show, check, compare, memory):
        module.add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit code."""
    options = parser().parse_args(argv)
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # it is None where it was closed
    try:
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # what reads the output, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ImportError, OSError, TypeError, ValueError) as error:
        print(f"timesched {options.command}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
