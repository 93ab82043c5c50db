"""preinitialize() and state_bytes(): state of torch's optimizers before their first step, and the bytes of state."""

import copy
import inspect
import re

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import Parameter
from torch.testing._internal.distributed.fake_pg import FakeStore

import optim
from tests.optim.problems import MISSING, differences, flat, give_gradients, ours, parameters, run, snapshot
from tests.optim.rows import FULLEST
from tests.optim.signatures import MATRICES

LR, MOMENTUM = {"lr": 0.1}, {"lr": 0.1, "momentum": 0.9}
# Torch's classes with the arguments that their state depends on.
ROWS = [
    *(("SGD", LR), ("SGD", MOMENTUM), ("SGD", {**MOMENTUM, "nesterov": True}), ("SGD", {**LR, "dampening": 0.5})),
    *(("ASGD", {}), ("ASGD", {"lr": 0.05, "t0": 2})),
    *(("Adadelta", {}), ("Adagrad", {}), ("Adagrad", {"initial_accumulator_value": 0.5})),
    *(("Adam", {}), ("Adam", {"amsgrad": True}), ("Adam", {"lr": torch.tensor(0.1)})),
    *(("AdamW", {}), ("AdamW", {"amsgrad": True, "maximize": True})),
    *(("Adamax", {}), ("Muon", {}), ("NAdam", {}), ("NAdam", {"decoupled_weight_decay": True}), ("RAdam", {})),
    *(("RMSprop", {}), ("RMSprop", {"momentum": 0.9}), ("RMSprop", {"centered": True})),
    *(("RMSprop", {"momentum": 0.9, "centered": True}), ("Rprop", {}), ("Rprop", {"lr": 0.05})),
]


def theirs(name, arguments, dtype=torch.float64):
    """In two groups with rates of their own."""
    params = parameters(name, dtype)
    return getattr(torch.optim, name)([{"params": params[::2]}, {"params": params[1::2], "lr": 0.02}], **arguments)


def assert_same_training(untouched, early, first=1, *, simple=False):
    """Bit for bit, though early has state where untouched has none yet; its keys stay what they are.

    `simple`: all have gradients from the first step on, which lie in memory as their parameters do.
    """
    keys = {p: set(state) for p, state in early.state.items()}
    for step in range(first, first + 5):
        for optimizer in (untouched, early):
            give_gradients(flat(optimizer), step, missing={} if simple else MISSING)
            for p in flat(optimizer) if simple else ():
                p.grad = torch.empty_like(p).copy_(p.grad).detach()
            optimizer.step()
    assert {p: set(state) for p, state in early.state.items()} == keys
    never = {i for i, p in enumerate(flat(untouched)) if p.grad is None}
    for key in differences(snapshot(early), snapshot(untouched)):
        assert key[2:] == ("params",) or (key[0] == "state" and key[1] in never), key


def held(optimizer):
    return sum(x.nbytes for state in optimizer.state.values() for x in state.values() if isinstance(x, torch.Tensor))


@pytest.mark.parametrize(("name", "arguments"), ROWS)
def test_training_goes_as_without_it(name, arguments):
    """In each way that torch runs it on the CPU."""
    accepted = inspect.signature(getattr(torch.optim, name)).parameters
    for switch in ({}, {"foreach": True}, {"foreach": False}, {"fused": True}):
        if not switch.keys() <= accepted.keys() or (torch.is_tensor(arguments.get("lr")) and switch.get("foreach")):
            continue
        untouched, early = (theirs(name, {**arguments, **switch}) for _ in range(2))
        before = snapshot(early)
        assert optim.preinitialize(early) is early
        changed = differences(before, snapshot(early))
        assert {key[0] for key in changed} <= {"state"} and not before.keys() & set(changed)
        # Torch's fused SGD fails where a first gradient comes later than others, and makes buffers like the gradients.
        assert_same_training(untouched, early, simple=name == "SGD" and "momentum" in arguments and "fused" in switch)
        assert optim.state_bytes(untouched) == optim.state_bytes(early) == held(early)


