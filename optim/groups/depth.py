"""Learning-rate factors by depth: the layers of a stack, such as the blocks of an encoder, and what is around them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from timesched.hints import nearest_names

from ..base.hyperparameters import Number

LAYER_DECAY = Number(low=0.0, high=1.0, open_low=True)


class Stack:
    """The layers that a glob selects: their parameters, by the positions in the model."""

    def __init__(self, glob: str, names: Sequence[str]) -> None:
        self.glob = glob
        self.patterns = [re.compile(re.escape(part).replace(r"\*", "([0-9]+)")) for part in glob.split(".")]
        self.layers: dict[int, tuple[int, ...]] = {}  # the indices in the name of the parameter at each position
        for position, name in enumerate(names):
            if self.count_shared_parts(name) == len(self.patterns):
                self.layers[position] = self._read_indices(name)
        self.positions = sorted(self.layers)
        self.numbers = {indices: number for number, indices in enumerate(sorted(set(self.layers.values())))}

    def _read_indices(self, name: str) -> tuple[int, ...]:
        """The numbers of a layer in a name that fits the glob."""
        indices: list[int] = []
        for pattern, part in zip(self.patterns, name.split(".")):
            match = pattern.fullmatch(part)
            indices += map(int, match.groups() if match else ())
        return tuple(indices)

    def count_shared_parts(self, name: str) -> int:
        """How many leading parts of a name fit the glob."""
        count = 0
        for pattern, part in zip(self.patterns, name.split(".")):
            if not pattern.fullmatch(part):
                break
            count += 1
        return count

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


def depth_factors(names: Sequence[str], layer_decay: object, layers: object) -> list[float]:
    """The factor of each parameter, by the names in the order of the model. Raises as `configure_param_groups`."""
    LAYER_DECAY.check("layer_decay", layer_decay)
    decay = float(layer_decay)  # type: ignore[arg-type]  # it was checked
    stacks = [Stack(glob, names) for glob in _read_globs(layers)]
    for stack in stacks:
        if not stack.layers:
            raise ValueError(_describe_no_layers(stack.glob, names))
    first = min(stacks, key=lambda stack: stack.positions[0])
    factors = []
    for position, name in enumerate(names):
        owner = _choose_stack(stacks, position, name)
        if owner is not None:
            exponent = owner.exponent(position)
        else:  # it belongs to no stack: before all layers it is an embedding
            exponent = first.exponent(position) if position < first.positions[0] else 0
        factors.append(decay**exponent)
    return factors


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
        counts = [stack.count_shared_parts(name) for stack in stacks]
        owners = [stack for stack, count in zip(stacks, counts) if count == max(counts)]
    return owners[0] if len(owners) == 1 else None


def _describe_no_layers(glob: str, names: Sequence[str]) -> str:
    globs: dict[str, None] = {}  # of all stacks in the model
    for name in names:
        parts = name.split(".")
        for i, part in enumerate(parts):
            if re.search("[0-9]", part):
                globs[re.sub("[0-9]+", "*", ".".join(parts[: i + 1]))] = None
    near = nearest_names(glob, globs)
    known = near or nearest_names(glob, names, likeness=0.0)
    return (
        f"layers={glob!r}: it matches the first parts of no parameter's name. "
        f"{'The nearest globs are' if near else 'The nearest names are'} {', '.join(map(repr, known))}."
    )
