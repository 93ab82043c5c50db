"""Other people's optimizers, as data: every class of torch.optim, of the libraries in requirements/newest.txt and of
Composer, how to make one of each, and how to train and compare them."""

from __future__ import annotations

import importlib
import inspect
import random
import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.testing._internal.distributed.fake_pg import FakeStore

DOCS = Path(__file__).parents[2] / "docs" / "optimizers.md"
LIBRARIES = ("torch.optim", "pytorch_optimizer", "optimi", "schedulefree", "heavyball")
INSTALLED = [library for library in LIBRARIES if find_spec(library.split(".")[0])]
NEEDS_MORE = {("pytorch_optimizer", "DeMo")}  # einops, which is not in requirements/newest.txt

LR, BUFFER = {"lr": 0.1}, {"lr": 0.1, "momentum": 0.9}
FOREACH = ({"foreach": False}, {"foreach": True})
L2 = {"weight_decay": 0.1}

TORCH: dict[str, list[dict[str, Any]]] = {
    "ASGD": [{}, {"t0": 1, "lambd": 0.1}, *FOREACH, {"maximize": True, **L2}],
    "Adadelta": [{}, {"rho": 0.5, **L2}, *FOREACH, {"maximize": True}],
    "Adafactor": [{}, {"lr": 0.1, **L2}, {"maximize": True, "d": 2.0}],
    "Adagrad": [{}, {"initial_accumulator_value": 0.1, "lr_decay": 0.1}, *FOREACH, {"fused": True}],
    "Adam": [{}, {"amsgrad": True}, *FOREACH, {"fused": True}, {"fused": True, "amsgrad": True, "maximize": True}],
    "AdamW": [{}, {"amsgrad": True, "lr": 0.1}, *FOREACH, {"fused": True}, {"maximize": True, "foreach": True}],
    "Adamax": [{}, L2, *FOREACH, {"maximize": True}],
    "Muon": [{}, {"nesterov": False}, {"momentum": 0.5, "adjust_lr_fn": "match_rms_adamw"}],
    "NAdam": [{}, {"momentum_decay": 0.1, **L2}, *FOREACH, {"decoupled_weight_decay": True, **L2}],
    "RAdam": [{}, {"betas": (0.5, 0.6)}, *FOREACH, {"decoupled_weight_decay": True, **L2}],
    "RMSprop": [{}, {"centered": True}, {"momentum": 0.9}, {"centered": True, "momentum": 0.9, "foreach": True}, L2],
    "Rprop": [{}, {"lr": 0.5, "etas": (0.1, 1.1)}, *FOREACH, {"maximize": True}],
    "SGD": [
        *(LR, BUFFER, {**BUFFER, "nesterov": True}, {**BUFFER, "maximize": True, **L2}),
        *({**BUFFER, "foreach": True}, {**BUFFER, "fused": True}, {**BUFFER, "fused": True, "nesterov": True}),
    ],
    "SparseAdam": [{}, {"betas": (0.5, 0.6)}, {"maximize": True}],
}

COMPOSER = [("DecoupledAdamW", {}), ("DecoupledAdamW", {"amsgrad": True}), ("DecoupledSGDW", BUFFER)]

SHAPES = [(4, 3), (5,), (2, 3, 2), (3, 3)]
MATRICES = [(4, 3), (3, 3), (2, 5)]
PAIRS = [(2, 4), (3, 2)]  # of low-rank adapters


