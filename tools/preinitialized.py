#!/usr/bin/env python3
"""Which optimizers of other packages `optim.preinitialize` takes: ``PYTHONPATH=. python tools/preinitialized.py``.

An optimizer of every class in the installed packages is created, given its state, and trained for twenty steps. Next to
it, a second one is trained that creates its own state. The first gradients of some parameters come late. The script
prints the rows of docs/preinitialize.md, or with ``--all`` a line for each class. The expected outcomes are in
tests/optim/test_other_packages.py.
"""

import argparse
import contextlib
import importlib
import importlib.util
import inspect
import io
import random
import re
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import Parameter

import optim
from optim.initial_state.compare import differences
from optim.initial_state.trial import group_settings

Make = Callable[[], torch.optim.Optimizer]
STEPS = 20
PACKAGES = ("pytorch_optimizer", "schedulefree", "optimi", "lion_pytorch", "heavyball")
MODELS = ("AdamMini", "AdaLOMO", "LOMO")  # take the model, not its parameters
WRAPPERS = ("Lookahead", "OrthoGrad", "PCGrad", "SafeFP16Optimizer", "ScheduleFreeWrapper", "TRAC")  # an optimizer
MATRICES = ("AdaGO", "AdaMuon", "DistributedMuon", "Muon", "MuonClip", "NorMuon")  # groups for matrices, and others
ARGUMENTS: dict[str, dict[str, Any]] = {  # arguments that a class needs in addition to parameters
    "pytorch_optimizer.BSAM": {"num_data": 100},
    "pytorch_optimizer.DAdaptSGD": {"momentum": 0.9},
    "pytorch_optimizer.Ranger21": {"num_iterations": 100},
    "pytorch_optimizer.SGD": {"momentum": 0.9},
    "optimi.SGD": {"momentum": 0.9},
}
# The classes of each package that the page names, in addition to the rows below with arguments or a dtype.
ON_THE_PAGE = {
    "pytorch_optimizer": "AdamP AdaBelief Lion Lamb Adan SophiaH Shampoo SOAP Prodigy ScheduleFreeAdamW AdEMAMix "
    "Ranger MADGRAD Tiger LARS RAdam NovoGrad StableAdamW CAME ADOPT",
    "schedulefree": "AdamWScheduleFree SGDScheduleFree RAdamScheduleFree",
    "optimi": "",
    "lion_pytorch": "Lion",
}


