"""Draws two pictures in docs/_static with the Python that `tools/env.py docs` prints: the README's, and
that of averages.md.
"""

import io
import re
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure

import optim
from timesched import (
    Clock,
    CosineAnnealingWithWarmupScheduler,
    Horizon,
    InverseSquareRootWithWarmupScheduler,
    WarmupStableDecayScheduler,
)

FILE = Path(__file__).parent / "_static" / "three_schedules.svg"
GRAY = "#7d7d7d"  # as far from white as from the ground of GitHub's dark mode
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": FILE.stem,  # the same ids in each run
    "font.size": 11,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), GRAY),
}
RUN = Horizon("20e9tok")
SCHEDULES = {
    "cosine with warmup": CosineAnnealingWithWarmupScheduler("1e9tok", alpha_f=0.1),
    "warmup-stable-decay (WSD)": WarmupStableDecayScheduler("1e9tok", t_decay="0.2dur", decay="1-sqrt"),
    "inverse square root": InverseSquareRootWithWarmupScheduler("1e9tok", t_scale="1e9tok", t_cooldown="0.1dur"),
}

BATCHES = 200
AVERAGES: Any = {
    'half_life="20ba"': {"half_life": "20ba"},
    "half_life=0.1": {"half_life": 0.1},
    'start="0.6dur"': {"start": "0.6dur"},
}


def remembered(**arguments: Any) -> list[float]:
    """How much an average has of the weights of each batch: batch i sets weight i alone to 1."""
    weight, clock = torch.nn.Parameter(torch.zeros(BATCHES, dtype=torch.float64)), Clock(f"{BATCHES}ba")
    average = optim.WeightAverage([weight], clock, **arguments)
    for i in range(BATCHES):
        with torch.no_grad():
            weight.zero_()[i] = 1.0
        clock.tick()
        average.step()
    return average.state[weight]["average"].tolist()  # type: ignore[no-any-return]  # of a flat tensor


def save(figure: Any, path: Path) -> None:
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    path.write_text(re.sub(r" +\n", "\n", file.getvalue()), encoding="utf-8")


with matplotlib.rc_context(STYLE):
    figure: Any = Figure(figsize=(7.2, 3.2), layout="constrained")
    ax = figure.add_subplot()
    for label, schedule in SCHEDULES.items():
        schedule.plot(RUN, ax=ax, label=label)
    ax.set_ylabel("multiplier")
    ax.locator_params(axis="x", nbins=5)
    ax.get_legend().remove()
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    save(figure, FILE)

    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    ax = figure.add_subplot()
    for label, arguments in AVERAGES.items():
        ax.plot(range(1, BATCHES + 1), remembered(**arguments), label=label)
    ax.set_xlabel("batch")
    ax.set_ylabel("share of the average")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    save(figure, FILE.with_name("averages.svg"))
