"""preinitialize() and state_bytes() with classes that they do not know: the same training to the bit, or refused."""

import copy
import random
import threading
import warnings

import numpy
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn import Parameter
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves

import optim
from tests.optim.problems import MISSING, PeakBytes, differences, flat, give_gradients, parameters, run, same, snapshot

STEPS = 20


class Own(torch.optim.Optimizer):
    """A user's optimizer: `begin` makes state in the first step of a parameter, `update` returns the direction."""

    def __init__(self, params, lr=0.1, **defaults):
        super().__init__(params, {"lr": lr, "decay": 0.5, **defaults})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            self.begin_group(group)
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    if not state:
                        self.begin(p, group, state)
                    p.sub_(self.update(p, group, state), alpha=float(group["lr"]))

    def begin_group(self, group):
        pass

    def begin(self, p, group, state):
        state["average"] = torch.zeros_like(p)

    def update(self, p, group, state):
        return state["average"].mul_(group["decay"]).add_(p.grad)


def new(begin=None, update=None, begin_group=None, base=Own):
    """A class of its own for each of these functions, which other people might write."""
    given = {"begin": begin, "update": update, "begin_group": begin_group}
    return type("New", (base,), {name: function for name, function in given.items() if function})


def counted(p, group, state):
    """The mean of all gradients, by a count and a product."""
    state["count"] += 1
    state["product"] *= group["decay"]
    state["sum"].add_(p.grad)
    return state["sum"] / (state["count"] + float(state["product"]))


def begins_with(**values):
    """A state of constants; a function makes it of the parameter."""

    def begin(p, group, state):
        state.update({key: x(p) if callable(x) else copy.deepcopy(x) for key, x in values.items()})

    return begin


def pulled(p, group, state):
    """Towards where a parameter began."""
    return p.grad + p - state["start"].reshape(p.shape)


def group_counts(self, group):
    group["steps"] = group.setdefault("steps", 0) + 1


def group_decides(self, group):
    if group["compensated"] is None:
        group["compensated"] = True


def decides(self, p, group, state):
    Own.begin(self, p, group, state)
    group["compensated"] = True


def nested(p, group, state):
    state["moments"][0].add_(p.grad)
    state["moments"][1]["square"].addcmul_(p.grad, p.grad)
    return state["moments"][0] / (1 + state["moments"][1]["square"])


def method(function):
    return lambda self, *arguments: function(*arguments)


def moments(p):
    return [torch.zeros_like(p), {"square": torch.zeros_like(p)}]


def twice(self, p, group, state):
    return p.grad * (2 if group["compensated"] else 1)


# Each with what its state is before the first step, of a parameter and its group.
TAKEN = {
    "zeros": (Own, lambda p: {"average": torch.zeros_like(p)}, {}),
    "of torch's": (type("Adam", (torch.optim.Adam,), {}), None, {}),
    "float count": (
        new(method(begins_with(count=0, product=1.0, sum=torch.zeros_like)), method(counted)),
        lambda p: {"count": 0, "product": 1.0, "sum": torch.zeros_like(p)},
        {},
    ),
    "tensor count": (
        new(
            method(begins_with(count=torch.tensor(0.0), product=torch.tensor([1.0]), sum=torch.zeros_like)),
            method(counted),
        ),
        lambda p: {"count": torch.tensor(0.0), "product": torch.tensor([1.0]), "sum": torch.zeros_like(p)},
        {},
    ),
    "count from 5": (
        new(method(begins_with(count=5, product=0.25, sum=torch.zeros_like)), method(counted)),
        lambda p: {"count": 5, "product": 0.25, "sum": torch.zeros_like(p)},
        {},
    ),
    "copy": (new(method(begins_with(start=torch.clone)), method(pulled)), lambda p: {"start": p.detach()}, {}),
    "flat float32 copy": (
        new(method(begins_with(start=lambda p: p.flatten().float())), method(pulled)),
        lambda p: {"start": p.detach().flatten().float()},
        {},
    ),
    "constant": (
        new(method(begins_with(start=lambda p: torch.full_like(p, 0.5))), method(pulled)),
        lambda p: {"start": torch.full_like(p, 0.5)},
        {},
    ),
    "constant that decays": (
        new(
            method(begins_with(average=torch.ones_like)),
            lambda self, p, group, state: Own.update(self, p, group, state),
        ),
        lambda p: {"average": torch.ones_like(p)},
        {},
    ),
    "nested": (new(method(begins_with(moments=moments)), method(nested)), lambda p: {"moments": moments(p)}, {}),
    "group counts": (new(begin_group=group_counts), lambda p: {"average": torch.zeros_like(p)}, {"steps": 0}),
    "the lr": (
        new(lambda self, p, group, state: state.update(start=torch.full_like(p, group["lr"])), method(pulled)),
        lambda p: {"start": torch.full_like(p, 0.1)},
        {},
    ),
    "no state": (new(update=lambda self, p, group, state: p.grad, begin=lambda *_: None), lambda p: {}, {}),
}


