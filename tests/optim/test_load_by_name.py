"""A run whose groups are split at the resume equals the untouched run, bit for bit. An error changes nothing."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

import optim
from optim import load_by_name
from timesched import Clock, LinearScheduler, bind


def make_model(dtype=torch.float32):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).to(dtype)


def one_group(model):
    return [{"params": list(model.named_parameters())}]


def split(model):
    """Other groups, in another order."""
    pairs = list(model.named_parameters())
    return [{"params": pairs[3:]}, {"params": pairs[1:2]}, {"params": [pairs[2], pairs[0]]}]


def muon(groups):
    """Muon for the matrices of each group, and AdamW for its vectors."""
    by_algorithm = []
    for group in groups:
        matrices = [pair for pair in group["params"] if pair[1].dim() == 2]
        vectors = [pair for pair in group["params"] if pair[1].dim() != 2]
        by_algorithm += [{"params": matrices, "algorithm": "muon"}, {"params": vectors, "algorithm": "adamw"}]
    return optim.Muon([group for group in by_algorithm if group["params"]], lr=0.02, weight_decay=0.0)


MAKERS = {
    "AdamW": lambda groups: optim.AdamW(groups, lr=0.01, weight_decay=0.0),
    "SGD": lambda groups: optim.SGD(groups, lr=0.01, momentum=0.9),
    "Adafactor": lambda groups: optim.Adafactor(groups, lr=0.01, weight_decay=0.0),
    "Muon": muon,
    "master_weights": lambda groups: optim.AdamW(groups, lr=0.01, weight_decay=0.0, master_weights=True),
    # a state of the size 1 in one dimension
    "torch.Adafactor": lambda groups: torch.optim.Adafactor(groups, lr=0.01, weight_decay=0.0),
    "torch.AdamW": lambda groups: torch.optim.AdamW(groups, lr=0.01, weight_decay=0.0),
    "torch.SGD": lambda groups: torch.optim.SGD(groups, lr=0.01, momentum=0.9),
}


def train(model, optimizer, first, last):
    dtype = next(model.parameters()).dtype
    for i in range(first, last):
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(i)).to(dtype)
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()


def trained(maker="AdamW", groups=one_group):
    model = make_model(torch.bfloat16 if maker == "master_weights" else torch.float32)
    optimizer = MAKERS[maker](groups(model))
    train(model, optimizer, 0, 3)
    return model, optimizer


def states(model, optimizer):
    return {
        (name, key): value.clone() if isinstance(value, torch.Tensor) else value
        for name, p in model.named_parameters()
        for key, value in optimizer.state[p].items()
    }


def assert_equal(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=0, check_dtype=True)


@pytest.mark.parametrize("maker", MAKERS)
def test_split_at_the_resume(maker):
    model, optimizer = trained(maker)
    resumed = copy.deepcopy(model)
    saved = optimizer.state_dict()
    before = copy.deepcopy(saved)
    other = MAKERS[maker](split(resumed))
    rates = [group["lr"] for group in other.param_groups]
    assert load_by_name(other, saved) == ([], [])
    assert [group["lr"] for group in other.param_groups] == rates
    train(resumed, other, 3, 6)
    assert_equal(saved["state"], before["state"])  # the caller's dict does not change
    train(model, optimizer, 3, 6)
    assert_equal(dict(model.named_parameters()), dict(resumed.named_parameters()))
    assert_equal(states(model, optimizer), states(resumed, other))


def train_with_schedule(model, optimizer, clock, scheduler, first, last):
    for i in range(first, last):
        train(model, optimizer, i, i + 1)
        clock.tick()
        scheduler.step()


@pytest.mark.parametrize("maker", ["AdamW", "torch.AdamW"])
def test_continue_a_schedule(maker):
    """The clock's state and another `bind` continue the schedule, as docs/checkpoints.md says."""
    model, whole = make_model(), make_model()
    optimizer, clock = MAKERS[maker](one_group(model)), Clock("6ba")
    train_with_schedule(model, optimizer, clock, bind(LinearScheduler(), optimizer, clock), 0, 3)
    other, again = MAKERS[maker](split(model)), Clock("6ba")
    scheduler = bind(LinearScheduler(), other, again)
    load_by_name(other, optimizer.state_dict())
    again.load_state_dict(clock.state_dict())
    train_with_schedule(model, other, again, scheduler, 3, 6)
    other, again = MAKERS[maker](one_group(whole)), Clock("6ba")
    train_with_schedule(whole, other, again, bind(LinearScheduler(), other, again), 0, 6)
    assert_equal(dict(model.named_parameters()), dict(whole.named_parameters()))


