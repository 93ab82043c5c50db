"""Draws pictures in docs/_static: for the README, for averages.md and for results.md.

Run it with the Python that `tools/env.py docs` prints and the checkout on PYTHONPATH.
"""

import math
import sys
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure

import optim
from timesched import Clock, Horizon, WarmupStableDecayScheduler
from timesched.drawing.lines import Source, line
from timesched.drawing.svg import COLOURS

sys.path += [str(Path(__file__).parent / "_ext"), str(Path(__file__).parents[1] / "benchmarks")]
from _results import SEEDS, Results
from picture_style import LR_LABEL, as_svg, format_count, style
from results_batch_sizes import BATCH_SIZES, RECIPES, run_of
from results_batch_sizes import TOKENS as LEARNED

FOLDER = Path(__file__).parent / "_static"
TOKENS, TOKENS_PER_SAMPLE = "20Btok", 2048
SMALL, LARGE = 512, 1024  # samples per batch
WSD = WarmupStableDecayScheduler("0.02dur", t_decay="0.2dur", decay="1-sqrt")
WIDTHS = {SMALL: 5.0, LARGE: 2.0}  # both lines are seen where one is on top of the other

BATCHES = 200
AVERAGES: Any = {
    'half_life="20ba"': {"half_life": "20ba"},
    "half_life=0.1": {"half_life": 0.1},
    'start="0.6dur"': {"start": "0.6dur"},
}


def steps(samples_per_batch: int) -> int:
    """The steps of a run with batches of a size."""
    horizon = Horizon(TOKENS, samples_per_batch=samples_per_batch, tokens_per_sample=TOKENS_PER_SAMPLE)
    return math.ceil(20e9 / int(horizon.convert("1ba", "tok").value))


def draw_steps_and_tokens() -> Any:
    """One schedule at two batch sizes: over steps, where one of them ends at its peak, and over tokens."""
    figure: Any = Figure(figsize=(6.4, 2.9), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    in_steps = line(Source("", WSD, Horizon(f"{steps(SMALL)}ba")))
    in_tokens = line(Source("", WSD, Horizon(TOKENS)))
    for batch_size, width in WIDTHS.items():
        label = f"{batch_size} samples per batch"
        points = [(x, y) for x, y in zip(in_steps.x, in_steps.y) if x <= steps(batch_size)]
        left.plot(*zip(*points), linewidth=width, label=label)
        right.plot(in_tokens.x, in_tokens.y, linewidth=width)
    end = steps(LARGE)
    left.plot(end, 1.0, "o", color=COLOURS[1], markersize=8)
    left.annotate(f"ends after\n{end:,} steps,\nat its peak", (end, 0.93), ha="center", va="top")
    right.annotate("the same at\nboth batch sizes", (8e9, 0.93), ha="center", va="top")
    left.set(title="schedule in steps", xlabel="steps", ylabel=LR_LABEL, ylim=(0, 1.08), yticks=(0, 0.5, 1))
    right.set(title="schedule in tokens", xlabel="tokens")
    for ax in (left, right):
        ax.xaxis.set_major_formatter(format_count)
        ax.locator_params(axis="x", nbins=5)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def shares(**arguments: Any) -> list[float]:
    """The share of the weights of each batch in an average: batch i sets only weight i to 1."""
    weight, clock = torch.nn.Parameter(torch.zeros(BATCHES, dtype=torch.float64)), Clock(f"{BATCHES}ba")
    average = optim.WeightAverage([weight], clock, **arguments)
    for i in range(BATCHES):
        with torch.no_grad():
            weight.zero_()[i] = 1.0
        clock.tick()
        average.step()
    return average.state[weight]["average"].tolist()  # type: ignore[no-any-return]  # of a flat tensor


def draw_averages() -> Any:
    """The share of the weights of each batch in three averages."""
    figure: Any = Figure(figsize=(7.2, 3.2), layout="constrained")
    ax = figure.add_subplot()
    for label, arguments in AVERAGES.items():
        ax.plot(range(1, BATCHES + 1), shares(**arguments), label=label)
    ax.set(xlabel="batches", ylabel="share of the average")
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def draw_batch_sizes() -> Any:
    """The losses of four recipes over tokens at five batch sizes: means of the seeds, as measured in benchmarks."""
    found = Results("batch_sizes").found
    figure: Any = Figure(figsize=(7.2, 5.4), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True, sharey=True)
    for ax, recipe in zip(axes.flat, RECIPES):
        for batch_size in BATCH_SIZES:
            curves = [found[run_of(recipe, batch_size, seed)]["curve"] for seed in SEEDS]
            tokens = [LEARNED * (i + 1) / len(curves[0]) for i in range(len(curves[0]))]
            losses = [sum(values) / len(values) for values in zip(*curves)]
            ax.plot(tokens, losses, label=f"batch {batch_size}")
        ax.set_title(recipe, fontsize=12)
        ax.set_ylim(2.0, 4.5)
        ax.xaxis.set_major_formatter(format_count)
    figure.supxlabel("tokens", fontsize=12)
    figure.supylabel("bits per byte", fontsize=12)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=len(BATCH_SIZES))
    return figure


DRAWN = {"steps_and_tokens": draw_steps_and_tokens, "averages": draw_averages, "batch_sizes": draw_batch_sizes}

if __name__ == "__main__":
    for name, draw in DRAWN.items():
        with matplotlib.rc_context(style(name)):
            (FOLDER / f"{name}.svg").write_text(as_svg(draw()), encoding="utf-8")