def pair(kind, dtype=torch.float64, **arguments):
    """Two equal optimizers, each with two groups."""
    both = []
    for _ in range(2):
        params = parameters("Adam", dtype)
        both.append(kind([{"params": params[::2]}, {"params": params[1::2]}], **arguments))
    return both


def assert_equal(untouched, early, steps=STEPS):
    """Bit for bit in weights, states and groups, with gradients that are late or missing; no state is added."""
    keys = {p: set(early.state[p]) for p in flat(early)}
    for step in range(1, steps + 1):
        for optimizer in (untouched, early):
            torch.manual_seed(step)
            give_gradients(flat(optimizer), step)
            optimizer.step()
    assert all(set(early.state[p]) == keys[p] for p in flat(early))
    never = {i for i in MISSING if len(MISSING[i]) > steps}
    for key in differences(snapshot(early), snapshot(untouched)):
        assert key[2:] == ("params",) or (key[0] == "state" and key[1] in never), key


@pytest.mark.parametrize("name", TAKEN)
def test_taken(name):
    kind, expected, group = TAKEN[name]
    untouched, early = pair(kind)
    before = snapshot(early)
    assert optim.preinitialize(early) is early
    assert not {key[:1] + key[2:] for key in differences(before, snapshot(early)) if key[0] != "state"} - {
        ("group", key) for key in group
    }
    for p in flat(early) if expected else ():
        assert same(dict(early.state.get(p, {})), expected(p))
    assert all(each[key] == x for each in early.param_groups for key, x in group.items())
    if name == "tensor count":
        with pytest.raises(ValueError, match="^state_bytes: New, parameter 0"):
            optim.state_bytes(untouched)
    else:
        assert optim.state_bytes(untouched) == held(early)
    assert optim.state_bytes(early) == held(early)
    assert_equal(untouched, early)


def held(optimizer):
    return sum(x.nbytes for x in tree_leaves(list(optimizer.state.values())) if isinstance(x, torch.Tensor))


def test_a_run_in_progress_is_completed():
    """State that exists stays, in the groups that were there and in a new one."""
    untouched, early = pair(TAKEN["group counts"][0])
    for optimizer in (untouched, early):
        run(optimizer, flat(optimizer), 1, 2)
        optimizer.add_param_group({"params": [Parameter(torch.ones(2, 2).double())], "lr": 0.5})
    early.add_param_group({"params": [Parameter(torch.ones(3, dtype=torch.int64), requires_grad=False)]})
    before = {(p, key): x for p, state in early.state.items() for key, x in state.items()}
    optim.preinitialize(early)
    assert all(early.state[p][key] is x for (p, key), x in before.items())
    assert [group.get("steps") for group in early.param_groups] == [2, 2, 0, None]
    assert {p for p in flat(early) if not early.state.get(p)} == set(early.param_groups.pop()["params"])
    for step in range(3, 8):
        for optimizer in (untouched, early):
            give_gradients(flat(optimizer), step, missing={})
            optimizer.step()
    assert {key[2:] for key in differences(snapshot(early), snapshot(untouched))} == {("params",)}


@pytest.mark.parametrize("left_open", [None, False])
def test_what_the_first_step_decides_for_a_group(left_open):
    for kind in (new(begin_group=group_decides, update=twice), new(begin=decides, update=twice)):
        untouched, early = pair(kind, compensated=left_open)
        optim.preinitialize(early)
        assert_equal(untouched, early)


def by_gradient(self, p, group, state):
    state["average"] = p.grad.clone()


