"""All or nothing: an optimizer as it was before, where something that schedules it fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from timesched.binding import bound_to


@contextmanager
def unchanged_on_error(optimizer: Optimizer) -> Iterator[None]:
    """On an error, give the optimizer its groups and their values back, and the keys to those that owned them."""
    earlier = bound_to(optimizer)
    groups = [(group, dict(group)) for group in optimizer.param_groups]
    tensors = [(each, each.detach().clone()) for _, values in groups for each in _tensors(values)]
    try:
        yield
    except BaseException:
        for each in bound_to(optimizer):
            if each not in earlier:
                each.unbind()
        for each in earlier:
            if each.refusal is not None:
                each.take_back()
        with torch.no_grad():
            for tensor, value in tensors:
                tensor.copy_(value)
        optimizer.param_groups[:] = [group for group, _ in groups]
        for group, values in groups:
            group.clear()
            group.update(values)
        raise


def _tensors(values: dict[str, Any]) -> Iterator[Tensor]:
    for name, value in values.items():
        for each in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(each, Tensor) and name != "params":
                yield each
