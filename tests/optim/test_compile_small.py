"""Compiled steps on the CPU of small tensors, and of all with a fused kernel: the eager step, as one operator."""

import numpy as np
import pytest
import torch
from torch.nn import Parameter
from torch.testing._internal.two_tensor import TwoTensor

import optim
from optim.core import execution
from tests.optim.compiling import BACKEND, by_hand, fresh, graphs, race, switched, tensors
from tests.optim.problems import assert_states_close, differences, flat, snapshot
from tests.optim.signatures import NAMES

ALL = pytest.mark.parametrize("name", NAMES)
FUSED = ("SGD", "Adam", "AdamW", "Adagrad")
OTHERS = [(name, dtype) for name in ("AdamW", "NAdam") for dtype in (torch.float64, torch.bfloat16)]
OPERATOR = "timesched.eager_step.default"


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


def some(name, dtype=torch.float32, copies=1):
    """A matrix, a transposed matrix, a vector and a number (of which Muon takes the matrices), with gradients."""
    generator = torch.Generator().manual_seed(0)
    params = []
    for shape in [(3, 4), (2, 6), *([] if name == "Muon" else [(5,), ()])] * copies:
        values, grad = (torch.randn(shape, generator=generator, dtype=dtype) for _ in range(2))
        turned = [x.T if shape == (2, 6) else x for x in (values, grad)]
        params.append(Parameter(turned[0]))
        params[-1].grad = turned[1]
    return params


def pair(name, dtype=torch.float32, copies=1, **kwargs):
    return [getattr(optim, name)(some(name, dtype, copies), lr=0.1, **kwargs) for _ in range(2)]


def different(compiled, eager):
    """Where parameters and states differ; the groups hold tensors in one and numbers in the other."""
    return [key for key in differences(snapshot(compiled), snapshot(eager)) if key[0] != "group"]


@pytest.mark.parametrize(("name", "dtype"), [*((name, torch.float32) for name in NAMES), *OTHERS], ids=str)
def test_the_same_bits_as_an_eager_step(name, dtype):
    """One group for every combination of switches, while all that is scheduled moves."""
    optimizers = []
    for _ in range(2):
        groups = [{"params": some(name, dtype), **kind} for kind in switched(name)]
        optimizers.append(getattr(optim, name)(groups, lr=1.0, enable_global_step=True))
    compiled, eager = optimizers
    compiled.compile(backend=BACKEND)
    race(range(1, 4), tensors(compiled), (compiled, compiled.step), (eager, eager.step))
    assert graphs() == 1
    assert not different(compiled, eager)


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Lion"])
def test_complex_parameters_in_a_graph_of_the_users_own(name):
    compiled, eager = pair(name, torch.complex128)
    take = by_hand(compiled.step)
    for _ in range(2):
        take()
        eager.step()
    assert_states_close(compiled, eager, 1e-12)


@ALL
def test_many_tensors_are_as_few_operators_as_one(name):
    found = Operators()
    for copies in (1, 16):
        one = pair(name, copies=copies)[0]
        one.compile(backend=found)
        one.step()
    assert found.names[0] == found.names[1]
    assert found.names[0].count(OPERATOR) == (2 if name == "Adafactor" else 1)  # vectors and matrices apart


