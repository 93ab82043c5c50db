"""Muon on several ranks, without redundant work: each matrix is made orthogonal on one of the ranks that share it.

That rank is the owner of the matrix. A batch of matrices is updated by three actions, in this order:

1. Directions are gathered: each rank sends its shards of the directions to the owners. Where every rank has the full
   matrix, as under DDP, there is nothing to send.
2. Each rank makes the matrices that it owns orthogonal.
3. Steps are sent: each rank receives its shards of the steps from the owners. Under DDP it receives the full steps.

NorMuon sends the second moments in the same messages.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from itertools import chain, islice
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..base.tensor_lists import copy_, lerp_, select
from ..step.execution import StartedStep, start_step
from ..step.work import Work
from .matrices import apply_steps, block_rows, has_full_matrices, matrix_shape, momentum_directions, orthogonal_steps
from .newton_schulz import iteration_dtype, matrices_at_once

BATCH = 1 << 24  # elements that a rank makes orthogonal between two exchanges; a matrix may have more
OVERHEAD = 1 << 30  # multiplications that take as long as the three launches of an iteration on a GPU, some 10 µs


class SharedMatrix(NamedTuple):
    """A parameter that ranks share: a matrix, or a stack of them."""

    work_index: int  # the index of its work in the step
    param_index: int  # the index of the parameter in this work
    split_dim: int | None  # the dimension along which the ranks split it; None: each rank has the full matrix
    shapes: tuple[torch.Size, ...]  # of the full direction, and with NorMuon of the full second moments
    cost: int  # the multiplications of one iteration


# For each matrix, a list as long as its `shapes`: the direction or the step, and with NorMuon the second moments. The
# tensors are full, or they are this rank's shards: see `_step_batch`.
MatrixTensors = dict[SharedMatrix, list[Tensor]]


# Matrices that are sent and updated together: one list for each rank, with the matrices that it owns.
Batch = list[list[SharedMatrix]]


class Part(NamedTuple):
    """The matrices of a batch that are in one work and have one shape. They are updated together."""

    matrices: list[SharedMatrix]
    started: StartedStep  # its columns have this rank's shard of each of the matrices


class Exchange(NamedTuple):
    """How tensors are sent. Matrices with equal exchanges can share a message."""

    process_group: Any
    device: torch.device
    dtype: torch.dtype
    is_replicated: bool  # every rank has the full matrices

    def all_to_all(
        self, tensors_to_ranks: list[list[Tensor]], shapes_from_ranks: list[list[torch.Size]]
    ) -> list[list[Tensor]]:
        """Send a list of tensors to each rank. Returns the tensors from each rank, which have the given shapes."""
        sent = [sum(map(Tensor.numel, tensors)) for tensors in tensors_to_ranks]
        expected = [sum(map(torch.Size.numel, shapes)) for shapes in shapes_from_ranks]
        message = self._make_message(chain.from_iterable(tensors_to_ranks))
        received = message.new_empty(sum(expected))
        dist.all_to_all_single(received, message, expected, sent, group=self.process_group)
        return list(map(_split_message, torch.split(received, expected), shapes_from_ranks))

    def all_gather(self, tensors: list[Tensor], shapes_from_ranks: list[list[torch.Size]]) -> list[list[Tensor]]:
        """Send the same tensors to all ranks. Returns the tensors from each rank, which have the given shapes."""
        expected = [sum(map(torch.Size.numel, shapes)) for shapes in shapes_from_ranks]
        longest = max(expected)  # all messages must have the same length
        padding = torch.empty(longest - expected[self.rank()], dtype=self.dtype, device=self.device)
        message = self._make_message([*tensors, padding])
        received = [message.new_empty(longest) for _ in expected]
        dist.all_gather(received, message, group=self.process_group)
        return list(map(_split_message, received, shapes_from_ranks))

    def rank(self) -> int:
        """The number of this rank in the process group."""
        return dist.get_rank(self.process_group)

    def _make_message(self, tensors: Iterable[Tensor]) -> Tensor:
        """Flatten the tensors into one tensor of the dtype that is sent."""
        empty = torch.empty(0, dtype=self.dtype, device=self.device)  # for a rank that has nothing to send
        return torch.cat([empty, *(x.reshape(-1).to(self.dtype) for x in tensors)])


def step_shared_matrices(works: list[Work], process_group: object) -> list[Work]:
    """Step the matrices that ranks share: parameters that are DTensors, and others if there is a process group.

    Returns the remaining work.
    """
    left: list[Work] = []
    shared: dict[Exchange, list[SharedMatrix]] = {}
    for work_index, work in enumerate(works):
        not_shared = []
        for i, p in enumerate(work.columns["p"]):
            sharing = _find_sharing(work, i, process_group)
            if sharing is None:
                not_shared.append(i)
                continue
            sharing_group, split_dim = sharing
            exchange = Exchange(sharing_group, p.device, _message_dtype(work), is_replicated=split_dim is None)
            shared.setdefault(exchange, []).append(_make_shared_matrix(work, work_index, i, split_dim))
        if not_shared:
            left.append(work.select(not_shared))
    for exchange, matrices in shared.items():
        for batch in make_batches(matrices, exchange.process_group.size()):
            _step_batch(works, batch, exchange)
    return left


def _find_sharing(work: Work, i: int, process_group: object) -> tuple[Any, int | None] | None:
    """The process group whose ranks share the `i`-th parameter of a work, and the dimension along which they split it.

    None if each rank updates the parameter by itself: the rank has full matrices, or the split allows no owner.
    """
    if "ns_coefficients" not in work.hyper:  # it is not Muon's
        return None
    if work.placement is None:
        return None if process_group is None else (process_group, None)
    from torch.distributed.tensor import Shard

    mesh, placements, _ = work.placement
    mesh_dims = work.placement.splitting_mesh_dims()
    if len(mesh_dims) != 1 or has_full_matrices(work.placement, i, work.hyper):
        return None
    placement = placements[mesh_dims[0]]
    # There is one second moment for each row. If the columns are split, each rank has all second moments, which cannot
    # be sent in the same way as the direction.
    splits_columns = placement.dim > len(matrix_shape(work.placement.full[i].shape, work.hyper).stack)
    if type(placement) is not Shard or (splits_columns and "variance_neuron" in work.columns):
        return None
    return mesh.get_group(mesh_dims[0]), placement.dim


def _make_shared_matrix(work: Work, work_index: int, i: int, split_dim: int | None) -> SharedMatrix:
    """Make the record of the `i`-th parameter of a work."""
    shape = work.placement.full[i].shape if work.placement else work.columns["p"][i].shape
    stack, rows, columns = matrix_shape(shape, work.hyper)
    shapes = [shape]
    if "variance_neuron" in work.columns:  # one for each row
        shapes.append(torch.Size((*stack, rows, *[1] * (len(shape) - len(stack) - 1))))
    cost = 0
    for rows_of_block in block_rows(rows, work.hyper):
        short, long = sorted((rows_of_block, columns))
        cost += OVERHEAD + short * short * (short + 2 * long)  # X @ X.T, its square, and its product with X
    return SharedMatrix(work_index, i, split_dim, tuple(shapes), math.prod(stack) * cost)


def _message_dtype(work: Work) -> torch.dtype:
    """The dtype of a message: the dtype of the iterations if it is shorter and loses nothing, or of the update.

    The iterations round the directions to their dtype, and return steps in it. There are two exceptions: NorMuon
    computes with the second moments after the iterations, and blocks of several sizes are scaled after them.
    """
    p = work.columns["p"][0]
    dtype = p.dtype if work.widening is None else torch.float32
    if "variance_neuron" in work.columns:
        return torch.promote_types(dtype, work.columns["variance_neuron"][0].dtype)
    dtype_in_iterations = iteration_dtype(p, work.hyper)
    is_scaled_after = bool(work.hyper.get("split_sizes"))
    return dtype_in_iterations if dtype_in_iterations.itemsize < dtype.itemsize and not is_scaled_after else dtype


def make_batches(matrices: Iterable[SharedMatrix], ranks: int) -> list[Batch]:
    """Assign each matrix to an owner and a batch: the most expensive first, each to the rank with the least work.

    Each rank fills its share of one batch after the other. All ranks have the same number of batches. A rank's last
    batches may be empty.
    """
    shares_of_ranks: list[list[list[SharedMatrix]]] = [[] for _ in range(ranks)]  # of each rank, one for each batch
    loads = [(0, rank) for rank in range(ranks)]  # a heap: the cost of the matrices of each rank
    elements = [BATCH + 1] * ranks  # in the last share of each rank; full at first, so that a share is started
    for matrix in sorted(matrices, key=lambda matrix: -matrix.cost):
        load, owner = loads[0]
        heapq.heapreplace(loads, (load + matrix.cost, owner))
        copies = ranks if matrix.split_dim is None else 1  # all ranks receive the full matrix
        size = matrix.shapes[0].numel() * copies
        if elements[owner] + size > BATCH:
            shares_of_ranks[owner].append([])
            elements[owner] = 0
        shares_of_ranks[owner][-1].append(matrix)
        elements[owner] += size
    batch_count = max(map(len, shares_of_ranks))
    for shares in shares_of_ranks:
        shares += [[] for _ in range(batch_count - len(shares))]
    return [list(shares) for shares in zip(*shares_of_ranks)]


def _step_batch(works: list[Work], batch: Batch, exchange: Exchange) -> None:
    """Step a batch of matrices.

    `direction_shards` and `step_shards` have this rank's shards of all matrices. `directions` and `steps` have the full
    tensors of the matrices that this rank owns. If the matrices are replicated, this rank computes its full directions
    at once, and `step_shards` has the full steps. No tensor lives longer than it is needed.
    """
    parts = _start_parts(works, batch)
    direction_shards = _update_momentum(parts, batch, exchange)
    directions = direction_shards if exchange.is_replicated else _gather_directions(direction_shards, batch, exchange)
    del direction_shards
    steps = _make_orthogonal(directions, parts)
    del directions
    step_shards = _send_steps(steps, batch, exchange)
    del steps
    for part in parts:
        _add_steps(step_shards, part)


def _start_parts(works: list[Work], batch: Batch) -> list[Part]:
    """Start the steps of the matrices of a batch, grouped by work and shape."""
    by_work_and_shape: dict[Any, list[SharedMatrix]] = {}
    for matrix in chain.from_iterable(batch):
        by_work_and_shape.setdefault((matrix.work_index, matrix.shapes[0]), []).append(matrix)
    parts = []
    for (work_index, _), matrices in by_work_and_shape.items():
        work = works[work_index].select([matrix.param_index for matrix in matrices])
        parts.append(Part(matrices, start_step(work)))
    return parts


def _update_momentum(parts: list[Part], batch: Batch, exchange: Exchange) -> MatrixTensors:
    """Update the momentum. Returns this rank's shards of the directions, or its own directions if replicated."""
    direction_shards: MatrixTensors = {}
    own = set(batch[exchange.rank()])
    for matrices, started in parts:
        columns = started.columns
        lerp_(columns["momentum_buffer"], columns["g"], started.factors["one_minus_momentum"])
        indices = [i for i, matrix in enumerate(matrices) if matrix in own or not exchange.is_replicated]
        if not indices:
            continue
        g, momentum_buffer = select(columns["g"], indices), select(columns["momentum_buffer"], indices)
        for i, direction in zip(indices, momentum_directions(started.hyper, g, momentum_buffer)):
            direction_shards[matrices[i]] = [direction]
            if "variance_neuron" in columns:
                direction_shards[matrices[i]].append(columns["variance_neuron"][i])
    return direction_shards


