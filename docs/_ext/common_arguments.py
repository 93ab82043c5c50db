"""The arguments and errors that all closed-form schedulers have, joined to those in the docstring of each.

Their docstrings have a line in their place, which says where `help()` shows them.
"""

from __future__ import annotations

from collections.abc import Sequence

LINE = "Common arguments and errors: `help(optim.scheduler.Scheduler)`."


def joined(lines: list[str], common: list[str], parameters: Sequence[str]) -> list[str]:
    """A docstring whose sections have its own entries and the common ones, in the order of a signature.

    `lines` is the docstring, `common` that of the base class; without the line, it stays as it is.
    """
    if LINE not in lines:
        return lines
    sections = ["Args:"]
    arguments = entries(common, "Args:") | entries(lines, "Args:")
    for name in parameters:
        sections += arguments.get(name, [])
    sections += ["", "Raises:"]
    own_errors = entries(lines, "Raises:")
    for error, text in entries(common, "Raises:").items():
        sections += one_sentence(own_errors[error], text) if error in own_errors else text
    line = lines.index(LINE)
    start = lines.index("Args:") if "Args:" in lines else line
    return [*lines[:start], *sections, *lines[line + 1 :]]


def entries(lines: list[str], section: str) -> dict[str, list[str]]:
    """The lines of each entry in a section of a docstring, by its name."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in lines[lines.index(section) + 1 :] if section in lines else []:
        if not line:
            break
        if not line.startswith(" " * 5):  # the lines after the first have more
            name = line.partition(":")[0].strip()
            found[name] = []
        found[name].append(line)
    return found


def one_sentence(first: list[str], second: list[str]) -> list[str]:
    """Two entries of one name as one, in which the conditions of the second follow those of the first."""
    more = second[0].partition(": ")[2]
    return [*first[:-1], first[-1].removesuffix(".") + ";", " " * 8 + more, *second[1:]]
