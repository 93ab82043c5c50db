"""build: the optimizer and schedulers of a config, in the forms that are allowed, and what they do in training."""

import json
from collections import UserDict, UserList

import pytest
import torch

import optim
import timesched
from optim import lr_scheduler, weight_decay_scheduler
from optim.config import build, names
from tests.building import calls_by_file, values
from tests.optim.config.objects import DECAY, LINEAR, description, network, outline, train
from tests.optim.rows import FULLEST
from tests.optim.schedulers.building import RATES, name_of
from tests.optim.schedulers.building import make as make_scheduler
from tests.optim.schedulers.rows import EXAMPLES, Nested
from timesched import Clock, LinearScheduler, bind
from timesched.schedulers.schedule import Schedule

TRAINER = """
trainer:
  init:
    backend: {backend_type: CSX}
    seed: 1
    optimizer:
      SGD: {lr: 0.01, momentum: 0.9}  # comments are left alone
    schedulers:
    - SequentialLR:
        schedulers:
        - LinearLR: {initial_learning_rate: 0.01, end_learning_rate: 0.001, total_iters: 500}
        - CosineDecayLR: {initial_learning_rate: 0.001, end_learning_rate: 0.0, total_iters: 500}
  fit:
    ckpt_path: null
"""
TAGGED = """
optimizer:
  AdamW:
    lr: 1e-3
    weight_decay: 0.1
    betas: [0.9, 0.95]
    params:
    - params: "*bias"
      tags: bias_params
    - params: ["0.*", "1.weight"]
      tags: [first, early]
      eps: 1e-5
schedulers:
- SequentialLR:
    schedulers:
    - LinearLR: {initial_learning_rate: 0.0, end_learning_rate: 0.01, total_iters: 2}
    - CosineDecayLR: {initial_learning_rate: 0.01, end_learning_rate: 0.0, total_iters: 6}
- CosineDecayWD: {initial_val: 0.1, end_val: 0.0, total_iters: 8, param_group_tags: bias_params}
"""


def sgd(model):
    return optim.SGD(model.named_parameters(), lr=0.1)


def test_a_trainers_file():
    model, reference = network(), network()
    optimizer, schedulers = build(model, TRAINER)
    other = optim.SGD(reference.named_parameters(), lr=0.01, momentum=0.9)
    children = [lr_scheduler.LinearLR(other, 0.01, 0.001, 500), lr_scheduler.CosineDecayLR(other, 0.001, 0.0, 500)]
    same = lr_scheduler.SequentialLR(other, children, [500])
    assert outline(optimizer) == outline(other)
    assert list(map(description, schedulers)) == [description(same)]
    assert train(model, optimizer, schedulers) == train(reference, other, [same])


def test_tags_and_two_schedulers():
    model, reference = network(), network()
    built = build(model, TAGGED)
    optimizer, schedulers = built
    assert built.optimizer is optimizer and built.schedulers is schedulers and built.clock is None
    groups = [
        {"tags": {"first", "early"}, "param_names": ["0.weight"], "eps": 1e-5, "weight_decay": 0.1},
        {"tags": {"bias_params", "first", "early"}, "param_names": ["0.bias"], "eps": 1e-5, "weight_decay": 0.0},
        {"tags": {"first", "early"}, "param_names": ["1.weight"], "eps": 1e-5, "weight_decay": 0.0},
        {"tags": {"bias_params"}, "param_names": ["1.bias", "3.bias"], "weight_decay": 0.0},
        {"param_names": ["3.weight"], "weight_decay": 0.1},
    ]
    parameters = dict(reference.named_parameters())
    for group in groups:
        group["params"] = [(name, parameters[name]) for name in group.pop("param_names")]
    other = optim.AdamW(groups, lr=1e-3, weight_decay=0.1, betas=(0.9, 0.95))
    children = [lr_scheduler.LinearLR(other, 0.0, 0.01, 2), lr_scheduler.CosineDecayLR(other, 0.01, 0.0, 6)]
    both = [
        lr_scheduler.SequentialLR(other, children, [2]),
        weight_decay_scheduler.CosineDecayWD(other, 0.1, 0.0, 8, param_group_tags="bias_params"),
    ]
    assert outline(optimizer) == outline(other)
    assert list(map(description, schedulers)) == list(map(description, both))
    assert train(model, optimizer, schedulers, 8) == train(reference, other, both, 8)
    # the schedule takes the biases to 0, and norms stay at 0
    assert values(optimizer, "weight_decay") == [0.1, 0.0, 0.0, 0.0, 0.1] and values(optimizer) == [0.0] * 5


