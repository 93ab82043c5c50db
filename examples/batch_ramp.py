"""Train the language model of composer_run.py in a loop whose batches grow, as
the schedule says, and its learning rate with the root of their size.

The model reads bytes: a token is a byte, and a sample has 128. The script prints
the batch size, the learning rate and the loss over the tokens, and draws them.
It needs Composer, of which the model is made.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import NamedTuple

import torch
from torch.utils.data import DataLoader, DistributedSampler

from timesched import (
    BatchSizeSampler,
    BatchSizeSchedule,
    Clock,
    ProductScheduler,
    WarmupStableDecayScheduler,
    bind,
)

LINES = 12  # of the table


class Row(NamedTuple):
    """One batch, and what it was trained with."""

    token: int
    size: int
    lr: float
    loss: float


def train(sizes: BatchSizeSchedule, duration: str) -> list[Row]:
    """One run of the demo's model."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # a second thread gains little with matrices this small
    demo = importlib.import_module("_demo_model")  # next to this script
    samples, model = demo.windows(demo.manual()[0]), demo.ByteModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    clock = Clock(duration, samples_per_batch=sizes, tokens_per_sample=demo.LENGTH)
    schedule = ProductScheduler([WarmupStableDecayScheduler("10ba", t_decay="0.2dur"), sizes.factor(power=0.5)])
    scheduler, rows = bind(schedule, optimizer, clock), []
    order: DistributedSampler[int] = DistributedSampler(samples, num_replicas=1, rank=0)
    loader = DataLoader(samples, batch_sampler=BatchSizeSampler(order, sizes, clock))
    while not clock.done:
        for batch in loader:
            loss = model.loss(model(batch), batch)
            loss.backward()
            rows.append(Row(clock.timestamp.token.value, len(batch), optimizer.param_groups[0]["lr"], loss.item()))
            optimizer.step()
            optimizer.zero_grad()
            clock.tick(samples=len(batch))
            scheduler.step()
            if clock.done:
                break
        else:
            clock.next_epoch()
    return rows


def draw(rows: list[Row], out: Path) -> None:
    """Learning rate and batch size over tokens."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots(2, sharex=True)
    axes[0].step([row.token for row in rows], [row.lr for row in rows], where="post")
    axes[1].step([row.token for row in rows], [row.size for row in rows], where="post")
    for axis, label in zip(axes, ("learning rate", "batch size (samples)")):
        axis.set(ylabel=label, ylim=(0, None))
    axes[1].set_xlabel("tokens")
    figure.savefig(out, dpi=150)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--batch-sizes", default="0:8 60K:16 150K:32", help="thresholds in tokens and sizes (%(default)s)")
parser.add_argument("--duration", default="300000tok", help="length of the run (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("batch_ramp.png"), help="the picture (%(default)s)")
args = parser.parse_args()
run = train(BatchSizeSchedule(args.batch_sizes, unit="tok"), args.duration)
for row in run[:: max(1, len(run) // LINES)]:
    print(f"token {row.token:7}   batch size {row.size:3}   LR {row.lr:.3e}   loss {row.loss:.3f}")
if importlib.util.find_spec("matplotlib"):
    draw(run, args.out)
