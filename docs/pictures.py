"""Draws docs/_static/three_schedules.svg, the README's picture, with the Python that `tools/env.py docs` prints."""

import io
import re
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from timesched import (
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

with matplotlib.rc_context(STYLE):
    figure: Any = Figure(figsize=(7.2, 3.2), layout="constrained")
    ax = figure.add_subplot()
    for label, schedule in SCHEDULES.items():
        schedule.plot(RUN, ax=ax, label=label)
    ax.set_ylabel("multiplier")
    ax.locator_params(axis="x", nbins=5)
    ax.get_legend().remove()
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    FILE.write_text(re.sub(r" +\n", "\n", file.getvalue()), encoding="utf-8")