@pytest.mark.parametrize("optimizer", [{"SGD": {"lr": 0.1}}, {"sgd": {"lr": 0.1}}, lambda on: optim.SGD(on, lr=0.1)])
@pytest.mark.parametrize(
    "schedulers",
    [
        [{"LinearLR": LINEAR}],
        {"linearlr": LINEAR},
        [lambda optimizer: lr_scheduler.LinearLR(optimizer, **LINEAR)],
        lambda optimizer: lr_scheduler.LinearLR(optimizer, **LINEAR),
        None,
        [],
    ],
)
def test_forms_of_one_config(optimizer, schedulers):
    made, some = build(network().named_parameters(), {"optimizer": optimizer, "schedulers": schedulers})
    other = sgd(network())
    expected = [description(lr_scheduler.LinearLR(other, **LINEAR))] if schedulers else []
    assert list(map(description, some)) == expected and outline(made) == outline(other)


def test_mappings_and_lists_of_other_classes():
    """As OmegaConf's are."""
    decay = UserDict(LinearLR=UserDict(LINEAR))
    config = {"optimizer": UserDict(AdamW={"lr": 0.1, "betas": UserList([0.5, 0.75])}), "schedulers": UserList([decay])}
    optimizer, schedulers = build(network(), config)
    assert optimizer.param_groups[0]["betas"] == (0.5, 0.75)
    assert description(schedulers[0]) == description(lr_scheduler.LinearLR(sgd(network()), **LINEAR))


def entry(name, arguments):
    """A scheduler of the table in tests/optim/schedulers, as a config has it."""
    given = {RATES.get(key, key): value for key, value in arguments.items()}
    for key, value in given.items():
        if isinstance(value, Nested):
            given[key] = entry(*value)
        elif key == "schedulers":
            given[key] = [entry(*each) for each in value]
    return {name_of(name, "lr"): given}


@pytest.mark.parametrize("stem", sorted({*EXAMPLES} - {"Lambda"}))  # which is of functions
def test_each_scheduler_is_what_its_class_makes(stem):
    """And what was built is built again from its config, also as text."""
    rules = [{"params": "*bias", "adjust_learning_rate": 0.5}] if stem == "ScalePerParam" else []
    made = EXAMPLES[stem][-1]
    config = {"optimizer": {"SGD": {"lr": 0.5, "params": rules}}, "schedulers": [entry(stem, made)]}
    for given in (config, json.dumps(build(network(), config).config)):  # JSON is YAML
        optimizer, (scheduler,) = build(network(), given)
        other = optim.SGD(optim.configure_param_groups(network(), rules, no_decay=False), lr=0.5)
        expected = make_scheduler(stem, made, other)
        assert description(scheduler) == description(expected)
        for _ in range(9):
            scheduler.step(), expected.step()
            assert values(optimizer) == values(other)


STEP = {"initial_learning_rate": 0.1, "step_size": 2, "gamma": 0.5}
CHAIN = {"ChainedLR": {"schedulers": [{"LinearLR": LINEAR}, {"StepLR": STEP}]}}


def test_children_take_over_the_tags_of_their_parent():
    children = [{"LinearLR": LINEAR}, {"CosineDecayLR": LINEAR}]
    config = {
        "optimizer": {"SGD": {"lr": 0.7, "params": [{"params": "0.*", "tags": "a"}]}},
        "schedulers": [
            {"SequentialLR": {"schedulers": [*children, CHAIN], "param_group_tags": ["a"]}},
            {"ConstantLR": {"learning_rate": 0.3, "param_group_tags": [None]}},
        ],
    }
    optimizer, (sequence, _) = build(network(), config)
    assert values(optimizer) == [0.1, 0.3] and sequence.milestones == [10, 20]
    sequence.step()
    assert values(optimizer) == [pytest.approx(0.09, rel=1e-15), 0.3]  # one rounding of the formula
    config["schedulers"].pop()
    assert values(build(network(), config).optimizer) == [0.1, 0.7]  # nothing is written to the other groups


def test_scaled_sequences_and_factors():
    config = """
optimizer:
  SGD:
    lr: 1.0
    adjust_learning_rate: {"3.*": 0.5, LayerNorm: 2}
schedulers:
- ScalePerParamLR:
    scheduler:
      SequentialLR:
        schedulers: [{ConstantLR: {learning_rate: 0.4, total_iters: 3}}, {ConstantLR: {learning_rate: 0.2}}]
"""
    optimizer, (scheduler,) = build(network(), config)
    names = [group["param_names"] for group in optimizer.param_groups]
    assert names == [["0.weight", "0.bias"], ["1.weight", "1.bias"], ["3.weight", "3.bias"]]
    assert values(optimizer) == [0.4, 0.8, 0.2]
    for _ in range(3):
        scheduler.step()
    assert values(optimizer) == [0.2, 0.4, 0.1]


