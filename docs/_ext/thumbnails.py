"""Small pictures of schedules: for the gallery, and as files in docs/_static/curves, which this script writes.

Run it after a change of CURVES, with the Python that `tools/env.py docs` prints and the checkout on PYTHONPATH.
"""

import math
from html import escape
from pathlib import Path

import timesched
from timesched.drawing.lines import Source, line
from timesched.drawing.svg import COLOURS

FOLDER = Path(__file__).parents[1] / "_static" / "curves"
WIDTH, HEIGHT, EDGE = 160, 60, 4
NEAR = 0.03  # so that no kink shows where a page draws a picture twice as wide

# The calls that docs/which.md and docs/recipes.md show, by the names of their pictures, each with a run.
CURVES = {
    "wsd": ('WarmupStableDecayScheduler("0.02dur", t_decay="0.2dur", decay="1-sqrt")', '"1000ba"'),
    "cosine": ('CosineAnnealingWithWarmupScheduler("0.01dur", alpha_f=0.1)', '"1000ba"'),
    "linear": ('LinearWithWarmupScheduler("0.1dur")', '"1000ba"'),
    "extend": ('WarmupStableDecayScheduler("1Btok", t_decay="0.1dur", decay="1-sqrt")', '"50Btok"'),
    "inverse_root": (
        'InverseSquareRootWithWarmupScheduler("1Btok", t_scale="1Btok", t_cooldown="2Btok")',
        '"20Btok"',
    ),
    "cooldown": ('CooldownScheduler(ConstantScheduler(), t_decay="2Btok", decay="1-sqrt")', '"10Btok"'),
    "infinite": (
        'PiecewiseScheduler([["0dur", 0.0], ["0.05dur", 1.0], ["0.15dur", 0.1, "cosine"], '
        '["0.8dur", 0.1], ["1dur", 0.01, "geometric"]])',
        '"1000ba"',
    ),
    "fine_tuning": ('LinearWithWarmupScheduler("0.06dur")', '"1000ba"'),
    "steps": ('MultiStepWithWarmupScheduler("5ep", ["30ep", "60ep", "80ep"])', '"90ep"'),
    "vision": ('CosineAnnealingWithWarmupScheduler("5ep")', '"300ep"'),
    "one_cycle": ("OneCycleScheduler()", '"1000ba"'),
    "rex": ("RexScheduler()", '"1000ba"'),
    "minicpm": (
        'WarmupStableDecayScheduler("8Btok", t_decay="100Btok", alpha_f=0.5**5, decay="geometric")',
        '"1.1Ttok"',
    ),
    "wsd_s": (
        'SequenceScheduler([WarmupStableDecayScheduler("10ba", t_decay="10ba", t_max="40ba"), '
        'WarmupStableDecayScheduler("0ba", t_decay="10ba", t_max="60ba")], ["40ba"])',
        '"100ba"',
    ),
    "deepseek": (
        'MultiStepWithWarmupScheduler("2000ba", milestones=["0.8dur", "0.9dur"], gamma=0.316)',
        '"100000ba"',
    ),
    "llama3": (
        'CooldownScheduler(CosineAnnealingWithWarmupScheduler("8000ba", alpha_f=0.01), t_decay="40e6tok")',
        '"15.6e12tok", samples_per_batch=2048, tokens_per_sample=8192',
    ),
    "llmfoundry": ('InverseSquareRootWithWarmupScheduler("10ba", t_scale="10ba", t_cooldown="20ba")', '"200ba"'),
    "power": (
        'CooldownScheduler(WarmupScheduler(PowerScheduler("10ba", power=0.51), "10ba"), t_decay="0.1dur")',
        '"100ba"',
    ),
    "momentum": ('ConstantWithWarmupScheduler("300ba", alpha_s=0.85 / 0.95)', '"1000ba"'),
    "noam": ('InverseSquareRootWithWarmupScheduler("4000ba", t_scale="4000ba", t_cooldown="0ba")', '"100000ba"'),
}

Points = list[tuple[float, float]]


def thumbnail(call: str, run: str, *others: str) -> str:
    """The curves of one or several schedules over a run, without numbers."""
    lines = []
    horizon = eval(f"Horizon({run})", dict(vars(timesched)))
    for each in (call, *others):
        drawn = line(Source(each, eval(each, dict(vars(timesched))), horizon))
        lines.append(list(zip(drawn.x, drawn.y)))
    return small(lines, call)


def small(lines: list[Points], label: str) -> str:
    """Lines as a small SVG; its lower edge is zero, or the lowest point below zero."""
    x, y = ([point[i] for points in lines for point in points] for i in (0, 1))
    y.append(0.0)
    across, up = ((max(each) - min(each)) or 1.0 for each in (x, y))
    drawn = ""
    for points, colour in zip(lines, COLOURS):
        placed = [
            (
                EDGE + (WIDTH - 2 * EDGE) * (a - min(x)) / across,
                HEIGHT - EDGE - (HEIGHT - 2 * EDGE) * (b - min(y)) / up,
            )
            for a, b in points
        ]
        text = " ".join(f"{a:.2f},{b:.2f}" for a, b in thinned(placed))
        looks = f'fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"'
        drawn = f'<polyline points="{text}" {looks}/>' + drawn
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img"><title>{escape(label)}</title>'
        f'<path d="M{EDGE} {EDGE}V{HEIGHT - EDGE}H{WIDTH - EDGE}" fill="none" stroke="#7d7d7d"/>{drawn}</svg>\n'
    )


def thinned(points: Points) -> Points:
    """Fewer points, from which a line is nowhere further than `NEAR` (Ramer, Douglas and Peucker)."""
    (x0, y0), (x1, y1) = points[0], points[-1]
    length = math.hypot(x1 - x0, y1 - y0) or 1.0
    away = [abs((x1 - x0) * (y0 - y) - (x0 - x) * (y1 - y0)) / length for x, y in points]
    if len(points) < 3 or max(away) < NEAR:
        return [points[0], points[-1]]
    far = away.index(max(away))
    return thinned(points[: far + 1])[:-1] + thinned(points[far:])


if __name__ == "__main__":
    for name, (call, run) in CURVES.items():
        (FOLDER / f"{name}.svg").write_text(thumbnail(call, run), encoding="utf-8")
