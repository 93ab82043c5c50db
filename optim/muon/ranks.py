"""Muon on several ranks, without redundant work: each matrix is made orthogonal on one of the ranks that share it.

That rank is the owner of the matrix. `step_shared_matrices` finds the shared matrices, `make_batches` gives each an
owner and a batch, and `_step_batch` steps one batch after the other. During a batch, a rank has these tensors:

    ====================  ======================================  ============================================
    after                 of sharded matrices (DTensors)          of replicated matrices (DDP)
    ====================  ======================================  ============================================
    `_update_momentum`    its shards of all directions            the full directions of the matrices it owns
    `send_to_owners`      the full directions of those it owns    the same: nothing is sent
    `_make_orthogonal`    the full steps of those it owns         the full steps of those it owns
    `send_from_owners`    its shards of all steps                 the full steps of all matrices
    ====================  ======================================  ============================================

NorMuon sends the second moments in the same messages.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import torch

from ..base.tensor_lists import copy_, indices_by_size, lerp_, select
from ..step.execution import start_step
from ..step.work import Factors, Work
from .exchange import Batch, Exchange, MatrixTensors, SharedMatrix
from .matrices import apply_steps, block_rows, has_full_matrices, matrix_shape, momentum_directions, orthogonal_steps
from .newton_schulz import iteration_dtype, matrices_at_once

BATCH = 1 << 24  # elements that a rank makes orthogonal between two exchanges; a matrix may have more
OVERHEAD = 1 << 30  # multiplications that take as long as the three launches of an iteration on a GPU, some 10 µs


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
    """Give each matrix an owner and a batch. The batches of a rank limit the memory that its directions take.

    All ranks have the same number of batches. A rank's last batches may be empty.
    """
    batches_of_ranks = [_split_by_size(owned, ranks) for owned in _assign_owners(matrices, ranks)]
    return [list(batch) for batch in zip_longest(*batches_of_ranks, fillvalue=[])]


def _assign_owners(matrices: Iterable[SharedMatrix], ranks: int) -> list[list[SharedMatrix]]:
    """The matrices of each rank: the most expensive first, each to the rank with the least work."""
    owned_by_rank: list[list[SharedMatrix]] = [[] for _ in range(ranks)]
    costs = [(0, rank) for rank in range(ranks)]  # a heap: the cost of the matrices of each rank
    for matrix in sorted(matrices, key=lambda matrix: -matrix.cost):
        cost, owner = costs[0]
        heapq.heapreplace(costs, (cost + matrix.cost, owner))
        owned_by_rank[owner].append(matrix)
    return owned_by_rank


def _split_by_size(owned: list[SharedMatrix], ranks: int) -> list[list[SharedMatrix]]:
    """Split the matrices of a rank into lists of at most `BATCH` elements. A larger matrix is in a list by itself."""
    # A replicated matrix counts once for each rank, since all ranks receive it.
    sizes = [matrix.shapes[0].numel() * (ranks if matrix.split_dim is None else 1) for matrix in owned]
    return [select(owned, indices) for indices in indices_by_size(sizes, BATCH)]


class StartedMatrices(NamedTuple):
    """The matrices of a batch that are in one work and have one shape. Their step has started: see `start_step`."""

    matrices: list[SharedMatrix]
    h: Factors
    f: Factors
    piece: Any  # its columns have this rank's shard of each of the matrices


def _step_batch(works: list[Work], batch: Batch, exchange: Exchange) -> None:
    """Step a batch of matrices, as the table above shows. No tensor lives longer than it is needed."""
    all_started = _start_steps(works, batch)
    direction_shards = _update_momentum(all_started, batch, exchange)
    directions = exchange.send_to_owners(direction_shards, batch)
    del direction_shards
    steps = _make_orthogonal(all_started, directions)
    del directions
    step_shards = exchange.send_from_owners(steps, batch)
    del steps
    for started in all_started:
        _add_steps(started, step_shards)


def _start_steps(works: list[Work], batch: Batch) -> list[StartedMatrices]:
    """Start the steps of the matrices of a batch, grouped by work and shape."""
    by_work_and_shape: dict[Any, list[SharedMatrix]] = {}
    for matrix in chain.from_iterable(batch):
        by_work_and_shape.setdefault((matrix.work_index, matrix.shapes[0]), []).append(matrix)
    all_started = []
    for (work_index, _), matrices in by_work_and_shape.items():
        work = works[work_index].select([matrix.param_index for matrix in matrices])
        all_started.append(StartedMatrices(matrices, *start_step(work)))
    return all_started


def _update_momentum(all_started: list[StartedMatrices], batch: Batch, exchange: Exchange) -> MatrixTensors:
    """Update the momentum of all matrices. Returns this rank's shards of the directions."""
    direction_shards: MatrixTensors = {}
    own = set(batch[exchange.rank()])
    for started in all_started:
        matrices, columns = started.matrices, started.piece.columns
        lerp_(columns["momentum_buffer"], columns["g"], started.f["one_minus_momentum"])
        # If matrices are replicated, other ranks have the directions of their matrices, too.
        indices = [i for i, matrix in enumerate(matrices) if matrix in own or not exchange.is_replicated]
        if not indices:
            continue
        g, momentum_buffer = select(columns["g"], indices), select(columns["momentum_buffer"], indices)
        for i, direction in zip(indices, momentum_directions(started.h, g, momentum_buffer)):
            direction_shards[matrices[i]] = [direction]
            if "variance_neuron" in columns:
                direction_shards[matrices[i]].append(columns["variance_neuron"][i])
    return direction_shards


def _make_orthogonal(all_started: list[StartedMatrices], directions: MatrixTensors) -> MatrixTensors:
    """Return the steps along the full directions, with their second moments, which are updated in place."""
    steps: MatrixTensors = {}
    for started in all_started:
        own = [matrix for matrix in started.matrices if matrix in directions]
        at_once = matrices_at_once(directions[own[0]][0], directions[own[0]][0].numel()) if own else 1
        for start in range(0, len(own), at_once):
            matrices = own[start : start + at_once]
            directions_at_once = [directions[matrix][0] for matrix in matrices]
            second_moments = [directions[matrix][1] for matrix in matrices if len(matrix.shapes) > 1]
            results = orthogonal_steps(started.h, started.f, directions_at_once, second_moments)
            for matrix, step in zip(matrices, results):
                steps[matrix] = [step, *directions[matrix][1:]]
    return steps


def _add_steps(started: StartedMatrices, step_shards: MatrixTensors) -> None:
    """Update the parameters, and store the second moments that arrived with the steps."""
    matrices, columns = started.matrices, started.piece.columns
    if "variance_neuron" in columns:
        copy_(columns["variance_neuron"], [step_shards[matrix][1] for matrix in matrices])
    own_steps = [step_shards[matrix][0].to(columns["p"][0].dtype) for matrix in matrices]
    apply_steps(started.h, columns["p"], own_steps, matrices[0].shapes[0])
    started.piece.write_back()
