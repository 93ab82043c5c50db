"""optim.state_bytes: the bytes that are allocated in the end, said before anything is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import Parameter
from torch.testing._internal.distributed.fake_pg import FakeStore

import optim
from tests.optim.foreign_rows import BUFFER, LR, Custom, allocated, of
from tests.optim.signatures import NAMES

OPTIONS: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in NAMES] + [
    *(("SGD", {"momentum": 0.9}), ("SGD", {"momentum": 0.9, "dampening": 0.5}), ("Adam", {"amsgrad": True})),
    *(("AdamW", {"amsgrad": True}), ("RMSprop", {"momentum": 0.9, "centered": True}), ("Adafactor", {"beta1": 0.9})),
    *((name, {"enable_global_step": True}) for name in NAMES),
]
REAL = ("Adafactor", "Muon")
SHAPES = {"matrices": [(4, 3), (7, 7), (1, 5)], "all": [(4, 3), (5,), (2, 3, 2), (), (0,), (3, 0)]}
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64]


OURS_WITH_DTYPES = [(*row, dtype) for row in OPTIONS for dtype in DTYPES if row[0] not in REAL or not dtype.is_complex]


@pytest.mark.parametrize(("name", "kwargs", "dtype"), OURS_WITH_DTYPES)
def test_ours(name: str, kwargs: dict[str, Any], dtype: torch.dtype) -> None:
    given = [torch.zeros(shape, dtype=dtype) for shape in SHAPES["matrices" if name == "Muon" else "all"]]
    kind, arguments = getattr(optim, name), LR | kwargs
    optimizer = kind(given, **arguments)
    expected = allocated(optimizer)
    assert optim.state_bytes(optimizer) == expected
    assert optim.state_bytes((kind, given, arguments)) == expected
    on_meta = [tensor.to("meta") for tensor in given]
    assert optim.state_bytes((kind, on_meta, arguments)) == expected
    assert optim.state_bytes(kind(on_meta, **arguments)) == expected


@pytest.mark.parametrize("owner", [torch.optim, optim])
def test_ten_billion_elements(owner: Any) -> None:
    """Allocated, these would not fit: 80 GB of moments for one, 20 for the other."""
    layers = [torch.empty(100_000, 50_000, device="meta") for _ in range(2)]
    assert optim.state_bytes((owner.Adam, layers[:1])) == 2 * 4 * 5_000_000_000 + 4
    assert optim.state_bytes((owner.Adam, layers, {"amsgrad": True})) == 3 * 4 * 10_000_000_000 + 2 * 4
    halves = [layer.to(torch.bfloat16) for layer in layers]
    assert optim.state_bytes((owner.SGD, halves, BUFFER)) == 2 * 10_000_000_000
    assert optim.state_bytes((owner.SGD, halves, LR)) == 0


GIVEN: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "list": lambda a, b: [a, b],
    "generator": lambda a, b: (tensor for tensor in (a, b)),
    "named": lambda a, b: [("a", a), ("b", b)],
    "groups": lambda a, b: [{"params": [a]}, {"params": b, "lr": 0.5}],
    "switched groups": lambda a, b: [{"params": (p for p in [a]), "fused": True}, {"params": [b], "foreach": True}],
}


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("given", GIVEN)
def test_ways_to_give_parameters(given: str, device: str) -> None:
    a, b = torch.ones(3, 2, device=device), Parameter(torch.ones(4, device=device), requires_grad=False)
    assert optim.state_bytes((torch.optim.Adam, GIVEN[given](a, b))) == 2 * 4 * 10 + 2 * 4
    assert not a.requires_grad
    assert not b.requires_grad


@pytest.mark.parametrize(
    "arguments",
    [{"fused": True}, {"capturable": True}, {"foreach": True}, {"lr": torch.tensor(0.1)}, {"differentiable": True}, {}],
)
def test_ways_to_run(arguments: dict[str, Any]) -> None:
    weights = [torch.ones(3, 2), torch.ones(4)]
    assert optim.state_bytes((torch.optim.NAdam if "capturable" in arguments else torch.optim.Adam, weights, arguments))


def test_a_run_in_progress() -> None:
    a, b, c = (Parameter(torch.ones(5)) for _ in range(3))
    optimizer = torch.optim.Adam([a, b])
    a.grad = torch.ones(5)
    optimizer.step()
    optimizer.add_param_group({"params": [c], "amsgrad": True})
    before = {key: dict(value) for key, value in optimizer.state.items()}
    assert optim.state_bytes(optimizer) == 3 * 4 + (2 + 2 + 3) * 4 * 5
    assert list(optimizer.state) == [a]
    assert all(optimizer.state[a][key] is value for key, value in before[a].items())
    assert torch.equal(a.grad, torch.ones(5))
    assert optim.state_bytes(optim.preinitialize(optimizer)) == 3 * 4 + (2 + 2 + 3) * 4 * 5


def test_local_part_of_a_dtensor() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    try:
        mesh = init_device_mesh("cpu", (4,))
        for device in ("cpu", "meta"):
            sharded = Parameter(distribute_tensor(torch.zeros(10, 2, device=device), mesh, [Shard(0)]))
            assert optim.state_bytes(torch.optim.Adam([sharded])) == 2 * 4 * 3 * 2 + 4  # 3 rows of 3, 3, 3 and 1
            assert optim.state_bytes((optim.Adam, [sharded])) == 2 * 4 * 3 * 2 + 4
    finally:
        dist.destroy_process_group()


class ByAddress(torch.optim.Optimizer):
    """Finds a parameter by its address, as those of heavyball do."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:
        found = {parameter.data_ptr(): parameter for parameter in of(self)}
        for parameter in of(self):
            self.state[found[parameter.data_ptr()]]["mean"] = torch.zeros_like(parameter)