def _gather_directions(direction_shards: MatrixTensors, batch: Batch, exchange: Exchange) -> MatrixTensors:
    """Send this rank's shards of the directions to the owners. Returns the full directions of its own matrices."""
    ranks, own = len(batch), batch[exchange.rank()]
    tensors_to_ranks = [_flat_list(owned, direction_shards) for owned in batch]
    shapes_from_ranks = [_shard_shapes(own, rank, ranks) for rank in range(ranks)]
    received = exchange.all_to_all(tensors_to_ranks, shapes_from_ranks)
    tensors_from_ranks = [_tensors_by_matrix(own, tensors) for tensors in received]
    directions: MatrixTensors = {}
    for matrix in own:
        dim: Any = matrix.split_dim  # not None, since the matrix is not replicated
        directions[matrix] = []
        for k, own_shard in enumerate(direction_shards[matrix]):
            all_shards = [tensors[matrix][k] for tensors in tensors_from_ranks]
            directions[matrix].append(torch.cat(all_shards, dim).to(own_shard.dtype))
    return directions


def _make_orthogonal(directions: MatrixTensors, parts: list[Part]) -> MatrixTensors:
    """Return the steps of the matrices that this rank owns, with their second moments, which are updated in place."""
    steps: MatrixTensors = {}
    for part in parts:
        own = [matrix for matrix in part.matrices if matrix in directions]
        at_once = matrices_at_once(directions[own[0]][0], directions[own[0]][0].numel()) if own else 1
        for start in range(0, len(own), at_once):
            matrices = own[start : start + at_once]
            part_directions = [directions[matrix][0] for matrix in matrices]
            second_moments = [directions[matrix][1] for matrix in matrices if len(matrix.shapes) > 1]
            results = orthogonal_steps(part.started.hyper, part.started.factors, part_directions, second_moments)
            for matrix, step in zip(matrices, results):
                steps[matrix] = [step, *directions[matrix][1:]]
    return steps


