"""What drives an optimizer, and taking back what a build that fails has done to it."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from timesched.targets import Target, targets_of


def living_targets(optimizer: torch.optim.Optimizer, apart: tuple[Target, ...] = ()) -> list[Target]:
    """The targets of an optimizer but those `apart`, without those of schedulers that nobody holds any more."""

    def found() -> list[Target]:
        return [target for target in targets_of(optimizer) if target not in apart]

    if found():
        gc.collect()  # what nobody holds may be waiting for it
    return found()


@contextmanager
def undone(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """On an error, take the schedulers made since off the optimizer, and give it back its groups and what they held."""
    earlier = targets_of(optimizer)
    groups = list(optimizer.param_groups)
    before = [dict(group) for group in groups]
    held = [(tensor, tensor.detach().clone()) for group in before for tensor in _tensors(group)]
    try:
        yield
    except BaseException:
        for target in targets_of(optimizer):
            if target not in earlier:
                target.unbind()
        with torch.no_grad():
            for tensor, value in held:
                tensor.copy_(value)
        optimizer.param_groups[:] = groups
        for group, values in zip(groups, before):
            group.clear()
            group.update(values)
        raise


def _tensors(group: Mapping[str, Any]) -> Iterator[Tensor]:
    for name, value in group.items():
        if name != "params":
            for each in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(each, Tensor):
                    yield each