def test_what_counts() -> None:
    def fill(state: dict[str, Any], parameter: Tensor) -> None:
        mean = torch.zeros_like(parameter)
        state.update(mean=mean, again=[mean, {"once more": mean}], owner=parameter, count=3, name="a", rate=0.5)

    assert optim.state_bytes((Custom, [torch.ones(5)], {"rule": fill})) == 5 * 4


class Masked(Custom):
    """Its constructor makes a part of the state; the size of the rest depends on values."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, selecting)
        for parameter in of(self):
            self.state[parameter]["mask"] = parameter > 0


def test_a_part_of_the_state_is_there() -> None:
    weight = torch.tensor([1.0, -1.0, 2.0, -2.0, 3.0])
    optimizer = Masked([weight])
    assert allocated(optimizer) == 5
    assert optim.state_bytes(optimizer) == 5 + 3 * 4
    assert set(optimizer.state[weight]) == {"mask"}
    weight.grad = torch.ones(5)
    optimizer.step()
    assert optim.state_bytes(optimizer) == allocated(optimizer) == 5 + 3 * 4
    with pytest.raises(ValueError, match="its step fails .*nonzero"):
        optim.state_bytes((Masked, [weight]))


@pytest.mark.parametrize("name", NAMES)
def test_ours_after_changes_that_the_state_has_not_seen(name: str) -> None:
    """The bytes after the next step; asking changes nothing."""

    def resized(optimizer: Any) -> None:
        of(optimizer)[0].data = torch.ones(50, 4)

    def cast(optimizer: Any) -> None:
        for p in of(optimizer):
            p.data = p.data.double()

    def replaced(optimizer: Any) -> None:
        optimizer.param_groups[0]["params"][1] = Parameter(torch.ones(30, 2))

    for change in (resized, cast, replaced, lambda optimizer: optimizer.state.clear()):
        optimizer = getattr(optim, name)([Parameter(torch.ones(4, 4)), Parameter(torch.ones(3, 3))], **LR)
        change(optimizer)
        before = {p: dict(state) for p, state in optimizer.state.items()}
        foreseen = optim.state_bytes(optimizer)
        assert {p: dict(state) for p, state in optimizer.state.items()} == before
        for p in of(optimizer):
            p.grad = torch.ones_like(p)
        optimizer.step()
        assert foreseen == optim.state_bytes(optimizer) == allocated(optimizer)


def test_what_had_a_step_and_is_refused() -> None:
    """Its history is there, and grows: the bytes of now are not those that it comes to have."""
    weight = torch.ones(5)
    optimizer = Custom([weight], growing)
    weight.grad = torch.ones(5)
    optimizer.step()
    with pytest.raises(
        ValueError, match="60 bytes after step 2 and 80 after step 3. Add up the tensors in its state yourself, after"
    ):
        optim.state_bytes(optimizer)
    lbfgs = torch.optim.LBFGS([Parameter(torch.ones(2))])
    lbfgs.step(lambda: of(lbfgs)[0].square().sum())
    with pytest.raises(ValueError, match="closure.*Add up the tensors in its state yourself, after a step"):
        optim.state_bytes(lbfgs)


def growing(state: dict[str, Any], parameter: Tensor) -> None:
    state.setdefault("history", []).append(parameter.clone())


def deciding(state: dict[str, Any], parameter: Tensor) -> None:
    state["norm"] = torch.zeros(()) if parameter.norm() > 1 else 0.0


def selecting(state: dict[str, Any], parameter: Tensor) -> None:
    state["large"] = parameter[parameter > 0]


def boxing(state: dict[str, Any], parameter: Tensor) -> None:
    state["box"] = type("Box", (), {"value": torch.zeros_like(parameter)})()


UNFORESEEN: list[tuple[Callable[[list[Tensor]], Any], str]] = [
    (lambda ps: torch.optim.LBFGS([Parameter(p) for p in ps]), "LBFGS cannot be foreseen: its step fails .*closure"),
    (lambda ps: (Custom, ps, {"rule": growing}), "it takes 80 bytes after step 2 and 120 after step 3"),
    (lambda ps: (Custom, ps, {"rule": deciding}), "it depends on values whether it takes 0 or 8 bytes"),
    (lambda ps: (Custom, ps, {"rule": selecting}), "its step fails .*nonzero"),
    (lambda ps: (Custom, ps, {"rule": boxing}), "state.'box'. is an object of type Box, whose content is unknown"),
    (lambda ps: (ByAddress, ps), "its step fails .RuntimeError: it goes by the addresses of tensors"),
]


@pytest.mark.parametrize(("target", "message"), UNFORESEEN)
def test_refused(target: Callable[[list[Tensor]], Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"(?s)^state_bytes: .*{message}.*Pass an optimizer that has its state, after"):
        optim.state_bytes(target([torch.ones(5), torch.ones(5)]))


BAD: list[tuple[Any, str]] = [
    (None, "target=None: pass an optimizer, or"),
    (torch.optim.Adam, "target=<class .*: pass an optimizer"),
    ((torch.optim.Adam,), "target=.<class .*: pass an optimizer"),
    ((torch.nn.Linear, []), "target=.<class .*: pass an optimizer"),
    ([torch.optim.Adam, []], "target=.<class .*: pass an optimizer"),
    ((torch.optim.Adam, [torch.ones(1)], ["lr"]), "arguments=.'lr'.: pass a dict, as .'lr'"),
]


@pytest.mark.parametrize(("target", "message"), BAD)
def test_wrong_types(target: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"^state_bytes: .*{message}"):
        optim.state_bytes(target)


def test_errors_of_the_class_itself() -> None:
    with pytest.raises(ValueError, match="learning rate"):
        optim.state_bytes((torch.optim.Adam, [torch.ones(1)], {"lr": -1.0}))
    with pytest.raises(TypeError, match="fused"):
        optim.state_bytes((optim.Adam, [torch.ones(1)], {"fused": True}))
