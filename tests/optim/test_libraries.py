"""The table of docs/optimizers.md: `preinitialize` and `state_bytes` do what it says for every optimizer of torch, of
the libraries and of Composer, bit for bit, or refuse it with the reason in the table."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

import optim
from tests.optim.foreign_rows import (
    CONFIGURED,
    DEFAULTS,
    INSTALLED,
    LIBRARIES,
    TABLE,
    allocated,
    assert_same,
    classes,
    label,
    made,
    of,
    process_group,
    train,
)

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

CASES = CONFIGURED + DEFAULTS
every_case = pytest.mark.parametrize(("library", "name", "kwargs"), CASES, ids=map(label, CASES))
DONE_CASES = [case for case in CASES if TABLE.get(case[:2], (DONE, RIGHT))[0] == DONE]
REFUSED_CASES = [case for case in CASES if case not in DONE_CASES]
pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own


@pytest.fixture(autouse=True)
def _process_group() -> Iterator[None]:
    with process_group():
        yield


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


def everything_else(optimizer: torch.optim.Optimizer) -> Any:
    """What `preinitialize` must leave alone: parameters, gradients, groups and the generators of random numbers."""
    groups = [{k: v for k, v in group.items() if k != "params" and v is not None} for group in optimizer.param_groups]
    generators = [random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state()]
    params = [(p.detach().clone(), p.grad, p.requires_grad) for p in of(optimizer)]
    return copy.deepcopy(groups), params, generators


def test_every_optimizer_is_in_the_table() -> None:
    newest = all(library in INSTALLED for library in LIBRARIES)
    for library in INSTALLED:
        listed = {name for owner, name in TABLE if owner == library}
        assert classes(library) <= listed
        assert not newest or listed == classes(library)
    assert {name for _, name, _ in CASES} >= classes("torch.optim")


@pytest.mark.parametrize(("library", "name", "kwargs"), DONE_CASES, ids=map(label, DONE_CASES))
def test_done(library: str, name: str, kwargs: dict[str, Any]) -> None:
    """All state is there, nothing else has changed, and training goes on as if nobody had called it."""
    for missing in (False, True):
        if missing and kwargs.get("fused") and name == "SGD":  # torch's own fails on a late first gradient
            continue
        untouched, optimizer = made(library, name, kwargs), made(library, name, kwargs)
        before = everything_else(optimizer)
        assert optim.preinitialize(optimizer) is optimizer
        after = everything_else(optimizer)
        # Some take a hyperparameter that is None, as torch's `foreach`, for a choice to be made.
        after = ([{key: group[key] for key in old} for group, old in zip(after[0], before[0])], *after[1:])
        assert_same(after, before)
        early = outline(optimizer)
        for steps in (range(1), range(1, 20)):
            train(untouched, steps, missing)
            train(optimizer, steps, missing)
            assert outline(optimizer) == early
            assert_same(of(untouched), of(optimizer))
        assert outline(untouched)[0] == early[0]
        assert_same(*({i: one.state[p] for i, p in enumerate(of(one))} for one in (untouched, optimizer)))


@pytest.mark.parametrize(("library", "name", "kwargs"), REFUSED_CASES, ids=map(label, REFUSED_CASES))
def test_refused(library: str, name: str, kwargs: dict[str, Any]) -> None:
    pattern = REASONS[TABLE[library, name][0]]
    optimizer = made(library, name, kwargs)
    held = {key: value for key, value in optimizer.__dict__.items() if key in ("param_groups", "state")}
    before, generators = repr(copy.deepcopy(held)), (random.getstate(), numpy.random.get_state()[1].tolist())
    torchs = torch.get_rng_state()
    with pytest.raises(ValueError, match=f"(?s)^preinitialize: optimizer {name} cannot have its state .*({pattern})"):
        optim.preinitialize(optimizer)
    assert repr(held) == before and torch.equal(torch.get_rng_state(), torchs)
    assert generators == (random.getstate(), numpy.random.get_state()[1].tolist())


@every_case
def test_bytes(library: str, name: str, kwargs: dict[str, Any]) -> None:
    """Before the first step, and after it: the bytes that are there then, or an error, never another number."""
    done, foreseen = TABLE.get((library, name), (DONE, RIGHT))
    optimizer = made(library, name, kwargs)
    if foreseen != RIGHT:
        pattern = REASONS[done] if BYTES[foreseen] is None else BYTES[foreseen]
        with pytest.raises(
            ValueError, match=f"(?s)^state_bytes: the state of {name} cannot be foreseen: .*({pattern})"
        ):
            optim.state_bytes(optimizer)
        if BYTES[foreseen] is None:
            return
    there = allocated(optimizer)  # nothing, or what the constructor made
    early = optim.state_bytes(optimizer) if foreseen == RIGHT else None
    assert allocated(optimizer) == there
    train(optimizer, range(3), missing=False)
    expected = allocated(optimizer)
    assert early in (None, expected)
    if (library, name, kwargs) in CONFIGURED:
        fresh = made(library, name, kwargs)
        assert optim.state_bytes((type(fresh), of(fresh), {"lr": 0.1} | kwargs)) == expected
    for one in [optimizer, *([optim.preinitialize(made(library, name, kwargs))] if done == DONE else [])]:
        if pattern := REFUSED_LATER.get((library, name), BYTES[foreseen] if foreseen == "the state grows" else ""):
            with pytest.raises(ValueError, match=f"^state_bytes: the state of {name} cannot be foreseen: .*{pattern}"):
                optim.state_bytes(one)
        else:
            assert optim.state_bytes(one) == expected