def parameters(dtype: torch.dtype) -> list[Parameter]:
    generator = torch.Generator().manual_seed(5)
    shapes = ((4, 3), (5,), (2, 6), (1,))
    return [Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def make(package: str, name: str, dtype: torch.dtype = torch.float32, **arguments: Any) -> torch.optim.Optimizer:
    """Make an optimizer of a class, with the arguments that it needs."""
    kind = getattr(importlib.import_module(package), name)
    accepted = inspect.signature(kind).parameters
    arguments = {**ARGUMENTS.get(f"{package}.{name}", {}), **arguments}
    params: Any = parameters(dtype)
    if name in MODELS:
        params = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    elif name in WRAPPERS:
        params = torch.optim.SGD(params, lr=0.01)
    elif "base_optimizer" in accepted:
        arguments["base_optimizer"] = torch.optim.SGD
    elif package == "pytorch_optimizer" and name in MATRICES:
        params = [{"params": params[::2], "use_muon": True}, {"params": params[1::2], "use_muon": False}]
    if "lr" in accepted and accepted["lr"].default is inspect.Parameter.empty:
        arguments["lr"] = 0.01
    if "triton" in accepted:
        arguments["triton"] = False  # its kernels need a GPU, and this machine may have none
    optimizer: torch.optim.Optimizer = kind(params, **arguments)
    if hasattr(optimizer, "train"):
        optimizer.train()
    return optimizer


def outcome(new: Make) -> str:
    """An empty text if training is bit-identical, or the reason for a refusal. Raises AssertionError if it differs."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        untouched, early = new(), new()
        before = snapshot(early)
        try:
            optim.preinitialize(early)
        except ValueError as error:
            assert not differences(before, snapshot(early)), error
            return str(error.args[0])
        for step in range(1, STEPS + 1):
            train(untouched, step)
            train(early, step)
        changes = list(differences(snapshot(untouched), snapshot(early)))
        assert not changes, changes[0]
        return ""


def snapshot(optimizer: torch.optim.Optimizer) -> list[Any]:
    groups = [{**group_settings(group), "params": list(group["params"])} for group in groups_of(optimizer)]
    states = [dict(optimizer.state.get(p, {})) for group in groups for p in group["params"]]
    kept: list[Any] = torch.utils._pytree.tree_map_only(torch.Tensor, lambda x: x.detach().clone(), [groups, states])
    return kept


def groups_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return getattr(optimizer, "param_groups", [])  # which a wrapper may lack


def train(optimizer: torch.optim.Optimizer, step: int) -> None:
    """A step, in which some parameters have no gradient yet."""
    random.seed(step)
    torch.manual_seed(step)
    for group in optimizer.param_groups:
        for i, p in enumerate(group["params"]):
            gradient = torch.randn(p.shape).to(p.dtype)
            p.grad = None if i == len(group["params"]) - 1 and step < 4 else gradient
    optimizer.step()


def class_names(package: str) -> list[str]:
    """The names of all optimizers of a package."""
    names = []
    for name, cls in vars(importlib.import_module(package)).items():
        if inspect.isclass(cls) and issubclass(cls, torch.optim.Optimizer) and cls.__name__ == name:
            names.append(name)
    return sorted(set(names) - {"Optimizer"})


def class_outcomes(package: str) -> dict[str, str | None]:
    """The outcome for each class; None if it cannot be created here."""
    if package == "heavyball":
        vars(importlib.import_module("heavyball.utils"))["compile_mode"] = None  # compiling takes a minute each
    outcomes: dict[str, str | None] = {}
    for name in class_names(package):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                make(package, name)
        except Exception:
            outcomes[name] = None
            continue
        outcomes[name] = outcome(partial(make, package, name))
    return outcomes


def rows() -> list[str]:
    """The rows of the page, for the packages that are installed."""
    named: list[tuple[str, str, Make]] = []
    for package, names in ON_THE_PAGE.items():
        if importlib.util.find_spec(package) is None:
            continue
        for name in names.split():
            named.append((package, name, partial(make, package, name)))
        if package == "optimi":
            for name in class_names(package):
                new = partial(make, package, name, torch.bfloat16)
                named.append((package, f"{name}, bfloat16 with Kahan sums", new))
    if importlib.util.find_spec("transformers") is not None:
        adafactor = partial(make, "transformers.optimization", "Adafactor")
        named.append(("transformers", "Adafactor", adafactor))
        fixed = partial(adafactor, lr=0.01, relative_step=False, scale_parameter=False)
        named.append(("transformers", "Adafactor, lr=0.01", fixed))
    return [f"| {package} | {name} | {cell(outcome(new))} |" for package, name, new in named]


def cell(reason: str) -> str:
    """The outcome as the page prints it: without numbers, which no reader compares."""
    if not reason:
        return "equal"
    reason = (
        reason.partition(" of group ")[2].partition(": ")[2].removesuffix(". Let it make its state in its first step.")
    )
    if "depends on the first gradient" in reason:
        reason = f"`{reason.partition(' is ')[0]}` depends on the first gradient"
    return "refused: " + re.sub(r"\s+", " ", reason)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="all classes of the packages, a line for each")
    if not parser.parse_args().all:
        print("| package | class | `preinitialize` |", "|---|---|---|", *rows(), sep="\n")
        return
    for package in PACKAGES:
        if importlib.util.find_spec(package) is not None:
            for name, reason in class_outcomes(package).items():
                print(f"{package}.{name}: {'cannot be made alone' if reason is None else reason or 'equal'}")


if __name__ == "__main__":
    main()
