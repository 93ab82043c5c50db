"""configure_optimizer and configure_lr_scheduler: names, numbers, dicts and lists of dicts."""

import copy

import numpy
import pytest
import torch

import optim
from optim import lr_scheduler
from optim.config import build, configure_lr_scheduler, configure_optimizer
from tests import building
from tests.building import values
from tests.optim.config.objects import description, network, outline
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
        made = configure_optimizer(optimizer_type=row.name.lower(), params=list(model.named_parameters()), **lists)
        assert outline(made) == outline(getattr(optim, row.name)(other.named_parameters(), **row.kwargs))
        assert outline(build(third, {"optimizer": {row.name: row.kwargs}}).optimizer) == outline(made)


def sgd(*groups):
    return building.sgd(*groups, kind=optim.SGD, lr=0.5)


def by_hand(entry, optimizer):
    given = {name: value for name, value in entry.items() if name not in ("scheduler", "main_scheduler")}
    return getattr(lr_scheduler, entry["scheduler"])(optimizer, **given)


MAIN = "main_scheduler"
SIX = {**STEPS, "total_iters": 6}  # a class without this argument has it for its length alone
# What is given, the dicts of the schedulers that it makes, and the milestones between them; without any: a chain.
FORMS = [
    *((rate, [{"scheduler": "ConstantLR", "learning_rate": rate}], []) for rate in (0.01, 1, 0, numpy.float32(0.25))),
    *(({**WARMUP, "scheduler": name}, [WARMUP], []) for name in ("LinearLR", "linearlr", "Linear", "linear")),
    # the last one needs no total_iters, as no milestone follows
    *(([{**WARMUP, MAIN: "sequential"}, SIX, last], [WARMUP, STEPS, last], [4, 10]) for last in (COSINE, STEPS)),
    *(([{**COSINE, MAIN: main}, STEPS], [COSINE, STEPS], None) for main in ("ChainedLR", "ChainedScheduler")),
    ([COSINE, {**STEPS, MAIN: "chained"}], [COSINE, STEPS], None),
]


@pytest.mark.parametrize(("given", "entries", "milestones"), FORMS)
def test_forms_of_a_learning_rate(given, entries, milestones):
    other, before = sgd(), copy.deepcopy(given)
    children = [by_hand(each, other) for each in entries]
    chained = lr_scheduler.ChainedLR(children) if milestones is None else children[0]
    expected = lr_scheduler.SequentialLR(other, children, milestones) if milestones else chained
    made = configure_lr_scheduler(sgd(), given)
    assert description(made) == description(expected) and values(made.optimizer) == values(other) and given == before


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
    constant = {"scheduler": "ConstantLR", "learning_rate": 0.1, "on_change": "new"}
    assert configure_lr_scheduler(other, constant, {"decoder": 0.5}).on_change == "new"
    assert values(other) == [0.05, 0.1]
