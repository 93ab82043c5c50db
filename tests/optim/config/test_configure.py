"""configure_optimizer and configure_lr_scheduler: names, numbers, dicts and lists of dicts."""

import numpy
import pytest
import torch

import optim
from optim import lr_scheduler
from optim.config import build, configure_lr_scheduler, configure_optimizer
from tests.optim.config.objects import description, network, outline, train, values
from tests.optim.rows import FULLEST

WARMUP = {"scheduler": "LinearLR", "initial_learning_rate": 0.0, "end_learning_rate": 0.1, "total_iters": 4}
COSINE = {"scheduler": "CosineDecayLR", "initial_learning_rate": 0.1, "end_learning_rate": 0.0, "total_iters": 8}
STEPS = {"scheduler": "StepLR", "initial_learning_rate": 0.1, "step_size": 2, "gamma": 0.5}


@pytest.mark.parametrize("row", FULLEST, ids=lambda row: row.id)
def test_each_optimizer_is_what_its_class_makes(row):
    """By its name, in any letter case, and in a config; on the meta device, too."""

    def models():
        return torch.nn.Linear(3, 2, bias=False), torch.nn.Linear(3, 2, bias=False, device="meta")

    for model, other, third in zip(models(), models(), models()):
        lists = {key: list(value) if isinstance(value, tuple) else value for key, value in row.kwargs.items()}
        made = configure_optimizer(row.name.lower(), list(model.named_parameters()), **lists)
        assert outline(made) == outline(getattr(optim, row.name)(other.named_parameters(), **row.kwargs))
        assert outline(build(third, {"optimizer": {row.name: row.kwargs}}).optimizer) == outline(made)


def test_the_example_of_the_reference():
    model, reference = network(), network()
    optimizer_params = {"optimizer_type": "SGD", "lr": 0.001, "momentum": 0.5}
    optimizer = configure_optimizer(
        optimizer_type=optimizer_params.pop("optimizer_type"), params=model.parameters(), **optimizer_params
    )
    train(model, optimizer)
    train(reference, torch.optim.SGD(reference.parameters(), lr=0.001, momentum=0.5))
    for p, q in zip(model.parameters(), reference.parameters()):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)  # single precision; the kernels are the same


def sgd(*groups):
    return optim.SGD([{"params": [torch.nn.Parameter(torch.ones(2))], **g} for g in groups or ({},)], lr=0.5)


def by_hand(entry, optimizer):
    given = {name: value for name, value in entry.items() if name not in ("scheduler", "main_scheduler")}
    return getattr(lr_scheduler, entry["scheduler"])(optimizer, **given)


@pytest.mark.parametrize("rate", [0.01, 1, 0, numpy.float32(0.25)])
def test_a_number_is_constant(rate):
    scheduler = configure_lr_scheduler(sgd(), rate)
    assert type(scheduler) is lr_scheduler.ConstantLR and scheduler.values(3) == [rate] * 3
    assert values(scheduler.optimizer) == [rate]


@pytest.mark.parametrize("written", ["LinearLR", "linearlr", "Linear", "linear"])
def test_a_dict_is_one_scheduler(written):
    entry = {**WARMUP, "scheduler": written}
    assert description(configure_lr_scheduler(sgd(), entry)) == description(by_hand(WARMUP, sgd()))
    assert entry == {**WARMUP, "scheduler": written}


@pytest.mark.parametrize("last", [COSINE, STEPS])  # which needs no total_iters, as no milestone follows
def test_a_list_is_a_sequence(last):
    """A class without the argument total_iters has it for its length alone."""
    entries, other = [{**WARMUP, "main_scheduler": "sequential"}, {**STEPS, "total_iters": 6}, last], sgd()
    scheduler = configure_lr_scheduler(sgd(), entries)
    children = [by_hand(each, other) for each in (WARMUP, STEPS, last)]
    assert description(scheduler) == description(lr_scheduler.SequentialLR(other, children, [4, 10]))


@pytest.mark.parametrize("main", ["ChainedLR", "ChainedScheduler", "chained"])
@pytest.mark.parametrize("where", [0, 1])
def test_a_list_is_chained_if_one_says_so(main, where):
    entries, other = [COSINE, STEPS], sgd()
    entries[where] = {**entries[where], "main_scheduler": main}
    chained = lr_scheduler.ChainedLR([by_hand(COSINE, other), by_hand(STEPS, other)])
    assert description(configure_lr_scheduler(sgd(), entries)) == description(chained)


def test_factors_of_groups():
    """The same dict makes the groups and scales the scheduler."""
    given = {"LayerNorm": 0.5, "3.*": 2}
    optimizer = torch.optim.SGD(optim.configure_param_groups(network(), adjust_learning_rate=given), lr=1.0)
    scheduler = configure_lr_scheduler(optimizer, [WARMUP, COSINE], given)
    assert type(scheduler) is lr_scheduler.ScalePerParamLR
    scheduler.step()
    assert {group["param_names"][0]: group["lr"] for group in optimizer.param_groups} == {
        "0.weight": 0.025, "0.bias": 0.025, "1.weight": 0.0125, "3.weight": 0.05, "3.bias": 0.05
    }  # fmt: skip
    assert type(configure_lr_scheduler(sgd(), 0.1, adjust_learning_rate={})) is lr_scheduler.ConstantLR
    other = sgd({"adjust_val": 0.5}, {})
    configure_lr_scheduler(other, 0.1, {"decoder": 0.5})
    assert values(other) == [0.05, 0.1]
