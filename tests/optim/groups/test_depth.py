"""Learning rates of groups: factors that they contain, and layers that decay by depth."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

import optim
from optim.config import build, configure_lr_scheduler
from optim.groups import configure_param_groups, param_group_table
from optim.lr_scheduler import ConstantLR, LinearLR, ScalePerParamLR, SequentialLR
from optim.weight_decay_scheduler import ConstantWD, ScalePerParamWD
from tests.optim.groups.models import WIDTH, Tied, by_name
from timesched import Clock, LinearScheduler, bind


def depths(names, layers, **options):
    """The powers of the decay by name, for parameters of these names."""
    pairs = [(name, nn.Parameter(torch.ones(1))) for name in names]
    options = {"lr": 1.0, "layer_decay": 0.5, "no_decay": False} | options
    return powers(configure_param_groups(pairs, layers=layers, **options))


def powers(groups):
    factors = by_name(groups, "lr_factor")
    assert factors == by_name(groups, "lr")
    return {name: -math.log2(factor) for name, factor in factors.items()}


def in_optimizer(optimizer, key):
    """The value of a key for every parameter of an optimizer."""
    return {name: group.get(key) for group in optimizer.param_groups for name in group["param_names"]}


def network():
    """An embedding, three blocks, and a head."""
    parts = {"embed": nn.Embedding(9, WIDTH), "blocks": nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))}
    return nn.ModuleDict(parts | {"norm": nn.LayerNorm(WIDTH), "head": nn.Linear(WIDTH, 9)})


DEPTH = {"layer_decay": 0.5, "layers": "blocks.*"}


# Depth


def test_what_is_before_between_and_after_the_layers():
    names = ["cls", "embed.w", "stages.0.blocks.0.w", "stages.0.blocks.1.w", "stages.0.down", "stages.1.blocks.0.w"]
    expected = [4, 4, 3, 2, 1, 1, 0, 0]
    names += ["norm", "head"]
    assert depths(names, "stages.*.blocks.*") == dict(zip(names, expected))


def test_numbers_are_ordered_as_numbers_and_gaps_do_not_count():
    names = ["layer2.10.w", "layer2.9.w", "layer10.0.w", "head"]
    assert depths(names, "layer*.*") == {"layer2.10.w": 2, "layer2.9.w": 3, "layer10.0.w": 1, "head": 0}


def test_stars_are_digits_and_dots_are_dots():
    names = ["blocks.a.w", "blocks.0.w", "xblocks.1.w", "blocksx1.w"]
    assert depths(names, "blocks.*") == {"blocks.a.w": 2, "blocks.0.w": 1, "xblocks.1.w": 0, "blocksx1.w": 0}


def test_each_stack_has_its_own_numbers():
    vision = ["v.embed", "v.enc.layers.0.w", "v.enc.layers.1.w", "v.norm"]
    names = ["scale", *vision, "projector", "t.embed", "t.layers.0.w", "t.norm"]
    expected = [3, 3, 2, 1, 0, 0, 2, 1, 0]
    assert depths(names, ["v.enc.layers.*", "t.layers.*"]) == dict(zip(names, expected))


def test_a_parameter_before_all_layers_has_the_factor_of_the_first_stack_of_the_model():
    names = ["shared", "encoder.block.0.w", "encoder.block.1.w", "decoder.block.0.w"]
    for layers in (["encoder.block.*", "decoder.block.*"], ["decoder.block.*", "encoder.block.*"]):
        assert depths(names, layers) == dict(zip(names, [3, 2, 1, 1]))


def test_frozen_layers_count_and_wrappers_do_not():
    model = network()
    expected = {"embed": 4, "blocks.0": 3, "blocks.1": 2, "blocks.2": 1, "norm": 0, "head": 0}
    whole = powers(configure_param_groups(model, lr=1.0, **DEPTH))
    assert {name.rsplit(".", 1)[0]: power for name, power in whole.items()} == expected
    wrapped = configure_param_groups(torch.compile(model), lr=1.0, **DEPTH)
    assert powers(wrapped) == whole
    model["blocks"][0].requires_grad_(False)
    trained = powers(configure_param_groups(model, lr=1.0, frozen=False, **DEPTH))
    assert trained == {name: power for name, power in whole.items() if not name.startswith("blocks.0")}


def test_a_tied_parameter_uses_its_first_name():
    factors = powers(configure_param_groups(Tied(), lr=1.0, layer_decay=0.5, layers="body.layers.*"))
    assert factors["embed.weight"] == 3
    assert factors["head.bias"] == 0


TIMM = json.loads((Path(__file__).parents[2] / "golden" / "timm_depth.json").read_text(encoding="utf-8"))["factors"]


@pytest.mark.parametrize(
    ("architecture", "layers", "adjust"),
    [
        ("vit", "blocks.*", {"norm.*": 0.75}),
        ("swin", "layers.*.blocks.*", {"norm.*": 0.75}),
        ("convnext", "stages.*.blocks.*", {}),
        ("resnet", "layer*.*", {}),
    ],
)
def test_timm(architecture, layers, adjust):
    """timm puts the final norm with the last block."""
    expected = TIMM[architecture]
    pairs = [(name, nn.Parameter(torch.ones(1))) for name in expected]
    options = {"lr": 1.0, "layer_decay": 0.75, "layers": layers, "adjust_learning_rate": adjust}
    factors = by_name(configure_param_groups(pairs, no_decay=False, **options), "lr_factor")
    assert factors == pytest.approx(expected, rel=1e-12)


# Factors in learning rates


def test_a_factor_of_a_rule_or_argument_replaces_the_depth_factor_and_the_lr_of_a_rule_the_lr():
    rules = [{"params": "blocks.1.*", "lr": 3.0}, {"params": "blocks.2.*", "adjust_learning_rate": 0.25}]
    groups = configure_param_groups(network(), rules, lr=2.0, adjust_learning_rate={"norm.*": 0.125}, **DEPTH)
    assert not any("adjust_learning_rate" in group for group in groups)
    rates, factors = by_name(groups, "lr"), by_name(groups, "lr_factor")
    assert [rates[f"{name}.weight"] for name in ("embed", "blocks.0", "blocks.1", "blocks.2", "norm", "head")] == [
        0.125, 0.25, 0.75, 0.5, 0.25, 2.0,
    ]  # fmt: skip
    assert factors["blocks.2.weight"] == 0.25
    assert all(type(factor) is float for factor in factors.values())


def test_without_depth_only_groups_with_a_factor_note_it():
    adjust = {"embed.*": 0.5, "head.*": 1.0}
    groups = configure_param_groups(network(), lr=0.2, adjust_learning_rate=adjust)
    noted = {name for group in groups if "lr_factor" in group for name, _ in group["params"]}
    assert noted == {"embed.weight", "head.weight", "head.bias"}
    assert by_name(groups, "lr")["embed.weight"] == 0.1
    plain = configure_param_groups(network(), adjust_learning_rate=adjust)
    assert not any("lr" in group or "lr_factor" in group for group in plain)


def test_a_tensor_stays_a_tensor_of_each_group():
    rate = torch.tensor(0.5)
    groups = configure_param_groups(network(), lr=rate, **DEPTH)
    assert by_name(groups, "lr")["blocks.2.weight"] == 0.25
    assert len({id(group["lr"]) for group in groups} | {id(rate)}) == len(groups) + 1


def test_rates_by_algorithm():
    rates = {"muon": 0.5, "adamw": 0.25}
    groups = configure_param_groups(network(), matrices="muon", lr=rates, **DEPTH)
    by_parameter = by_name(groups, "lr")
    assert (by_parameter["blocks.2.weight"], by_parameter["blocks.2.bias"]) == (0.25, 0.125)
    optimizer = optim.Muon(groups, lr=9.0, adamw={"lr": 7.0})
    assert in_optimizer(optimizer, "lr") == by_parameter
    with pytest.raises(ValueError, match=r"lr=.*: it has no learning rate for 'adamw', .*'embed.weight'"):
        configure_param_groups(network(), matrices="muon", lr={"muon": 0.5})


def test_the_table_shows_the_rate_and_the_factor():
    table = param_group_table(configure_param_groups(network(), lr=1.0, no_decay=False, **DEPTH))
    assert [line.split()[4:6] for line in table.splitlines()[:3]] == [
        ["lr", "lr_factor"],
        ["0.0625", "0.0625"],
        ["0.125", "0.125"],
    ]


# Schedules


def test_schedules_keep_the_ratios_and_count_nothing_twice():
    groups = configure_param_groups(network(), lr=1.0, **DEPTH)
    initial = [group["lr"] for group in groups]
    optimizer, clock = optim.AdamW(groups, lr=9.0), Clock("4ba")
    bound = bind(LinearScheduler(1.0, 0.5), optimizer, clock)
    for _ in range(4):
        clock.tick(), bound.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.5 * rate for rate in initial]
    other = torch.optim.AdamW(configure_param_groups(network(), lr=1.0, **DEPTH))
    torch.optim.lr_scheduler.LambdaLR(other, lambda step: 0.5)
    assert [group["lr"] for group in other.param_groups] == [0.5 * rate for rate in initial]


def test_absolute_rates_need_the_factors():
    optimizer = optim.AdamW(configure_param_groups(network(), lr=1.0, **DEPTH))
    factors = [group["lr_factor"] for group in optimizer.param_groups]
    scheduler = LinearLR(optimizer, 0.5, 0.0, 4)
    with pytest.raises(ValueError, match="does not use the lr_factor of parameter group 0"):
        scheduler.step()
    scaled = ScalePerParamLR(optimizer, SequentialLR(optimizer, [LinearLR(optimizer, 0.5, 0.0, 4)], []))
    assert scaled.get_last_lr() == [0.5 * factor for factor in factors]
    scaled.step()
    assert scaled.get_last_lr() == [0.375 * factor for factor in factors]


def test_a_factor_of_1_needs_nothing():
    groups = configure_param_groups(network(), lr=1.0, adjust_learning_rate={"head.*": 1.0})
    scheduler = ConstantLR(optim.AdamW(groups), 0.5)
    scheduler.step()
    assert set(scheduler.get_last_lr()) == {0.5}


def test_weight_decay_ignores_the_factors_of_learning_rates():
    optimizer = optim.AdamW(configure_param_groups(network(), lr=1.0, no_decay=False, **DEPTH))
    optimizer.param_groups[1]["adjust_learning_rate"] = 0.5
    ScalePerParamWD(optimizer, ConstantWD(optimizer, 0.5))
    assert [float(group["weight_decay"]) for group in optimizer.param_groups] == [0.5, 0.25, *[0.5] * 3]


def test_a_factor_that_is_no_number():
    optimizer = optim.SGD([{"params": [nn.Parameter(torch.ones(1))], "lr_factor": "half"}], lr=1.0)
    with pytest.raises(ValueError, match="lr_factor='half': parameter group 0 needs a finite factor"):
        ScalePerParamLR(optimizer, ConstantLR(optimizer, 0.5))


# Configs


def config(optimizer, **arguments):
    return {"optimizer": {optimizer: {"layer_decay": "0.5", "layers": "blocks.*", **arguments}}}


def test_a_config_by_depth():
    entry = config("AdamW", learning_rate="1.0", adjust_learning_rate={"norm.*": 0.25})
    optimizer, _ = build(network(), entry)
    expected = configure_param_groups(network(), lr=1.0, adjust_learning_rate={"norm.*": 0.25}, **DEPTH)
    assert in_optimizer(optimizer, "lr") == by_name(expected, "lr")
    assert in_optimizer(optimizer, "lr_factor") == by_name(expected, "lr_factor")


def test_a_config_wraps_absolute_rates():
    entry = config("SGD", lr=9.0) | {"schedulers": [{"ConstantLR": {"learning_rate": 0.5}}]}
    optimizer, (scheduler,) = build(network(), entry)
    assert isinstance(scheduler, ScalePerParamLR)
    scheduler.step()
    assert in_optimizer(optimizer, "lr")["blocks.2.weight"] == 0.25


def test_a_config_with_algorithms():
    optimizer, _ = build(network(), config("Muon", lr=1.0, adamw={"lr": 0.5}))
    rates = in_optimizer(optimizer, "lr")
    assert (rates["blocks.2.weight"], rates["blocks.2.bias"], rates["head.weight"]) == (0.5, 0.25, 0.5)


def test_a_config_may_switch_depth_off():
    """`layer_decay: null` needs no learning rate, and leaves factors to the schedulers."""
    entry = config("SGD", layer_decay=None, layers=None, adjust_learning_rate={"norm.*": 0.25})
    optimizer, _ = build(network(), entry | {"schedulers": [{"ConstantLR": {"learning_rate": 0.5}}]})
    assert in_optimizer(optimizer, "adjust_learning_rate")["norm.weight"] == 0.25
    assert in_optimizer(optimizer, "lr")["norm.weight"] == 0.125


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (config("AdamW"), "optimizer.AdamW: 'layer_decay' needs a learning rate"),
        (config("SGD"), "optimizer.SGD: 'layer_decay' needs a learning rate"),
        (config("SGD") | {"schedulers": [{"ConstantLR": {"learning_rate": 0.5}}]}, "optimizer.SGD: 'layer_decay' n"),
        (config("Muon", lr=1.0, adamw={}), "optimizer.Muon.adamw: 'layer_decay' needs a learning rate"),
        (config("AdamW", lr=1.0, layers="bloks.*"), r"optimizer.AdamW: layers='bloks.\*'.*'blocks.\*'"),
        (config("AdamW", lr=1.0, base_model="m"), "base_model"),
    ],
)
def test_errors_of_a_config(entry, message):
    with pytest.raises(ValueError, match=message):
        build(network(), entry)


def test_a_scheduler_by_name_knows_factors_that_were_applied():
    adjust = {"head.*": 0.5}
    optimizer = optim.AdamW(configure_param_groups(network(), lr=1.0, adjust_learning_rate=adjust))
    configure_lr_scheduler(optimizer, 0.5, adjust).step()
    assert in_optimizer(optimizer, "lr")["head.bias"] == 0.25


# Errors

OPTIONS = {"lr": 1.0, **DEPTH}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"layer_decay": 0.0}, ValueError, "layer_decay=0.0"),
        ({"layer_decay": 1.5}, ValueError, "layer_decay=1.5"),
        ({"layer_decay": math.nan}, ValueError, "layer_decay=nan"),
        ({"layer_decay": True}, TypeError, "layer_decay=True"),
        ({"layer_decay": "0.5"}, TypeError, "layer_decay='0.5'"),
        ({"layers": None}, ValueError, "layer_decay=0.5: it needs 'layers'"),
        ({"lr": None}, ValueError, "layer_decay=0.5: it needs 'lr'"),
        ({"layer_decay": None}, ValueError, r"layers='blocks.\*': only layer_decay uses it"),
        ({"layers": []}, ValueError, r"layers=\[\]: there is no glob"),
        ({"layers": 3}, TypeError, "layers=3"),
        ({"layers": [3]}, TypeError, "layers has 3"),
        ({"layers": "blocks"}, ValueError, "layers='blocks'"),
        ({"layers": "**"}, ValueError, r"layers='\*\*'"),
        ({"layers": "blocks.?*"}, ValueError, r"layers='blocks.\?\*'"),
        ({"layers": "blocks.[01]*"}, ValueError, r"layers='blocks.\[01\]\*'"),
        ({"layers": "block.*"}, ValueError, r"layers='block.\*': .* nearest globs are 'blocks.\*'"),
        ({"layers": ["blocks.*", "blocks.*.weight"]}, ValueError, "both match the parameter 'blocks.0.weight'"),
        ({"lr": -1.0}, ValueError, "lr=-1.0"),
        ({"lr": "1"}, TypeError, "lr='1'"),
        ({"lr": {"muon": -1.0}, "matrices": "muon"}, ValueError, r"lr\['muon'\]=-1.0"),
        ({"lr": {"muon": 1.0}}, ValueError, "lr=.*without matrices='muon'"),
    ],
)
def test_errors_name_the_argument(options, error, message):
    with pytest.raises(error, match=message):
        configure_param_groups(network(), **OPTIONS | options)