@pytest.mark.parametrize("name", dict.fromkeys(name for name, _ in ROWS))
def test_other_dtypes(name):
    for dtype in (torch.float32, torch.bfloat16, *([torch.complex64] if name not in MATRICES else [])):
        untouched, early = (theirs(name, MOMENTUM if name == "SGD" else {}, dtype) for _ in range(2))
        assert_same_training(untouched, optim.preinitialize(early))


@pytest.mark.parametrize("name", ["Adam", "AdamW", "NAdam", "RAdam", "RMSprop", "ASGD", "Rprop", "Adadelta"])
def test_counts_are_on_the_host_unless_the_step_runs_on_the_device(name):
    for capturable in (False, True):
        with FakeTensorMode(allow_non_fake_inputs=True):  # which needs no such device
            p = Parameter(torch.ones(2, device="cuda"))
            optimizer = optim.preinitialize(getattr(torch.optim, name)([p], capturable=capturable))
        on_device = capturable or name == "ASGD"  # which has its numbers on the device in any case
        for key, value in optimizer.state[p].items():
            assert value.device.type == ("cuda" if on_device or value.dim() else "cpu"), key


@pytest.mark.parametrize(("name", "arguments"), ROWS)
def test_all_state_of_a_parameter_on_the_meta_device_is_there(name, arguments):
    on_cpu, on_meta = Parameter(torch.ones(3, 2)), Parameter(torch.ones(3, 2, device="meta"))
    expected, made = (
        optim.preinitialize(getattr(torch.optim, name)([p], **arguments)).state[p] for p in (on_cpu, on_meta)
    )
    if name == "Adagrad":  # whose constructor has made the state already, the count on the host
        assert made.pop("step").device.type == "cpu"
    assert {x.device.type for x in made.values()} <= {"meta"}
    for key, x in made.items():
        assert (x.shape, x.dtype) == (expected[key].shape, expected[key].dtype)


def test_the_counts_of_fused_kernels_are_in_float32():
    torch.set_default_dtype(torch.float64)
    try:
        for fused, dtype in ((True, torch.float32), (False, torch.float64)):
            p = Parameter(torch.ones(2))
            assert optim.preinitialize(torch.optim.Adam([p], fused=fused)).state[p]["step"].dtype == dtype
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_run_in_progress_is_completed():
    """State that exists stays; whole numbers, which have no gradient, get none."""
    untouched, early = theirs("AdamW", {"amsgrad": True}), theirs("AdamW", {"amsgrad": True})
    for optimizer in (untouched, early):
        run(optimizer, flat(optimizer), 1, 2)
        optimizer.add_param_group({"params": [Parameter(torch.ones(2, 2).double())], "lr": 0.5})
    early.add_param_group({"params": [Parameter(torch.ones(3, dtype=torch.int64), requires_grad=False)]})
    before = {p: dict(state) for p, state in early.state.items()}
    late = optim.state_bytes(early)
    assert {p: dict(state) for p, state in early.state.items()} == before  # asking changes nothing
    optim.preinitialize(early)
    assert all(early.state[p][key] is value for p, state in before.items() for key, value in state.items())
    numbers = early.param_groups.pop()["params"]
    assert set(early.state) == set(flat(early)) and not set(numbers) & set(early.state) and held(early) == late
    assert_same_training(untouched, early, 3)


def test_torchs_distributed_checkpoint_makes_no_step():
    """As it does where there is no state, which leaves the counts at one."""
    model = torch.nn.Linear(3, 2)
    optimizer = optim.preinitialize(torch.optim.Adam(model.parameters()))
    set_optimizer_state_dict(model, optimizer, copy.deepcopy(get_optimizer_state_dict(model, optimizer)))
    assert [state["step"].item() for state in optimizer.state.values()] == [0.0, 0.0]


