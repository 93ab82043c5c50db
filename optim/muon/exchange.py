"""How the tensors of matrices travel between the ranks that share them. ranks.py says what is sent, and when.

Each matrix has an owner, the rank that makes it orthogonal. A batch of matrices is sent twice: first the shards of all
ranks to the owners, and later the results of the owners to all ranks. A message has all tensors from one rank to
another, one after the other, in the order of the batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor


class SharedMatrix(NamedTuple):
    """A parameter that ranks share: a matrix, or a stack of them."""

    work_index: int  # the index of its work in the step
    param_index: int  # the index of the parameter in this work
    split_dim: int | None  # the dimension along which the ranks split it; None: each rank has the full matrix
    shapes: tuple[torch.Size, ...]  # of the full direction, and with NorMuon of the full second moments
    cost: int  # the multiplications of one iteration


# For each matrix, a list as long as its `shapes`: the direction or the step, and with NorMuon the second moments. The
# tensors are full, or they are this rank's shards: see ranks.py.
MatrixTensors = dict[SharedMatrix, list[Tensor]]

# Matrices that are sent and updated together: one list for each rank, with the matrices that it owns.
Batch = list[list[SharedMatrix]]


class Exchange(NamedTuple):
    """How tensors are sent. Matrices with equal exchanges can share a message."""

    process_group: Any
    device: torch.device
    dtype: torch.dtype
    is_replicated: bool  # every rank has the full matrices

    def rank(self) -> int:
        """The number of this rank in the process group."""
        return dist.get_rank(self.process_group)

    def send_to_owners(self, shards: MatrixTensors, batch: Batch) -> MatrixTensors:
        """Send this rank's shards to the owners. Returns the full tensors of this rank's own matrices.

        With replicated matrices, an owner has the full tensors, and nothing is sent.
        """
        if self.is_replicated:
            return shards
        ranks, own = len(batch), batch[self.rank()]
        shapes_from_ranks = [_shard_shapes(own, rank, ranks) for rank in range(ranks)]
        received = self._all_to_all([_flat_list(owned, shards) for owned in batch], shapes_from_ranks)
        full_tensors: list[Tensor] = []
        for split_dim, own_shard, *all_shards in zip(_split_dims(own), _flat_list(own, shards), *received):
            full_tensors.append(torch.cat(all_shards, split_dim).to(own_shard.dtype))
        return _tensors_by_matrix(own, full_tensors)

    def send_from_owners(self, full_tensors: MatrixTensors, batch: Batch) -> MatrixTensors:
        """Send the full tensors of this rank's own matrices. Returns this rank's shards of all matrices.

        With replicated matrices, the shards are the full tensors.
        """
        rank, ranks = self.rank(), len(batch)
        own = batch[rank]
        shapes_from_ranks = [_shard_shapes(owned, rank, ranks) for owned in batch]
        if self.is_replicated:
            received = self._all_gather(_flat_list(own, full_tensors), shapes_from_ranks)
        else:
            tensors_to_ranks: list[list[Tensor]] = [[] for _ in range(ranks)]
            for split_dim, full in zip(_split_dims(own), _flat_list(own, full_tensors)):
                shards = torch.split(full, _shard_sizes(full.shape[split_dim], ranks), split_dim)
                for to_rank, shard in zip(tensors_to_ranks, shards):
                    to_rank.append(shard)
            received = self._all_to_all(tensors_to_ranks, shapes_from_ranks)
        return _tensors_by_matrix(chain.from_iterable(batch), chain.from_iterable(received))

    def _all_to_all(
        self, tensors_to_ranks: list[list[Tensor]], shapes_from_ranks: list[list[torch.Size]]
    ) -> list[list[Tensor]]:
        """Send a list of tensors to each rank. Returns the tensors from each rank, which have the given shapes."""
        sent = [sum(map(Tensor.numel, tensors)) for tensors in tensors_to_ranks]
        expected = [sum(map(torch.Size.numel, shapes)) for shapes in shapes_from_ranks]
        message = self._make_message(chain.from_iterable(tensors_to_ranks))
        received = message.new_empty(sum(expected))
        dist.all_to_all_single(received, message, expected, sent, group=self.process_group)
        return list(map(_split_message, torch.split(received, expected), shapes_from_ranks))

    def _all_gather(self, tensors: list[Tensor], shapes_from_ranks: list[list[torch.Size]]) -> list[list[Tensor]]:
        """Send the same tensors to all ranks. Returns the tensors from each rank, which have the given shapes."""
        expected = [sum(map(torch.Size.numel, shapes)) for shapes in shapes_from_ranks]
        longest = max(expected)  # all messages must have the same length
        padding = torch.empty(longest - expected[self.rank()], dtype=self.dtype, device=self.device)
        message = self._make_message([*tensors, padding])
        received = [message.new_empty(longest) for _ in expected]
        dist.all_gather(received, message, group=self.process_group)
        return list(map(_split_message, received, shapes_from_ranks))

    def _make_message(self, tensors: Iterable[Tensor]) -> Tensor:
        """Flatten the tensors into one tensor of the dtype that is sent."""
        empty = torch.empty(0, dtype=self.dtype, device=self.device)  # for a rank that has nothing to send
        return torch.cat([empty, *(x.reshape(-1).to(self.dtype) for x in tensors)])


def _flat_list(matrices: list[SharedMatrix], tensors: MatrixTensors) -> list[Tensor]:
    """All tensors of the matrices, in one list."""
    return list(chain.from_iterable(tensors[matrix] for matrix in matrices))


def _split_dims(matrices: list[SharedMatrix]) -> list[Any]:
    """The dimension along which each tensor of `_flat_list` is split."""
    return list(chain.from_iterable([matrix.split_dim] * len(matrix.shapes) for matrix in matrices))


def _tensors_by_matrix(matrices: Iterable[SharedMatrix], flat_list: Iterable[Tensor]) -> MatrixTensors:
    """The inverse of `_flat_list`."""
    remaining = iter(flat_list)
    return {matrix: list(islice(remaining, len(matrix.shapes))) for matrix in matrices}


def _shard_shapes(matrices: list[SharedMatrix], rank: int, ranks: int) -> list[torch.Size]:
    """The shapes of a rank's shards of each tensor of the matrices."""
    shard_shapes = []
    for matrix in matrices:
        for shape in matrix.shapes:
            sizes = list(shape)
            if matrix.split_dim is not None:
                sizes[matrix.split_dim] = _shard_sizes(shape[matrix.split_dim], ranks)[rank]
            shard_shapes.append(torch.Size(sizes))
    return shard_shapes


def _shard_sizes(size: int, ranks: int) -> list[int]:
    """The size of each rank's shard of a dimension, as `Shard` splits it."""
    full_size = -(-size // ranks)
    return [max(0, min(full_size, size - rank * full_size)) for rank in range(ranks)]


def _split_message(message: Tensor, shapes: list[torch.Size]) -> list[Tensor]:
    """Split a message into tensors, as views. It may have padding at its end."""
    sizes = [shape.numel() for shape in shapes]
    parts = torch.split(message[: sum(sizes)], sizes)
    return [part.view(shape) for part, shape in zip(parts, shapes)]


def read_process_group(process_group: object) -> Any:
    """Read the argument `process_group`. None where there are no other ranks. Raises `TypeError` for other objects."""
    if not process_group:
        return None
    group = dist.group.WORLD if process_group is True else process_group
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            f"process_group={process_group!r}: this is no process group of this rank. Pass a group of "
            "torch.distributed that this rank is in, or True for the default group, after init_process_group()."
        )
    return group if group.size() > 1 else None
