"""Values outside of an optimizer: `bind` refuses them, and a line of the loop sets them. See docs/values.md."""

import pytest
import torch

from timesched import *  # noqa: F403  # these are tests of all that is public


@pytest.mark.parametrize("target", [torch.nn.Dropout(0.5), {"lr": 0.5}, None])
def test_bind_takes_an_optimizer(target):
    cure = rf"of the class {type(target).__name__}, .* value = initial \* schedule\(clock\)"
    with pytest.raises(TypeError, match=f"bind.optimizer: it is {cure}"):
        bind(LinearScheduler(), target, Clock("4ba"), key="lr")


def test_the_error_of_a_half_life_names_the_call():
    clock, half_life = Clock("4ba"), HalfLife("1ba")
    with pytest.raises(TypeError, match=r"half_life.at\(clock.timestamp, clock\)"):
        half_life(clock)
    assert half_life.at(clock.timestamp, clock) == 0.5


# Compiled models


class Scaled(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.register_buffer("buffer", torch.tensor(scale))
        self.scale = scale
        self.drop = torch.nn.Dropout(scale)

    def set_scale(self, scale):
        self.scale = self.drop.p = scale
        self.buffer.fill_(scale)


class ByBuffer(Scaled):
    def forward(self, x):
        return x * self.buffer


class ByFloat(Scaled):
    def forward(self, x):
        return x * self.scale


class ByDropout(Scaled):
    def forward(self, x):
        return self.drop(x)


@pytest.mark.parametrize(("kind", "compilations"), [(ByBuffer, 1), (ByFloat, 2), (ByDropout, 8)])
def test_how_often_a_model_is_compiled(kind, compilations):
    """The numbers of docs/values.md. The optimizing backend is left out, since it changes no number."""
    torch._dynamo.reset()
    graphs = []
    model = kind(0.5)
    compiled = torch.compile(model, backend=lambda graph, inputs: graphs.append(graph) or graph)
    clock, decay = Clock("10ba"), LinearScheduler(1, 0.1)
    while not clock.done:
        model.set_scale(0.5 * decay(clock))
        result = compiled(torch.ones(4))
        assert kind is ByDropout or result[0] == pytest.approx(0.5 * decay(clock))
        clock.tick()
    assert len(graphs) == compilations
