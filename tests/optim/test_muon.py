"""What a matrix is to Muon: a stack of them, or a flattened parameter; and the memory that its directions take."""

import json
import math
import weakref
from pathlib import Path

import pytest
import torch
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from optim import Muon

CASES = json.loads((Path(__file__).parents[1] / "golden" / "muon_stacks.json").read_text())["cases"]
FORMS = ("cerebras", "original", "match_rms_adamw")


def values(shape, number, step=None):
    """A parameter, or its gradient in a step, by the formulas of the golden file."""
    i = torch.arange(math.prod(shape), dtype=torch.float64)
    if step is None:
        flat = 0.8 * torch.cos(0.5 * i + 1.1 * number + 0.3)
    else:
        flat = 0.5 * torch.sin(0.7 * step + 0.3 * i + number) + 0.3 * torch.cos(0.9 * i * i + 0.4 * step + number)
    return flat.reshape(shape)


def trained(shape, steps=3, view=None, **options):
    """A parameter after some steps; `view`: the shape in which the optimizer gets it."""
    p = Parameter(values(shape, 0).reshape(view or shape))
    optimizer = Muon([p], lr=0.1, **options)
    for step in range(1, steps + 1):
        p.grad = values(shape, 0, step).reshape(p.shape)
        optimizer.step()
    return p.detach().reshape(shape)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_stacks_are_those_of_the_first_implementation(case):
    params = {name: Parameter(values(given["shape"], given["j"])) for name, given in case["params"].items()}
    optimizer = Muon(
        list(params.values()),
        lr=case["lr"],
        momentum=case["momentum"],
        weight_decay=case["weight_decay"],
        adjust_lr_fn="original",
    )
    for step in range(1, 6):
        for name, p in params.items():
            p.grad = values(p.shape, case["params"][name]["j"], step)
        optimizer.step()
        for name, golden in case["float64"].get(str(step), {}).items():
            expected = torch.tensor(golden, dtype=torch.float64).reshape(params[name].shape)
            moved = expected - values(expected.shape, case["params"][name]["j"])
            assert (params[name] - expected).norm() <= case["bfloat16_movement"] * moved.norm(), (step, name)


@pytest.mark.parametrize("form", FORMS)
def test_a_stack_is_its_matrices(form):
    """In bfloat16 inside, whose products are summed in another order in a stack: 1 % of the way."""
    shape, options = (3, 4, 6), {"adjust_lr_fn": form, "weight_decay": 0.1}
    stack, start = trained(shape, **options), values(shape, 0)
    singles = [Parameter(x.clone()) for x in start]
    optimizer = Muon(singles, lr=0.1, **options)
    for step in range(1, 4):
        for p, gradient in zip(singles, values(shape, 0, step)):
            p.grad = gradient
        optimizer.step()
    apart = torch.stack([p.detach() for p in singles])
    assert (stack - apart).norm() <= 0.01 * (apart - start).norm()
    assert torch.equal(stack, trained(shape, flatten=False, **options))  # the default of three dimensions
    assert not torch.allclose(stack, trained(shape, flatten=True, **options))


@pytest.mark.parametrize("form", FORMS[1:])
@pytest.mark.parametrize("shape", [(4, 3, 2), (4, 3, 2, 2), (4, 3, 2, 1, 2)])
def test_a_flattened_parameter_is_the_matrix_of_its_rows(shape, form):
    """torch's forms scale it by its rows and columns; the form "cerebras" by the first two sizes."""
    flattened = trained(shape, flatten=True, adjust_lr_fn=form)
    assert torch.equal(flattened, trained(shape, view=(shape[0], -1), adjust_lr_fn=form))
    if len(shape) > 3:
        assert torch.equal(flattened, trained(shape, adjust_lr_fn=form))
        stacks = trained(shape, flatten=False, adjust_lr_fn=form)
        assert torch.equal(stacks, trained(shape, view=(-1, *shape[-2:]), adjust_lr_fn=form))


def test_flatten_is_an_option_of_a_group():
    stack, convolution = (Parameter(values((3, 4, 6), 0)) for _ in range(2))
    optimizer = Muon([{"params": [stack]}, {"params": [convolution], "flatten": True}], lr=0.1)
    stack.grad = convolution.grad = values((3, 4, 6), 0, 1)
    optimizer.step()
    assert torch.equal(stack, trained((3, 4, 6), steps=1))
    assert torch.equal(convolution, trained((3, 4, 6), steps=1, flatten=True))
    with pytest.raises((TypeError, ValueError), match="flatten"):
        Muon([stack], flatten="yes")


class Held(TorchDispatchMode):
    """Counts the most bytes that tensors made by operations held at once, beside those of given tensors."""

    def __init__(self, *beside):
        super().__init__()
        self.made, self.most = [], 0
        self.beside = dict.fromkeys((x.untyped_storage().data_ptr() for x in beside), 0)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        self.made = [ref for ref in self.made if ref() is not None]
        self.made += [weakref.ref(x) for x in tree_leaves(found) if isinstance(x, torch.Tensor)]
        storages = [x.untyped_storage() for ref in self.made if (x := ref()) is not None]
        held = {each.data_ptr(): each.nbytes() for each in storages} | self.beside
        self.most = max(self.most, sum(held.values()))
        return found


@pytest.mark.parametrize("nesterov", [True, False])
def test_one_direction_is_held_at_a_time(nesterov):
    """Six large matrices take as much beside them as one."""
    held = []
    for count in (1, 6):
        params = [Parameter(torch.randn(1024, 1024)) for _ in range(count)]
        optimizer = Muon(params, nesterov=nesterov)
        for p in params:
            p.grad = torch.randn_like(p)
        with Held(*(x for p in params for x in (p, p.grad, optimizer.state[p]["momentum_buffer"]))) as mode:
            optimizer.step()
        held.append(mode.most)
    assert held[1] <= held[0] + 1024 and held[0] > params[0].nbytes  # + 1024: each has a few numbers of its own