def drawn(shapes: list[tuple[int, ...]] = SHAPES, dtype: torch.dtype = torch.float32) -> list[Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


class Model(nn.Module):
    """A model of these parameters, for the optimizers that take a model."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(drawn())


def split(flag: str) -> Callable[[Any], Any]:
    """In two groups: matrices, and what an Adam inside takes."""

    def make(kind: Any) -> Any:
        given = drawn()
        matrices, others = [p for p in given if p.dim() == 2], [p for p in given if p.dim() != 2]
        return kind([{"params": matrices, flag: True}, {"params": others, flag: False}])

    return make


def around(kind: Any) -> Any:
    return kind(torch.optim.AdamW(drawn()))


def with_base(kind: Any) -> Any:
    return kind(drawn(), base_optimizer=torch.optim.SGD, lr=0.1)


def with_model_and_base(kind: Any) -> Any:
    model = Model()
    return kind(model, model.parameters(), torch.optim.SGD, lr=0.1)


def gsam(kind: Any) -> Any:
    model = Model()
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = importlib.import_module("pytorch_optimizer").ProportionScheduler(
        torch.optim.lr_scheduler.ConstantLR(base), max_lr=0.1, max_value=2.0
    )
    return kind(model.parameters(), base, model, scheduler)


def parts(kind: Any) -> Any:
    return kind([{"params": drawn(), "optimizer": importlib.import_module("heavyball").AdamW, "lr": 0.1}])


MADE: dict[tuple[str, str], Callable[[Any], torch.optim.Optimizer]] = {
    ("optimi", "SGD"): lambda kind: kind(drawn(), lr=0.1, momentum=0.9),
    **{
        ("pytorch_optimizer", name): split("use_muon")
        for name in ("AdaGO", "AdaMuon", "DistributedMuon", "Muon", "MuonClip", "NorMuon")
    },
    **{("pytorch_optimizer", name): lambda kind: kind(Model()) for name in ("AdaLOMO", "AdamMini", "LOMO")},
    **{
        ("pytorch_optimizer", name): around
        for name in ("Lookahead", "OrthoGrad", "PCGrad", "SafeFP16Optimizer", "ScheduleFreeWrapper", "TRAC")
    },
    **{("pytorch_optimizer", name): with_base for name in ("FriendlySAM", "LookSAM", "SAM")},
    ("pytorch_optimizer", "GSAM"): gsam,
    ("pytorch_optimizer", "WSAM"): with_model_and_base,
    ("pytorch_optimizer", "BSAM"): lambda kind: kind(drawn(), num_data=10),
    ("pytorch_optimizer", "LoRARite"): lambda kind: kind(drawn(PAIRS)),
    ("pytorch_optimizer", "Ranger21"): lambda kind: kind(drawn(), num_iterations=100),
    ("pytorch_optimizer", "SaRA"): lambda kind: kind(drawn(), threshold=0.8),  # about half of the elements
    ("pytorch_optimizer", "SpectralSphere"): lambda kind: kind(drawn(MATRICES)),
    ("heavyball", "SplitOpt"): parts,
}


def made(
    library: str, name: str, kwargs: dict[str, Any] | None = None, dtype: torch.dtype = torch.float32
) -> torch.optim.Optimizer:
    """An optimizer over parameters that are the same each time."""
    module = importlib.import_module(library)
    if library == "heavyball":
        importlib.import_module("heavyball.utils").compile_mode = None  # its kernels as they are, not compiled
    kind = getattr(module, name)
    with torch.random.fork_rng():
        torch.manual_seed(0)  # some draw masks
        random.seed(0)
        if (library, name) in MADE:
            return MADE[library, name](kind)
        known = inspect.signature(kind).parameters
        needed = LR if "lr" in known and known["lr"].default is inspect.Parameter.empty else {}
        shapes = MATRICES if (library, name) == ("torch.optim", "Muon") else SHAPES
        return kind(drawn(shapes, dtype), **needed | (kwargs or {}))


def classes(library: str) -> set[str]:
    """The names of its optimizers, without bases that are none: heavyball's take the `defaults` of a subclass."""
    return {
        name
        for name, value in vars(importlib.import_module(library)).items()
        if inspect.isclass(value) and issubclass(value, torch.optim.Optimizer) and value is not torch.optim.Optimizer
        if not (library == "heavyball" and name in ("PSGDBase", "SOAPBase"))
    }


def table() -> dict[tuple[str, str], tuple[str, str]]:
    """That of docs/optimizers.md: by library and name, what `preinitialize` does, and `state_bytes` before a step."""
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for line in DOCS.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        library = cells[0].strip("`")
        if line.startswith("|") and len(cells) == 4 and library in LIBRARIES:
            for name in re.findall(r"\w+", cells[3]):
                assert (library, name) not in found, f"{library}.{name} is listed twice"
                found[library, name] = cells[1], cells[2]
    return found


TABLE = table()
FROM_TORCH = [(name, kwargs) for name, rows in TORCH.items() if hasattr(torch.optim, name) for kwargs in rows]
CONFIGURED = [("torch.optim", name, kwargs) for name, kwargs in FROM_TORCH]
if find_spec("composer"):
    CONFIGURED += [("composer.optim", name, kwargs) for name, kwargs in COMPOSER]
# With default arguments, where there are no configurations.
DEFAULTS = [
    (library, name, {})
    for library, name in TABLE
    if library in INSTALLED and name in classes(library) and (library, name) not in NEEDS_MORE
    if library != "torch.optim" or name not in TORCH
]


def label(case: tuple[str, str, dict[str, Any]]) -> str:
    library, name, kwargs = case
    return f"{library}.{name}-{','.join(f'{key}={value}' for key, value in kwargs.items())}"


def of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def train(optimizer: torch.optim.Optimizer, steps: range = range(5), missing: bool = True) -> list[Tensor]:
    """Steps on gradients of their own; with `missing`, two of the parameters have none for two of the steps."""
    if callable(mode := getattr(optimizer, "train", None)):
        mode()
    for step in steps:
        generator = torch.Generator().manual_seed(100 + step)
        for index, parameter in enumerate(of(optimizer)):
            grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype) * 10.0 ** (min(step, 4) - 2)
            absent = missing and step in ((2, 3) if index == 0 else (0, 1) if index == 1 else ())
            sparse = isinstance(optimizer, torch.optim.SparseAdam)
            parameter.grad = None if absent else grad.to_sparse(1) if sparse else grad
        with torch.random.fork_rng():
            torch.manual_seed(step)  # for the optimizers that draw random numbers
            random.seed(step)
            numpy.random.seed(step)
            optimizer.step()
    return of(optimizer)


