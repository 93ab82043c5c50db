"""What the reference shows of a signature: the types of `**options`, and a first example above overloads."""

from __future__ import annotations

import inspect
from typing import Any, get_args, get_type_hints


def name_options(cls: Any, constructor: inspect.Signature) -> inspect.Signature:
    """The signature of a constructor, with the members of `**options: Unpack[...Options]` as arguments with types."""
    options = get_type_hints(cls.__init__).get("options")
    types = get_type_hints(get_args(options)[0]) if options else {}
    arguments = []
    for name, argument in inspect.signature(cls).parameters.items():
        if name in types:
            arguments.append(argument.replace(annotation=types[name]))
        else:
            arguments.append(constructor.parameters[name])
    return constructor.replace(parameters=arguments)


def has_overloads(function: Any) -> bool:
    module = inspect.getmodule(function)
    return module is not None and f"@overload\ndef {function.__name__}(" in inspect.getsource(module)


def split_introduction(lines: list[str]) -> tuple[list[str], list[str]]:
    """The first paragraph of a docstring with its example, and the other lines."""
    paragraph_end = lines.index("")
    example_start = next(i for i, line in enumerate(lines) if line.startswith(">>>"))
    example_end = lines.index("", example_start) if "" in lines[example_start:] else len(lines)
    introduction = [*lines[: paragraph_end + 1], *lines[example_start:example_end]]
    return introduction, [*lines[paragraph_end + 1 : example_start], *lines[example_end:]]