@pytest.mark.parametrize("maker", MAKERS)
def test_groups_keep_their_values(maker):
    _, optimizer = trained(maker)
    other = MAKERS[maker](split(make_model(torch.bfloat16 if maker == "master_weights" else torch.float32)))
    for i, group in enumerate(other.param_groups):
        group["lr"] = 0.1 + i
    load_by_name(other, optimizer.state_dict())
    assert [group["lr"] for group in other.param_groups] == [0.1 + i for i, _ in enumerate(other.param_groups)]


@pytest.mark.parametrize("maker", ["AdamW", "torch.AdamW"])
def test_names_of_distributed_checkpoint(maker):
    model, optimizer = trained(maker)
    saved = get_optimizer_state_dict(model, optimizer)
    assert isinstance(saved["param_groups"][0]["params"][0], str)
    other = MAKERS[maker](split(model))
    load_by_name(other, saved)
    assert_equal(states(model, other), states(model, optimizer))


@pytest.mark.parametrize("prefix", ["module.", "module.module.", "_orig_mod.", "_orig_mod.module."])
@pytest.mark.parametrize("side", ["here", "saved"])
def test_wrappers_do_not_count(prefix, side):
    def with_prefix(model):
        pairs = list(model.named_parameters())
        return [{"params": [(prefix + name, p)]} for name, p in reversed(pairs)]

    model, optimizer = trained(groups=with_prefix if side == "saved" else one_group)
    other = MAKERS["AdamW"](with_prefix(model) if side == "here" else one_group(model))
    assert load_by_name(other, optimizer.state_dict()) == ([], [])
    assert_equal(states(model, other), states(model, optimizer))


def test_names_of_a_dict_without_names():
    model, optimizer = trained(groups=lambda model: list(model.parameters()))
    other = MAKERS["AdamW"](split(model))
    names = [name for name, _ in model.named_parameters()]
    load_by_name(other, optimizer.state_dict(), names=names)
    assert_equal(states(model, other), states(model, optimizer))


@pytest.mark.parametrize("maker", MAKERS)
def test_missing_and_unexpected(maker):
    """Missing parameters get initial state, also if they have stepped."""
    model, optimizer = trained(maker)
    saved = optimizer.state_dict()
    for group in saved["param_groups"]:
        group["param_names"] = [name.replace("2.", "head.") for name in group["param_names"]]
    other = MAKERS[maker](split(model))
    train(model, other, 0, 2)
    assert load_by_name(other, saved, missing="initial") == (
        [n for group in other.param_groups for n in group["param_names"] if n[0] == "2"],
        [n for group in saved["param_groups"] for n in group["param_names"] if n[:4] == "head"],
    )
    new = MAKERS[maker](split(model))
    for name, p in model.named_parameters():
        assert_equal(dict(other.state[p]), dict((new if name[0] == "2" else optimizer).state[p]))


@pytest.mark.parametrize("package", [optim, torch.optim])
def test_named_parameter_without_saved_state(package):
    """Adagrad of torch has state before its first step, too, and steps after the load."""
    model = make_model()
    saved = package.Adagrad(one_group(model), initial_accumulator_value=0.5).state_dict()
    del saved["state"][1]
    other = package.Adagrad(split(model), initial_accumulator_value=0.5)
    train(model, other, 0, 1)
    load_by_name(other, saved)
    assert_equal(other.state[model[0].bias]["sum"], torch.full((5,), 0.5))
    train(model, other, 0, 1)


def test_unknown_initial_state_changes_nothing():
    """A subclass of torch's Adagrad loads by name. Only where state is missing, its initial state must be known."""

    class New(torch.optim.Adagrad):
        def step(self, closure=None):
            return super().step(closure)

    model = make_model()
    optimizer = New(one_group(model))
    train(model, optimizer, 0, 2)
    saved = copy.deepcopy(optimizer.state_dict())
    other = New(split(model))
    load_by_name(other, saved)
    assert_equal(other.state[model[0].bias]["sum"], optimizer.state[model[0].bias]["sum"])
    del saved["state"][1]
    train(model, other, 2, 3)
    before = states(model, other)
    with pytest.raises(ValueError, match="^load_by_name: the initial state of New is not known"):
        load_by_name(other, saved)
    assert_equal(states(model, other), before)