def by_size(self, p, group, state):
    Own.begin(self, p, group, state)
    if p.ndim == 2:
        group["compensated"] = True


def late(self, p, group, state):
    state["start"] = torch.full_like(p, float(group["steps"]))


def third_step(self, p, group, state):
    group["steps"] = group.setdefault("steps", 0) + 1
    if group["steps"] == 3:
        state["third"] = torch.zeros_like(p)
    return p.grad


def attribute(self, group):
    self.steps = getattr(self, "steps", 0) + 1


def on_the_parameter(self, group):
    for p in group["params"]:
        p.average = torch.zeros_like(p)


def of_another_key(self, group):
    self.state["steps"]["all"] = 1


def of_a_size(self, group):
    group.setdefault("size", len(group["params"]))


def unlike_zeros(self, p, group, state):
    if p.grad.any():
        state["seen"] = torch.ones_like(p)
    return p.grad


def failing(self, group):
    raise ArithmeticError("no more digits")


class Closure(Own):
    def step(self, closure):
        closure()


def with_attribute(optimizer, name, value):
    setattr(optimizer, name, value)
    return optimizer


class Reaching(Own):
    def __init__(self, params, what):
        super().__init__(params)
        self.what = what(self)


REFUSED = {
    r"state\['average'\] is .* after step 1, but .*it depends on the first gradient": new(by_gradient),
    r"state\['start'\] is .* of a group whose last parameter has its first gradient late": new(
        late, method(pulled), group_counts
    ),
    r"state\['third'\] is made in step 3": new(update=third_step),
    r"state\['seen'\] is made in step 1, but not by a first": new(update=unlike_zeros),
    r"state\['average'\] is neither zero, nor the weights, nor a constant": new(
        method(begins_with(average=torch.randn_like))
    ),
    r"state\['average'\]\[0\] is no tensor and no number: .*object": new(
        method(begins_with(average=[object])), lambda self, p, group, state: p.grad
    ),
    r"state\['start'\] is NaN": new(method(begins_with(start=lambda p: p * float("nan"))), method(pulled)),
    "attribute of the optimizer, 'steps'": new(begin_group=attribute),
    "attribute of the parameter 0, 'average'": new(begin_group=on_the_parameter),
    "'steps' is a key of its state and no parameter": new(begin_group=of_another_key),
    r"group\['size'\] is 2 after step 1": new(begin_group=of_a_size),
    "its step raises ArithmeticError: no more digits": new(begin_group=failing),
    "its step raises TypeError: .* 'closure'": Closure,
    "sets a key of the group": lambda params: new(by_size, twice)(params, compensated=None),
    "its attribute 'what' has the id of a parameter": lambda ps: Reaching(ps, lambda self: [{id(ps[0])}]),
    "its attribute 'ids' has the id of a parameter": lambda ps: with_attribute(Own(ps), "ids", {id(ps[2]): 0.5}),
    "its group's 'first' has the id of a parameter": lambda ps: Own(ps, first=id(ps[0])),
    "its group's [0-9]+ has the id of a parameter": lambda ps: Own([{"params": ps, id(ps[0]): 0.5}]),
    "its attribute 'what' reaches a Parameter": lambda ps: Reaching(ps, lambda self: [{"weights": ps}]),
    "its attribute 'what' reaches a Linear": lambda ps: Reaching(ps, lambda self: torch.nn.Linear(1, 1).forward),
    "its attribute 'what' reaches a Reaching": lambda ps: Reaching(ps, lambda self: lambda: self.step()),
    "its attribute 'what' reaches a Adam": lambda ps: Reaching(ps, lambda self: torch.optim.Adam(ps)),
    "cannot be tried: TypeError: cannot pickle": lambda ps: Reaching(ps, lambda self: threading.Lock()),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused_and_left_alone(message):
    optimizer = REFUSED[message](parameters("Adam"))
    before, attributes = snapshot(optimizer), dict(vars(optimizer))
    with pytest.raises(ValueError, match=f"(?s)^preinitialize: .*, parameter . of group 0: .*{message}"):
        optim.preinitialize(optimizer)
    assert not differences(before, snapshot(optimizer)) and not optimizer.state and vars(optimizer) == attributes


@pytest.fixture
def hooks():
    """Hooks for all optimizers, which note what they are called for."""
    called = []
    handles = [
        register_optimizer_step_pre_hook(lambda optimizer, *_: called.append(optimizer)),
        register_optimizer_step_post_hook(lambda optimizer, *_: called.append(optimizer)),
    ]
    yield called
    for handle in handles:
        handle.remove()


class Noisy(Own):
    """Of a class between: its step is wrapped by torch once more, and draws random numbers."""

    def step(self, closure=None):
        warnings.warn("a step", stacklevel=1)
        assert torch.is_grad_enabled()
        super().step()

    def update(self, p, group, state):
        noise = torch.rand(()).item() + random.random() + numpy.random.random()
        return noise * super().update(p, group, state)


@pytest.mark.parametrize("refused", [False, True])
def test_nothing_of_the_real_optimizer_runs(hooks, refused):
    """With hooks of its own and of all optimizers, and a scheduler, which wraps `step`, whose first lr is 0."""
    kind = type("Noisy", (Noisy,), {"begin": by_gradient}) if refused else Noisy
    optimizer = kind(parameters("Adam"))
    wrapped = kind.step
    optimizer.register_step_pre_hook(lambda *_: hooks.append("its own"))
    optimizer.register_step_post_hook(lambda *_: hooks.append("its own"))
    for p in flat(optimizer):
        p.register_post_accumulate_grad_hook(lambda p: hooks.append(p))
        p.grad = torch.full_like(p, 3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)
    optimizer.step = patched = lambda: hooks.append("patched")
    before, attributes = snapshot(optimizer), dict(vars(optimizer))
    versions = [p._version for p in flat(optimizer)]
    drawn = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].copy()
    with torch.no_grad():
        if refused:
            with pytest.raises(ValueError, match="first gradient"):
                optim.preinitialize(optimizer)
        else:
            optim.preinitialize(optimizer)
            assert torch.count_nonzero(optimizer.state[flat(optimizer)[0]]["average"]) == 0
        if not refused:
            optim.state_bytes(optimizer)
    assert hooks == [] and optimizer.step is patched and kind.step is wrapped and vars(optimizer) == attributes
    assert {key[0] for key in differences(before, snapshot(optimizer))} <= {"state"}
    assert versions == [p._version for p in flat(optimizer)] and scheduler.last_epoch == 0
    assert torch.equal(drawn[0], torch.get_rng_state()) and drawn[1] == random.getstate()
    assert (drawn[2] == numpy.random.get_state()[1]).all()
    del optimizer.step
    with pytest.warns(UserWarning, match="a step"):
        optimizer.step()
    assert {"its own", optimizer} <= set(hooks)