def test_a_scaled_phase_is_as_long_as_its_scheduler():
    line = {"LinearLR": {"initial_learning_rate": 0.0, "end_learning_rate": 1.0, "total_iters": 10}}
    phases = [{"ScalePerParamLR": {"scheduler": child}} for child in (line, {"ConstantLR": {"learning_rate": 0.5}})]
    config = {"optimizer": {"SGD": {"lr": 1.0}}, "schedulers": [{"SequentialLR": {"schedulers": phases}}]}
    assert build(network(), config).schedulers[0].milestones == [10]
    phases[0]["ScalePerParamLR"]["total_iters"] = 4  # its own length wins
    assert build(network(), config).schedulers[0].milestones == [4]


@pytest.mark.parametrize("depth", [{}, {"layer_decay": 0.5, "layers": "*"}])
def test_a_learning_rate_has_either_name_in_the_algorithms_of_muon(depth):
    optimizers = []
    for name in ("lr", "learning_rate"):
        entry = {"Muon": {name: 0.02, "output_head": "3.*", "adamw": {name: 3e-4}, **depth}}
        optimizers.append(build(network(), {"optimizer": entry}).optimizer)
    rates = [values(optimizer) for optimizer in optimizers]
    assert rates[0] == rates[1] and max(rates[0]) > 10 * min(rates[0])


def test_schedules_of_weight_decay_for_what_decays():
    model = network()
    model[3].requires_grad_(False)
    config = {
        "optimizer": {"AdamW": {"weight_decay": 0.1, "no_decay": True, "decay_tag": "decays", "frozen": False}},
        "schedulers": [{"LinearWD": {**DECAY, "param_group_tags": "decays"}}],
    }
    optimizer, (scheduler,) = build(model, config)
    for _ in range(5):
        scheduler.step()
    found = {name: group["weight_decay"] for group in optimizer.param_groups for name in group["param_names"]}
    assert found == {"0.weight": 0.05, "0.bias": 0.0, "1.weight": 0.0, "1.bias": 0.0}
    half = {"LinearScheduler": {"alpha_i": 0.5, "key": "weight_decay"}}
    multiplied = build(model, {**config, "schedulers": [half], "max_duration": "8ba"})  # 0 stays 0
    assert values(multiplied.optimizer, "weight_decay") == [0.05, 0.0]


@pytest.mark.parametrize("cls", [torch.optim.AdamW, optim.AdamW])
def test_instances_pass_through(cls):
    model, clock = network(), Clock("4ba")
    optimizer = cls(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.LinearLR(optimizer, 0.4, 0.0, 4)
    built = build(model, {"optimizer": optimizer, "schedulers": [scheduler, {"ConstantWD": {"val": 0.5}}]})
    assert built.optimizer is optimizer and built.schedulers[0] is scheduler
    train(model, optimizer, built.schedulers, 2)
    assert values(optimizer) == [0.2] and values(optimizer, "weight_decay") == [0.5]
    plain = torch.optim.lr_scheduler.StepLR(cls(network().parameters(), lr=0.1), 1, 0.5)
    bound = bind(LinearScheduler(), plain.optimizer, clock, key="eps")
    built = build(None, {"optimizer": plain.optimizer, "schedulers": [plain, bound]})
    assert built.schedulers == [plain, bound] and values(plain.optimizer) == [0.1]


# Names


def test_every_public_class_has_its_name():
    assert names.optimizers().public_classes.keys() == {row.name for row in FULLEST} | {"AdamBase"}
    schedules = {name for name in timesched.__all__ if isinstance(getattr(timesched, name), type)}
    schedules = {name for name in schedules if issubclass(getattr(timesched, name), Schedule)} - {"Schedule"}
    assert names.SCHEDULE.public_classes.keys() == schedules and len(schedules) > 20
    closed_forms = {*lr_scheduler.__all__, *weight_decay_scheduler.__all__} - {"LRScheduler", "WeightDecayScheduler"}
    assert names.CLOSED_FORM.public_classes.keys() == closed_forms
    assert names.LR.public_classes.keys() == set(lr_scheduler.__all__) - {"LRScheduler"}
    assert names.SCHEDULER.public_classes.keys() == closed_forms | schedules
    assert names.LR.public_classes["ChainedScheduler"] is names.LR.public_classes["ChainedLR"]


# Calls


def test_a_build_calls_few_functions():
    """A reader who follows a build meets these calls. The second build counts: the first reads each class once.

    The config itself needs about fifty calls for an optimizer and a schedule: to read the values, to resolve two
    entries, and to make two objects. The rest are the groups, the optimizer's states, the clock, and `bind`.
    """
    config = {
        "optimizer": {"AdamW": {"lr": 1e-3, "weight_decay": 0.1}},
        "schedulers": [{"CosineAnnealingWithWarmupScheduler": {"t_warmup": "10ba", "alpha_f": 0.1}}],
        "max_duration": "100ba",
    }
    build(network(), config)
    model = network()
    calls = calls_by_file(lambda: build(model, config))
    by_config = sum(count for file, count in calls.items() if file.startswith("optim/config/"))
    assert 0 < by_config <= 57
    assert by_config < sum(calls.values()) <= 550
