"""A model, its training, and what it means that two optimizers, or two schedulers, are equal."""

import io

import torch
from ruamel.yaml import YAML
from torch import nn

from timesched.binding import Bound


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 2))


def train(model, optimizer, schedulers=(), steps=3, clock=None):
    """The loop of the README; returns the losses."""
    inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(5))
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(inputs) - inputs[:, :2]).square().mean()
        loss.backward()
        optimizer.step()
        if clock is not None:
            clock.tick()
        for scheduler in schedulers:
            scheduler.step()
        losses.append(loss.item())
    return losses


def values(optimizer, key="lr"):
    return [float(group[key]) for group in optimizer.param_groups]


def plain(value):
    """A hyperparameter as numbers and tuples."""
    if isinstance(value, torch.Tensor):
        return value.item()
    return tuple(map(plain, value)) if isinstance(value, (tuple, list)) else value


def outline(optimizer):
    """All that an optimizer was made with."""
    return (
        type(optimizer),
        {key: plain(value) for key, value in optimizer.defaults.items()},
        getattr(optimizer, "enable_global_step", None),
        [
            {key: value if key == "tags" else plain(value) for key, value in group.items() if key != "params"}
            for group in optimizer.param_groups
        ],
    )


def description(scheduler):
    """All that a scheduler was made with."""
    if isinstance(scheduler, Bound):
        state = scheduler.state_dict()
        counters = {name: x for name, x in state.pop("clock", {}).items() if not name.endswith("_wct")}
        return (type(scheduler), scheduler.tags, state, counters)  # two clocks were not started at the same moment
    return (type(scheduler), scheduler.state_dict(), scheduler.values(60))


def dumped(config):
    """A config as YAML text."""
    stream = io.StringIO()
    YAML(typ="safe", pure=True).dump(config, stream)
    return stream.getvalue()