REFUSED = {
    "dampening=0.5: .*Use optim.SGD": lambda ps: torch.optim.SGD(ps, **MOMENTUM, dampening=0.5),
    "dampening=0.5": lambda ps: torch.optim.SGD([{"params": ps[:2]}, {"params": ps[2:], "dampening": 0.5}], **MOMENTUM),
    "LBFGS .*history grows": torch.optim.LBFGS,
    "SparseAdam .*gradients are sparse": torch.optim.SparseAdam,
    "Adafactor .*optim.Adafactor": torch.optim.Adafactor,
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused_and_left_alone(message):
    optimizer = REFUSED[message](parameters("Adam"))
    before = snapshot(optimizer)
    for function in (optim.preinitialize, optim.state_bytes):
        with pytest.raises(ValueError, match=f"(?s)^{function.__name__}: .*{message}"):
            function(optimizer)
        assert not differences(before, snapshot(optimizer)) and not optimizer.state


@pytest.mark.parametrize("row", FULLEST, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_our_own(row, dtype):
    """They have their state already; where nothing is made, they weigh the same."""
    params = parameters(row.name, dtype)
    optimizer = ours(row, params, enable_global_step=True)
    before = {p: dict(state) for p, state in optimizer.state.items()}
    assert optim.preinitialize(optimizer) is optimizer and optimizer.state == before
    assert optim.state_bytes(optimizer) == held(optimizer)
    given, arguments = [p.detach().to("meta") for p in params], {**row.kwargs, "enable_global_step": True}
    assert optim.state_bytes((getattr(optim, row.name), given, arguments)) == held(optimizer)


def test_bytes_of_what_would_not_fit_into_memory():
    layers = [torch.empty(100_000, 50_000, device="meta", dtype=torch.bfloat16) for _ in range(2)]
    named = [("a", layers[0]), ("b", layers[1])]
    groups = [{"params": (p for p in layers[:1]), "foreach": True}, {"params": layers[1], "amsgrad": True}]
    for owner in (torch.optim, optim):
        assert optim.state_bytes((owner.SGD, layers, LR)) == 0
        assert optim.state_bytes((owner.SGD, layers, MOMENTUM)) == 2 * 10_000_000_000
        assert optim.state_bytes((owner.Adam, named, {"lr": torch.tensor(0.1)})) == 4 * 10_000_000_000 + 2 * 4
    assert optim.state_bytes((torch.optim.Adam, groups)) == 5 * 10_000_000_000 + 2 * 4


def test_bytes_of_the_local_part_of_a_dtensor():
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    try:
        mesh = init_device_mesh("cpu", (4,))
        for device in ("cpu", "meta"):
            sharded = Parameter(distribute_tensor(torch.zeros(10, 2, device=device), mesh, [Shard(0)]))
            assert optim.state_bytes(torch.optim.Adam([sharded])) == 2 * 4 * 3 * 2 + 4  # 3 rows of 3, 3, 3 and 1
            assert optim.state_bytes((optim.Adam, [sharded])) == 2 * 4 * 3 * 2 + 4
    finally:
        dist.destroy_process_group()


def test_what_is_no_optimizer():
    for wrong in (torch.nn.Linear(2, 2), torch.optim.Adam, None):
        with pytest.raises(TypeError, match=f"^preinitialize.optimizer={re.escape(repr(wrong)[:9])}"):
            optim.preinitialize(wrong)
    for wrong in (None, torch.optim.Adam, (torch.optim.Adam,), (torch.nn.Linear, []), [torch.optim.Adam, []]):
        with pytest.raises(TypeError, match=f"^state_bytes.target={re.escape(repr(wrong)[:9])}"):
            optim.state_bytes(wrong)
    for wrong in (0, -1, 2.5, None):
        with pytest.raises(ValueError, match=f"^preinitialize.check={wrong}: "):
            optim.preinitialize(torch.optim.Adam([torch.ones(1)]), check=wrong)
    with pytest.raises(ValueError, match="learning rate"):  # the class's own error
        optim.state_bytes((torch.optim.Adam, [torch.ones(1)], {"lr": -1.0}))
