"""From one table of formulas to three families of schedulers: for learning rates, weight decays, and any other key."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from . import composites, cycles, formulas
from .assembled import Chained, ScalePerParam, Sequential
from .closed_form import Scheduler
from .formulas import Formula
from .made import Cyclic, Lambda, Made, Multiplicative

FORMULAS: tuple[type[Formula], ...] = (
    formulas.Constant,
    formulas.Polynomial,
    formulas.Linear,
    formulas.Exponential,
    formulas.InverseExponentialTimeDecay,
    formulas.InverseSquareRootDecay,
    formulas.CosineDecay,
    cycles.PiecewiseConstant,
    cycles.MultiStep,
    cycles.Step,
    cycles.CosineAnnealing,
    cycles.CosineAnnealingWarmRestarts,
    cycles.Cyclic,
    cycles.OneCycle,
    composites.Lambda,
    composites.Multiplicative,
)
# What the arguments of a value are called when it is a learning rate.
RATES = {
    "val": "learning_rate",
    "vals": "learning_rates",
    "initial_val": "initial_learning_rate",
    "end_val": "end_learning_rate",
    "base_val": "base_lr",
    "max_val": "max_lr",
    "CosineAnnealingWarmRestartsLR": "CosineAnnealingWarmRestarts",
}
_KINDS: dict[type, type[Made]] = {
    cycles.Cyclic: Cyclic,
    composites.Lambda: Lambda,
    composites.Multiplicative: Multiplicative,
}
_COMPOSITES: dict[str, type[Scheduler]] = {"Sequential": Sequential, "Chained": Chained, "ScalePerParam": ScalePerParam}
_EXAMPLES = {  # of those whose docstrings have none; a name stands for the class of the family
    "Lambda": """
>>> class Inverse(Lambda):
...     def set_value_lambda(self):
...         return lambda t: 1.0 / (1.0 + t.double())
>>> Inverse(optimizer, initial_val=0.1).values(3)
[0.1, 0.05, 0.03333333333333333]""",
    "Sequential": """
>>> Sequential(optimizer, [Linear(optimizer, 0.0, 0.1, 2), Constant(optimizer, 0.1)], milestones=[2]).values(4)
[0.0, 0.05, 0.1, 0.1]""",
    "Chained": """
>>> Chained([Step(optimizer, 0.1, 2, 0.5), MultiStep(optimizer, 1.0, 0.5, [1])]).values(4)
[0.1, 0.05, 0.025, 0.025]""",
    "ScalePerParam": """
>>> optimizer.param_groups[0]["adjust_learning_rate"] = 0.5
>>> ScalePerParam(optimizer, Constant(optimizer, 0.1)).get_last_value()
[0.05]""",
}
_SETUP = """
>>> import torch
>>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0, momentum=0.9)"""
_SHARED = """
    param_group_tags: which groups: None for all, a tag or several, `[None]` for those without tags.
    clock: a `timesched.Clock` or Composer's `State`: counts may then be times, such as "0.1dur" or "2e9tok".

Raises:
    ValueError: a number that is not finite, a count out of its range, no such group or key, a time without a clock.
"""


def family(
    base: type[Scheduler], suffix: str, module: str, names: Mapping[str, str] | None = None, like: Any = None
) -> dict[str, type[Scheduler]]:
    """The schedulers of one family by name: subclasses of `base`, for the module that they are to live in.

    `suffix` ends their names; `names` says what arguments, and classes, are called otherwise in this family. With
    `like`, the module of the generic schedulers, each is a subclass of its like there, and takes the same arguments.
    """
    names = names or {}
    sources: dict[str, type] = {formula.__name__: formula for formula in FORMULAS} | _COMPOSITES
    made = {}
    for stem, source in sources.items():
        body: dict[str, Any] = {"__module__": module}
        kind: Any = _KINDS.get(source, Made) if issubclass(source, Formula) else source
        if like is not None:
            kind = getattr(like, f"{stem}Scheduler")
        elif issubclass(source, Formula):
            body |= {"formula": source, "names": names, "__init__": _constructor(source, names)}
        body["__doc__"] = _text(stem, inspect.getdoc(source) or "", suffix, names, base)
        name = _name(stem, suffix, names)
        made[name] = type(name, (kind, base), body)
    return made


def _name(stem: str, suffix: str, names: Mapping[str, str]) -> str:
    return names.get(stem + suffix, stem + suffix)


def _constructor(formula: type[Formula], names: Mapping[str, str]) -> Callable[..., None]:
    """A constructor that has the formula's fields as arguments, under their names in this family."""

    def __init__(self: Made, *args: Any, **kwargs: Any) -> None:
        self.make(signature.bind(self, *args, **kwargs).arguments)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in ("self", "optimizer")]
    for field in dataclasses.fields(formula):
        if field.name not in Made.hidden:
            default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
            annotation = str(field.type).replace("Count", "int | str | Time").replace("Sequence", "list")
            parameters.append(
                inspect.Parameter(names.get(field.name, field.name), kind, default=default, annotation=annotation)
            )
    parameters += [inspect.Parameter(name, kind, default=None) for name in ("param_group_tags", "clock")]
    signature = inspect.Signature(parameters)
    __init__.__signature__ = signature  # type: ignore[attr-defined]  # what inspect looks for
    return __init__


def _text(stem: str, text: str, suffix: str, names: Mapping[str, str], base: type[Scheduler]) -> str:
    """The docstring: that of the formula in the words of the family, with what all schedulers share."""
    for old, new in names.items():
        text = re.sub(rf"\b{old}\b", new, text)
    text, marker, example = text.partition("\n>>> ")
    example = marker + example if marker else _EXAMPLES[stem]
    for old, new in names.items():
        example = re.sub(rf"\b{old}\b", new, example)
    setup = _SETUP
    for used in sorted(set(re.findall(r"\b([A-Z]\w+)(?=\(optimizer|\(\[|\)|\(\w+=)", example)) - {"Inverse"}):
        named = _name(used, suffix, names)
        if base.param_group_key:
            example = re.sub(rf"\b{used}(?=[()])", named, example)
        else:
            setup += f'\n>>> class {used}({named}): param_group_key = "momentum"'
    if "param_group_tags:" not in text:
        text = (
            text.replace("Args:\n", "Args:\n    optimizer: the optimizer whose parameter groups are set.\n").rstrip()
            + _SHARED
        )
        example = re.sub(rf"\b({_name(stem, suffix, names)}|{stem})\((?!optimizer|self)", r"\1(optimizer, ", example)
    source = re.search(r"\n\nSource: [^\n]*(\n[^\n]+)*", text)
    last = source[0] if source else ""
    return f"{text.replace(last, '').rstrip() if last else text.rstrip()}\n{setup}{example.rstrip()}{last}\n"