class Custom(torch.optim.Optimizer):
    """Steps as `rule(state, parameter)` says, which gets an empty state at first."""

    def __init__(self, parameters: Any, rule: Callable[[dict[str, Any], Tensor], None]) -> None:
        super().__init__(parameters, {})
        self.rule = rule

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in of(self):
            if parameter.grad is not None:
                self.rule(self.state[parameter], parameter)


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in a tree of dicts and lists."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple | set):
        for one in value.values() if isinstance(value, dict) else value:
            yield from tensors(one)


def allocated(optimizer: torch.optim.Optimizer) -> int:
    """The bytes that the tensors in the state take, each storage once, without those of parameters."""
    storages = [tensor.untyped_storage() for tensor in tensors(dict(optimizer.state))]
    found = {storage.data_ptr(): storage.nbytes() for storage in storages}
    return sum(found.values()) - sum(found.get(p.untyped_storage().data_ptr(), 0) for p in of(optimizer))


@contextmanager
def process_group() -> Iterator[None]:
    """Of one process, which one of the libraries' optimizers asks for; numpy's generator is as before afterwards."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    state = numpy.random.get_state()
    try:
        yield
    finally:
        numpy.random.set_state(state)
        torch.distributed.destroy_process_group()


def assert_same(one: Any, other: Any) -> None:
    """Alike to the last bit, in the tree of dicts and lists."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple | deque):
        assert len(one) == len(other)
        for a, b in zip(one, other):
            assert_same(a, b)
    elif isinstance(one, Tensor):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        one, other = (torch.view_as_real(x) if x.is_complex() else x for x in (one.detach(), other.detach()))
        # Bytes, as nan equals nan then, and -0.0 differs from 0.0.
        assert torch.equal(*(x.reshape(-1).view(torch.uint8) for x in (one, other)))
    else:
        assert one == other
