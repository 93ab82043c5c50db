"""Every optimizer class of torch and of the libraries in requirements/newest.txt, and how to make one of each."""

from __future__ import annotations

import importlib
import inspect
import random
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.nn import Parameter

LIBRARIES = ("torch.optim", "pytorch_optimizer", "optimi", "schedulefree", "heavyball")
INSTALLED = [library for library in LIBRARIES if find_spec(library.split(".")[0])]
NEEDS_MORE = {("pytorch_optimizer", "DeMo")}  # einops, which is not in requirements/newest.txt

SHAPES = [(4, 3), (5,), (2, 3, 2), (3, 3)]
MATRICES = [(4, 3), (3, 3), (2, 5)]
PAIRS = [(2, 4), (3, 2)]  # of low-rank adapters


def drawn(shapes: list[tuple[int, ...]]) -> list[Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


class Model(nn.Module):
    """A model of these parameters, for the optimizers that take a model."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(drawn(SHAPES))


def split(flag: str) -> Callable[[Any], Any]:
    """In two groups: matrices, and what an Adam inside takes."""

    def make(kind: Any) -> Any:
        given = drawn(SHAPES)
        matrices, others = [p for p in given if p.dim() == 2], [p for p in given if p.dim() != 2]
        return kind([{"params": matrices, flag: True}, {"params": others, flag: False}])

    return make


def around(kind: Any) -> Any:
    return kind(torch.optim.AdamW(drawn(SHAPES)))


def with_base(kind: Any) -> Any:
    return kind(drawn(SHAPES), base_optimizer=torch.optim.SGD, lr=0.1)


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
    return kind([{"params": drawn(SHAPES), "optimizer": importlib.import_module("heavyball").AdamW, "lr": 0.1}])


MADE: dict[tuple[str, str], Callable[[Any], torch.optim.Optimizer]] = {
    ("torch.optim", "Muon"): lambda kind: kind(drawn(MATRICES)),
    ("torch.optim", "SGD"): lambda kind: kind(drawn(SHAPES), lr=0.1, momentum=0.9),
    ("optimi", "SGD"): lambda kind: kind(drawn(SHAPES), lr=0.1, momentum=0.9),
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
    ("pytorch_optimizer", "BSAM"): lambda kind: kind(drawn(SHAPES), num_data=10),
    ("pytorch_optimizer", "LoRARite"): lambda kind: kind(drawn(PAIRS)),
    ("pytorch_optimizer", "Ranger21"): lambda kind: kind(drawn(SHAPES), num_iterations=100),
    ("pytorch_optimizer", "SaRA"): lambda kind: kind(drawn(SHAPES), threshold=0.8),  # about half of the elements
    ("pytorch_optimizer", "SpectralSphere"): lambda kind: kind(drawn(MATRICES)),
    ("heavyball", "SplitOpt"): parts,
}


def made(library: str, name: str) -> torch.optim.Optimizer:
    module = importlib.import_module(library)
    if library == "heavyball":
        importlib.import_module("heavyball.utils").compile_mode = None  # its kernels as they are, not compiled
    kind = getattr(module, name)
    with torch.random.fork_rng():
        torch.manual_seed(0)  # some draw masks
        random.seed(0)
        if (library, name) in MADE:
            return MADE[library, name](kind)
        needs_lr = "lr" in (known := inspect.signature(kind).parameters) and known["lr"].default is known["lr"].empty
        return kind(drawn(SHAPES), **({"lr": 0.1} if needs_lr else {}))


def classes(library: str) -> set[str]:
    """The names of its optimizers, without bases that are none: heavyball's take the `defaults` of a subclass."""
    return {
        name
        for name, value in vars(importlib.import_module(library)).items()
        if inspect.isclass(value) and issubclass(value, torch.optim.Optimizer) and value is not torch.optim.Optimizer
        if not (library == "heavyball" and name in ("PSGDBase", "SOAPBase"))
    }
