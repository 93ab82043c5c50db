"""States that are one number for each parameter, such as the count of its steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

STEP = "step"  # the state that counts the steps of a parameter


def scalar_state(p: Tensor, value: Any = 0.0) -> Tensor:
    """A number in the form of torch's step counts: a 0-dim tensor on the device of its parameter.

    It is in float32, or in float64 where float64 is torch's default dtype. The tensor is created on the host and then
    moved: XLA, a lazy device, treats a scalar created on the device as a constant.
    """
    dtype = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
    if p.is_meta:
        return torch.zeros((), dtype=dtype, device=p.device)
    number = torch.zeros((), dtype=dtype, device="cpu")
    number.copy_(value.detach().reshape(())) if isinstance(value, Tensor) else number.fill_(value)
    return number.to(p.device)
