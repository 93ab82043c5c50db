"""preinitialize() and state_bytes(): state of torch's optimizers before their first step, and the bytes of state."""

import copy
import functools
import inspect
import random
import re

import numpy
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn import Parameter
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.testing._internal.distributed.fake_pg import FakeStore

import optim
from tests.optim.problems import (
    assert_same_training,
    differences,
    flat,
    give_gradients,
    held_bytes,
    ours,
    parameters,
    run,
    snapshot,
)
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


def theirs(name, arguments, dtype=torch.float64, kind=None):
    """In two groups with rates of their own: torch's class, or a subclass of it."""
    params, kind = parameters(name, dtype), kind or getattr(torch.optim, name)
    return kind([{"params": params[::2]}, {"params": params[1::2], "lr": 0.02}], **arguments)


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
        assert optim.state_bytes(untouched) == optim.state_bytes(early) == held_bytes(early)


@pytest.mark.parametrize("name", dict.fromkeys(name for name, _ in ROWS))
def test_other_dtypes(name):
    for dtype in (torch.float32, torch.bfloat16, *([torch.complex64] if name not in MATRICES else [])):
        untouched, early = (theirs(name, MOMENTUM if name == "SGD" else {}, dtype) for _ in range(2))
        assert_same_training(untouched, optim.preinitialize(early))


@pytest.mark.parametrize(("name", "arguments"), ROWS)
def test_the_state_is_what_the_first_step_makes(name, arguments):
    stepped, early = theirs(name, arguments), optim.preinitialize(theirs(name, arguments))
    give_gradients(flat(stepped), 1, missing={})
    stepped.step()
    for p, q in zip(flat(stepped), flat(early), strict=True):
        made, expected = early.state.get(q, {}), stepped.state.get(p, {})
        expected = {key: x for key, x in expected.items() if x is not None}  # torch's SGD without momentum
        assert made.keys() == expected.keys()
        for key, x in expected.items():
            assert (x.shape, x.dtype, x.device) == (made[key].shape, made[key].dtype, made[key].device), key


# torch 2.14 has no placement for an assignment in its Rprop, whose step raises.
STEPS_SHARDS = [row for row in ROWS if row[0] != "Rprop" or not torch.__version__.startswith("2.14")]
PLACEMENTS = {"rows": [Replicate(), Shard(0)], "columns": [Shard(1), Replicate()], "both": [Shard(0), Shard(1)]}


@pytest.fixture
def mesh():
    """Two times two ranks, of which this is the second."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    try:
        yield init_device_mesh("cpu", (2, 2))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("split", PLACEMENTS)
@pytest.mark.parametrize(("name", "arguments"), STEPS_SHARDS)
def test_the_state_of_a_distributed_parameter_is_what_the_first_step_makes(name, arguments, split, mesh):
    """With the placements of its parameter. tests/optim/_distributed trains on several processes."""
    stepped, early = (
        getattr(torch.optim, name)(
            [Parameter(distribute_tensor(torch.ones(5, 3), mesh, PLACEMENTS[split]))], **arguments
        )
        for _ in range(2)
    )
    (p,), (q,) = flat(stepped), flat(optim.preinitialize(early))
    p.grad = torch.ones_like(p)
    stepped.step()
    expected = {key: x for key, x in stepped.state[p].items() if x is not None}
    assert early.state.get(q, {}).keys() == expected.keys()
    for key, x in expected.items():
        made = early.state[q][key]
        assert (x.shape, x.dtype, x.device) == (made.shape, made.dtype, made.device), key
        if x.dim():
            assert isinstance(made, DTensor)
            assert made.placements == x.placements == q.placements
            assert made.to_local().shape == x.to_local().shape
    assert optim.state_bytes(early) == optim.state_bytes((getattr(torch.optim, name), [q], arguments))


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
    assert set(early.state) == set(flat(early)) and not set(numbers) & set(early.state) and held_bytes(early) == late
    assert_same_training(untouched, early, 3)


# Subclasses


@pytest.mark.parametrize("name", dict.fromkeys(name for name, _ in ROWS))
def test_a_subclass_has_the_state_of_its_base(name):
    """Also a subclass of a subclass. Each overrides methods that make no state."""

    class New(getattr(torch.optim, name)):
        def __init__(self, params, **arguments):
            super().__init__(params, **arguments)
            self.steps = 0

        def zero_grad(self, set_to_none=True):
            super().zero_grad(set_to_none)

    class Newer(New):
        pass

    for kind in (New, Newer):
        untouched, early = (theirs(name, MOMENTUM if name == "SGD" else {}, kind=kind) for _ in range(2))
        assert optim.state_bytes(untouched) == held_bytes(optim.preinitialize(early))
        assert_same_training(untouched, early)


def test_a_subclass_whose_object_is_the_first(monkeypatch):
    """torch then wraps the step in the subclass, and the step of the base later."""
    torch.optim.Adam([torch.ones(1)])
    monkeypatch.setattr(torch.optim.Adam, "step", torch.optim.Adam.step.__wrapped__)

    class New(torch.optim.Adam):
        pass

    p = Parameter(torch.ones(2))
    optimizer = New([p])
    assert New.step is not torch.optim.Adam.step
    assert optim.preinitialize(optimizer).state[p].keys() == {"step", "exp_avg", "exp_avg_sq"}


class Step(torch.optim.Adam):
    """Keeps state of its own in addition to Adam's."""

    def step(self, closure=None):
        loss = super().step(closure)
        for p in flat(self):
            self.state[p].setdefault("slow", p.detach().clone()).lerp_(p.detach(), 0.1)
        return loss


