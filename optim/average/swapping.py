"""The tensors that an average writes for the time of a `with` block: parameters, and buffers of a module."""

from __future__ import annotations

import torch
from torch import Tensor

from ..base.hyperparameters import all_parameters
from ..base.sharding import local_shards


def persistent_buffers(module: torch.nn.Module | None) -> dict[str, Tensor]:
    """The buffers of a module that its state dict has, by name."""
    buffers: dict[str, Tensor] = {}
    if module is None:
        return buffers
    for name, buffer in module.named_buffers():
        path, _, own_name = name.rpartition(".")
        if own_name not in module.get_submodule(path)._non_persistent_buffers_set:
            buffers[name] = buffer
    return buffers


def select_statistics(module: torch.nn.Module | None) -> dict[str, Tensor]:
    """Select the buffers to average, by name: running statistics. The average of unit vectors is no unit vector."""
    statistics = {}
    for name, buffer in persistent_buffers(module).items():
        if name.rpartition(".")[2].startswith("running_") and buffer.is_floating_point():
            statistics[name] = buffer
    return statistics


def present_shards(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The present values of the parameters on this rank. Writing into these tensors changes the parameters."""
    return local_shards([p.detach() for p in all_parameters(optimizer.param_groups)])


def write_parameters(optimizer: torch.optim.Optimizer, values: list[Tensor]) -> None:
    """Copy values into the parameters, whose dtypes and devices stay."""
    for x, value in zip(present_shards(optimizer), values):
        x.copy_(value)


def drop_gathered(model: torch.nn.Module | None) -> None:
    """Drop the gathered parameters of FSDP modules, so that they are gathered again when needed."""
    if model is None:
        return
    from torch.distributed.fsdp import FSDPModule  # late, since it takes half as long to import as torch

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
