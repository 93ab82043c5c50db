"""Count what a step launches on a CUDA GPU, with fake CUDA tensors: they need torch's CUDA build, but no GPU.

A dispatch mode records the operations of a step. Views launch nothing. A multi-tensor operation counts as one kernel
where torch's CUDA code takes all its tensors at once, and as one for each tensor where it does not: where the lists
differ in shape, strides, dtype or device. (What one launch of such a kernel holds is limited to about 100 tensors;
that is not counted.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

READS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::equal", "aten::item")
ALLOCATIONS = ("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided")


class Recorder(TorchDispatchMode):
    """The kernels of what runs under it, by operation; `traffic` has what would wait for the GPU or copy to it."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()
        self.traffic: list[str] = []

    @property
    def launches(self) -> int:
        return self.kernels.total()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        if name in READS:
            if any(x.is_cuda for x in tree_leaves(args) if isinstance(x, Tensor)):
                raise AssertionError(f"{name} waits for the GPU")
            return 3.0  # a number on the host; which one does not matter
        if name.startswith("aten::_fused_"):  # they have no fake form
            self.kernels[name] += 1
            return None
        result = func(*args, **kwargs)
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        made = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        devices = {x.device.type for x in given + made}
        # A 0-dim host tensor beside tensors of the GPU becomes an argument of the kernel, unless it is copied.
        copies = name in ("aten::_to_copy", "aten::copy_", "aten::_foreach_copy_", "aten::stack", "aten::cat")
        if len(devices) > 1 and copies:
            self.traffic.append(f"{name} between devices")
        if "cuda" not in devices or func.is_view or name in ALLOCATIONS or name.startswith("prim"):
            return result
        if made and all(any(x is y for y in given) for x in made) and not func._schema.is_mutable:
            return result
        if not any(x.numel() for x in given + made):
            return result
        self.kernels[str(func)] += _slow(args) if "_foreach_" in name else 1
        return result


def _slow(args: Any) -> int:
    """How many kernels a multi-tensor operation is: one, or one for each tensor."""
    lists = [x for x in args if isinstance(x, (list, tuple)) and x and isinstance(x[0], Tensor)]
    others = [x for x in args if isinstance(x, Tensor) and x.is_cuda]
    first = lists[0]
    n = len(first)
    same = all((x.dtype, x.device) == (first[0].dtype, first[0].device) for column in lists for x in column)
    same = same and all(
        column[i].shape == first[i].shape and column[i].stride() == first[i].stride()
        for column in lists
        for i in range(n)
    )
    same = same and all(x.dtype == first[0].dtype for x in others)
    return 1 if same else n


@contextmanager
def fake_cuda() -> Iterator[None]:
    """Tensors made in here are fake."""
    with FakeTensorMode():
        yield


def parameters(shapes: list[tuple[int, ...]], dtype: torch.dtype = torch.float32, device: str = "cuda") -> list[Any]:
    params = [torch.nn.Parameter(torch.empty(shape, dtype=dtype, device=device)) for shape in shapes]
    for p in params:
        p.grad = torch.empty_like(p)
    return params


def recorded(step: Callable[[], Any]) -> Recorder:
    """What one call launches."""
    recorder = Recorder()
    with recorder:
        step()
    return recorder
