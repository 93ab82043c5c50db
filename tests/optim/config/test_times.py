"""build: schedules over times, counts that are times, and the lengths of sequences made of them."""

from dataclasses import fields

import pytest

import timesched as ts
from optim.config import build
from tests.building import values
from tests.optim.config.objects import LINEAR, description, network, outline, train
from timesched import Clock, bind

SCHEDULES = [
    ("lr", None, ts.LinearScheduler()),
    ("lr", "a", ts.LinearScheduler(1.0, 0.25, "0.5dur")),
    ("weight_decay", [None], ts.CosineAnnealingWithWarmupScheduler("0.1dur", alpha_f=0.1, scale_warmup=True)),
    ("betas[1]", "a", ts.SequenceScheduler([ts.LinearScheduler(t_max="2ba"), ts.StepScheduler("3ba")], ["2ba"])),
    ("lr", None, ts.CooldownScheduler(ts.WarmupScheduler(ts.PowerScheduler("3ba"), "2ba"), "2ba")),
    ("lr", None, ts.ProductScheduler([ts.LinearScheduler(), ts.StepScheduler("3ba")])),
    ("weight_decay", None, ts.PiecewiseScheduler([["0ba", 0.25], ["2ba", 1.0, "geometric"], ["0.5dur", 0.5]])),
]


def written(value):
    """An argument, or a schedule as its entry, as a config has it."""
    if isinstance(value, ts.Schedule):
        return {type(value).__name__: {each.name: written(getattr(value, each.name)) for each in fields(value)}}
    if isinstance(value, (list, tuple)):
        return list(map(written, value))
    return str(value) if isinstance(value, ts.Time) else value


@pytest.mark.parametrize("key, tags, schedule", SCHEDULES)
def test_schedules_multiply_what_the_optimizer_is_built_with(key, tags, schedule):
    rule = {"params": "0.weight", "tags": "a", "weight_decay": 0.3}
    optimizer = {"optimizer": {"AdamW": {"lr": 0.5, "weight_decay": 0.1, "params": [rule]}}}
    whole = written(schedule)
    whole[type(schedule).__name__] |= {"key": key, "on_change": "new", "param_group_tags": tags}
    built = build(network(), {**optimizer, "schedulers": [whole], "max_duration": "8ba"})
    other, clock = build(network(), optimizer).optimizer, Clock("8ba")
    bound = bind(schedule, other, clock, key, tags, on_change="new")
    assert description(built.schedulers[0]) == description(bound) and built.schedulers[0].on_change == "new"
    losses = [
        train(network(), o, [s], 5, c)
        for o, s, c in ((built.optimizer, built.schedulers[0], built.clock), (other, bound, clock))
    ]
    assert losses[0] == losses[1] and outline(built.optimizer) == outline(other)


def test_the_run_of_a_config():
    config = {"optimizer": {"SGD": {"lr": 0.5}}, "schedulers": [{"LinearScheduler": {}}]}
    built = build(network(), {**config, "max_duration": "2ep", "batches_per_epoch": 8, "ssr": 0.5})
    assert str(built.clock.max_duration) == "1ep" and built.clock.dataloader_len == 8 and built.clock.ssr == 0.5
    clock = Clock("8ba")
    same = build(network(), config, clock=clock)
    assert same.clock is clock
    for one in (built, same):
        train(network(), one.optimizer, one.schedulers, 3, one.clock)
    assert values(built.optimizer) == values(same.optimizer) == [0.5 * 0.625]
    assert [row[2] for row in built.table("0.5dur").rows] == [0.5, 0.25, 0.0]


