"""Which rank computes which matrix of Muon. That the steps are those of one process is tested on several processes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import Parameter

from optim import Muon
from optim.muon import exchange
from optim.muon.ranks import BATCH, SharedMatrix, make_batches

SIDES = st.integers(0, 9000)


@st.composite
def matrices(draw):
    """Shapes and costs, split or not."""
    shapes = draw(st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=40))
    dim = draw(st.sampled_from([None, 0]))
    return [matrix(i, dim, shape, min(shape) ** 2 * max(shape)) for i, shape in enumerate(shapes)]


def matrix(number, split_dim, shape, cost):
    return SharedMatrix(work_index=0, param_index=number, split_dim=split_dim, shapes=(torch.Size(shape),), cost=cost)


@given(matrices(), st.integers(1, 33))
def test_every_matrix_has_one_owner_and_the_work_is_even(entries, ranks):
    """No rank has more than its share and one matrix, which is what the greedy rule gives (Graham 1969)."""
    plan = make_batches(entries, ranks)
    assert sorted(x for batch in plan for owned in batch for x in owned) == sorted(entries)
    assert all(len(batch) == ranks for batch in plan)
    loads = [sum(x.cost for batch in plan for x in batch[rank]) for rank in range(ranks)]
    assert max(loads) <= sum(loads) / ranks + max(x.cost for x in entries)
    for batch in plan:
        for owned in batch:
            copies = ranks if entries[0].split_dim is None else 1  # under DDP, all ranks receive all
            assert len(owned) <= 1 or sum(x.shapes[0].numel() for x in owned) * copies <= BATCH


def test_no_more_batches_than_the_elements_need():
    """Of matrices of one shape: as many as the largest number that a rank has takes."""
    entries = [matrix(i, 0, (1024, 1024), 1) for i in range(160)]
    assert [list(map(len, batch)) for batch in make_batches(entries, 4)] == [[16] * 4, [16] * 4, [8] * 4]


@pytest.mark.parametrize("group", [True, "world", 3])
def test_a_process_group_needs_processes(group):
    with pytest.raises(TypeError, match=r"process_group=.*: this is no process"):
        Muon([Parameter(torch.ones(2, 2))], process_group=group)


@pytest.mark.parametrize(("size", "ranks"), [(10, 4), (3, 4), (1, 2), (8, 4), (0, 3), (7, 7), (9, 2)])
def test_shards_are_those_of_torch(size, ranks):
    chunks = [len(x) for x in torch.empty(size).chunk(ranks)] if size else []
    assert exchange._shard_sizes(size, ranks) == chunks + [0] * (ranks - len(chunks))
