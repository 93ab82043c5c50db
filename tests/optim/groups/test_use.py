"""The groups in use: optimizers take them and train with them, checkpoints keep them, wrappers do not hide names."""

import copy
import io

import pytest
import torch
import torch.distributed.tensor
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.fsdp import fully_shard

import optim
from optim.groups import configure_param_groups, param_group_table
from tests.optim.groups.models import Conv, Tied, by_name, loss_of, values

TOP = {Conv: "6.", Tied: "head."}
OPTIMIZERS = pytest.mark.parametrize("kind", [torch.optim.AdamW, optim.AdamW], ids=["torch", "optim"])


def fresh(model_type, **arguments):
    torch.manual_seed(0)
    model = model_type()
    rules = [{"params": "*bias", "tags": "bias"}, {"params": TOP[model_type] + "*", "tags": "top", "lr": 0.03}]
    return model, configure_param_groups(model, rules, weight_decay=0.1, **arguments)


def train(model, optimizer, seeds):
    for seed in seeds:
        optimizer.zero_grad()
        loss_of(model, seed).backward()
        optimizer.step()


@OPTIMIZERS
@pytest.mark.parametrize("model_type, names", [(Conv, True), (Tied, False)])
def test_training_equals_that_with_groups_made_by_hand(kind, model_type, names):
    """Bit for bit, from groups of one parameter each that hold its values."""
    model, groups = fresh(model_type, names=names)
    optimizer = kind(groups, lr=0.02)
    assert all(("param_names" in group) == names for group in optimizer.param_groups)
    reference = copy.deepcopy(model)
    spared = ("bias", "norm1.weight", "norm2.weight", "norm.weight")
    spared = (*spared, "1.weight", "4.weight") if model_type is Conv else spared
    top = {id(p) for name, p in reference.named_parameters(remove_duplicate=False) if name.startswith(TOP[model_type])}
    by_hand = [
        {"params": [p], "lr": 0.03 if id(p) in top else 0.02, "weight_decay": 0.0 if name.endswith(spared) else 0.1}
        for name, p in reference.named_parameters()
    ]
    train(model, optimizer, range(4))
    train(reference, kind(by_hand), range(4))
    assert all(map(torch.equal, model.parameters(), reference.parameters()))


@OPTIMIZERS
def test_checkpoints_keep_tags_and_names(kind):
    model, groups = fresh(Conv)
    optimizer = kind(groups, lr=0.02)
    train(model, optimizer, range(2))
    saved = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, saved)
    saved.seek(0)
    loaded = torch.load(saved, weights_only=True)
    reference, groups = fresh(Conv)
    reference.load_state_dict(loaded["model"])
    resumed = kind(groups, lr=0.5)
    resumed.load_state_dict(loaded["optimizer"])
    for mine, theirs in zip(resumed.param_groups, optimizer.param_groups):
        assert mine.get("tags") == theirs.get("tags") and mine["param_names"] == theirs["param_names"]
    train(model, optimizer, range(2, 4))
    train(reference, resumed, range(2, 4))
    assert all(map(torch.equal, model.parameters(), reference.parameters()))
    # and through torch's distributed checkpoint, which goes by names
    other, groups = fresh(Conv)
    third = kind(groups, lr=0.5)
    set_optimizer_state_dict(other, third, get_optimizer_state_dict(model, optimizer))
    for mine, theirs in zip(third.param_groups, optimizer.param_groups):
        assert mine.get("tags") == theirs.get("tags") and mine["lr"] == theirs["lr"]
        for p, q in zip(mine["params"], theirs["params"]):
            assert torch.equal(third.state[p]["exp_avg"], optimizer.state[q]["exp_avg"])


@pytest.mark.parametrize(
    ("wrap", "inside"),
    [
        (torch.compile, "_orig_mod.0.weight"),
        (nn.DataParallel, "module.0.weight"),
        (lambda model: torch.compile(nn.DataParallel(model)), "_orig_mod.module.0.weight"),
        (
            lambda model: nn.Sequential(checkpoint_wrapper(model[0]), *list(model)[1:]),
            "0._checkpoint_wrapped_module.weight",
        ),
    ],
    ids=["compile", "parallel", "both", "checkpoint"],
)
def test_wrappers_do_not_hide_names(wrap, inside):
    """Globs match the plain name and the one in use; the groups hold the plain one."""
    model = Conv()
    wrapped = wrap(model)
    assert inside in dict(wrapped.named_parameters())
    rules = [
        {"params": "0.weight", "tags": "stem"},
        {"params": inside, "tags": "inside"},
        {"params": "*bias", "lr": 0.5},
    ]
    groups = configure_param_groups(wrapped, rules, adjust_learning_rate={"Conv2d": 0.5})
    plain = [{**rules[0], "tags": ["inside", "stem"]}, rules[2]]
    assert groups == configure_param_groups(model, plain, adjust_learning_rate={"Conv2d": 0.5})
    if inside.startswith("_orig_mod.0"):
        pairs = configure_param_groups(wrapped.named_parameters(), rules, no_decay=False)
        assert pairs == configure_param_groups(model, plain, no_decay=False)


