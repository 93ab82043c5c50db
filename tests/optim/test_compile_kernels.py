"""Compiled steps on the CPU of the optimizers that torch has a fused kernel for: the eager step, as one operator."""

import pytest
import torch
from torch.nn import Parameter

import optim
from optim.core import execution
from tests.optim.compiling import BACKEND, by_hand, fresh, graphs, race, tensors
from tests.optim.problems import assert_states_close, differences, snapshot

CASES = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "maximize": True}),
    ("Adam", {"weight_decay": 0.1, "amsgrad": True}),
    ("Adam", {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    ("AdamW", {"weight_decay": 0.1}),
    ("AdamW", {"correct_bias": False}),
    ("Adagrad", {"lr_decay": 0.1, "enable_global_step": True}),
]
KERNEL = "timesched.fused_step.default"


@pytest.fixture(autouse=True)
def _fresh():
    with fresh():
        yield


class Operators:
    """A backend of torch.compile that keeps the names of the operators of each graph, and runs them as they are."""

    def __init__(self):
        self.names = []

    def __call__(self, graph, _inputs):
        self.names.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return graph


def optimizer(name, kwargs, dtype=torch.float32, copies=1):
    """An optimizer of a vector, a matrix, a transposed matrix and a number, with gradients."""
    generator = torch.Generator().manual_seed(0)
    params = []
    for shape in [(5,), (3, 4), (2, 6), ()] * copies:
        values, grad = (torch.randn(shape, generator=generator, dtype=dtype) for _ in range(2))
        turned = [x.T if shape == (2, 6) else x for x in (values, grad)]
        params.append(Parameter(turned[0]))
        params[-1].grad = turned[1]
    return getattr(optim, name)(params, **kwargs)


def different(compiled, eager):
    """Where parameters and states differ; the groups hold tensors in one and numbers in the other."""
    return [key for key in differences(snapshot(compiled), snapshot(eager)) if key[0] != "group"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("name", "kwargs"), CASES, ids=lambda x: x if isinstance(x, str) else "-".join(x))
def test_the_same_bits_as_an_eager_step(name, kwargs, dtype):
    compiled, eager = (optimizer(name, kwargs, dtype) for _ in range(2))
    compiled.compile(backend=BACKEND)
    race(range(1, 4), tensors(compiled), (compiled, compiled.step), (eager, eager.step))
    assert graphs() == 1
    assert not different(compiled, eager)


@pytest.mark.parametrize(("name", "kwargs"), CASES, ids=lambda x: x if isinstance(x, str) else "-".join(x))
def test_operation_by_operation(name, kwargs, monkeypatch):
    """As on other devices: the formulas of these optimizers in a graph."""
    monkeypatch.setattr(execution, "RULES_WITH_KERNEL", {})
    compiled, eager = (optimizer(name, kwargs, torch.float64) for _ in range(2))
    compiled.compile(backend=BACKEND)
    race(range(1, 4), tensors(compiled), (compiled, compiled.step), (eager, eager.step))
    assert graphs() == 1
    assert_states_close(compiled, eager, 1e-12)


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_complex_parameters_in_a_graph_of_the_users_own(name):
    compiled, eager = (optimizer(name, {"lr": 0.1}, torch.complex128) for _ in range(2))
    take = by_hand(compiled.step)
    for _ in range(2):
        take()
        eager.step()
    assert_states_close(compiled, eager, 1e-12)


@pytest.mark.parametrize(("name", "kwargs"), CASES, ids=lambda x: x if isinstance(x, str) else "-".join(x))
def test_many_tensors_are_as_few_operators_as_one(name, kwargs):
    found = Operators()
    for copies in (1, 16):
        one = optimizer(name, kwargs, copies=copies)
        one.compile(backend=found)
        one.step()
    assert found.names[0] == found.names[1]
    assert found.names[0].count(KERNEL) == 1


def test_hundreds_of_tensors_are_several_operators():
    found = Operators()
    compiled, eager = (optimizer("AdamW", {}, copies=40) for _ in range(2))
    compiled.compile(backend=found)
    for _ in range(2):
        compiled.step()
        eager.step()
    assert found.names[0].count(KERNEL) == 3
    assert not different(compiled, eager)


def test_by_inductor():
    """The operator changes its inputs, and inductor keeps what it does to each, numbers without dimensions included."""
    compiled, eager = (optimizer("AdamW", {"weight_decay": 0.1}, torch.float64) for _ in range(2))
    compiled.compile()
    for _ in range(2):
        compiled.step()
        eager.step()
    assert not different(compiled, eager)


class Halved(optim.SGD):
    """A rule of a user's own on the state of SGD."""

    fused = None

    @staticmethod
    def update(h, k, p, g, *states):
        torch._foreach_add_(p, g, alpha=-0.5)


class SGD(optim.SGD):
    """A class of a user's own, which may have any name."""


@pytest.mark.parametrize("kind", [optim.Lion, Halved, SGD])
def test_what_is_compiled_operation_by_operation(kind):
    """An optimizer without a kernel, and classes of a user's own."""
    found = Operators()
    p = Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    one = kind([p], lr=1.0)
    one.compile(backend=found)
    one.step()
    assert KERNEL not in found.names[0]
    assert len(found.names[0]) > 1
