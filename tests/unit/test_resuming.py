"""Bound schedules, saved and resumed: in any order of loads, the run goes on bit for bit."""

import io

import pytest
import torch

from timesched import Clock, CosineAnnealingWithWarmupScheduler, bind


def parameters(n=1):
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(3)) for _ in range(n)]


def loop(optimizer, clock, scheduler, until):
    while clock.timestamp.batch < until:
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = torch.sin(p.detach() + clock.timestamp.batch.value)
        optimizer.step()
        clock.tick(samples=4, tokens=clock.timestamp.batch.value % 3 + 1)
        scheduler.step()


def build(tensor):
    optimizer = torch.optim.AdamW(parameters(2), lr=torch.tensor(0.1) if tensor else 0.1)
    clock = Clock("40tok")
    return optimizer, clock, bind(CosineAnnealingWithWarmupScheduler("0.2dur"), optimizer, clock)


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("order", ["ocs", "osc", "cos", "cso", "soc", "sco"])
def test_resuming_in_any_order_of_loads_is_exact(tensor, order, tmp_path):
    whole = build(tensor)
    loop(*whole, until=20)
    half = build(tensor)
    loop(*half, until=7)
    torch.save({"o": half[0].state_dict(), "c": half[1].state_dict(), "s": half[2].state_dict()}, tmp_path / "run.pt")
    saved = torch.load(tmp_path / "run.pt", weights_only=True)
    resumed = build(tensor)
    for p, q in zip(half[0].param_groups[0]["params"], resumed[0].param_groups[0]["params"]):
        q.data.copy_(p.data)
    parts = dict(zip("ocs", resumed))
    for each in order:
        parts[each].load_state_dict(saved[each])
    assert resumed[0].param_groups[0]["lr"] == half[0].param_groups[0]["lr"]
    loop(*resumed, until=20)
    for p, q in zip(whole[0].param_groups[0]["params"], resumed[0].param_groups[0]["params"]):
        assert torch.equal(p, q)
    assert whole[2].get_last_lr() == resumed[2].get_last_lr() and resumed[2].last_epoch == 20


def test_binding_after_the_optimizer_was_loaded_keeps_the_initial_rate():
    optimizer, clock, scheduler = build(False)
    loop(optimizer, clock, scheduler, until=7)
    fresh = torch.optim.AdamW(parameters(2), lr=0.1)
    fresh.load_state_dict(optimizer.state_dict())
    later = Clock("40tok")
    later.load_state_dict(clock.state_dict())
    assert bind(CosineAnnealingWithWarmupScheduler("0.2dur"), fresh, later).get_last_lr() == scheduler.get_last_lr()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"key": "weight_decay"}, "key is 'weight_decay' in the state, and 'lr' here"),
        ({"base": [1.0, 2.0]}, "1 parameter groups are selected"),
        ({"base": [float("nan")]}, "not a finite number"),
        ({"last_epoch": None}, "whole number"),
        ({"last_epoch": -1}, "whole number"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(change, words):
    scheduler = build(False)[2]
    before = scheduler.state_dict()
    with pytest.raises(ValueError, match=words):
        scheduler.load_state_dict(before | change)
    with pytest.raises(ValueError, match="lacks"):
        scheduler.load_state_dict({"last_epoch": 3})
    assert scheduler.state_dict() == before
    with pytest.raises(ValueError, match="set last_epoch, or the clock"):
        scheduler.step(3)


def test_state_of_a_saved_scheduler_is_plain():
    scheduler = build(True)[2]
    file = io.BytesIO()
    torch.save(scheduler.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    assert state == scheduler.state_dict()
    assert (state["key"], state["base"], state["last_epoch"], state["tags"]) == ("lr", [pytest.approx(0.1)], 0, None)
    assert state["schedule"]["class"] == "CosineAnnealingWithWarmupScheduler" and state["clock"]["batch"] == 0
