"""Count what a step launches on a CUDA GPU, with fake CUDA tensors: they need torch's CUDA build, but no GPU.

A dispatch mode records the operations of a step. Views and memory that is not filled launch nothing. A multi-tensor
operation counts as one kernel where torch's CUDA code takes all its tensors at once, and as one for each tensor where
it does not: where the lists, or a tensor that is a factor, differ in dtype, device, shape or strides. (How many tensors
fit into one launch, about 100, is not counted.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

READS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal")
COPIES = ("aten::_to_copy", "aten::copy_", "aten::_foreach_copy_", "aten::stack", "aten::cat")
UNFILLED = ("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided")
VIEWS = ("aten::_unsafe_view",)  # which torch does not list among its views


class Recorder(TorchDispatchMode):
    """The kernels of what runs, by operation. `refuse`: what waits for the GPU or copies to or from it raises."""

    def __init__(self, refuse: bool = True) -> None:
        super().__init__()
        self.refuse = refuse
        self.kernels: Counter[str] = Counter()

    @property
    def launches(self) -> int:
        return self.kernels.total()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func._schema.name, kwargs or {}
        given = tensors((args, kwargs))
        if name in READS:
            assert not self.refuse or not any(x.is_cuda for x in given), f"{name} waits for the GPU"
            return 3.0  # which number it is does not matter
        if name.startswith("aten::_fused_"):  # not all of these have a fake form
            self.kernels[name] += 1
            return None
        result = func(*args, **kwargs)
        if func._schema.is_mutable:  # fake multi-tensor operations leave the version as it was, unlike real ones
            writes = [x for x, y in zip(args, func._schema.arguments) if y.alias_info and y.alias_info.is_write]
            torch.autograd.graph.increment_version(tensors(writes))
        made = tensors(result)
        if name in COPIES and self.refuse:
            devices = {x.device for x in given + made}
            assert len(devices) == 1 or not any(x.is_cuda for x in given + made), f"{name} copies between {devices}"
        on_gpu = [x for x in given + made if x.is_cuda]
        is_view = func.is_view or name in VIEWS
        nothing = is_view or name in UNFILLED or name.startswith("prim") or not any(x.numel() for x in on_gpu)
        if not nothing:
            self.kernels[str(func)] += multi_tensor(args) if "_foreach_" in name else 1
        return result


def tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]


def multi_tensor(args: Iterable[Any]) -> int:
    """How many kernels a multi-tensor operation is."""
    lists = [x for x in args if isinstance(x, (list, tuple)) and x and isinstance(x[0], Tensor)]
    factors = [x for x in args if isinstance(x, Tensor)]
    first = lists[0]
    same_kind = {(x.dtype, x.device) for x in [*tensors(lists), *factors]} == {(first[0].dtype, first[0].device)}
    same_form = all(x.shape == y.shape and x.stride() == y.stride() for other in lists for x, y in zip(first, other))
    return 1 if same_kind and same_form else len(first)


def recorded(step: Callable[[], Any], refuse: bool = True) -> Recorder:
    """What one call launches."""
    with Recorder(refuse) as recorder:
        step()
    return recorder
