"""Models on the meta device, whose parameters have shapes and no values: all is built for them that is for others."""

import pytest
import torch

import optim
from optim.config import build, configure_lr_scheduler, configure_optimizer
from tests.optim.config.objects import description, network, outline, values
from tests.optim.rows import FULLEST, ROWS

LINEAR = {"initial_learning_rate": 0.0, "end_learning_rate": 0.1, "total_iters": 2}
CONFIG = {
    "optimizer": {
        "AdamW": {
            "lr": 0.5,
            "weight_decay": 0.2,
            "adjust_learning_rate": {"LayerNorm": 0.5},
            "params": [{"params": "0.*", "tags": "a"}],
            "no_decay": True,
            "decay_tag": "decays",
        }
    },
    "schedulers": [
        {
            "ScalePerParamLR": {
                "scheduler": {"SequentialLR": {"schedulers": [{"LinearLR": LINEAR}, {"LinearLR": LINEAR}]}}
            }
        },
        {"LinearWD": {"initial_val": 0.2, "end_val": 0.0, "total_iters": 4, "param_group_tags": "decays"}},
        {"LinearScheduler": {"key": "betas[0]"}},
    ],
    "max_duration": "8ba",
}


def on_meta(inside, make):
    """What `make` returns for a model on the meta device; with `inside`, meta is the default device too."""
    with torch.device("meta"):
        model = network()
        if inside:
            return make(model)
    return make(model)


@pytest.mark.parametrize("inside", [True, False])
def test_a_whole_config(inside):
    def make(model):
        built = build(model, CONFIG)
        built.clock.tick()
        for each in built.schedulers:
            each.step()
        return built, optim.param_group_table(built.optimizer)

    built, table = on_meta(inside, make)
    same, same_table = make(network())
    assert table == same_table and outline(built.optimizer) == outline(same.optimizer)
    assert [*map(description, built.schedulers)] == [*map(description, same.schedulers)]
    assert {p.device.type for group in built.optimizer.param_groups for p in group["params"]} == {"meta"}


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("kind", [optim.AdamW, torch.optim.AdamW])
def test_a_learning_rate(kind, inside):
    def make(model):
        optimizer = kind(optim.configure_param_groups(model, weight_decay=torch.tensor(0.1, device="cpu")))
        entry = {"scheduler": "Linear", **LINEAR}
        scheduler = configure_lr_scheduler(optimizer, [entry, entry], adjust_learning_rate={"*.bias": 0.5})
        scheduler.step()
        return values(optimizer)

    assert on_meta(inside, make) == make(network())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_optimizers(row):
    def make(model):
        made = configure_optimizer(row.name, [model[0].weight], **row.kwargs)
        return outline(made), [{key: value.shape for key, value in state.items()} for state in made.state.values()]

    for inside in [True, False] if row in FULLEST else [True]:
        assert on_meta(inside, make) == make(network())
