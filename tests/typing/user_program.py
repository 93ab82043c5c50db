"""A small program of a user, which strict type checkers accept: tests/packaging checks it as an installed package."""

import torch

import optim
from optim.lr_scheduler import CosineDecayLR, LinearLR, SequentialLR
from timesched import Clock, CosineAnnealingWithWarmupScheduler, Horizon, Time, bind
from timesched.schedulers import WarmupStableDecayScheduler

weight = torch.nn.Parameter(torch.ones(3))
optimizer = optim.AdamW([weight], lr=0.1)
clock = Clock("100ba", samples_per_batch=8, stop_at="0.5dur")
schedule = CosineAnnealingWithWarmupScheduler("10ba", alpha_f=0.1)
scheduler = bind(schedule, optimizer, clock)
value: float = schedule.at("50ba", Horizon("100ba"))
scheduler.step()
closed = SequentialLR(optimizer, [LinearLR(optimizer, 0.0, 0.1, 5), CosineDecayLR(optimizer, 0.1, 0.0, 10)], [5])
closed.step()
rate: list[float] = closed.get_last_lr()
length: Time[int] = Time(3, "ba")
wsd = WarmupStableDecayScheduler("10ba", decay="1-sqrt")
optimizer.hold_tensors()
clock.tick(samples=torch.tensor(3))
