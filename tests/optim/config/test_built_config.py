"""Built.config: the config that was read, in plain data. It builds the same again, also after YAML and JSON."""

import json

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import optim
from optim import lr_scheduler
from optim.config import build
from tests.optim.config.objects import description, dumped, network, outline, train, values
from tests.optim.rows import ROWS as OPTIMIZERS
from tests.optim.schedulers.building import RATES, make, name_of
from tests.optim.schedulers.rows import BY_STEM, CASES, Nested
from timesched import (
    Clock,
    CooldownScheduler,
    CosineAnnealingWithWarmupScheduler,
    LinearScheduler,
    MultiStepScheduler,
    PiecewiseScheduler,
    PowerScheduler,
    ProductScheduler,
    SequenceScheduler,
    StepScheduler,
    Time,
    WarmupScheduler,
    WarmupStableDecayScheduler,
    bind,
)


def same(one, other):
    """The same groups, state and schedules; `other` was built later, from the config of `one`."""
    assert outline(other.optimizer) == outline(one.optimizer)
    states = [list(built.optimizer.state_dict()["state"].values()) for built in (one, other)]
    torch.testing.assert_close(*states, rtol=0.0, atol=0.0)
    assert list(map(description, other.schedulers)) == list(map(description, one.schedulers))
    assert (other.clock and other.clock.state_dict()) == (one.clock and one.clock.state_dict())


def again(built, model=network):
    """The same built twice more: from its config, and from the text of it."""
    for config in (built.config, dumped(built.config), json.loads(json.dumps(built.config))):
        other = build(model(), config)
        same(built, other)
        assert other.config == built.config
    return other


def weights():
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(4, 4, bias=False) for _ in range(3)))


@pytest.mark.parametrize("row", OPTIMIZERS, ids=lambda row: row.id)
def test_optimizers(row):
    several = [{**group, "params": f"{i}.*"} for i, group in enumerate(row.groups)] if len(row.groups) > 1 else []
    model, reference = weights(), weights()
    one = build(model, {"optimizer": {row.name: {**row.kwargs, **({"params": several} if several else {})}}})
    if any(isinstance(value, torch.Tensor) for value in torch.utils._pytree.tree_leaves((row.kwargs, several))):
        same(one, build(weights(), one.config))  # a tensor stays one, which no text holds
    else:
        again(one, weights)
    inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    for built, trained in ((one, model), (build(reference, one.config), reference)):
        for _ in range(2):
            built.optimizer.zero_grad()
            (trained(inputs) - inputs).square().mean().backward()
            built.optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), reference.parameters()))


def entry(stem, given, family, **more):
    """The entry of a config for a row of the table of schedulers; `more` is for the outermost."""
    arguments = {}
    for key, value in given.items():
        if isinstance(value, Nested):
            arguments[key] = entry(*value, family)
        elif key == "schedulers":
            arguments[key] = [entry(*each, family) for each in value]
        else:
            arguments[RATES.get(key, key) if family == "lr" else key] = value
    return {name_of(stem, family): {**arguments, **more}}


TAGGED = {"SGD": {"lr": 0.5, "params": {"params": "w", "tags": "a"}}}


def parameter():
    return torch.nn.ParameterDict({"w": torch.zeros(2)})


@pytest.mark.parametrize("family", ["lr", "wd"])
@pytest.mark.parametrize("row, arguments", [case for case in CASES if "functions" not in case[1]])
def test_schedulers(row, arguments, family):
    for tags in ({}, {"param_group_tags": "a"}, {"param_group_tags": ["a"]}):
        built = build(parameter(), {"optimizer": TAGGED, "schedulers": [entry(row.stem, arguments, family, **tags)]})
        made = make(row.stem, arguments, build(parameter(), {"optimizer": TAGGED}).optimizer, family, **tags)
        assert description(built.schedulers[0]) == description(made)
        again(built, parameter)


@given(st.sampled_from([row for row in BY_STEM.values() if row.stem != "Lambda"]), st.data())
@settings(max_examples=100)
def test_any_arguments(row, data):
    config = {"optimizer": {"SGD": {"lr": 0.5}}, "schedulers": [entry(row.stem, data.draw(row.drawn), "lr")]}
    again(build(parameter(), config), parameter)