class OwnStep(torch.optim.Adam):
    @torch.no_grad()
    def step(self, closure=None):
        for p in flat(self):
            p.sub_(p.grad)


class InitGroup(torch.optim.Adam):
    def _init_group(self, group, *lists):
        has_complex = super()._init_group(group, *lists)
        for p in group["params"]:
            self.state[p].setdefault("slow", torch.zeros_like(p))
        return has_complex


class OfABase(Step):
    pass


class Slow:
    def step(self, closure=None):
        self.steps = 1
        return super().step(closure)


class OfAMixin(Slow, torch.optim.AdamW):
    pass


class Wrapped(torch.optim.Adam):
    @functools.wraps(torch.optim.Adam.step)
    def step(self, closure=None):
        self.steps = 1
        return super().step(closure)


class Unrelated(torch.optim.Optimizer):
    """Of nobody that we know, but with a name that we know."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    average = self.state[p].setdefault("average", torch.zeros_like(p))
                    p.sub_(average.mul_(0.5).add_(p.grad), alpha=group["lr"])


Unrelated.__name__ = "Adam"


@pytest.mark.parametrize("kind", [Step, OwnStep, InitGroup, OfABase, OfAMixin, Wrapped, Unrelated])
@pytest.mark.parametrize("has_stepped", [False, True])
def test_other_classes_are_refused_and_left_alone(kind, has_stepped):
    params = parameters("Adam")
    optimizer = kind(params)
    if has_stepped:
        give_gradients(params, 1, missing={})
        optimizer.step()
    before, attributes = snapshot(optimizer), dict(vars(optimizer))
    keys = {p: list(state) for p, state in optimizer.state.items()}
    assert has_stepped or not keys
    ways = r"subclass of optim\.Optimizer with a preinitialize\(\), .*torch\.distributed\.checkpoint\.state_dict, which"
    for function, target in (
        (optim.preinitialize, optimizer),
        (optim.state_bytes, optimizer),
        (optim.state_bytes, (kind, params)),
    ):
        with pytest.raises(ValueError, match=f"^{function.__name__}: .* of {kind.__name__} is not known: .*{ways}"):
            function(target)
        assert not differences(before, snapshot(optimizer)) and vars(optimizer) == attributes
        assert {p: list(state) for p, state in optimizer.state.items()} == keys


# What the errors advise


def test_a_class_of_optim_with_a_preinitialize_of_its_own():
    class Own(optim.Optimizer):
        def preinitialize(self):
            for group in self.param_groups:
                for p in group["params"]:
                    self.state[p].update(count=0, moments=[torch.zeros_like(p), {"square": torch.ones_like(p)}])

        def step(self, closure=None):
            pass

    params = [Parameter(torch.ones(3, 2)), Parameter(torch.ones(4))]
    optimizer = Own(params, {})
    before = {p: dict(state) for p, state in optimizer.state.items()}
    assert optim.preinitialize(optimizer) is optimizer and optimizer.state == before
    assert optim.state_bytes(optimizer) == optim.state_bytes((Own, params, {"defaults": {}})) == 2 * 4 * (6 + 4)


def make_model():
    torch.manual_seed(1)
    return torch.nn.Linear(3, 2)


def train(model, optimizer, first, last):
    for step in range(first, last):
        torch.manual_seed(step)
        model.zero_grad()
        model(torch.randn(5, 3)).square().sum().backward()
        optimizer.step()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("kind", [Unrelated, Step])
def test_torchs_state_dict_makes_the_state_for_a_load(kind, tmp_path):
    """Bit for bit, for classes that preinitialize() refuses."""
    model = make_model()
    optimizer = kind(model.parameters())
    train(model, optimizer, 0, 4)
    saved = {"model": model.state_dict(), "optimizer": get_optimizer_state_dict(model, optimizer)}
    dcp.save(saved, checkpoint_id=str(tmp_path), no_dist=True)
    train(model, optimizer, 4, 9)
    resumed = make_model()
    lazy = kind(resumed.parameters())
    loaded = {"model": resumed.state_dict(), "optimizer": get_optimizer_state_dict(resumed, lazy)}
    dcp.load(loaded, checkpoint_id=str(tmp_path), no_dist=True)
    resumed.load_state_dict(loaded["model"])
    set_optimizer_state_dict(resumed, lazy, loaded["optimizer"])
    train(resumed, lazy, 4, 9)
    assert not {key for key in differences(snapshot(optimizer), snapshot(lazy)) if key[2:] != ("params",)}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize(("name", "arguments"), [("SGD", MOMENTUM), ("AdamW", {"amsgrad": True}), ("NAdam", {})])
def test_a_distributed_checkpoint_is_loaded_before_the_first_step(name, arguments, tmp_path):
    """Into the tensors that preinitialize() made, without a step, and bit for bit."""

    def make():
        model = make_model()
        return model, getattr(torch.optim, name)(model.parameters(), **arguments)

    def contents(model, optimizer):
        groups = [{key: x for key, x in group.items() if key != "params"} for group in optimizer.param_groups]
        states = {str(i): optimizer.state[p] for i, p in enumerate(model.parameters())}
        return {"model": model.state_dict(), "state": states, "groups": groups}

    model, optimizer = make()
    train(model, optimizer, 0, 4)
    dcp.save(contents(model, optimizer), checkpoint_id=str(tmp_path), no_dist=True)
    train(model, optimizer, 4, 9)
    resumed, early = make()
    loaded = contents(resumed, optim.preinitialize(early))
    dcp.load(loaded, checkpoint_id=str(tmp_path), no_dist=True)
    resumed.load_state_dict(loaded["model"])
    train(resumed, early, 4, 9)
    assert not {key for key in differences(snapshot(optimizer), snapshot(early)) if key[2:] != ("params",)}


def test_torchs_distributed_checkpoint_makes_no_step():
    """As it does where there is no state, which leaves the counts at one."""
    model = torch.nn.Linear(3, 2)
    optimizer = optim.preinitialize(torch.optim.Adam(model.parameters()))
    set_optimizer_state_dict(model, optimizer, copy.deepcopy(get_optimizer_state_dict(model, optimizer)))
    assert [state["step"].item() for state in optimizer.state.values()] == [0.0, 0.0]


@pytest.fixture
def called():
    """What hooks for all optimizers note, in the order of their calls."""
    notes = []
    handles = [
        register_optimizer_step_pre_hook(lambda optimizer, *_: notes.append(optimizer)),
        register_optimizer_step_post_hook(lambda optimizer, *_: notes.append(optimizer)),
    ]
    yield notes
    for handle in handles:
        handle.remove()


def test_nothing_but_the_state_changes(called):
    """Neither hooks, nor a scheduler, which wraps `step`, nor the random generators."""
    optimizer = torch.optim.Adam(parameters("Adam"))
    optimizer.register_step_pre_hook(lambda *_: called.append("its own"))
    for p in flat(optimizer):
        p.grad = torch.full_like(p, 3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)
    optimizer.step = patched = lambda: called.append("patched")
    before, attributes = snapshot(optimizer), {**vars(optimizer), "state": None}
    versions = [p._version for p in flat(optimizer)]
    drawn = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].copy()
    optim.state_bytes(optimizer)
    assert not optimizer.state and not differences(before, snapshot(optimizer))
    optim.preinitialize(optimizer)
    assert {key[0] for key in differences(before, snapshot(optimizer))} == {"state"}
    assert called == [] and optimizer.step is patched and {**vars(optimizer), "state": None} == attributes
    assert versions == [p._version for p in flat(optimizer)] and scheduler.last_epoch == 0
    assert torch.equal(drawn[0], torch.get_rng_state()) and drawn[1] == random.getstate()
    assert (drawn[2] == numpy.random.get_state()[1]).all()


REFUSED = {
    "dampening=0.5: .*use optim.SGD": lambda ps: torch.optim.SGD(ps, **MOMENTUM, dampening=0.5),
    "dampening=0.5": lambda ps: torch.optim.SGD([{"params": ps[:2]}, {"params": ps[2:], "dampening": 0.5}], **MOMENTUM),
    "LBFGS .*history grows": torch.optim.LBFGS,
    "New .*history grows": type("New", (torch.optim.LBFGS,), {}),
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
    assert optim.state_bytes(optimizer) == held_bytes(optimizer)
    given, arguments = [p.detach().to("meta") for p in params], {**row.kwargs, "enable_global_step": True}
    assert optim.state_bytes((getattr(optim, row.name), given, arguments)) == held_bytes(optimizer)


def test_bytes_of_what_would_not_fit_into_memory():
    layers = [torch.empty(100_000, 50_000, device="meta", dtype=torch.bfloat16) for _ in range(2)]
    named = [("a", layers[0]), ("b", layers[1])]
    groups = [{"params": (p for p in layers[:1]), "foreach": True}, {"params": layers[1], "amsgrad": True}]
    for owner in (torch.optim, optim):
        assert optim.state_bytes((owner.SGD, layers, LR)) == 0
        assert optim.state_bytes((owner.SGD, layers, MOMENTUM)) == 2 * 10_000_000_000
        assert optim.state_bytes((owner.Adam, named, {"lr": torch.tensor(0.1)})) == 4 * 10_000_000_000 + 2 * 4
    assert optim.state_bytes((torch.optim.Adam, groups)) == 5 * 10_000_000_000 + 2 * 4


def test_bytes_of_the_local_part_of_a_dtensor(mesh):
    for device in ("cpu", "meta"):
        sharded = Parameter(distribute_tensor(torch.zeros(9, 2, device=device), mesh, [Replicate(), Shard(0)]))
        for owner in (torch.optim, optim):  # 4 of 5 and 4 rows
            assert optim.state_bytes(owner.Adam([sharded])) == 2 * 4 * 4 * 2 + 4
            assert optim.state_bytes((owner.Adam, [sharded])) == 2 * 4 * 4 * 2 + 4


def test_what_is_no_optimizer():
    for wrong in (torch.nn.Linear(2, 2), torch.optim.Adam, None):
        with pytest.raises(TypeError, match=f"^preinitialize.optimizer={re.escape(repr(wrong)[:9])}"):
            optim.preinitialize(wrong)
    for wrong in (None, torch.optim.Adam, (torch.optim.Adam,), (torch.nn.Linear, []), [torch.optim.Adam, []]):
        with pytest.raises(TypeError, match=f"^state_bytes.target={re.escape(repr(wrong)[:9])}"):
            optim.state_bytes(wrong)
    with pytest.raises(ValueError, match="learning rate"):  # the class's own error
        optim.state_bytes((torch.optim.Adam, [torch.ones(1)], {"lr": -1.0}))
