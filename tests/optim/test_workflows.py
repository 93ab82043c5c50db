"""What runs do with an optimizer beside training: losses that share a backward pass, parts that rest, old states."""

import copy
import random
import warnings
from collections import namedtuple

import pytest
import torch
from torch.nn import Parameter
from torch.torch_version import TorchVersion

import optim
from tests.optim.rows import BY_NAME


@BY_NAME
@pytest.mark.parametrize("beside", [None, torch.float16])
def test_a_step_between_forward_and_backward_is_noticed(row, beside):
    """As of torch's optimizers: the gradients of the second loss would be those of other parameters."""
    params = [Parameter(torch.randn(4, 3, dtype=dtype)) for dtype in (torch.float32, beside) if dtype is not None]
    optimizer = getattr(optim, row.name)(params, lr=0.1)
    first = sum(p.float().square().sum() for p in params)
    second = sum(p.float().square().sum() for p in params)
    first.backward()
    versions = [p._version for p in params]
    optimizer.step()
    assert all(p._version > version for p, version in zip(params, versions))
    if beside is None:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            second.backward()


@pytest.mark.parametrize(
    "settings",
    [
        [{"dampening": dampening} for dampening in (0.0, 0.0, 0.5, 0.5)],
        [{"momentum": momentum} for momentum in (0.0, 0.0, 0.9, 0.9, 0.9)],  # torch's buffer begins with the third
    ],
)
def test_sgd_with_dampening_or_momentum_through_zero(settings):
    p, q = (Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(2))
    mine = optim.SGD([p], lr=1.0, momentum=0.9, dampening=0.5)
    torchs = torch.optim.SGD([q], lr=1.0, momentum=0.9, dampening=0.5)
    for values in settings:
        for each in (mine, torchs):
            each.param_groups[0].update(values)
        p.grad, q.grad = torch.ones_like(p), torch.ones_like(q)
        mine.step(), torchs.step()
        assert p.item() == pytest.approx(q.item(), rel=1e-15)


def test_a_count_that_began_anew_while_the_dampening_is_zero():
    first, second = (Parameter(torch.zeros(2)) for _ in range(2))
    optimizer = optim.SGD([first, second], lr=1.0, momentum=0.9, dampening=0.5)
    optimizer.param_groups[0]["dampening"] = 0.0
    optimizer.reset_state([second])
    first.grad, second.grad = torch.ones(2), torch.ones(2)
    optimizer.step()
    assert torch.equal(first, second)


@pytest.mark.skipif(TorchVersion(torch.__version__) < "2.9", reason="this torch compiles no step")
def test_gradients_that_come_and_go_end_in_eager_steps():
    """Some sets of them have a graph each. Above torch's limit, the steps are those of the eager optimizer."""
    chance = random.Random(0)
    params, others = ([Parameter(torch.full((3,), float(i))) for i in range(6)] for _ in range(2))
    compiled, eager = (optim.AdamW(each, lr=0.1) for each in (params, others))
    compiled.compile(backend="eager")
    limit = torch._dynamo.config.patch(recompile_limit=2)
    with warnings.catch_warnings(record=True) as caught, limit:
        warnings.simplefilter("always")
        for _ in range(12):
            for p, q in zip(params, others):
                some = chance.random() < 0.5
                p.grad, q.grad = (torch.sin(x.detach()) if some else None for x in (p, q))
            compiled.step(), eager.step()
    (warning,) = [each for each in caught if "compiles no more graphs" in str(each.message)]
    assert warning.filename == __file__  # the user's own line
    assert all(torch.allclose(p, q, rtol=1e-6) for p, q in zip(params, others))
    compiled.compile(backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled.step()  # compiled again


@pytest.mark.parametrize("count", [torch.tensor(-3.0), torch.tensor(float("nan")), torch.tensor(float("inf"))])
def test_a_state_with_no_count_of_steps_is_refused(count):
    p = Parameter(torch.ones(2))
    optimizer = optim.Adam([p], lr=0.1)
    state = copy.deepcopy(optimizer.state_dict())
    state["state"][0] |= {"step": count, "exp_avg": torch.ones(2)}
    with pytest.raises(ValueError, match=r"step=tensor\(.*: it must be"):
        optimizer.load_state_dict(state)
    assert not optimizer.state[p]["exp_avg"].any()


def test_betas_of_another_kind_of_tuple():
    Betas = namedtuple("Betas", "first second")
    p, q = Parameter(torch.ones(2)), Parameter(torch.ones(2))
    named, plain = optim.Adam([p], betas=Betas(0.8, 0.95)), optim.Adam([q], betas=(0.8, 0.95))
    named.load_state_dict(named.state_dict())
    p.grad, q.grad = torch.ones(2), torch.ones(2)
    named.step(), plain.step()
    assert torch.equal(p, q)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Lion"])
def test_gradients_with_the_conjugate_bit(name):
    p, q = (Parameter(torch.ones(3, dtype=torch.complex64)) for _ in range(2))
    optimizers = [getattr(optim, name)([each], lr=0.1) for each in (p, q)]
    p.grad = torch.tensor([1 + 2j, 3 - 1j, 0.5j]).conj()
    q.grad = p.grad.resolve_conj()
    assert p.grad.is_conj() and not q.grad.is_conj()
    for each in optimizers:
        each.step()
    assert torch.equal(p, q)