TEXT = """
optimizer:
  AdamW:
    lr: 0.5
    weight_decay: 0.1
    params:
    - {params: ["0.*", "1.*"], tags: [b, a], betas: [0.5, 0.9]}
    - {params: "*bias", tags: c}
    no_decay: true
    decay_tag: decays
    adjust_learning_rate: {Linear: 0.5}
schedulers:
- ScalePerParamLR:
    scheduler:
      SequentialLR:
        schedulers:
        - LinearLR: {initial_learning_rate: 0.0, end_learning_rate: 0.1, total_iters: 0.25dur}
        - ChainedLR:
            schedulers:
            - CosineDecayLR: {initial_learning_rate: 0.1, end_learning_rate: 0.0, total_iters: 6ba}
            - StepLR: {initial_learning_rate: 1.0, step_size: 2ba, gamma: 0.5}
        milestones: [0.25dur]
    param_group_tags: [a, null]
- LinearScheduler: {alpha_f: 0.5, key: weight_decay, param_group_tags: decays}
- ProductScheduler:
    schedules: [LinearScheduler, {MultiStepScheduler: {milestones: [3ba]}}]
    key: betas[1]
    param_group_tags: c
max_duration: 2ep
batches_per_epoch: 4
"""


def test_a_whole_config():
    built = build(network(), TEXT)
    other = again(built)
    before = json.dumps(built.config)
    for each in (built, other):
        train(network(), each.optimizer, each.schedulers, 3, each.clock)
    assert values(built.optimizer) == values(other.optimizer)
    assert json.dumps(built.config) == before  # what has moved is not in it
    same(build(network(), TEXT), build(network(), built.config))


def test_the_config_of_a_trainer():
    built = build(network(), {"trainer": {"init": {"backend": {"cluster": None}, "optimizer": {"SGD": {"lr": 0.1}}}}})
    assert built.config["trainer"]["init"]["backend"] == {"cluster": None}
    again(built)


def test_other_types_become_plain():
    tagged, factors = {"param_group_tags": "decays"}, {"Linear": 0.5}
    config = {
        "optimizer": {
            "AdamW": {
                "lr": numpy.float64(0.1),
                "betas": (0.9, 0.95),
                "no_decay": [torch.nn.LayerNorm],
                "decay_tag": "decays",
                "adjust_learning_rate": {torch.nn.Linear: 0.5},
            }
        },
        "schedulers": (
            {"ScalePerParamLR": {"scheduler": {"MultiStepLR": dict(STEPS, milestones=(Time(1, "ba"), "0.5dur"))}}},
            {"StepWD": {"initial_val": 0.5, "step_size": numpy.int64(2), "gamma": 0.5, **tagged}},
            {"LinearScheduler": {"key": "eps", "t_max": Time(3, "ba")}},
        ),
        "max_duration": Time(8, "ba"),
    }
    built = build(network(), config)
    optimizer = {"lr": 0.1, "betas": [0.9, 0.95], "no_decay": ["LayerNorm"], "decay_tag": "decays"}
    assert built.config == {
        "optimizer": {"AdamW": {**optimizer, "adjust_learning_rate": factors}},
        "schedulers": [
            {"ScalePerParamLR": {"scheduler": {"MultiStepLR": dict(STEPS, milestones=["1ba", "0.5dur"])}}},
            {"StepWD": {"initial_val": 0.5, "step_size": 2, "gamma": 0.5, **tagged}},
            {"LinearScheduler": {"key": "eps", "t_max": "3ba"}},
        ],
        "max_duration": "8ba",
    }
    again(built)


STEPS = {"initial_learning_rate": 0.1, "gamma": 0.5}


def test_objects_stay():
    """Nothing could stand for a function or a tensor: the config has it, and builds the same again."""
    rate, clock = torch.tensor(0.25, dtype=torch.float64), Clock("4ba")

    def scheduler(optimizer):
        return lr_scheduler.LinearLR(optimizer, 0.5, 0.0, 4)

    entries = [scheduler, LinearScheduler()]
    for each in entries:
        built = build(network(), {"optimizer": {"SGD": {"lr": rate}}, "schedulers": [each]}, clock)
        assert built.config["schedulers"] == [each] and built.config["optimizer"]["SGD"]["lr"] is rate
        assert isinstance(built.optimizer.param_groups[0]["lr"], torch.Tensor)
        same(built, build(network(), built.config, clock))


def test_schedules_as_objects_inside_an_entry():
    line = LinearScheduler()
    config = {"optimizer": {"SGD": {"lr": 0.5}}, "schedulers": [{"ProductScheduler": {"schedules": [line, line]}}]}
    clock = Clock("4ba")
    built = build(network(), config, clock)
    clock.tick(), built.schedulers[0].step()
    assert values(built.optimizer) == [0.5 * 0.75**2]
    assert built.config["schedulers"] == [{"ProductScheduler": {"schedules": [line, line]}}]


def test_the_config_is_a_copy():
    config = {"optimizer": {"AdamW": {"betas": [0.5, 0.9]}}, "schedulers": []}
    built = build(network(), config)
    config["optimizer"]["AdamW"]["betas"].append(1.0)
    assert built.config == {"optimizer": {"AdamW": {"betas": [0.5, 0.9]}}, "schedulers": []}
    built.optimizer.add_param_group({"params": [("more", torch.zeros(2))], "tags": "more"})
    assert type(build(network(), built.config).optimizer) is optim.AdamW


