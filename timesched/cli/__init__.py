"""Look at schedules before they run.

A SCHEDULE is one of:
- the name of a class with its arguments, as in "LinearWithWarmupScheduler('0.1dur')". `timesched list` prints all
  classes. A short name such as Linear, WSD or CosineDecay is enough. Arguments are literals; nothing is evaluated.
- a YAML config, for all its schedulers, or config.yaml:0 for one of them. For a config on standard input, write -.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from itertools import chain
from typing import Any, NoReturn

import timesched
from timesched.hints import similar_names
from timesched.packages import check_optim

_EPILOG = """\
examples:
  timesched plot "LinearWithWarmupScheduler('0.1dur')" "WSD('0.1dur')" --max-duration 90ep
  timesched show run.yaml --samples-per-batch 512
  timesched check run.yaml --model model:make
  timesched COMMAND --help    more of them, and the options

exit codes: 0 done, and for check nothing found but notes; 1 check found something; 2 an error, which is one line on
standard error.
"""


class _Parser(argparse.ArgumentParser):
    """A parser that prints errors as one line, keeps the lines of texts, and reads `-5ba` and `-:0` as values."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)
        self._negative_number_matcher = re.compile(r"-[.:]?\d")

    def error(self, message: str) -> NoReturn:
        end = "" if message.endswith("?") else "."
        self.exit(2, f"{self.prog}: {message}{end} Run {self.prog} --help for the options.\n")

    def parse_known_args(self, *arguments: Any) -> Any:  # type: ignore[override]  # argparse has overloads
        namespace, unknown = super().parse_known_args(*arguments)
        for argument in unknown:
            if argument.startswith("-"):
                name = argument.partition("=")[0]
                self.error(f"{name} is not an option{self._suggest_options(name)}")
        return namespace, unknown

    def _suggest_options(self, name: str) -> str:
        """A question that names the options of this command that are similar to an unknown one; or an empty text."""
        options = chain.from_iterable(action.option_strings for action in self._actions)
        by_argument = {option.strip("-").replace("-", "_"): option for option in options if option.startswith("--")}
        similar = similar_names(name.strip("-").replace("-", "_"), list(by_argument))
        return f": did you mean {' or '.join(by_argument[argument] for argument in similar)}?" if similar else ""


def replace_underscores(argument: str) -> str:
    """Return `--max-duration` for `--max_duration`, which is the key in a config. Other arguments stay unchanged."""
    return re.sub(r"^--\w+", lambda option: option[0].replace("_", "-"), argument)


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line. Raises `ImportError` if another module called `optim` hides our package."""
    check_optim()
    from timesched.cli import check, classes, show  # which import optim

    top = _Parser(prog="timesched", description=__doc__, epilog=_EPILOG)
    top.add_argument("--version", action="version", version=f"timesched {timesched.__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    for module in (show, check, classes):
        module.add_command(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit code."""
    name = "timesched"
    try:
        top = make_parser()
        options = top.parse_args(list(map(replace_underscores, sys.argv[1:] if argv is None else argv)))
        if options.command is None:
            top.print_help()
            return 0
        name = f"timesched {options.command}"
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of the output, such as head, has stopped
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ArithmeticError, ImportError, OSError, RecursionError, TypeError, ValueError) as error:
        print(f"{name}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
