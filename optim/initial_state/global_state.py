"""Global state that steps on copies would change: random generators, global hooks and warnings."""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks


@contextmanager
def preserve_global_state(device: torch.device) -> Iterator[None]:
    """Restore random generators after the block. In it, hooks for all optimizers and warnings are off."""
    accelerator, numpy = accelerator_module(device), sys.modules.get("numpy")
    indices = list(range(accelerator.device_count())) if accelerator else []
    with (
        torch.random.fork_rng(indices, device_type=device.type),
        warnings.catch_warnings(),
        torch.enable_grad(),
        ExitStack() as afterwards,
    ):
        warnings.simplefilter("ignore")
        afterwards.callback(random.setstate, random.getstate())
        if numpy:
            afterwards.callback(numpy.random.set_state, numpy.random.get_state())
        hooks: Any
        for hooks in (_global_optimizer_pre_hooks, _global_optimizer_post_hooks):
            afterwards.callback(hooks.update, dict(hooks))
            hooks.clear()
        yield


def set_seeds(seed: int, device: torch.device) -> None:
    """Seed each random generator that a step on the device may use."""
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed all accelerators
    accelerator = accelerator_module(device)
    if accelerator:
        accelerator.manual_seed_all(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


def accelerator_module(device: torch.device) -> Any:
    """The module of torch for a device with its own random generators, or None."""
    return None if device.type in ("cpu", "meta") else torch.get_device_module(device)
