"""What drives an optimizer, and taking back what a build that fails has done to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from timesched.binding import bound_to


@contextmanager
def undone(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """On an error, give the keys back to the schedulers that owned them, and the groups what they held."""
    earlier = bound_to(optimizer)
    groups = list(optimizer.param_groups)
    before = [dict(group) for group in groups]
    held = [(tensor, tensor.detach().clone()) for group in before for tensor in _tensors(group)]
    try:
        yield
    except BaseException:
        for each in bound_to(optimizer):
            if each not in earlier:
                each.unbind()
        for each in earlier:
            each.take_back()
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
