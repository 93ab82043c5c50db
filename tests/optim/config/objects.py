"""A model, its training, and what it means that two optimizers, or two schedulers, are equal."""

import torch
from torch import nn

from tests import building

LINEAR = {"initial_learning_rate": 0.1, "end_learning_rate": 0.0, "total_iters": 10}
DECAY = {"initial_val": 0.1, "end_val": 0.0, "total_iters": 10}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 2))


def train(model, optimizer, schedulers=(), steps=3, clock=None):
    """The loop of the README; returns the losses."""
    inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(5))

    def loss_of(model):
        return (model(inputs) - inputs[:, :2]).square().mean()

    return building.train(model, optimizer, loss_of, steps, schedulers, clock)


def outline(optimizer):
    """All that an optimizer was made with."""
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    return type(optimizer), optimizer.defaults, groups


def description(scheduler):
    """All that a scheduler was made with; two clocks were not started at the same moment."""
    state = {name: value for name, value in scheduler.state_dict().items() if name != "clock"}
    return type(scheduler), scheduler.key, scheduler.tags, state