def test_state_that_is_the_parameter_itself_is_refused_while_the_lr_is_zero():
    """As before a warmup, where nothing moves."""
    kind = new(lambda self, p, group, state: state.update(start=p.detach()), method(pulled))
    with pytest.raises(ValueError, match=r"state\['start'\] is .* after step 2, but"):
        optim.preinitialize(kind([Parameter(torch.ones(2, 2))], lr=0.0))


def test_state_made_in_a_later_step_needs_as_long_a_check():
    def fifth_step(self, p, group, state):
        state["steps"] = state.get("steps", 0) + 1
        if state["steps"] == 5:
            state["fifth"] = torch.zeros_like(p)
        return p.grad

    kind = new(update=fifth_step, begin=lambda self, p, group, state: state.update(steps=0))
    optim.preinitialize(kind([Parameter(torch.ones(2))]))
    with pytest.raises(ValueError, match="'fifth'.* is made in step 5"):
        optim.preinitialize(kind([Parameter(torch.ones(2))]), check=5)


def test_a_class_that_takes_no_missing_gradient():
    class Plain(Own):
        def step(self, closure=None):
            for p in flat(self):
                p.data -= 0.1 * self.state[p].setdefault("average", torch.zeros_like(p)).add_(p.grad)

    optimizer = optim.preinitialize(Plain([Parameter(torch.ones(2)), Parameter(torch.ones(3))]))
    assert all(torch.equal(optimizer.state[p]["average"], torch.zeros_like(p)) for p in flat(optimizer))


