"""optim.clip_grad_norm_: torch's clipping, for the groups that are not Muon's or that have the tags."""

import pytest
import torch
from torch.nn import Parameter

import optim
from optim import clip_grad_norm_
from tests.optim.compiling import fresh, graphs
from tests.optim.test_muon_golden import values

SHAPES = [(4, 3), (5,), (2, 3)]


def hybrid():
    """Muon for the first parameter, AdamW and Lion for the others."""
    matrix, vector, third = (Parameter(values(shape, i)) for i, shape in enumerate(SHAPES))
    groups = [
        {"params": [matrix], "tags": ["muon", "decayed"]},
        {"params": [vector], "algorithm": "adamw", "tags": "vectors"},
        {"params": [third], "algorithm": "lion"},
    ]
    return with_gradients(optim.Muon(groups, lr=0.01))


def with_gradients(optimizer):
    for i, p in enumerate(parameters(optimizer)):
        p.grad = values(p.shape, i, step=1)
    return optimizer


def parameters(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


@pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf")])
@pytest.mark.parametrize(
    ("tags", "clipped"),
    [
        (None, [1, 2]),
        ("vectors", [1]),
        ("decayed", [0]),
        (["muon", "vectors"], [0, 1]),
        (["muon", None], [0, 2]),
        ([None], [2]),
    ],
)
def test_the_gradients_of_the_chosen_groups_are_clipped_as_torch_does(tags, clipped, norm_type):
    mine, other = hybrid(), hybrid()
    chosen = [parameters(other)[i] for i in clipped]
    expected = torch.nn.utils.clip_grad_norm_(chosen, 0.1, norm_type)
    assert torch.equal(clip_grad_norm_(mine, 0.1, norm_type, tags=tags), expected) and expected > 0.1
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(parameters(mine), parameters(other), strict=True))


def test_an_optimizer_without_muon_is_clipped_as_a_whole():
    mine, other = (with_gradients(torch.optim.SGD([Parameter(values((4, 3), 0))], lr=0.1)) for _ in range(2))
    expected = torch.nn.utils.clip_grad_norm_(parameters(other), 0.1)
    assert torch.equal(clip_grad_norm_(mine, 0.1), expected)
    assert torch.equal(parameters(mine)[0].grad, parameters(other)[0].grad)


class Wrapper:
    """An optimizer as accelerate wraps it."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups


@pytest.mark.parametrize("kind", [optim.Muon, optim.NorMuon, torch.optim.Muon])
@pytest.mark.parametrize("wrap", [lambda optimizer: optimizer, Wrapper])
def test_nothing_is_clipped_where_all_is_of_muon(kind, wrap):
    optimizer = with_gradients(kind([Parameter(values((4, 3), 0))], lr=0.01))
    before = parameters(optimizer)[0].grad.clone()
    norm = clip_grad_norm_(wrap(optimizer), 0.1)
    assert norm.shape == () and norm == 0.0
    assert torch.equal(parameters(optimizer)[0].grad, before)


def test_tags_that_no_group_has():
    optimizer = hybrid()
    before = [p.grad.clone() for p in parameters(optimizer)]
    with pytest.raises(ValueError, match=r"clip_grad_norm_.tags='head': "):
        clip_grad_norm_(optimizer, 0.1, tags="head")
    assert all(map(torch.equal, before, [p.grad for p in parameters(optimizer)]))


def test_nothing_is_read_and_a_compiled_step_has_one_graph():
    eager, compiled = hybrid(), hybrid()

    def step(optimizer):
        norm = clip_grad_norm_(optimizer, 0.1)
        optimizer.step()
        return norm

    with fresh():
        in_graph = torch.compile(step, fullgraph=True, backend="aot_eager")
        for _ in range(3):
            torch.testing.assert_close(in_graph(compiled), step(eager))
            with_gradients(eager), with_gradients(compiled)
        assert graphs() == 1
    for p, q in zip(parameters(eager), parameters(compiled), strict=True):
        torch.testing.assert_close(p, q)
