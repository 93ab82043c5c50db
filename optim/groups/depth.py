"""Learning-rate factors by depth: the layers of a stack, such as the blocks of an encoder, and what is around them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any

from timesched.hints import nearest_names

from ..base.hyperparameters import Number
from .learning_rate import factor_key
from .parameters import NamedParameter

LAYER_DECAY = Number(above=0, most=1)


class Stack:
    """The layers that a glob selects: their parameters, by the positions in the model.

    Raises `ValueError` if the glob matches no parameter.
    """

    def __init__(self, glob: str, names: Sequence[str]) -> None:
        self.glob = glob
        self.patterns = [re.compile(re.escape(part).replace(r"\*", "([0-9]+)")) for part in glob.split(".")]
        self.layers: dict[int, tuple[int, ...]] = {}  # the indices in the name of the parameter at each position
        for position, name in enumerate(names):
            matches = self.match_parts(name)
            if len(matches) == len(self.patterns):
                self.layers[position] = tuple(int(digits) for match in matches for digits in match.groups())
        if not self.layers:
            raise ValueError(_describe_no_layers(glob, names))
        self.positions = sorted(self.layers)
        self.numbers = {indices: number for number, indices in enumerate(sorted(set(self.layers.values())))}

    def match_parts(self, name: str) -> list[Any]:
        """The matches of the leading parts of a name that fit the glob."""
        matches = (pattern.fullmatch(part) for pattern, part in zip(self.patterns, name.split(".")))
        return list(takewhile(bool, matches))

    def exponent(self, position: int) -> int:
        """How often the decay multiplies the learning rate of the parameter at a position, in a layer or not.

        A parameter between two layers counts as part of the next one.
        """
        i = bisect_left(self.positions, position)
        if i == len(self.positions):
            return 0
        if i == 0 and position not in self.layers:
            return len(self.numbers) + 1
        return len(self.numbers) - self.numbers[self.layers[self.positions[i]]]


def scale_by_depth(parameters: Sequence[NamedParameter], layer_decay: object, layers: object) -> None:
    """Give each parameter without a factor the factor of its layer: the arguments `layer_decay` and `layers`.

    Layer i of L has the factor `layer_decay ** (L - i)`. What comes before the first layer, such as embeddings, has
    `layer_decay ** (L + 1)`. What comes between two layers has the factor of the next one. What comes after the last
    layer, such as the head, has 1. A factor of `adjust_learning_rate` wins.

    `layers` has a glob for each stack of layers, such as `blocks.*` or `stages.*.blocks.*`. It matches the first parts
    of names, and each `*` stands for digits. Several stacks have their own numbers. A parameter outside them belongs
    to the glob with which its name shares the most leading parts. If several globs share equally many, it has the
    embedding factor of the first stack before all layers, and 1 elsewhere.

    Raises ValueError if `layer_decay` is outside (0, 1], if a glob matches nothing or has no `*`, or if two globs match
    one parameter.

    >>> import torch
    >>> from optim import configure_param_groups
    >>> model = torch.nn.Sequential(*(torch.nn.Linear(4, 4, bias=False) for _ in range(3)))
    >>> for group in configure_param_groups(model, lr=0.1, layer_decay=0.5, layers="*"):
    ...     print([name for name, _ in group["params"]], group["lr"], group["lr_factor"])
    ['0.weight'] 0.0125 0.125
    ['1.weight'] 0.025 0.25
    ['2.weight'] 0.05 0.5
    """
    LAYER_DECAY.read("layer_decay", layer_decay)
    decay = float(layer_decay)  # type: ignore[arg-type]  # it was checked
    names = [parameter.name for parameter in parameters]
    stacks = [Stack(glob, names) for glob in _read_globs(layers)]
    first = min(stacks, key=lambda stack: stack.positions[0])
    for position, parameter in enumerate(parameters):
        owner = _choose_stack(stacks, position, parameter.name)
        if owner is None and position < first.positions[0]:  # before all layers it is an embedding
            owner = first
        factor = 1.0 if owner is None else decay ** owner.exponent(position)
        parameter.settings.setdefault(factor_key(parameter.settings), factor)


def _read_globs(layers: object) -> list[str]:
    """Read the globs of `layers`, one or several."""
    if not isinstance(layers, Iterable):
        raise TypeError(f"layers={layers!r:.80}: this is no glob. Pass one or several, as 'blocks.*'.")
    globs = [layers] if isinstance(layers, str) else list(layers)
    if not globs:
        raise ValueError(f"layers={layers!r:.80}: there is no glob. Pass one or several, as 'blocks.*'.")
    for glob in globs:
        if not isinstance(glob, str):
            raise TypeError(f"layers has {glob!r:.80}, which is no glob. Pass one or several, as 'blocks.*'.")
        if "*" not in glob or "**" in glob or "?" in glob or "[" in glob:
            raise ValueError(
                f"layers={glob!r}: each '*' stands for the number of a layer, and there are no other wildcards. Write "
                f"the first parts of the names, as 'blocks.*'."
            )
    return globs


def _choose_stack(stacks: Sequence[Stack], position: int, name: str) -> Stack | None:
    """The stack of a parameter: the one that has it in a layer, or whose glob shares the most leading parts."""
    owners = [stack for stack in stacks if position in stack.layers]
    if len(owners) > 1:
        raise ValueError(
            f"layers: {owners[0].glob!r} and {owners[1].glob!r} both match the parameter {name!r}. Leave out one."
        )
    if not owners:
        counts = [len(stack.match_parts(name)) for stack in stacks]
        owners = [stack for stack, count in zip(stacks, counts) if count == max(counts)]
    return owners[0] if len(owners) == 1 else None


def _describe_no_layers(glob: str, names: Sequence[str]) -> str:
    globs: dict[str, None] = {}  # of all stacks in the model
    for name in names:
        for match in re.finditer(r"[0-9][^.]*", name):  # up to the end of a part with a number
            globs[re.sub("[0-9]+", "*", name[: match.end()])] = None
    near = nearest_names(glob, globs)
    known = near or nearest_names(glob, names, likeness=0.0)
    return (
        f"layers={glob!r}: it matches the first parts of no parameter's name. "
        f"{'The nearest globs are' if near else 'The nearest names are'} {', '.join(map(repr, known))}."
    )
