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


def weights():
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(4, 4, bias=False) for _ in range(3)))


def same(one, other):
    assert outline(other.optimizer) == outline(one.optimizer)
    assert list(map(description, other.schedulers)) == list(map(description, one.schedulers))


@pytest.mark.parametrize("row", OPTIMIZERS, ids=lambda row: row.id)
def test_optimizers(row):
    model, twin = weights(), weights()
    several = [{**group, "params": f"{i}.*"} for i, group in enumerate(row.groups)] if len(row.groups) > 1 else []
    built = build(model, {"optimizer": {row.name: {**row.kwargs, **({"params": several} if several else {})}}})
    optimizer, config = built.optimizer, to_config(built)
    again, none = both = build(twin, dumped(config))
    assert none == [] and outline(again) == outline(optimizer) and to_config(both) == config
    if not several:
        made = getattr(optim, row.name)(weights().named_parameters(), **row.kwargs)
        assert outline(build(weights(), dumped(to_config(made))).optimizer) == outline(made)
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
    model = torch.nn.ParameterDict({"w": torch.zeros(2)})
    built = build(model, {"optimizer": {"SGD": {"lr": 0.5, "params": {"params": "w", "tags": "a"}}}})
    optimizer = built.optimizer
    for tags in ({}, {"param_group_tags": "a"}, {"param_group_tags": ["a"]}):
        scheduler = make(row.stem, arguments, optimizer, family, **tags)
        config = to_config(built, [scheduler])
        again, (made,) = both = build(model, dumped(config))
        assert description(made) == description(scheduler)
        assert outline(again) == outline(optimizer) and to_config(both) == config
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
    clock = Clock("8ba")
    rule = {"params": "0.weight", "tags": "a", "weight_decay": 0.3}
    built = build(network(), {"optimizer": {"AdamW": {"lr": 0.5, "weight_decay": 0.1, "params": [rule]}}})
    optimizer = built.optimizer
    bound = bind(schedule, optimizer, clock, key, tags)
    config = to_config(built, [bound])
    again, (made,) = build(network(), dumped(config), clock=Clock("8ba"))
    assert outline(again) == outline(optimizer) and description(made) == description(bound)
    clock.tick(), bound.step()  # a value that has moved is not taken for the one it began with
    assert to_config(built, [bound]) == config
    whole = optim.AdamW(network().parameters(), lr=0.5, weight_decay=0.1)
    bound = bind(schedule, whole, clock, key)
    assert to_config(whole, [bound])["optimizer"] == {"AdamW": {"lr": 0.5, "weight_decay": 0.1}}


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
    for each in (built, again):
        train(network(), each.optimizer, each.schedulers, 3, each.clock)
    assert values(built.optimizer) == values(again.optimizer)
    assert to_config(built) == config  # what has moved is not written


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
    with pytest.raises(ValueError, match=r"SGD has 3 parameter groups, and build\(\) did not make that"):
        to_config(built)


def test_layer_types_become_names():
    entry = {"no_decay": [torch.nn.LayerNorm], "adjust_learning_rate": {torch.nn.Linear: 0.5}, "lr": 0.1}
    scaled = {"ScalePerParamLR": {"scheduler": {"ConstantLR": {"learning_rate": 0.2}}}}
    built = build(network(), {"optimizer": {"AdamW": entry}, "schedulers": [scaled]})
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
            "SGD has tags of its own in its parameter group, and build() did not make that: write",
        ),
        (
            lambda: (optim.SGD([{"params": [torch.zeros(1)], "momentum": 0.5, "more": 1}], **SGD), []),
            ValueError,
            "SGD has momentum, more of its own",
        ),
        (
            lambda: (optim.SGD([{"params": [("a", torch.zeros(1))]}, {"params": [("b", torch.zeros(1))]}], **SGD), []),
            ValueError,
            "SGD has 2 parameter groups, and build() did not make that",
        ),
        (lambda: apart(bind, LinearScheduler()), ValueError, "lr of its own"),
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


def apart(make_bound, schedule):
    """An optimizer whose learning rate was changed by hand before a schedule began to multiply it."""
    optimizer = optim.SGD([torch.zeros(1)], lr=0.1)
    optimizer.param_groups[0]["lr"] = 0.2
    return optimizer, [make_bound(schedule, optimizer, Clock("4ba"))]


def test_a_scheduler_that_is_not_passed():
    optimizer = optim.SGD([torch.zeros(1)], lr=0.1)
    rate = lr_scheduler.LinearLR(optimizer, 0.5, 0.0, 5)
    beta = bind(LinearScheduler(), optimizer, Clock("4ba"), "momentum")
    for passed, left in (([], "'lr'"), ([rate], "'momentum'"), ([beta], "'lr'")):
        with pytest.raises(
            ValueError, match=rf"A scheduler of {left} \(tags: None\) drives the optimizer, and was not"
        ):
            to_config(optimizer, passed)
    assert to_config(optimizer, [rate, beta])["optimizer"] == {"SGD": {"lr": 0.1}}


def scheduled(make_scheduler):
    optimizer = optim.SGD([torch.zeros(1)], lr=0.1)
    return optimizer, [make_scheduler(optimizer)]
