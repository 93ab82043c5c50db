"""Config in, objects, config out: for every optimizer and every scheduler, through YAML and back."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import optim
from optim import lr_scheduler, weight_decay_scheduler
from optim.building.describing import to_config
from optim.configure import build
from tests.optim.configure.objects import description, dumped, network, outline, train, values
from tests.optim.rows import ROWS as OPTIMIZERS
from tests.optim.schedulers.building import make
from tests.optim.schedulers.rows import BY_STEM, CASES
from timesched import (
    Clock,
    CosineAnnealingWithWarmupScheduler,
    LinearScheduler,
    MultiStepScheduler,
    ProductScheduler,
    SequenceScheduler,
    Time,
    bind,
)


def named(model, groups):
    """The parameters dealt out in turn, as the rows of the table are meant."""
    dealt = [{"params": [], **group} for group in groups]
    for i, pair in enumerate(model.named_parameters()):
        dealt[i % len(dealt)]["params"].append(pair)
    return dealt


def weights():
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(4, 4, bias=False) for _ in range(3)))


def same(one, other):
    assert outline(other.optimizer) == outline(one.optimizer)
    assert list(map(description, other.schedulers)) == list(map(description, one.schedulers))


@pytest.mark.parametrize("row", OPTIMIZERS, ids=lambda row: row.id)
def test_optimizers(row):
    model, twin = weights(), weights()
    groups = [{**group, "tags": f"group{i}"} for i, group in enumerate(row.groups)] if len(row.groups) > 1 else [{}]
    optimizer = getattr(optim, row.name)(named(model, groups), **row.kwargs)
    config = to_config(optimizer)
    again, none = build(twin, dumped(config))
    assert none == [] and outline(again) == outline(optimizer) and to_config(again) == config
    tensors = any(isinstance(value, torch.Tensor) for value in torch.utils._pytree.tree_leaves(row.kwargs))
    one, other = (step(m, o) for m, o in ((model, optimizer), (twin, again)))
    # A tensor is written as its number, which other kernels of torch work with: single precision then.
    assert one == pytest.approx(other, rel=1e-5) if tensors else one == other


def step(model, optimizer):
    inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = (model(inputs) - inputs).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_what_is_left_out_and_what_is_kept():
    made = optim.AdamW(network().parameters(), lr=0.1, betas=(0.9, 0.999), maximize=True, enable_global_step=True)
    assert to_config(made) == {"optimizer": {"AdamW": {"lr": 0.1, "maximize": True, "enable_global_step": True}}}
    config = {"optimizer": {"AdamW": {"lr": 0.001, "betas": [0.9, 0.999]}}}  # the defaults, but given
    assert to_config(build(network(), config)) == config
    assert to_config(build(network(), config).optimizer) == {"optimizer": {"AdamW": {}}}


@pytest.mark.parametrize("family", ["lr", "wd"])
@pytest.mark.parametrize("row, arguments", [case for case in CASES if "functions" not in case[1]])
def test_schedulers(row, arguments, family):
    optimizer = optim.SGD([{"params": [("w", torch.zeros(2))], "tags": "a"}], lr=0.5)
    for tags in ({}, {"param_group_tags": "a"}, {"param_group_tags": ["a"]}):
        scheduler = make(row.stem, arguments, optimizer, family, **tags)
        config = to_config(optimizer, [scheduler])
        model = torch.nn.ParameterDict({"w": torch.zeros(2)})
        again, (made,) = build(model, dumped(config))
        assert description(made) == description(scheduler)
        assert outline(again) == outline(optimizer) and to_config(again, [made]) == config
        scheduler.unbind()


@given(st.sampled_from([row for row in BY_STEM.values() if row.stem != "Lambda"]), st.data())
@settings(max_examples=100)
def test_any_arguments(row, data):
    optimizer = optim.SGD([torch.zeros(2)], lr=0.5)
    scheduler = make(row.stem, data.draw(row.drawn), optimizer)
    config = to_config(optimizer, [scheduler])
    (made,) = build(torch.nn.ParameterDict({"w": torch.zeros(2)}), json.loads(json.dumps(config))).schedulers
    assert description(made) == description(scheduler)


SCHEDULES = [
    LinearScheduler(),
    LinearScheduler(1.0, 0.25, "0.5dur"),
    CosineAnnealingWithWarmupScheduler("0.1dur", "1dur", alpha_f=0.1, scale_warmup=True),
    MultiStepScheduler(["2ba", "0.5dur"], gamma=0.3),
    ProductScheduler([LinearScheduler(), MultiStepScheduler(["3ba"])]),
    SequenceScheduler(
        [LinearScheduler(0.0, 1.0, "2ba"), ProductScheduler([LinearScheduler(1.0, 0.5, "3ba")])], ["2ba"]
    ),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: type(schedule).__name__)
@pytest.mark.parametrize("key", ["lr", "weight_decay", "betas[1]"])
@pytest.mark.parametrize("tags", [None, "a", [None]])
def test_bound_schedules(schedule, key, tags):
    model, clock = network(), Clock("8ba")
    groups = [{"params": [("0.weight", model[0].weight)], "tags": "a", "weight_decay": 0.3}, {"params": []}]
    groups[1]["params"] = [pair for pair in model.named_parameters() if pair[0] != "0.weight"]
    optimizer = optim.AdamW(groups, lr=0.5, weight_decay=0.1)
    bound = bind(schedule, optimizer, clock, key, tags)
    config = to_config(optimizer, [bound])
    again, (made,) = build(network(), dumped(config), clock=Clock("8ba"))
    assert outline(again) == outline(optimizer) and description(made) == description(bound)
    clock.tick(), bound.step()  # a value that has moved is not taken for the one it began with
    assert to_config(optimizer, [bound]) == config


def test_a_whole_config():
    text = """
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
max_duration: 2ep
batches_per_epoch: 4
"""
    built = build(network(), text)
    config = to_config(built)
    again = build(network(), dumped(config))
    same(built, again)
    assert to_config(again) == config and again.clock.max_duration == built.clock.max_duration
    assert config["optimizer"]["AdamW"]["params"] == [
        {"params": ["0.*", "1.*"], "tags": ["b", "a"], "betas": [0.5, 0.9]},
        {"params": "*bias", "tags": "c"},
    ]
    first = outline(built.optimizer)
    for each in (built, again):
        train(network(), each.optimizer, each.schedulers, 3, each.clock)
    assert values(built.optimizer) == values(again.optimizer)
    assert to_config(built) == config  # what has moved is not written
    from_objects = build(network(), dumped({**to_config(built.optimizer, built.schedulers), "max_duration": "8ba"}))
    assert outline(from_objects.optimizer) == first
    assert list(map(description, from_objects.schedulers)) == list(map(description, again_from(config)))


def again_from(config):
    return build(network(), config).schedulers


def test_groups_made_by_hand():
    model = torch.nn.ParameterDict(
        {"w*": torch.zeros(2), "w[0]": torch.zeros(2), "ww": torch.zeros(2), "x?": torch.zeros(2)}
    )
    pairs = list(model.named_parameters())
    groups = [
        {"params": [pairs[0]], "tags": "star", "lr": 0.25},
        {"params": [pairs[1]], "tags": {"b", "a"}},
        {"params": [pairs[2]]},
        {"params": [pairs[3]], "betas": (0.5, 0.6), "adjust_learning_rate": 2.0},
    ]
    optimizer = optim.AdamW(groups, lr=0.1)
    rate = lr_scheduler.ConstantLR(optimizer, 0.7, param_group_tags="star")
    beta = bind(LinearScheduler(1.0, 0.5), optimizer, Clock("4ba"), "betas[0]")
    config = to_config(optimizer, [rate, beta])
    again, _ = build(model, dumped(config), clock=Clock("4ba"))
    assert [group["param_names"] for group in again.param_groups] == [["w*"], ["w[0]"], ["ww"], ["x?"]]
    assert [group.get("tags") for group in again.param_groups] == [{"star"}, {"a", "b"}, None, None]
    assert values(again) == [0.7, 0.1, 0.1, 0.1] and again.param_groups[3]["betas"] == (0.5, 0.6)
    assert again.param_groups[3]["adjust_learning_rate"] == 2.0
    assert config["optimizer"]["AdamW"]["params"][0] == {
        "params": ["w[*]"],
        "tags": ["star"],
    }  # the lr is the scheduler's


def test_schedulers_that_were_stepped():
    optimizer = optim.SGD(network().named_parameters(), lr=0.5, weight_decay=0.25)
    both = [lr_scheduler.LinearLR(optimizer, 0.1, 0.0, 4), weight_decay_scheduler.LinearWD(optimizer, 0.1, 0.0, 4)]
    config = to_config(optimizer, both)
    for scheduler in both:
        scheduler.step()
    optimizer.compile()
    assert to_config(optimizer, both) == config
    assert config["optimizer"] == {"SGD": {"lr": 0.5, "weight_decay": 0.25}}


def test_times_become_texts():
    clock = Clock("8ba")
    optimizer = optim.SGD(network().named_parameters(), lr=0.5)
    scheduler = lr_scheduler.LinearLR(optimizer, 0.1, 0.0, Time(3, "ba"), clock=clock)
    assert to_config(optimizer, [scheduler])["schedulers"][0]["LinearLR"]["total_iters"] == "3ba"


def test_a_group_added_after_the_build():
    built = build(network(), {"optimizer": {"SGD": {"lr": 0.1, "params": [{"params": "*bias", "tags": "b"}]}}})
    built.optimizer.add_param_group({"params": [("more", torch.zeros(2))], "tags": "more"})
    rules = to_config(built)["optimizer"]["SGD"]["params"]
    assert rules[1] == {"params": ["more"], "tags": ["more"]}


def test_layer_types_become_names():
    entry = {"no_decay": [torch.nn.LayerNorm], "adjust_learning_rate": {torch.nn.Linear: 0.5}, "lr": 0.1}
    built = build(network(), {"optimizer": {"AdamW": entry}})
    config = to_config(built)
    assert config["optimizer"]["AdamW"]["no_decay"] == ["LayerNorm"]
    assert config["optimizer"]["AdamW"]["adjust_learning_rate"] == {"Linear": 0.5}
    same(built, build(network(), dumped(config)))


SGD = {"lr": 0.1}


@pytest.mark.parametrize(
    "make_both, error, message",
    [
        (lambda: (3, []), TypeError, "optimizer=3: pass what build() returned"),
        (
            lambda: (torch.optim.SGD([torch.zeros(1)], **SGD), []),
            ValueError,
            "torch.optim.sgd.SGD is no optimizer that",
        ),
        (
            lambda: (optim.SGD([{"params": [torch.zeros(1)], "tags": "a"}], **SGD), []),
            ValueError,
            "Parameter group 0 has 'tags' of its own, and no names of its parameters",
        ),
        (
            lambda: (optim.SGD([{"params": [("a", torch.zeros(1))]}, {"params": [("b", torch.zeros(1))]}], **SGD), []),
            ValueError,
            "Parameter groups 0 and 1 have the same tags and values",
        ),
        (lambda: scheduled(lambda o: torch.optim.lr_scheduler.StepLR(o, 2)), TypeError, "schedulers[0]=<torch"),
        (lambda: scheduled(lambda o: bind([LinearScheduler()] * 2, o, Clock("4ba"))), ValueError, "several schedules"),
        (lambda: scheduled(lambda o: bind(lambda state: 0.5, o, Clock("4ba"))), ValueError, "is bound to functions"),
    ],
)
def test_what_no_config_says(make_both, error, message):
    optimizer, schedulers = make_both()
    with pytest.raises(error) as raised:
        to_config(optimizer, schedulers)
    assert message in str(raised.value)


def scheduled(make_scheduler):
    optimizer = optim.SGD([torch.zeros(1)], lr=0.1)
    return optimizer, [make_scheduler(optimizer)]