def test_a_batch_size_schedule_in_a_config():
    text = """
    max_duration: 1280sp
    samples_per_batch: {0sp: 64, 128sp: 256}
    optimizer: {AdamW: {lr: 0.5, betas: [0.9, 0.95]}}
    schedulers:
    - HalfLife: {time: 256sp, beta: 0.95, key: 'betas[1]'}
    - LinearScheduler: {}
    """
    built = build(network(), text)
    again, other = build(network(), built.config), build(network(), {"optimizer": built.config["optimizer"]}).optimizer
    clock = Clock("1280sp", samples_per_batch=ts.BatchSizeSchedule({"0sp": 64, "128sp": 256}))
    half_life = bind(ts.HalfLife.of(0.95, batch="256sp"), other, clock, "betas[1]")
    bound = [half_life, bind(ts.LinearScheduler(), other, clock)]
    runs = [(built.optimizer, built.schedulers, built.clock), (other, bound, clock), (*again, again.clock)]
    losses = [train(network(), optimizer, schedulers, 4, each) for optimizer, schedulers, each in runs]
    assert losses[0] == losses[1] == losses[2] and outline(built.optimizer) == outline(other)
    assert built.clock.timestamp.sample == 2 * 64 + 2 * 256 and values(built.optimizer) == [0.25]


def sequence(children):
    return {"SequentialLR": {"schedulers": children}}


def test_counts_that_are_times_follow_the_clock():
    lengths = [{"LinearLR": {**LINEAR, "total_iters": length}} for length in ("0.25dur", "0.5dur")]
    steps = {"StepWD": {"initial_val": 0.1, "step_size": 2, "gamma": 0.5}}
    config = {
        "optimizer": {"SGD": {"lr": 1.0}},
        "schedulers": [sequence([*lengths, {"ConstantLR": {"learning_rate": 0.7}}]), steps],
    }
    clock = Clock("400tok", samples_per_batch=10, tokens_per_sample=1)
    optimizer, (rate, decay) = build(network(), config, clock)
    assert list(map(str, rate.milestones)) == ["0.25dur", "0.75dur"] and rate.clock is clock
    assert decay.clock is None  # counts its own steps, so that it may step inside a graph
    for _ in range(20):
        clock.tick()
    rate.step(), decay.step(), decay.step()
    assert values(optimizer) == [0.05] and values(optimizer, "weight_decay") == [0.05]
    for _ in range(10):
        clock.tick()
    rate.step()
    assert values(optimizer) == [0.7]
    tagged = {"ConstantWD": {"val": 0.1, "param_group_tags": "10ba"}}  # a tag is no time
    groups = {"SGD": {"lr": 1.0, "params": [{"params": "*", "tags": "10ba"}]}}
    assert build(network(), {"optimizer": groups, "schedulers": [tagged]}, clock).schedulers[0].clock is None


@pytest.mark.parametrize(
    "lengths, run, milestones",
    [
        ((3, "0.7dur"), {"max_duration": "10ba"}, [3]),
        ((3, "1/3dur", 1), {"max_duration": "10ba"}, [3, "19/30dur"]),
        ((3, "0.5dur", 1), {"max_duration": "20ba", "ssr": 0.5}, [3, "0.65dur"]),  # 1.5ba and 5ba of 10ba
        (("1ep", 3, 1), {"max_duration": "20ba", "batches_per_epoch": 5, "ssr": 0.5}, ["1ep", 8]),
        (("20tok", 3, 1), {"max_duration": "10ba", "samples_per_batch": 5, "tokens_per_sample": 2}, ["20tok", "50tok"]),
        (("0.5dur", 3, 1), {"max_duration": "10ba"}, ["0.5dur", "0.8dur"]),
    ],
)  # fmt: skip
def test_lengths_of_several_units(lengths, run, milestones):
    children = [{"LinearLR": {**LINEAR, "total_iters": length}} for length in lengths]
    config = {"optimizer": {"AdamW": {}}, "schedulers": [{"ScalePerParamLR": {"scheduler": sequence(children)}}], **run}
    found = build(network(), config).schedulers[0].scheduler.milestones
    assert [each if type(each) is int else str(each) for each in found] == milestones


@pytest.mark.parametrize("lengths", [(0, 2, 3), (2, 0, 3), ("0dur", 2, 3), (2, "0dur", 3)])
def test_a_phase_of_no_length_is_passed_over(lengths):
    children, found = [{"LinearLR": {**LINEAR, "total_iters": length}} for length in lengths], []
    for each in (children, [child for child in children if child["LinearLR"]["total_iters"] in (2, 3)]):
        config = {"optimizer": {"AdamW": {}}, "schedulers": [sequence(each)], "max_duration": "10ba"}
        found.append(build(network(), config).schedulers[0].values(9))
    assert found[0] == found[1]