def _send_steps(steps: MatrixTensors, batch: Batch, exchange: Exchange) -> MatrixTensors:
    """Send the steps of this rank's own matrices. Returns the steps of all matrices, or this rank's shards of them."""
    rank, ranks = exchange.rank(), len(batch)
    own = batch[rank]
    shapes_from_ranks = [_shard_shapes(owned, rank, ranks) for owned in batch]
    if exchange.is_replicated:
        received = exchange.all_gather(_flat_list(own, steps), shapes_from_ranks)
    else:
        tensors_to_ranks: list[list[Tensor]] = [[] for _ in range(ranks)]
        for matrix in own:
            dim: Any = matrix.split_dim
            for full in steps[matrix]:
                shards = torch.split(full, _shard_sizes(full.shape[dim], ranks), dim)
                for to_rank, shard in zip(tensors_to_ranks, shards):
                    to_rank.append(shard)
        received = exchange.all_to_all(tensors_to_ranks, shapes_from_ranks)
    step_shards: MatrixTensors = {}
    for owned, from_owner in zip(batch, received):
        step_shards.update(_tensors_by_matrix(owned, from_owner))
    return step_shards


def _add_steps(step_shards: MatrixTensors, part: Part) -> None:
    """Update the parameters of a part, and store the second moments that arrived with the steps."""
    matrices, started = part
    columns = started.columns
    if "variance_neuron" in columns:
        copy_(columns["variance_neuron"], [step_shards[matrix][1] for matrix in matrices])
    own_steps = [step_shards[matrix][0].to(columns["p"][0].dtype) for matrix in matrices]
    apply_steps(started.hyper, columns["p"], own_steps, matrices[0].shapes[0])
    started.write_back()


def _flat_list(matrices: list[SharedMatrix], tensors: MatrixTensors) -> list[Tensor]:
    """All tensors of the matrices, in one list."""
    return list(chain.from_iterable(tensors[matrix] for matrix in matrices))


def _tensors_by_matrix(matrices: list[SharedMatrix], flat_list: list[Tensor]) -> MatrixTensors:
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
