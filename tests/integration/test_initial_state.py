"""preinitialize() and state_bytes() with Composer's own optimizers, also in the real Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import composer.optim
import pytest
import torch
from composer import Event

import optim
from tests.integration.training import BATCHES_PER_EPOCH, NextByte, assert_goes_on, finish, make_trainer, saving
from tests.optim.problems import (
    assert_same_training,
    differences,
    flat,
    give_gradients,
    held_bytes,
    parameters,
    snapshot,
)

SGDW, ADAMW = composer.optim.DecoupledSGDW, composer.optim.DecoupledAdamW
MOMENTUM = {"lr": 0.1, "momentum": 0.9}
ROWS: list[tuple[Any, dict[str, Any]]] = [
    (SGDW, {"lr": 0.1, "weight_decay": 1e-4}),
    (SGDW, MOMENTUM),
    (SGDW, {**MOMENTUM, "nesterov": True, "weight_decay": 1e-4}),
    (ADAMW, {}),
    (ADAMW, {"amsgrad": True}),
]


def make(kind: Any, arguments: dict[str, Any], dtype: torch.dtype = torch.float64) -> torch.optim.Optimizer:
    """In two groups with learning rates of their own."""
    params = parameters("Adam", dtype)
    optimizer: torch.optim.Optimizer = kind(
        [{"params": params[::2]}, {"params": params[1::2], "lr": 0.02}], **arguments
    )
    return optimizer


@pytest.mark.parametrize(("kind", "arguments"), ROWS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_training_is_the_same(kind: Any, arguments: dict[str, Any], dtype: torch.dtype) -> None:
    untouched, early = make(kind, arguments, dtype), make(kind, arguments, dtype)
    before = snapshot(early)
    assert optim.preinitialize(early) is early
    assert {key[0] for key in differences(before, snapshot(early))} == {"state"}
    assert optim.state_bytes(untouched) == optim.state_bytes(early) == held_bytes(early)
    assert_same_training(untouched, early)


@pytest.mark.parametrize("default", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("kind", "arguments"), ROWS)
def test_the_state_is_what_the_first_step_makes(kind: Any, arguments: dict[str, Any], default: torch.dtype) -> None:
    torch.set_default_dtype(default)
    try:
        stepped, early = make(kind, arguments), optim.preinitialize(make(kind, arguments))
        give_gradients(flat(stepped), 1, missing={})
        stepped.step()
    finally:
        torch.set_default_dtype(torch.float32)
    for p, q in zip(flat(stepped), flat(early), strict=True):
        assert list(early.state[q]) == list(stepped.state[p])
        for key, x in stepped.state[p].items():
            y = early.state[q][key]
            if x is None:
                assert y is None
            else:
                assert (x.shape, x.dtype, x.device) == (y.shape, y.dtype, y.device), key


def test_subclasses_have_the_state_of_their_base() -> None:
    class New(ADAMW):  # type: ignore[misc]  # without types
        pass

    class Late(ADAMW):  # type: ignore[misc]
        def step(self, closure: Any = None) -> Any:
            loss = super().step(closure)
            for p in flat(self):
                self.state[p].setdefault("late", torch.zeros_like(p))
            return loss

    untouched, early = make(New, {"amsgrad": True}), make(New, {"amsgrad": True})
    assert_same_training(untouched, optim.preinitialize(early))
    for kind in (Late, type("Later", (Late,), {})):
        optimizer = make(kind, {})
        for function in (optim.preinitialize, optim.state_bytes):
            with pytest.raises(ValueError, match=rf"^{function.__name__}: .*{kind.__name__}"):
                function(optimizer)
        assert not optimizer.state


def test_dampening_is_refused() -> None:
    optimizer = make(SGDW, {**MOMENTUM, "dampening": 0.5})
    with pytest.raises(ValueError, match=r"^preinitialize: dampening=0\.5: .*Pass dampening=0"):
        optim.preinitialize(optimizer)
    assert not optimizer.state


@pytest.mark.parametrize(("kind", "arguments"), [(SGDW, MOMENTUM), (ADAMW, {"lr": 0.05})])
def test_a_run_of_the_trainer_is_the_same_and_resumes(kind: Any, arguments: dict[str, Any], tmp_path: Path) -> None:
    def run(is_early: bool, **options: Any) -> dict[str, Any]:
        model = NextByte()
        optimizer = kind(model.parameters(), **arguments)
        if is_early:
            optim.preinitialize(optimizer)
        return finish(*make_trainer([], model, optimizer, max_duration=f"{2 * BATCHES_PER_EPOCH}ba", **options))

    middle = BATCHES_PER_EPOCH + 3
    full = run(False, **saving(tmp_path, (middle, Event.BATCH_CHECKPOINT)))
    assert_goes_on(full, run(True), 0)
    assert_goes_on(full, run(True, load_path=str(tmp_path / f"{middle}.pt")), middle)


def train_one_step(optimizer: torch.optim.Optimizer, step: int, multiplier: float) -> None:
    """A step on the gradients of its number, at a multiple of the first learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * multiplier
    give_gradients(flat(optimizer), step, missing={})
    optimizer.step()


def test_composers_state_in_adamw() -> None:
    """As docs/coming_from/composer.md says: Composer's weight decay multiplies lr / initial_lr."""
    arguments = {"lr": 0.02, "weight_decay": 1e-2}
    composers, ours = make(ADAMW, arguments), make(optim.AdamW, arguments)
    train_one_step(composers, 1, 1.0)
    train_one_step(composers, 2, 0.5)
    ours.load_state_dict(composers.state_dict())
    for group in ours.param_groups:
        group["weight_decay"] /= group["initial_lr"]
    for parameter, trained in zip(flat(ours), flat(composers)):
        parameter.data.copy_(trained)
    for step, multiplier in ((3, 0.25), (4, 0.1)):
        train_one_step(composers, step, multiplier)
        train_one_step(ours, step, multiplier)
        for parameter, trained in zip(flat(ours), flat(composers)):
            torch.testing.assert_close(parameter, trained, rtol=1e-12, atol=0)  # the order of the operations