def test_a_part_called_module_keeps_its_name():
    model = nn.Module()
    model.module = nn.Linear(2, 2)
    for each in (model, nn.DataParallel(model)):
        assert list(by_name(configure_param_groups(each), "lr")) == ["module.weight", "module.bias"]


@pytest.fixture
def alone():
    """A process group of this process alone."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_data_parallel_and_sharded_models(alone):
    model = Conv()
    rules = [{"params": "0.weight", "tags": "stem"}]
    arguments = {"weight_decay": 0.1, "adjust_learning_rate": {"Conv2d": 2.0}}
    groups = configure_param_groups(model, rules, **arguments)
    assert configure_param_groups(nn.parallel.DistributedDataParallel(model), rules, **arguments) == groups
    expected = [([name for name, _ in group["params"]], values(group)) for group in groups]
    mesh = torch.distributed.init_device_mesh("cpu", (1,))
    fully_shard(model[3], mesh=mesh)
    fully_shard(model, mesh=mesh)
    sharded = configure_param_groups(model, rules, **arguments)
    assert [([name for name, _ in group["params"]], values(group)) for group in sharded] == expected
    assert isinstance(sharded[0]["params"][0][1], torch.distributed.tensor.DTensor)
    total = param_group_table(sharded).splitlines()[-1].split()
    assert total == param_group_table(groups).splitlines()[-1].split()  # whole tensors, not their local parts


# The table of groups


RULES = [{"params": "*bias", "tags": "bias"}, {"params": "body.*", "tags": ["body", "all"], "betas": [0.8, 0.9]}]


def test_the_table_of_a_list_of_groups():
    groups = configure_param_groups(Tied(), RULES, weight_decay=0.1, adjust_learning_rate={"Embedding": 0.125})
    assert param_group_table(groups, names=2).splitlines() == [
        "group  tags             tensors  elements  adjust_learning_rate       betas  weight_decay  names",
        "0      -                      1        88                 0.125           -           0.1  embed.weight",
        "1      all, body              8       896                     -  (0.8, 0.9)           0.1  "
        "body.layers.0.self_attn.in_proj_weight, body.layers.0.self_attn.out_proj.weight and 6 more",
        "2      all, bias, body       13       144                     -  (0.8, 0.9)             0  "
        "body.layers.0.self_attn.in_proj_bias, body.layers.0.self_attn.out_proj.bias and 11 more",
        "3      all, body              5        40                     -  (0.8, 0.9)             0  "
        "body.layers.0.norm1.weight, body.layers.0.norm2.weight and 3 more",
        "4      bias                   1        11                     -           -             0  head.bias",
        "total                        28      1179",
    ]


@pytest.mark.parametrize("kind", [torch.optim.AdamW, optim.AdamW], ids=["torch", "optim"])
def test_the_table_of_an_optimizer(kind):
    """What all groups share is left out but for the learning rate and weight decay; tensors are shown as numbers."""
    groups = configure_param_groups(nn.Linear(2, 3), [{"params": "bias", "tags": {"b", "a"}}], weight_decay=0.5)
    optimizer = kind(groups, lr=torch.tensor(0.25))
    assert param_group_table(optimizer).splitlines() == [
        "group  tags  tensors  elements    lr  weight_decay  names",
        "0      -           1         6  0.25           0.5  weight",
        "1      a, b        1         3  0.25             0  bias",
        "total              2         9",
    ]
    assert param_group_table(optimizer) == param_group_table(optimizer.param_groups)


def test_groups_without_names_and_with_other_values():
    """Values that look alike when they are rounded are shown, too."""
    weight = nn.Parameter(torch.zeros(3))
    groups = [{"params": [weight], "tags": "a", "lr": 1e-5, "hook": None}, {"params": [], "hook": {"a": [1]}}]
    assert param_group_table(groups).splitlines() == [
        "group  tags  tensors  elements        hook     lr  names",
        "0      a           1         3        None  1e-05  -",
        "1      -           0         0  {'a': [1]}      -  -",
        "total              1         3",
    ]
    assert "momentum" in param_group_table([{"params": [], "momentum": m} for m in (0.5, 0.5 + 1e-9)])


def test_groups_with_reasons_and_without_names():
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))
    table = param_group_table(configure_param_groups(model, matrices="muon", names=False))
    assert [line.split()[-1] for line in table.splitlines()[1:-1]] == ["-", "-"]


def test_the_table_reads_one_tensor_as_a_parameter_and_no_iterator():
    weight = nn.Parameter(torch.zeros(3, 2))
    assert param_group_table([{"params": weight}]).splitlines()[-1].split() == ["total", "1", "6"]
    groups = [{"params": iter([weight])}]
    with pytest.raises(TypeError, match="^Parameter group 0: its params are an iterator"):
        param_group_table(groups)
    assert list(groups[0]["params"]) == [weight]
