"""Several processes, for real: torchrun with gloo on the CPU.

A launch costs seconds, so there is one for each number of processes; _distributed/program.py says what runs in it. The
tests below report what became of each check.
"""

import fcntl
import functools
import json
import os
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

from tests.optim._distributed.meshes import NO_HYBRID
from tests.optim._distributed.program import checks
from tests.optim.problems import differences, ours, parameters, snapshot
from tests.optim.rows import ROWS
from tests.torchrun import launch

# On one worker, as they share the launches.
pytestmark = pytest.mark.xdist_group("distributed")

PROGRAM = Path(__file__).with_name("_distributed") / "program.py"
TIMEOUT = 400  # seconds for a launch, which takes 10 to 40 on two cores


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """A function of the number of processes: what became of each check (nothing, or a traceback), and the output."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder /= "distributed"
    folder.mkdir(exist_ok=True)

    @functools.cache
    def report(world):
        if world != 2:
            report(2)  # it saves the checkpoints
        # pytest-xdist 3.8 with pytest 9.2 keeps no group on one worker, without a word (its issue 1386): the worker
        # that comes first launches, the others wait for it.
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = folder / f"done-{world}.json"
            if not done.exists():
                done.write_text(json.dumps(launch(PROGRAM, world, folder, TIMEOUT)))
            return json.loads(done.read_text())

    return report


def on(worlds, *kinds):
    """The checks of these kinds, in launches of these sizes."""
    there = [
        pytest.param(world, f"{kind} {case}", id=f"{world}-{kind}-{case}".replace(" ", "_"))
        for world in worlds
        for kind, case, _ in checks(world)
        if kind in kinds
    ]
    assert there
    return pytest.mark.parametrize(("world", "check"), there)


def confirm(launched, world, check):
    results, output = launched(world)
    if check not in results:
        pytest.fail(f"'{check}' did not come to its end on {world} processes. {output}", pytrace=False)
    if results[check]:
        pytest.fail(f"On {world} processes: {results[check]}", pytrace=False)


@on([2, 4], "ddp")
def test_ddp_equals_a_single_process_on_the_whole_batch(launched, world, check):
    """And all ranks have the same bits, after every step."""
    confirm(launched, world, check)


@on([2, 4], "sharded", "columns")
def test_fully_shard_equals_a_single_process(launched, world, check):
    """Parameters and states are distributed, their sums are those of whole tensors, and no state is made anew."""
    confirm(launched, world, check)


@pytest.mark.skipif(NO_HYBRID != "", reason=NO_HYBRID)
@on([4], "hybrid")
def test_fully_shard_over_groups_that_repeat_one_another(launched, world, check):
    """The same on a mesh of 2 x 2."""
    confirm(launched, world, check)


@on([4], "placed", "tensor_parallel")
def test_other_placements_equal_a_single_process(launched, world, check):
    """Split in both directions of a mesh, in strides, repeated or not distributed; with gradients yet to be summed."""
    confirm(launched, world, check)


@on([2, 4], "empty")
def test_shards_are_uneven_and_some_are_empty(launched, world, check):
    confirm(launched, world, check)


@on([1, 2, 4], "initialised")
def test_dcp_finds_the_state_there_and_does_nothing(launched, world, check):
    confirm(launched, world, check)


@on([2], "save")
def test_saving_on_two_processes_changes_nothing(launched, world, check):
    confirm(launched, world, check)


@on([1, 2, 4], "load", "flattened", "full")
def test_what_two_processes_saved_goes_on_as_if_uninterrupted(launched, world, check):
    """Before the first step and later; on two processes to the bit."""
    confirm(launched, world, check)


@on([2], "lazy")
def test_lazy_state_differs_between_ranks(launched, world, check):
    """What is avoided: so it is with torch's optimizers, where an expert got no tokens."""
    confirm(launched, world, check)


@on([1, 2, 4], "save experts", "load experts")
def test_experts_without_tokens_have_the_keys_of_the_others(launched, world, check):
    """And what two processes saved is loaded by 1, 2 and 4, among which the experts are dealt out anew."""
    confirm(launched, world, check)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
@pytest.mark.parametrize("flattened", [False, True], ids=["nested", "flattened"])
def test_dcp_initialises_nothing_in_one_process(row, flattened):
    """For every configuration: the state and the parameters stay as they are, bit for bit, and there is no step."""
    model = torch.nn.ParameterList(parameters(row.name))
    optimizer = ours(row, list(model))
    optimizer.register_step_pre_hook(lambda *_: pytest.fail("a step"))
    before = snapshot(optimizer)
    saved = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=flattened))
    assert saved and not differences(snapshot(optimizer), before)
    assert all(p.grad is None for p in model)