POWER = {"PowerScheduler": {"t_scale": "3ba"}}
SCHEDULES = [
    ({"LinearScheduler": {}}, LinearScheduler()),
    ({"LinearScheduler": {"alpha_i": 1.0, "alpha_f": 0.25, "t_max": "0.5dur"}}, LinearScheduler(1.0, 0.25, "0.5dur")),
    (
        {"CosineAnnealingWithWarmupScheduler": {"t_warmup": "0.1dur", "alpha_f": 0.1, "scale_warmup": True}},
        CosineAnnealingWithWarmupScheduler("0.1dur", "1dur", alpha_f=0.1, scale_warmup=True),
    ),
    (
        {"MultiStepScheduler": {"milestones": ["2ba", "0.5dur"], "gamma": 0.3}},
        MultiStepScheduler(["2ba", "0.5dur"], 0.3),
    ),
    (
        {
            "SequenceScheduler": {
                "schedules": [
                    {"LinearScheduler": {"alpha_i": 0.0, "alpha_f": 1.0, "t_max": "2ba"}},
                    {"ProductScheduler": {"schedules": ["LinearScheduler", {"StepScheduler": {"step_size": "3ba"}}]}},
                ],
                "milestones": ["2ba"],
            }
        },
        SequenceScheduler(
            [LinearScheduler(0.0, 1.0, "2ba"), ProductScheduler([LinearScheduler(), StepScheduler("3ba")])], ["2ba"]
        ),
    ),
    (
        {
            "CooldownScheduler": {
                "schedule": {"WarmupScheduler": {"schedule": POWER, "t_warmup": "2ba"}},
                "t_decay": "2ba",
            }
        },
        CooldownScheduler(WarmupScheduler(PowerScheduler("3ba"), "2ba"), "2ba"),
    ),
    (
        {"PiecewiseScheduler": {"points": [["0ba", 0.25], ["2ba", 1.0, "geometric"], ["0.5dur", 0.5]]}},
        PiecewiseScheduler([["0ba", 0.25], ["2ba", 1.0, "geometric"], ["0.5dur", 0.5]]),
    ),
    (
        {"WarmupStableDecayScheduler": {"t_warmup": "2ba", "t_decay": "0.25dur", "decay": "1-sqrt"}},
        WarmupStableDecayScheduler("2ba", "0.25dur", decay="1-sqrt"),
    ),
]


@pytest.mark.parametrize("written, schedule", SCHEDULES, ids=[type(schedule).__name__ for _, schedule in SCHEDULES])
@pytest.mark.parametrize("key", ["lr", "weight_decay", "betas[1]"])
@pytest.mark.parametrize("tags", [None, "a", [None]])
def test_bound_schedules(written, schedule, key, tags):
    rule = {"params": "0.weight", "tags": "a", "weight_decay": 0.3}
    optimizer = {"optimizer": {"AdamW": {"lr": 0.5, "weight_decay": 0.1, "params": [rule]}}}
    ((name, arguments),) = written.items()
    whole = {name: {**arguments, "key": key, **({} if tags is None else {"param_group_tags": tags})}}
    built = build(network(), {**optimizer, "schedulers": [whole], "max_duration": "8ba"})
    other, clock = build(network(), optimizer).optimizer, Clock("8ba")
    bound = bind(schedule, other, clock, key, tags)
    assert outline(built.optimizer) == outline(other) and description(built.schedulers[0]) == description(bound)
    again(built)
    for each, run in ((built.schedulers[0], built.clock), (bound, clock)):
        run.tick(), run.tick(), run.tick(), each.step()
    assert outline(built.optimizer) == outline(other)


@pytest.mark.parametrize("factor", [numpy.float32(0.1), numpy.float16(0.1), 0.1])
def test_factors_of_any_precision(factor):
    rule = {"params": "3.*", "adjust_val": factor}
    optimizer = {"lr": 1.0, "adjust_learning_rate": {"LayerNorm": factor}, "params": [rule]}
    scaled = {"ScalePerParamLR": {"scheduler": {"ConstantLR": {"learning_rate": 0.5}}}}
    built = build(network(), {"optimizer": {"SGD": optimizer}, "schedulers": [scaled]})
    assert values(built.optimizer) == [0.5, 0.05, 0.05]
    same(built, build(network(), built.config))


@pytest.mark.parametrize("steps", [range(1, 4), numpy.array([1, 2, 3]), (1, numpy.int64(2), 3.0)], ids=str)
def test_lists_of_any_kind(steps):
    built = build(parameter(), {"optimizer": TAGGED, "schedulers": [{"MultiStepLR": dict(STEPS, milestones=steps)}]})
    made = lr_scheduler.MultiStepLR(build(parameter(), {"optimizer": TAGGED}).optimizer, **STEPS, milestones=[1, 2, 3])
    assert description(built.schedulers[0]) == description(made)
    same(built, build(parameter(), built.config))