def twice(saved):
    saved["param_groups"][0]["param_names"][1] = "0.weight"


def reshaped(saved):
    saved["state"][2]["exp_avg"] = torch.ones(3, 4)


def nameless(saved):
    del saved["param_groups"][0]["param_names"]


def renamed(saved):
    saved["param_groups"][0]["param_names"][3] = "head.bias"


NAMES = ["0.weight", "0.bias", "2.weight", "2.bias"]
ERRORS = [
    (twice, {}, "the name '0.weight' twice"),
    (reshaped, {}, "2.weight"),
    (nameless, {}, "no names.*names="),
    (renamed, {}, "does not name '2.bias'"),
    (lambda saved: saved.pop("state"), {}, "no 'state'"),
    (lambda saved: None, {"names": NAMES}, "names itself"),
    (nameless, {"names": NAMES[1:]}, "3 names.*4 parameters"),
    (nameless, {"names": NAMES[:1] * 4}, "'0.weight' twice"),
    (nameless, {"names": range(4)}, "not strings"),
    (lambda saved: None, {"missing": "ignore"}, "missing='ignore'"),
]


@pytest.mark.parametrize("maker", ["AdamW", "torch.AdamW"])
@pytest.mark.parametrize(("change", "arguments", "message"), ERRORS)
def test_errors_change_nothing(maker, change, arguments, message):
    model, optimizer = trained(maker)
    saved = copy.deepcopy(optimizer.state_dict())
    change(saved)
    other = MAKERS[maker](split(model))
    train(model, other, 0, 1)
    before, groups = states(model, other), copy.deepcopy(other.state_dict()["param_groups"])
    with pytest.raises(ValueError, match=message):
        load_by_name(other, saved, **arguments)
    assert_equal(states(model, other), before)
    assert other.state_dict()["param_groups"] == groups


@pytest.fixture
def mesh():
    """Four ranks, of which this is the second."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    try:
        yield init_device_mesh("cpu", (4,))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("maker", ["AdamW", "torch.AdamW", "torch.SGD"])
@pytest.mark.parametrize("saves_sharded", [False, True])
def test_full_and_sharded(maker, saves_sharded, mesh):
    """One does not load into the other. Sharded into sharded loads, and full into full."""

    def made(is_sharded):
        weight = torch.ones(5, 3)
        p = torch.nn.Parameter(distribute_tensor(weight, mesh, [Shard(0)]) if is_sharded else weight)
        optimizer = MAKERS[maker]([{"params": [("weight", p)]}])
        p.grad = torch.ones_like(p)
        optimizer.step()
        return optimizer

    saved = made(saves_sharded).state_dict()
    other = made(not saves_sharded)
    before = {key: id(x) for state in other.state.values() for key, x in state.items()}
    words = r"'weight'.* distributed as .*(Shard both or neither|distributed differently)"
    with pytest.raises(ValueError, match=words):
        load_by_name(other, saved)
    assert before == {key: id(x) for state in other.state.values() for key, x in state.items()}
    same = made(saves_sharded)
    assert load_by_name(same, saved) == ([], [])
    same.step()


def test_moved_from_adamw_to_muon():
    """The states of the two algorithms differ, and the message names the parameter."""
    model, optimizer = trained("AdamW")
    other = muon(split(model))
    before = states(model, other)
    with pytest.raises(ValueError, match=r"'2\.weight'.*momentum_buffer"):
        load_by_name(other, optimizer.state_dict())
    assert_equal(states(model, other), before)


def test_optimizer_without_names():
    model, optimizer = trained()
    with pytest.raises(ValueError, match="optimizer: its parameters have no names"):
        load_by_name(optim.AdamW(model.parameters()), optimizer.state_dict())


def test_average_is_refused():
    model, optimizer = trained()
    with pytest.raises(TypeError, match="WeightAverage"):
        load_by_name(optim.WeightAverage(model.named_parameters()), optimizer.state_dict())
