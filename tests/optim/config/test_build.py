"""build: the optimizer and schedulers of a config, in the forms that are allowed, and what they do in training."""

import pytest
import torch

import optim
from optim import lr_scheduler, weight_decay_scheduler
from optim.config import build
from tests.optim.config.objects import description, network, outline, train, values

DOCUMENTED = """
trainer:
  init:
    backend: {backend_type: CSX}
    seed: 1
    optimizer:
      SGD:                       # comments are left alone
        lr: 0.01
        momentum: 0.9
    schedulers:
    - SequentialLR:
        schedulers:
        - LinearLR:
            initial_learning_rate: 0.01
            end_learning_rate: 0.001
            total_iters: 500
        - CosineDecayLR:
            initial_learning_rate: 0.001
            end_learning_rate: 0.0
            total_iters: 500
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


def test_the_documented_example():
    model, reference = network(), network()
    optimizer, schedulers = build(model, DOCUMENTED)
    other = optim.SGD(reference.named_parameters(), lr=0.01, momentum=0.9)
    same = lr_scheduler.SequentialLR(
        other,
        [lr_scheduler.LinearLR(other, 0.01, 0.001, 500), lr_scheduler.CosineDecayLR(other, 0.001, 0.0, 500)],
        [500],
    )
    assert outline(optimizer) == outline(other)
    assert len(schedulers) == 1 and description(schedulers[0]) == description(same)
    assert train(model, optimizer, schedulers) == train(reference, other, [same])


def test_tags_and_two_schedulers():
    model, reference = network(), network()
    built = build(model, TAGGED)
    optimizer, schedulers = built
    assert built.optimizer is optimizer and built.schedulers is schedulers and built.clock is None
    tags = [(group.get("tags"), group["param_names"], group["eps"]) for group in optimizer.param_groups]
    assert tags == [
        ({"first", "early"}, ["0.weight", "1.weight"], 1e-5),
        ({"bias_params", "first", "early"}, ["0.bias"], 1e-5),
        ({"bias_params"}, ["1.bias", "3.bias"], 1e-6),
        (None, ["3.weight"], 1e-6),
    ]
    names = dict(reference.named_parameters())
    groups = [
        {"params": [(name, names[name]) for name in names_of], "eps": eps, **({"tags": some} if some else {})}
        for some, names_of, eps in tags
    ]
    other = optim.AdamW(groups, lr=1e-3, weight_decay=0.1, betas=(0.9, 0.95))
    parts = [lr_scheduler.LinearLR(other, 0.0, 0.01, 2), lr_scheduler.CosineDecayLR(other, 0.01, 0.0, 6)]
    both = [
        lr_scheduler.SequentialLR(other, parts, [2]),
        weight_decay_scheduler.CosineDecayWD(other, 0.1, 0.0, 8, param_group_tags="bias_params"),
    ]
    assert outline(optimizer) == outline(other)
    assert list(map(description, schedulers)) == list(map(description, both))
    assert train(model, optimizer, schedulers, 8) == train(reference, other, both, 8)
    assert values(optimizer, "weight_decay") == [0.1, 0.0, 0.0, 0.1] and values(optimizer) == [0.0] * 4


LINEAR = {"initial_learning_rate": 0.1, "end_learning_rate": 0.0, "total_iters": 10}


@pytest.mark.parametrize(
    "optimizer",
    [
        {"SGD": {"lr": 0.1}},
        {"sgd": {"lr": 0.1}},
        {"optim.sgd.SGD": {"lr": 0.1}},
        {"optimizer_type": "SGD", "lr": 0.1},
        lambda model: optim.SGD(model.named_parameters(), lr=0.1),
    ],
)
@pytest.mark.parametrize(
    "schedulers",
    [
        [{"LinearLR": LINEAR}],
        ({"linearlr": LINEAR},),
        {"LinearLR": LINEAR},
        [{"scheduler": "LinearLR", **LINEAR}],
        [lambda optimizer: lr_scheduler.LinearLR(optimizer, **LINEAR)],
        lambda optimizer: lr_scheduler.LinearLR(optimizer, **LINEAR),
    ],
)
def test_forms_of_one_config(optimizer, schedulers):
    config = {"optimizer": optimizer, "schedulers": schedulers}
    made, some = build(network(), config)
    other = optim.SGD(network().named_parameters(), lr=0.1)
    assert description(some[0]) == description(lr_scheduler.LinearLR(other, **LINEAR))
    assert outline(made) == outline(other)


@pytest.mark.parametrize("optimizer", ["AdamW", {"AdamW": None}, {"AdamW": {}}, {"optimizer_type": "AdamW"}])
@pytest.mark.parametrize("rest", [{}, {"schedulers": None}, {"schedulers": []}])
def test_an_optimizer_alone(optimizer, rest):
    made, schedulers = build(network(), {"optimizer": optimizer, **rest})
    assert outline(made) == outline(optim.AdamW(network().named_parameters())) and schedulers == []


def test_a_scheduler_without_arguments():
    config = {"optimizer": "AdamW", "schedulers": ["InverseSquareRootDecayLR"]}
    assert build(network(), config).schedulers[0].values(2) == [1.0, 1.0]


def test_the_config_is_not_changed():
    def config():
        return {
            "optimizer": {"AdamW": {"betas": [0.5, 0.9], "params": [{"params": ["*bias"], "tags": ["b"]}]}},
            "schedulers": [
                {"SequentialLR": {"schedulers": [{"LinearLR": dict(LINEAR)}, {"ConstantLR": {"learning_rate": 0.1}}]}}
            ],
        }

    given = config()
    build(network(), given)
    assert given == config()


def test_parts_take_over_the_tags_of_the_whole():
    parts = [{"LinearLR": LINEAR}, {"CosineDecayLR": LINEAR}]
    chain = {"ChainedLR": {"schedulers": parts}}
    config = {
        "optimizer": {"SGD": {"lr": 0.7, "params": [{"params": "0.*", "tags": "a"}]}},
        "schedulers": [
            {"SequentialLR": {"schedulers": [*parts, chain], "param_group_tags": ["a"]}},
            {"ConstantLR": {"learning_rate": 0.3, "param_group_tags": [None]}},
        ],
    }
    optimizer, (sequence, _) = build(network(), config)
    assert values(optimizer) == [0.1, 0.3] and sequence.milestones == [10, 20]
    assert sequence.schedulers[2].schedulers[1].param_group_tags == ["a"]
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
    assert values(optimizer) == [0.4, 0.8, 0.2] and scheduler.scheduler.milestones == [3]
    for _ in range(3):
        scheduler.step()
    assert values(optimizer) == [0.2, 0.4, 0.1]


BY_HALF = {"LinearScheduler": {"alpha_i": 0.5, "key": "weight_decay"}}


def test_weight_decay_is_split_only_where_the_config_says_so():
    whole, _ = build(network(), {"optimizer": {"AdamW": {"weight_decay": 0.1}}})
    assert values(whole, "weight_decay") == [0.1]
    config = {
        "optimizer": {"AdamW": {"weight_decay": 0.1, "no_decay": True, "decay_tag": "decays"}},
        "schedulers": [{"LinearWD": {"initial_val": 0.1, "end_val": 0.0, "total_iters": 2}}],
    }
    for tags in (None, [None]):
        config["schedulers"][0]["LinearWD"]["param_group_tags"] = tags
        with pytest.raises(
            ValueError, match=r"schedulers\[0\]: it would give weight decay .* group 1 \(0\.bias.*decay_tag"
        ):
            build(network(), config)
    by_hand = {**config, "schedulers": [lambda made: weight_decay_scheduler.ConstantWD(made, 0.3)]}
    with pytest.raises(ValueError, match=r"schedulers\[0\]: it would give weight decay to parameter group 1"):
        build(network(), by_hand)
    multiplied = build(network(), {**config, "schedulers": [BY_HALF], "max_duration": "8ba"})  # 0 stays 0
    assert values(multiplied.optimizer, "weight_decay") == [0.05, 0.0]
    config["schedulers"][0]["LinearWD"]["param_group_tags"] = "decays"
    optimizer, (scheduler,) = build(network(), config)
    scheduler.step()
    found = {name: group["weight_decay"] for group in optimizer.param_groups for name in group["param_names"]}
    assert {name for name, decay in found.items() if decay == 0.05} == {"0.weight", "3.weight"}
    assert {name for name, decay in found.items() if decay == 0.0} == {"0.bias", "1.weight", "1.bias", "3.bias"}


def test_frozen_parameters():
    model = network()
    model[0].requires_grad_(False)
    optimizer, _ = build(model, {"optimizer": {"AdamW": {"frozen": False}}})
    assert optimizer.param_groups[0]["param_names"] == ["1.weight", "1.bias", "3.weight", "3.bias"]


def test_named_parameters_for_a_model():
    config = {"optimizer": {"SGD": {"lr": 0.1, "params": [{"params": "*bias", "tags": "b"}]}}}
    one, other = build(network(), config).optimizer, build(network().named_parameters(), config).optimizer
    assert outline(one) == outline(other)


def test_one_graph_for_what_a_config_builds():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = network()
    optimizer, schedulers = build(model, TAGGED)
    optimizer.hold_tensors()

    @torch.compile(backend="eager", fullgraph=True)
    def step():
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()

    for p in model.parameters():
        p.grad = torch.ones_like(p)
    for _ in range(4):
        step()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert values(optimizer) == [pytest.approx(0.0075, rel=1e-12)] * 4  # step 2 of 6 of the cosine
