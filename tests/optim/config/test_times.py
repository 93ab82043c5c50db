"""build: schedules over times, counts that are times, and the lengths of sequences made of them."""

import pytest
import torch

from optim.config import build, configure_lr_scheduler
from tests.optim.config.objects import description, network, train, values
from timesched import Clock, CosineAnnealingWithWarmupScheduler, LinearScheduler, bind

LINEAR = {"initial_learning_rate": 0.1, "end_learning_rate": 0.0, "total_iters": 10}
TIMED = """
optimizer:
  SGD: {lr: 0.5, weight_decay: 0.1, momentum: 0.9, params: [{params: "*bias", tags: b}]}
schedulers:
- CosineAnnealingWithWarmupScheduler: {t_warmup: 0.25dur, t_max: 1dur, alpha_f: 0.1}
- LinearScheduler: {alpha_f: 0.5, key: weight_decay, param_group_tags: b}
- ProductScheduler:
    schedules: [LinearScheduler, {StepScheduler: {step_size: 2ba, gamma: 0.5}}]
    key: momentum
"""


def test_schedules_by_name():
    model, reference = network(), network()
    clock, second = Clock("8ba"), Clock("8ba")
    built = build(model, TIMED, clock=clock)
    assert built.clock is clock
    other = build(reference, TIMED.partition("schedulers")[0]).optimizer
    same = [
        bind(CosineAnnealingWithWarmupScheduler("0.25dur", "1dur", alpha_f=0.1), other, second),
        bind(LinearScheduler(1.0, 0.5), other, second, key="weight_decay", tags="b"),
    ]
    product = bind(
        [LinearScheduler(), lambda state: 0.5 ** (state.timestamp.batch.value // 2)], other, second, "momentum"
    )
    losses = train(model, built.optimizer, built.schedulers, 8, clock)
    assert losses == train(reference, other, [*same, product], 8, second)
    assert list(map(description, built.schedulers[:2])) == list(map(description, same))
    assert values(built.optimizer, "momentum") == [0.0, 0.0] and values(built.optimizer)[0] == 0.05


def test_the_run_of_a_config():
    text = TIMED + "max_duration: 2ep\nbatches_per_epoch: 8\nssr: 0.5\n"
    built = build(network(), text)
    assert str(built.clock.max_duration) == "1ep" and built.clock.dataloader_len == 8 and built.clock.ssr == 0.5
    same = build(network(), TIMED, clock=Clock("8ba"))
    for one in (built, same):
        train(network(), one.optimizer, one.schedulers, 3, one.clock)
    assert values(built.optimizer) == values(same.optimizer)


def test_counts_that_are_times():
    config = {
        "optimizer": {"SGD": {"lr": 1.0, "momentum": 0.9}},
        "schedulers": [
            {
                "SequentialLR": {
                    "schedulers": [
                        {"LinearLR": {**LINEAR, "total_iters": "0.25dur"}},
                        {"LinearLR": {**LINEAR, "total_iters": "0.5dur"}},
                        {"ConstantLR": {"learning_rate": 0.7}},
                    ]
                }
            },
            {"LinearWD": {"initial_val": 0.1, "end_val": 0.0, "total_iters": 4}},
        ],
    }
    clock = Clock("400tok", samples_per_batch=10, tokens_per_sample=1)
    optimizer, (rate, decay) = build(network(), config, clock)
    assert list(map(str, rate.milestones)) == ["0.25dur", "0.75dur"] and rate.clock is clock
    assert all(part.clock is clock for part in rate.schedulers)
    assert decay.clock is None  # counts its own steps, so that it may step inside a graph
    for _ in range(20):
        clock.tick()
    rate.step(), decay.step()
    assert values(optimizer) == [0.05] and values(optimizer, "weight_decay") == [pytest.approx(0.075, rel=1e-15)]
    for _ in range(10):
        clock.tick()
    rate.step()
    assert values(optimizer) == [0.7]


@pytest.mark.parametrize(
    "lengths, run, milestones",
    [
        ((3, "0.7dur"), {"max_duration": "10ba"}, [3]),
        (("3ba", "2ep"), {"max_duration": "4ep", "batches_per_epoch": 5}, [3]),
        ((3, "0.5dur", 1), {"max_duration": "10ba"}, [3, "0.8dur"]),
        ((3, "1/3dur", 1), {"max_duration": "10ba"}, [3, "19/30dur"]),
        ((3, "0.5dur", 1), {"max_duration": "20ba", "ssr": 0.5}, [3, "0.65dur"]),  # 1.5ba and 5ba of 10ba
        (("1ep", 3, 1), {"max_duration": "10ba", "batches_per_epoch": 5}, ["1ep", 8]),
        (("1ep", 3, 1), {"max_duration": "20ba", "batches_per_epoch": 5, "ssr": 0.5}, ["1ep", 8]),
        (("20tok", 3, 1), {"max_duration": "10ba", "samples_per_batch": 5, "tokens_per_sample": 2}, ["20tok", "50tok"]),
        (
            ("0.1ep", "0.2dur", "10sp"),
            {"max_duration": "100sp", "batches_per_epoch": 10, "samples_per_batch": 10},
            ["0.1ep", "0.3dur"],
        ),
    ],
)
def test_lengths_of_several_units(lengths, run, milestones):
    parts = [{"LinearLR": {**LINEAR, "total_iters": length}} for length in lengths]
    for entry in (sequence(parts), {"ScalePerParamLR": {"scheduler": sequence(parts)}}):
        (scheduler,) = build(network(), {"optimizer": "AdamW", "schedulers": [entry], **run}).schedulers
        found = getattr(scheduler, "scheduler", scheduler).milestones
        assert [each if type(each) is int else str(each) for each in found] == milestones


def sequence(parts):
    return {"SequentialLR": {"schedulers": parts}}


@pytest.mark.parametrize("none", [0, "0ba", "0dur", "0ep"])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("stem", ["ConstantLR", "LinearLR", "CosineDecayLR", "PolynomialLR"])
def test_phases_of_no_length(stem, place, none):
    """The phases around one go on as if it were not there; at the end it holds its last value."""
    run = {"max_duration": "10ba", "batches_per_epoch": 5}
    lengths = [2, 3]
    lengths.insert(place, none)
    ends = [0.1, 0.2, 0.3]
    parts = []
    for length, end in zip(lengths, ends):
        first = (
            {"learning_rate": end}
            if stem == "ConstantLR"
            else {"initial_learning_rate": 0.05, "end_learning_rate": end}
        )
        parts.append({stem: {**first, "total_iters": length}})
    without = sequence([part for part, length in zip(parts, lengths) if length != none])
    built, same = (
        build(network(), {"optimizer": "AdamW", "schedulers": [entry], **run}) for entry in (sequence(parts), without)
    )
    expected = same.schedulers[0].values(9)
    if place == 2:
        expected[5:] = [0.3] * 4
    assert built.schedulers[0].values(9) == expected
    for _ in range(6):
        built.clock.tick()
        built.schedulers[0].step()
    assert values(built.optimizer) == [expected[6]] * len(built.optimizer.param_groups)
    if none == 0:
        scheduler = configure_lr_scheduler(
            torch.optim.SGD(network().parameters()), [{"scheduler": stem, **part[stem]} for part in parts]
        )
        assert scheduler.values(9) == expected and scheduler.milestones == [[0, 2], [2, 2], [2, 5]][place]


def test_phases_that_are_all_of_no_length():
    parts = [{"ConstantLR": {"learning_rate": rate, "total_iters": 0}} for rate in (0.1, 0.2, 0.3)]
    (scheduler,) = build(network(), {"optimizer": "AdamW", "schedulers": [sequence(parts)]}).schedulers
    assert scheduler.milestones == [0, 0] and scheduler.values(3) == [0.3] * 3


def test_a_schedule_as_an_object():
    clock = Clock("4ba")
    optimizer, (bound,) = build(network(), {"optimizer": "AdamW", "schedulers": [LinearScheduler()]}, clock)
    clock.tick(), bound.step()
    assert values(optimizer) == [0.00075]
