"""The recipes of docs/half_lives.md, docs/learning_rates.md and docs/loop.md have the values of their formulas."""

import datetime
import math

import pytest
import torch

import optim
from timesched import *  # noqa: F403  # these are tests of all that is public

COSINE = CosineAnnealingWithWarmupScheduler("0.1dur", alpha_f=0.01)


@pytest.mark.parametrize("schedule", [COSINE, WarmupStableDecayScheduler("7ba", decay="1-sqrt"), LinearScheduler()])
@pytest.mark.parametrize("peak, weight_decay", [(3e-4, 0.1), (0.02, 0.033), (1.7e-3, 1.0)])
def test_weight_decay_in_proportion_to_the_learning_rate(schedule, peak, weight_decay):
    """AdamC, arXiv:2506.02285: weight_decay * lr_t / lr_max."""
    optimizer = optim.AdamW([torch.nn.Parameter(torch.ones(1))], lr=peak, weight_decay=weight_decay)
    clock, (group,) = Clock("97ba"), optimizer.param_groups
    schedulers = [bind(schedule, optimizer, clock, key=key) for key in ("lr", "weight_decay")]
    while not clock.done:
        assert group["weight_decay"] == pytest.approx(weight_decay * group["lr"] / peak, rel=1e-15, abs=0)
        clock.tick()
        for scheduler in schedulers:
            scheduler.step()
    assert group["lr"] == pytest.approx(peak * schedule.at("1dur", clock))


@pytest.mark.parametrize("samples", [64, 256, 777, 4096])
@pytest.mark.parametrize("tokens", [10**9, 123_456_789_012, 3 * 10**12])
@pytest.mark.parametrize("lr_ref, weight_decay_ref", [(0.02, 0.28), (3e-4, 0.1)])
def test_weight_decay_of_nanochat(samples, tokens, lr_ref, weight_decay_ref):
    """Its formula: weight_decay_ref * sqrt(B / B_ref) * (D_ref / D), where lr = lr_ref * sqrt(B / B_ref)."""
    batch, batch_ref, tokens_ref = samples * 2048, 2**19, 4_404_019_200
    root = math.sqrt(batch / batch_ref)
    share = batch_ref / (lr_ref * weight_decay_ref * tokens_ref)
    run = Horizon(f"{tokens}tok", samples_per_batch=samples, tokens_per_sample=2048)
    weight_decay = weight_decay_for(f"{share}dur", lr_ref * root, run)
    assert weight_decay == pytest.approx(weight_decay_ref * root * (tokens_ref / tokens), rel=1e-15, abs=0)


def test_a_learning_rate_and_a_warmup_for_one_module():
    model = torch.nn.ModuleDict({"body": torch.nn.Linear(2, 2), "head": torch.nn.Linear(2, 1)})
    groups = optim.configure_param_groups(model, [{"params": "head.*", "lr": 0.02, "tags": "head"}])
    optimizer, clock = optim.AdamW(groups, lr=0.001), Clock("100ba")
    schedulers = [
        bind(COSINE, optimizer, clock, tags=[None]),
        bind(WarmupScheduler(COSINE, "40ba"), optimizer, clock, tags="head"),
    ]
    names = {id(p): name for name, p in model.named_parameters()}
    while not clock.done:
        batch, multiplier = clock.timestamp.batch.value, COSINE(clock)
        warm = COSINE.at("40ba", clock) * batch / 40 if batch < 40 else multiplier
        for group in optimizer.param_groups:
            is_head = names[id(group["params"][0])].startswith("head")
            assert group["lr"] == pytest.approx(0.02 * warm if is_head else 0.001 * multiplier, rel=1e-15, abs=0)
        clock.tick()
        for scheduler in schedulers:
            scheduler.step()


def test_a_schedule_on_the_wall_clock():
    schedule = WarmupStableDecayScheduler("60sec", t_decay="0.25dur")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    clock = Clock("1h")
    scheduler = bind(schedule, optimizer, clock)
    generator, total = torch.Generator().manual_seed(0), 0
    while not clock.done:
        microseconds = int(torch.randint(10**6, 10**8, (), generator=generator))
        optimizer.step()
        clock.tick(duration=datetime.timedelta(microseconds=microseconds))
        scheduler.step()
        total += microseconds
        expected = 0.1 * max(min(total / 60e6, (3600e6 - total) / 900e6, 1.0), 0.0)
        assert scheduler.get_last_lr()[0] == pytest.approx(expected, rel=1e-15, abs=0)
    assert total >= 3600e6 and scheduler.get_last_lr() == [0.0]
