"""The table of docs/optimizers.md: every optimizer of torch and of three libraries is done as promised, or refused."""

from __future__ import annotations

import copy
import random
import re
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

import optim
from tests.optim.foreign_rows import assert_same, of
from tests.optim.library_rows import INSTALLED, LIBRARIES, NEEDS_MORE, classes, made

DOCS = Path(__file__).parents[2] / "docs" / "optimizers.md"

# What the words of the table mean: the pattern that the error of `preinitialize` has, or of `state_bytes`.
DONE, RIGHT = "done", "counted"
REASONS = {
    DONE: "",
    "the first values depend on the gradients or on random numbers": r"the first value of .* depends on|would differ "
    r"after step",
    "the keys depend on which parameters have gradients": r"changes in kind with the parameters that have a gradient",
    "the step needs a closure": r"[Cc]losure",
    "the step needs gradients with a graph of their own": r"does not require grad",
    "the step is made inside of backward": r"NotImplementedError",
    "wraps another optimizer": r"it wraps another optimizer|it has no param_groups. Pass the optimizer that it wraps",
    "the state grows": r"changes in kind as it steps",
    "the state grows at a step that depends on the gradients": r"adds a buffer when",
    "an object in the state holds tensors": r"is an object of type \w+, whose content is unknown",
}
BYTES = {
    RIGHT: "",
    "the step fails on the meta device": r"its step fails .*Pass an optimizer that has its state, after",
    "the size depends on values": r"it depends on values whether",
    "the state grows": r"bytes after step 2 and",
    "as `preinitialize`": None,
}


# Those that `state_bytes` refuses after a step: it keeps tensors in its groups, or cannot be copied then.
REFUSED_LATER = {
    ("pytorch_optimizer", "ASGD"): "its step fails",
    **{
        ("heavyball", name): "it cannot be copied"
        for kind in ("SOAP", "SOAPAdEMAMix", "SOAPNAdam", "SOLP", "KLSOAP", "KLShampoo")
        for name in (kind, f"Heavy{kind}")
    },
}


def table() -> dict[tuple[str, str], tuple[str, str]]:
    """By library and name: what `preinitialize` does, and `state_bytes` before the first step."""
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
HERE = [(library, name) for library, name in TABLE if library in INSTALLED and name in classes(library)]
TRIED = [row for row in HERE if row not in NEEDS_MORE]


def test_every_optimizer_is_in_the_table() -> None:
    newest = all(library in INSTALLED for library in LIBRARIES)
    for library in INSTALLED:
        listed = {name for owner, name in TABLE if owner == library}
        assert classes(library) <= listed
        assert not newest or listed == classes(library)
    assert len(INSTALLED) > 1 or len(TRIED) >= 14


def drawing(step: int) -> None:
    torch.manual_seed(step)
    random.seed(step)
    numpy.random.seed(step)


def train(optimizer: torch.optim.Optimizer, steps: range, missing: bool = False) -> None:
    """On gradients of their own; with `missing`, two of the parameters have none for two of the steps."""
    if callable(mode := getattr(optimizer, "train", None)):
        mode()
    for step in steps:
        generator = torch.Generator().manual_seed(100 + step)
        for index, parameter in enumerate(of(optimizer)):
            grad = torch.randn(parameter.shape, generator=generator)
            absent = missing and step in ((2, 3) if index == 0 else (0, 1) if index == 1 else ())
            sparse = isinstance(optimizer, torch.optim.SparseAdam)
            parameter.grad = None if absent else grad.to_sparse(1) if sparse else grad
        with torch.random.fork_rng():
            drawing(step)
            optimizer.step()


def outline(optimizer: torch.optim.Optimizer) -> Any:
    """All keys of the state and of the groups, with shapes and dtypes."""
    place = {id(parameter): f"parameter {index}" for index, parameter in enumerate(of(optimizer))}

    def of_value(value: Any) -> Any:
        if isinstance(value, dict):
            return {place.get(id(key), key): of_value(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [of_value(one) for one in value]
        return (tuple(value.shape), value.dtype) if isinstance(value, Tensor) else None

    return of_value(dict(optimizer.state)), [sorted(group) for group in optimizer.param_groups]


def allocated(optimizer: torch.optim.Optimizer) -> int:
    """What the tensors in the state take, each storage once, without those of parameters."""
    found: dict[int, int] = {}

    def look(value: Any) -> None:
        if isinstance(value, Tensor):
            found[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        elif isinstance(value, dict | list | tuple | set):
            for one in value.values() if isinstance(value, dict) else value:
                look(one)

    look(dict(optimizer.state))
    return sum(found.values()) - sum(found.get(p.untyped_storage().data_ptr(), 0) for p in of(optimizer))


@pytest.fixture(autouse=True)
def process_group() -> Any:
    """One optimizer asks for one."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    state = numpy.random.get_state()
    yield
    numpy.random.set_state(state)
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")  # the libraries' own
@pytest.mark.parametrize(("library", "name"), [row for row in TRIED if TABLE[row][0] == DONE])
def test_done(library: str, name: str) -> None:
    for missing in (False, True):
        untouched, optimizer = made(library, name), optim.preinitialize(made(library, name))
        early = outline(optimizer)
        for steps in (range(1), range(1, 20)):
            train(untouched, steps, missing)
            train(optimizer, steps, missing)
            assert outline(optimizer) == early
            assert_same(of(untouched), of(optimizer))
        assert outline(untouched)[0] == early[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("library", "name"), [row for row in TRIED if TABLE[row][0] != DONE])
def test_refused(library: str, name: str) -> None:
    pattern = REASONS[TABLE[library, name][0]]
    optimizer = made(library, name)
    before = copy.deepcopy(
        {key: value for key, value in optimizer.__dict__.items() if key in ("param_groups", "state")}
    )
    generators = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()
    with pytest.raises(ValueError, match=f"(?s)^preinitialize: optimizer {name} cannot have its state .*({pattern})"):
        optim.preinitialize(optimizer)
    after = {key: value for key, value in optimizer.__dict__.items() if key in ("param_groups", "state")}
    assert_same([*map(repr, before.values())], [*map(repr, after.values())])
    assert generators[1:] == (random.getstate(), numpy.random.get_state()[1].tolist())
    assert torch.equal(torch.get_rng_state(), generators[0])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("library", "name"), TRIED)
def test_bytes(library: str, name: str) -> None:
    """Before the first step, and after it: the bytes that are there then, or an error, never another number."""
    done, foreseen = TABLE[library, name]
    optimizer = made(library, name)
    if foreseen != RIGHT:
        pattern = REASONS[done] if BYTES[foreseen] is None else BYTES[foreseen]
        with pytest.raises(
            ValueError, match=f"(?s)^state_bytes: the state of {name} cannot be foreseen: .*({pattern})"
        ):
            optim.state_bytes(optimizer)
        if BYTES[foreseen] is None:
            return
    early = None if foreseen != RIGHT else optim.state_bytes(optimizer)
    train(optimizer, range(3))
    expected = allocated(optimizer)
    assert early in (None, expected)
    later = [optimizer, *([optim.preinitialize(made(library, name))] if done == DONE else [])]
    for one in later:
        if pattern := REFUSED_LATER.get((library, name), BYTES[foreseen] if foreseen == "the state grows" else ""):
            with pytest.raises(ValueError, match=f"^state_bytes: the state of {name} cannot be foreseen: .*{pattern}"):
                optim.state_bytes(one)
        else:
            assert optim.state_bytes(one) == expected