@pytest.mark.parametrize("together", [1, 2, 3, 4, 5])
def test_more_tensors_than_one_operator_takes(together, monkeypatch):
    monkeypatch.setattr(execution, "TOGETHER", together)
    found = Operators()
    compiled, eager = pair("NAdam")
    compiled.compile(backend=found)
    for _ in range(2):
        compiled.step()
        eager.step()
    assert found.names[0].count(OPERATOR) == -(-4 // together)
    assert not different(compiled, eager)


@pytest.mark.parametrize("name", ["AdamW", "NAdam"])
def test_by_inductor(name):
    """The operator changes its inputs, and inductor keeps what it does to each, numbers without dimensions included."""
    compiled, eager = pair(name, torch.float64, weight_decay=0.1)
    compiled.compile()
    for _ in range(2):
        compiled.step()
        eager.step()
    assert not different(compiled, eager)


@pytest.mark.parametrize("name", ["AdamW", "Lion"])
def test_parameters_in_one_storage(name):
    """As flattened ones are. torch 2.7 would read the second one elsewhere, were the operator to take it."""
    both = []
    for _ in range(2):
        flat, grads = torch.arange(8.0), torch.ones(8)
        params = [Parameter(flat[:4]), Parameter(flat[4:].view(2, 2))]
        for p, grad in zip(params, grads.split(4)):
            p.grad = grad.view_as(p)
        both.append(getattr(optim, name)([*params, *some(name)], lr=0.1))
    compiled, eager = both
    compiled.compile()
    for _ in range(3):
        compiled.step()
        eager.step()
    assert_states_close(compiled, eager, 1e-6)  # in single precision


@ALL
def test_large_tensors_are_compiled_operation_by_operation(name, monkeypatch):
    """Beside small ones, in the same graph; where there is a fused kernel, it takes the large ones as well."""
    found = Operators()
    compiled, eager, small = *pair(name, torch.float64), pair(name, torch.float64)[0]
    small.compile(backend=found)
    small.step()
    monkeypatch.setattr(execution, "SMALL", 11)  # the matrices have 12 elements
    compiled.compile(backend=found)
    for _ in range(3):
        compiled.step()
        eager.step()
    all_small, mixed = found.names
    if name in FUSED:
        assert mixed == all_small
    else:
        assert mixed.count(OPERATOR) == (0 if name == "Muon" else 1)
        assert len([x for x in mixed if x != OPERATOR]) > len([x for x in all_small if x != OPERATOR]) + 3
    assert_states_close(compiled, eager, 1e-12)
    vectors = [[p.detach() for p in flat(one) if p.dim() < 2] for one in (compiled, eager)]
    assert all(map(torch.equal, *vectors)) and (vectors[0] or name == "Muon")


def test_the_limit():
    """The sizes that the page on compiling names."""
    counted = []
    for size in (1 << 16, (1 << 16) + 1):
        found = Operators()
        p = Parameter(torch.ones(size))
        p.grad = torch.ones(size)
        one = optim.Lion([p], lr=0.1)
        one.compile(backend=found)
        one.step()
        counted.append(found.names[0].count(OPERATOR))
    assert counted == [1, 0]


@pytest.mark.parametrize("name", ["AdamW", "NAdam"])
def test_tensors_that_wrap_others(name):
    """An operator on such a tensor runs once for each of the others, and would count as many steps."""
    both = []
    for _ in range(2):
        p = Parameter(TwoTensor(torch.arange(4.0), torch.ones(4)))
        p.grad = TwoTensor(torch.ones(4), torch.arange(4.0))
        both.append(getattr(optim, name)([p], lr=0.1))
    compiled, eager = both
    compiled.compile(backend=BACKEND)
    for _ in range(3):
        compiled.step()
        eager.step()
    (p,), (q,) = flat(compiled), flat(eager)
    assert compiled.state[p]["step"] == 3
    assert torch.allclose(p.a, q.a, rtol=1e-6) and torch.allclose(p.b, q.b, rtol=1e-6)  # in single precision


def test_whole_numbers_of_numpy():
    compiled, eager = pair("RMSprop", torch.float64, momentum=np.int64(0))
    compiled.compile(backend=BACKEND)
    for _ in range(2):
        compiled.step()
        eager.step()
    assert_states_close(compiled, eager, 1e-12)


class Halved(optim.SGD):
    """A rule of a user's own on the state of SGD."""

    fused = None

    @staticmethod
    def update(h, k, p, g, *states):
        torch._foreach_add_(p, g, alpha=-0.5)


class SGD(optim.SGD):
    """A class of a user's own, which may have any name."""


@pytest.mark.parametrize("kind", [Halved, SGD])
def test_classes_of_a_users_own_are_compiled_operation_by_operation(kind):
    found = Operators()
    p = Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    one = kind([p], lr=1.0)
    one.compile(backend=found)
    one.step()
    assert OPERATOR not in found.names[0]
    assert len(found.names[0]) > 1