def test_an_optimizer_that_knows_its_parameters_by_name():
    """The decay of a parameter depends on its name, and only biases have a second state."""

    class ByName(Own):
        def step(self, closure=None):
            for group in self.param_groups:
                for name, p in zip(group["param_names"], group["params"], strict=True):
                    if p.grad is not None:
                        average = self.state[p].setdefault("average", torch.zeros_like(p))
                        if name.endswith("bias"):
                            average = self.state[p].setdefault("slow", torch.ones_like(p)).lerp_(average, 0.1)
                        self.state[p]["average"].lerp_(p.grad, 0.5 if "late" in name else 0.1)
                        p.data -= group["lr"] * average

    both = []
    for _ in range(2):
        names = ["weight", "bias", "late.weight", "late.bias"]
        params = list(zip(names, parameters("Adam"), strict=False))
        both.append(ByName([{"params": params[:2]}, {"params": params[2:]}]))
    untouched, early = both
    optim.preinitialize(early)
    assert ["slow" in early.state[p] for p in flat(early)] == [False, True, False, True]
    assert [group["param_names"] for group in early.param_groups] == [names[:2], names[2:]]
    assert_equal(untouched, early)


def test_a_place_among_the_groups_and_a_tensor_for_the_lr():
    """The second group of this class has other state than the first."""

    class Two(Own):
        def step(self, closure=None):
            for i, group in enumerate(self.param_groups):
                for p in group["params"]:
                    if p.grad is not None:
                        state = self.state[p]
                        average = state.setdefault("first" if i == 0 else "second", torch.zeros_like(p))
                        p.data -= group["lr"] * average.add_(p.grad)

    untouched, early = pair(Two, lr=torch.tensor(0.1))
    optim.preinitialize(early)
    assert [list(early.state[group["params"][0]]) for group in early.param_groups] == [["first"], ["second"]]
    assert_equal(untouched, early)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_distributed_checkpoint_is_loaded_before_the_first_step(tmp_path):
    """A run that is resumed in a new process, where only preinitialize() makes state to load into."""

    def made():
        model = torch.nn.Linear(3, 2)
        return model, TAKEN["group counts"][0](model.parameters())

    def train(model, optimizer, first, last):
        for step in range(first, last):
            torch.manual_seed(step)
            model.zero_grad()
            model(torch.randn(5, 3)).square().sum().backward()
            optimizer.step()

    def state_of(model, optimizer):
        groups = [{key: x for key, x in group.items() if key != "params"} for group in optimizer.param_groups]
        states = {str(i): optimizer.state[p] for i, p in enumerate(model.parameters())}
        return {"model": model.state_dict(), "state": states, "groups": groups}

    model, optimizer = made()
    train(model, optimizer, 0, 4)
    dcp.save(state_of(model, optimizer), checkpoint_id=str(tmp_path), no_dist=True)
    train(model, optimizer, 4, 9)
    resumed, early = made()
    optim.preinitialize(early)
    loaded = state_of(resumed, early)
    dcp.load(loaded, checkpoint_id=str(tmp_path), no_dist=True)
    resumed.load_state_dict(loaded["model"])
    early.param_groups[0].update(loaded["groups"][0])
    train(resumed, early, 4, 9)
    assert not {key[0] for key in differences(snapshot(optimizer), snapshot(early)) if key[2:] != ("params",)}


def test_distributed_tensors():
    """Where the class steps them; a class that does not raises what it raises."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    try:
        mesh = init_device_mesh("cpu", (4,))
        sharded = Parameter(distribute_tensor(torch.randn(10, 2), mesh, [Shard(0)]))
        optimizer = optim.preinitialize(Own([sharded]))
        average = optimizer.state[sharded]["average"]
        assert isinstance(average, DTensor) and average.placements == sharded.placements
        assert optim.state_bytes(Own([sharded])) == 4 * 3 * 2
        with pytest.raises(ValueError, match="its step raises RuntimeError: .*DTensor"):
            optim.preinitialize(new(update=lambda self, p, group, state: p.grad + torch.ones(10, 2))([sharded]))
    finally:
        dist.destroy_process_group()


def test_one_parameter_at_a_time_is_copied():
    most = []
    for many in (1, 4):
        params = [Parameter(torch.ones(64, 1024)) for _ in range(many)]
        with PeakBytes() as held_bytes:
            optim.preinitialize(Own(params))
        most.append(held_bytes.most)
    assert most[1] - most[0] == 3 * params[0].nbytes  # the state of the others
